"""Floor 0: AArch64: Neon with its dot products, and SVE whose vectors have a known length.

Matrix multiply-adds of 2 × 8 × 2 bytes (`smmla`, `bfmmla`) are no forms: lanes of their sums mix
rows of one operand with rows of the other, and a register holds no row of results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.target.isa.record import Architecture, Core, Isa, MultiplyAdd, Processor

_FLUSH_TO_ZERO = 1 << 24
"""A bit of FPCR: for results and operands."""

# Every thread sets its control register before its first kernel and restores it after the last.
_DENORMALS_IR = f"""
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

; Returns what `restore_denormals` wants.
define internal i32 @flush_denormals() {{
  %old = call i64 @llvm.aarch64.get.fpcr()
  %new = or i64 %old, {_FLUSH_TO_ZERO}
  call void @llvm.aarch64.set.fpcr(i64 %new)
  %former = trunc i64 %old to i32
  ret i32 %former
}}

define internal void @restore_denormals(i32 %old) {{
  %former = zext i32 %old to i64
  call void @llvm.aarch64.set.fpcr(i64 %former)
  ret void
}}
"""
_FUTEX = 98


def _dot(
    name: str,
    a: str,
    b: str,
    sizes: tuple[str, str],
    feature: str,
    scalable: str,
    same_as: str = "",
) -> MultiplyAdd:
    """A dot product; `sizes`: of the sums and of the factors, `scalable`: the one of SVE."""
    is_float = sizes[0].endswith("f32")
    sve = dict.fromkeys((256, 512), f"llvm.aarch64.sve.{scalable}")
    return MultiplyAdd(
        name,
        (a, b),
        "float32" if is_float else "int32",
        terms=2 if is_float else 4,
        intrinsics={128: f"llvm.aarch64.neon.{name}.{'.'.join(sizes)}", **sve},
        features=(feature,),
        same_as=same_as,
        scalable_bits=256,
    )


_BYTES = ("v4i32", "v16i8")
_FMA = MultiplyAdd("fma", ("float32", "float32"), "float32")
_SDOT = _dot("sdot", "int8", "int8", _BYTES, "dotprod", "sdot.nxv4i32")
_UDOT = _dot("udot", "uint8", "uint8", _BYTES, "dotprod", "udot.nxv4i32")
_USDOT = _dot("usdot", "uint8", "int8", _BYTES, "i8mm", "usdot.nxv4i32", "vpdpbusd")
_BFDOT = _dot("bfdot", "bfloat16", "bfloat16", ("v4f32", "v8bf16"), "bf16", "bfdot", "vdpbf16ps")

NEON = Isa(
    name="neon",
    requires=("neon",),
    vector_bits=128,
    n_registers=32,
    forms=(_FMA, _BFDOT, _USDOT, _SDOT, _UDOT),
    pause="llvm.aarch64.hint",
    pause_argument="i32 1",
    line_flushes={},
    denormals_ir=_DENORMALS_IR,
    futex=_FUTEX,
)
SVE128 = replace(NEON, name="sve-128", requires=("neon", "sve"), vscale=1, is_scalable=True)
SVE256 = replace(SVE128, name="sve-256", vector_bits=256, vscale=2)
SVE512 = replace(SVE128, name="sve-512", vector_bits=512, vscale=4)

_KIB, _MIB = 1 << 10, 1 << 20
_V8_2 = frozenset({"lse", "rdm", "fullfp16", "rcpc", "dotprod"})
_V8_6 = _V8_2 | {"i8mm", "bf16"}

# Widths and latencies are those of Arm's Software Optimization Guides of the cores, which name
# pipelines, their instructions and latencies; caches those of the best-known chip with it.
_A72 = Core(  # two 64-bit pipelines, one load a cycle; Raspberry Pi 4
    ports=1.0, load_ports=1.0, fma_latency=7.0, issue_width=3.0, l2_bytes_per_cycle=16.0,
    l3_bytes_per_cycle=4.0, memory_bytes_per_cycle=2.5, clock_hz=1.5e9,
)  # fmt: skip
_A76 = Core(  # Raspberry Pi 5
    ports=2.0, load_ports=2.0, fma_latency=4.0, issue_width=4.0, l2_bytes_per_cycle=32.0,
    l3_bytes_per_cycle=8.0, memory_bytes_per_cycle=4.0, clock_hz=2.4e9,
)  # fmt: skip
_N1 = replace(_A76, memory_bytes_per_cycle=6.0, clock_hz=2.5e9)  # Graviton 2
_V1 = Core(  # four pipelines of 128 bits, two of SVE's 256; Graviton 3
    ports=2.0, load_ports=2.0, fma_latency=4.0, issue_width=8.0, l2_bytes_per_cycle=64.0,
    l3_bytes_per_cycle=10.0, memory_bytes_per_cycle=8.0, clock_hz=2.6e9,
)  # fmt: skip
_V2 = replace(_V1, ports=4.0, load_ports=3.0, clock_hz=2.8e9)  # four of 128 bits; Graviton 4
_FIRESTORM = replace(_V2, memory_bytes_per_cycle=18.0, clock_hz=3.2e9)
_A64FX = Core(  # Fujitsu's A64FX Microarchitecture Manual; 12 cores share an L2, there is no L3
    ports=2.0, load_ports=2.0, fma_latency=9.0, issue_width=4.0, l2_bytes_per_cycle=64.0,
    l3_bytes_per_cycle=32.0, memory_bytes_per_cycle=16.0, clock_hz=2.2e9,
)  # fmt: skip

_SVE = Processor(SVE256, _V8_6, _V1, 64 * _KIB, _MIB, 32 * _MIB, "generic")
PROCESSORS: Mapping[str, Processor] = {
    "cortex-a72": Processor(NEON, frozenset(), _A72, 32 * _KIB, _MIB, _MIB, "cortex-a72"),
    "cortex-a76": Processor(NEON, _V8_2, _A76, 64 * _KIB, 512 * _KIB, 2 * _MIB, "cortex-a76"),
    "neoverse-n1": Processor(NEON, _V8_2, _N1, 64 * _KIB, _MIB, 32 * _MIB, "neoverse-n1"),
    "neoverse-v1": Processor(SVE256, _V8_6, _V1, 64 * _KIB, _MIB, 32 * _MIB, "neoverse-v1"),
    "neoverse-v2": Processor(SVE128, _V8_6, _V2, 64 * _KIB, 2 * _MIB, 36 * _MIB, "neoverse-v2"),
    "apple-m1": Processor(NEON, _V8_2, _FIRESTORM, 128 * _KIB, 3 * _MIB, 12 * _MIB, "apple-m1"),
    "a64fx": Processor(
        SVE512, _V8_2 - {"rcpc", "dotprod"}, _A64FX, 64 * _KIB, 640 * _KIB, 8 * _MIB, "a64fx"
    ),
    "armv8-a": Processor(NEON, frozenset(), _A72, 32 * _KIB, 512 * _KIB, _MIB, "generic"),
    "armv8-a-sve256": _SVE,
    "armv8-a-sve512": replace(_SVE, isa=SVE512),
}
"""CPUs that can be a target, by LLVM's names, and levels of the architecture."""

AARCH64 = Architecture(
    name="aarch64",
    triple="aarch64-unknown-linux-gnu",
    isas=(SVE512, SVE256, SVE128, NEON),
    processors=PROCESSORS,
    probe="arm.c",
    unknown_core=lambda cpu: _N1,
    capabilities={
        "neon": ("AT_HWCAP", 1),
        "lse": ("AT_HWCAP", 8),
        "fullfp16": ("AT_HWCAP", 10),
        "rdm": ("AT_HWCAP", 12),
        "rcpc": ("AT_HWCAP", 15),
        "dotprod": ("AT_HWCAP", 20),
        "sve": ("AT_HWCAP", 22),
        "i8mm": ("AT_HWCAP2", 13),
        "bf16": ("AT_HWCAP2", 14),
    },
)
