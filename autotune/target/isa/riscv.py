"""Floor 0: RISC-V with 64 bits and the vector extension, whose registers have a least length."""

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

RVV128 = Isa(
    name="rvv-128",
    requires=("v", "zvl128b"),
    vector_bits=128,
    n_registers=32,
    forms=(MultiplyAdd("fma", ("float32", "float32"), "float32"),),
    pause="llvm.riscv.pause",
    line_flushes={},
    denormals_ir=NO_DENORMAL_MODE,
    futex=98,
    is_scalable=True,
    converts_float16=False,  # what has Zvfh has instructions for it
)
RVV256 = replace(RVV128, name="rvv-256", requires=("v", "zvl256b"), vector_bits=256)

_KIB, _MIB = 1 << 10, 1 << 20
# In order, two instructions a cycle, registers of 256 bits behind ports of 128: SpacemiT's K1.
_X60 = Core(
    ports=1.0, load_ports=1.0, port_bits=128, fma_latency=5.0, issue_width=2.0,
    l2_bytes_per_cycle=8.0, l3_bytes_per_cycle=4.0, memory_bytes_per_cycle=2.0, clock_hz=1.6e9,
)  # fmt: skip
_LEVEL = Processor(RVV128, frozenset(), _X60, 32 * _KIB, 256 * _KIB, _MIB, "generic-rv64")

RISCV64 = Architecture(
    name="riscv64",
    triple="riscv64-unknown-linux-gnu",
    isas=(RVV256, RVV128),
    processors={"rv64gcv": _LEVEL, "rv64gcv-zvl256b": replace(_LEVEL, isa=RVV256)},
    probe="riscv.c",
    abi="lp64d",
    common="+m,+a,+f,+d,+c,+zihintpause,-relax",
    capabilities={"v": ("AT_HWCAP", ord("V") - ord("A"))},
)
