"""Floor 0: x86-64: AVX2 with FMA, and AVX-512."""

from __future__ import annotations

from dataclasses import replace

from autotune.target.isa import x86_tiles
from autotune.target.isa.record import Isa, MultiplyAdd

_FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
"""Bits of MXCSR: for results, for operands."""

_FUTEX = 202

# A denormal operand costs an Intel core a hundred cycles, and networks have many: a masked softmax
# gives masked elements weights of about e^-100. So denormals are flushed to zero while kernels run:
# every thread sets its control register before its first kernel and restores it after the last.
_DENORMALS_IR = f"""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

; Returns what `restore_denormals` wants.
define internal i32 @flush_denormals() {{
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %old = load i32, ptr %at
  %new = or i32 %old, {_FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO}
  store i32 %new, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret i32 %old
}}

define internal void @restore_denormals(i32 %old) {{
  %at = alloca i32
  store i32 %old, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}}
"""

# `clflush` waits for one line after the other; one fence behind `clflushopt` waits for all.
_LINE_FLUSHES = {"clflushopt": "llvm.x86.clflushopt", "sse2": "llvm.x86.sse2.clflush"}
_WIDTHS = (128, 256, 512)
_FMA = MultiplyAdd("fma", ("float32", "float32"), "float32")
_DOT_BF16 = MultiplyAdd(
    "vdpbf16ps",
    ("bfloat16", "bfloat16"),
    "float32",
    terms=2,
    intrinsics={b: f"llvm.x86.avx512bf16.dpbf16ps.{b}" for b in _WIDTHS},
    features=("avx512bf16",),
)
_DOT_INT8 = MultiplyAdd(
    "vpdpbusd",
    ("uint8", "int8"),
    "int32",
    terms=4,
    intrinsics={b: f"llvm.x86.avx512.vpdpbusd.{b}" for b in _WIDTHS},
    features=("avx512vnni",),
)
# AVX-VNNI has no wider vectors than 256 bits; LLVM's intrinsic is the same.
_DOT_INT8_VEX = replace(_DOT_INT8, features=("avxvnni", "avx512vnni"))
# Products of bytes in pairs, exact: `vpmaddubsw`, which takes bytes, saturates at 16 bits.
_DOT_INT16 = MultiplyAdd(
    "vpmaddwd",
    ("int16", "int16"),
    "int32",
    terms=2,
    intrinsics={
        128: "llvm.x86.sse2.pmadd.wd",
        256: "llvm.x86.avx2.pmadd.wd",
        512: "llvm.x86.avx512.pmaddw.d.512",
    },
    accumulates=False,
)
_DOT_INT16_512 = replace(_DOT_INT16, features=("avx512bw",))

# Exact where the unsigned bytes are below 128: 2·127·128 is less than 2^15.
_BYTE_PAIRS = {
    128: "llvm.x86.ssse3.pmadd.ub.sw.128",
    256: "llvm.x86.avx2.pmadd.ub.sw",
    512: "llvm.x86.avx512.pmaddubs.w.512",
}

# LLVM moves bytes with `insertq`, for which a Zen 3 takes a hundred nanoseconds.
_AVOIDED = ("sse4a",)

AVX2 = Isa(
    name="x86-64-v3",
    requires=("avx2", "fma"),
    vector_bits=256,
    n_registers=16,
    forms=(_FMA, _DOT_INT8_VEX, _DOT_INT16),
    pause="llvm.x86.sse2.pause",
    line_flushes=_LINE_FLUSHES,
    denormals_ir=_DENORMALS_IR,
    futex=_FUTEX,
    byte_pairs=_BYTE_PAIRS,
    avoided=_AVOIDED,
)
AVX512 = Isa(
    name="x86-64-v4",
    requires=("avx512f", "avx512vl"),
    vector_bits=512,
    n_registers=32,
    forms=(_FMA, _DOT_BF16, _DOT_INT8, _DOT_INT16_512, *x86_tiles.FORMS, *x86_tiles.EMULATED),
    pause="llvm.x86.sse2.pause",
    line_flushes=_LINE_FLUSHES,
    denormals_ir=_DENORMALS_IR,
    futex=_FUTEX,
    reciprocal="llvm.x86.avx512.rcp14.ps",
    scale="llvm.x86.avx512.mask.scalef.ps",
    estimate_lanes=(4, 8, 16),
    lane_lookup="llvm.x86.avx512.permvar.sf.512",
    byte_lookup="llvm.x86.avx512.vpermi2var.qi.512",
    byte_lookup_feature="avx512vbmi",
    byte_pairs=_BYTE_PAIRS,
    avoided=_AVOIDED,
)
