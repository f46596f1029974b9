"""Floor 0: WebAssembly with 32-bit addresses, vectors of 128 bits and relaxed multiply-adds.

One thread, or several with the feature `atomics`. A multiply-add rounds once or twice, as the
processor of the engine has it; denormal numbers are kept, since code cannot choose.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.target.isa.record import (
    NO_DENORMAL_MODE,
    Architecture,
    Core,
    Isa,
    MultiplyAdd,
    Processor,
)

_DOT_INT16 = MultiplyAdd(
    "dot_i16x8_s",
    ("int16", "int16"),
    "int32",
    terms=2,
    intrinsics={128: "llvm.wasm.dot"},
    accumulates=False,
    same_as="vpmaddwd",
)

SIMD128 = Isa(
    name="wasm-simd128",
    requires=("simd128", "relaxed-simd"),
    vector_bits=128,
    n_registers=15,  # V8 keeps one of the 16 of x86-64 for itself
    forms=(MultiplyAdd("fma", ("float32", "float32"), "float32"), _DOT_INT16),
    pause="llvm.donothing",
    line_flushes={},
    denormals_ir=NO_DENORMAL_MODE,
    futex=0,
    multiply_add="fmuladd",
    offset_flags="nuw",
    keeps_order=False,  # "register stackification" moves a value to its only use
    converts_float16=False,
    has_lrint=False,
    threads="atomics",
)
_SYSTEM = """
declare void @autotune_sleep(i32, i32)
declare void @autotune_wake(i32, i32)
define internal i64 @native.sleep_while(i64 %at, i64 %value) {
  %p = trunc i64 %at to i32
  %v = trunc i64 %value to i32
  call void @autotune_sleep(i32 %p, i32 %v)
  ret i64 0
}
define internal i64 @native.wake(i64 %at, i64 %count) {
  %p = trunc i64 %at to i32
  %n = trunc i64 %count to i32
  call void @autotune_wake(i32 %p, i32 %n)
  ret i64 0
}
; Workers are there before the first call, and nothing is timed.
define internal i64 @native.give_way() {
  ret i64 0
}
define internal i64 @native.start_thread(i64 %f, i64 %argument) {
  ret i64 -1
}
define internal i64 @native.bind_thread(i64 %mask, i64 %n_bytes) {
  ret i64 -1
}
define internal i64 @native.nanoseconds() {
  ret i64 0
}"""
SHARED = replace(
    SIMD128,
    name="wasm-simd128-shared",
    requires=(*SIMD128.requires, SIMD128.threads),
    threads="",
    system_ir=_SYSTEM,
)
"""Of a memory that workers share."""

_KIB, _MIB = 1 << 10, 1 << 20
# Of the processors that browsers run on: two ports of 128 bits that an engine's code keeps busy.
_ENGINE = Core(ports=2.0, load_ports=2.0, fma_latency=4.0, issue_width=4.0, clock_hz=3.0e9)

WASM32 = Architecture(
    name="wasm32",
    triple="wasm32-unknown-emscripten",  # the one whose code LLVM lets be placed anywhere
    isas=(SHARED, SIMD128),
    processors={
        "wasm32": Processor(
            SIMD128, frozenset(), _ENGINE, 32 * _KIB, 512 * _KIB, 8 * _MIB, "generic"
        )
    },
    probe="",
    common="+bulk-memory,+multivalue,+mutable-globals,+nontrapping-fptoint,+sign-ext",
    emission={"-disable-lsr=true": "-disable-lsr=false"},  # it takes offsets out of accesses
    is_module=True,
)
