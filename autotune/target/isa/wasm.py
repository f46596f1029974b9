"""Floor 0: WebAssembly with 32-bit addresses, vectors of 128 bits and relaxed multiply-adds.

One thread. A multiply-add rounds once or twice, as the processor of the engine has it; denormal
numbers are kept, since code cannot choose.
"""

from __future__ import annotations

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
)

_KIB, _MIB = 1 << 10, 1 << 20
# Of the processors that browsers run on: two ports of 128 bits that an engine's code keeps busy.
_ENGINE = Core(ports=2.0, load_ports=2.0, fma_latency=4.0, issue_width=4.0, clock_hz=3.0e9)

WASM32 = Architecture(
    name="wasm32",
    triple="wasm32-unknown-emscripten",  # the one whose code LLVM lets be placed anywhere
    isas=(SIMD128,),
    processors={
        "wasm32": Processor(
            SIMD128, frozenset(), _ENGINE, 32 * _KIB, 512 * _KIB, 8 * _MIB, "generic"
        )
    },
    probe="",
    common="+bulk-memory,+multivalue,+mutable-globals,+nontrapping-fptoint,+sign-ext",
    emission={"-disable-lsr=true": "-disable-lsr=false"},  # it takes offsets out of accesses
)
