"""Made-up CPUs, the same on every machine, and this machine taken for one of them.

A test whose expectation depends on the CPU names one of these. What holds on every CPU may ask for
`host_target()`: `pytest --cpu NAME` answers with a made-up one.
"""

from __future__ import annotations

from collections.abc import Mapping

import llvmlite.binding as llvm
import pytest

from autotune.codegen.image.jit import Library
from autotune.measure.processes.process import Child
from autotune.target import Target, cpu, cpuid, host_target, runs_here, tiles
from autotune.target.isa import FEATURES, NAMES

_KIB, _MIB = 1 << 10, 1 << 20


def _made_up(name: str, l2_bytes: int, l3_bytes: int) -> Target:
    isa = NAMES[name]
    return Target(name, "", isa.vector_bits, isa.n_registers, 32 * _KIB, l2_bytes, l3_bytes, 4)


AVX2 = _made_up("x86-64-v3", 256 * _KIB, 8 * _MIB)
AVX512 = _made_up("x86-64-v4", 1 * _MIB, 24 * _MIB)
VNNI = _made_up("cascadelake", 1 * _MIB, 36 * _MIB)
BF16 = _made_up("znver4", 1 * _MIB, 32 * _MIB)
AMX = _made_up("sapphirerapids", 2 * _MIB, 105 * _MIB)

CPUS: Mapping[str, Target] = {
    "avx2": AVX2,
    "avx512": AVX512,
    "vnni": VNNI,
    "bf16": BF16,
    "amx": AMX,
}
"""Each by what it has and those before it have not."""

RUNNABLE = tuple(t for t in CPUS.values() if runs_here(t))
"""Those whose code this machine runs."""

_WIDER = ("amx", "avx10", "avx512", "avxifma", "avxneconvert", "avxvnni")
_WITH_AVX512 = {"avx512cd", "avx512dq"}


def take_for(made_up: Target, patch: pytest.MonkeyPatch) -> None:
    """Let `host_target()` and `runs_here()` answer as on `made_up`.

    Where this machine does not run its code, tests end as skipped where code would begin to run:
    what precedes is tested. Processes that tests start see the real machine. Where this machine
    is such a CPU, there is nothing to add to tests without `--cpu`.
    """
    if host_target().isa == made_up.isa:
        pytest.exit(f"this machine has what {made_up.cpu} has: tested without --cpu", 0)
    if not runs_here(made_up):
        for kind, method in ((Library, "__init__"), (Child, "start")):
            patch.setattr(kind, method, _skip)
    features, sizes = _features(made_up), (made_up.l1_bytes, made_up.l2_bytes, made_up.l3_bytes)
    patch.setattr(llvm, "get_host_cpu_features", lambda: features)
    patch.setattr(cpuid, "features", lambda: features)
    patch.setattr(llvm, "get_host_cpu_name", lambda: made_up.cpu)
    patch.setattr(cpu, "_cache_bytes", lambda level: sizes[level - 1])
    patch.setattr(tiles, "request_tiles", lambda: features.get(tiles.FEATURE, False))
    tiles.tile_permission.cache_clear()


def _features(made_up: Target) -> dict[str, bool]:
    """What such a CPU has, as far as this one tells: of what came with wider vectors, its own."""
    own = {*made_up.isa.requires, *FEATURES.get(made_up.cpu, ())}
    own |= _WITH_AVX512 if "avx512f" in own else set()
    found = {n: h and not n.startswith(_WIDER) for n, h in llvm.get_host_cpu_features().items()}
    return found | dict.fromkeys(own, True)


def _skip(*_: object, **__: object) -> None:
    pytest.skip("this machine does not run code for that CPU", allow_module_level=True)
