"""⑩ Facts of this machine, of what is installed on it, and of compiled networks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune.cache import cache_folder
from autotune.codec import to_json
from autotune.conditions import Conditions, read_conditions
from autotune.machine import whole_cpus
from autotune.measure.local import LocalDevice
from autotune.measure.timing.peak import fma_peaks
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.numbers import extents_text
from autotune.network.runtime.loading import read_artifact
from autotune.target import Target, host_target, llvm_version, runs_here
from autotune.version import __version__

_PACKAGES = ("numpy", "llvmlite", "lightgbm", "onnx", "onnxruntime", "openvino", "ziglang", "torch")
_RUNS = 9


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Peak rates of `n_threads` threads, per second, and how steady they are.

    `flops`: by the form of multiply-add. `spread`: of nine runs of the same loop, by how much the
    median is slower than the fastest, as a share.
    """

    n_threads: int
    flops: Mapping[str, float]
    l2_bytes: float
    memory_bytes: float
    spread: float


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """What `autotune info` tells.

    `target`: the CPU as the compiler sees it; `forms`: its multiply-adds. `peaks`: of one thread
    and of all, none where nothing was measured. `versions`: of the packages that are installed.
    `variables`: those of the environment that change what autotune does.
    """

    conditions: Conditions
    target: Target
    forms: tuple[str, ...]
    peaks: tuple[PeakRates, ...]
    versions: Mapping[str, str]
    cache: str
    cache_bytes: int
    variables: Mapping[str, str]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Named values; rates are per second, sizes are bytes."""
        return to_json(self)


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """A CPU that an artifact has code for: `has_all` its features are here; `is_taken` here."""

    cpu: str
    vector_bits: int
    has_all: bool
    is_taken: bool
    n_threads: int
    n_tuned: int
    max_error: float | None


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """What `autotune info OUT` tells of a compiled network. `shapes`: of the inputs, by variant."""

    name: str
    autotune_version: str
    precision: str
    cpus: tuple[CpuInfo, ...]
    shapes: tuple[str, ...]
    n_segments: int
    bytes: int
    weights_bytes: int
    code_bytes: int

    def to_json(self) -> dict[str, object]:
        """Named values."""
        return to_json(self)


def artifact_info(path: Path) -> ArtifactInfo:
    """The facts of a file that `compile` wrote. Raises as `read_artifact`."""
    found = read_artifact(path)
    several = found.by_cpu
    fitting = [runs_here(one.target) for one in several]
    first = fitting.index(True) if True in fitting else None
    cpus = [
        CpuInfo(
            cpu=one.target.cpu,
            vector_bits=one.target.vector_bits,
            has_all=fits,
            is_taken=n == first,
            n_threads=one.n_threads,
            n_tuned=len(one.tuned),
            max_error=one.max_error,
        )
        for n, (one, fits) in enumerate(zip(several, fitting, strict=True))
    ]
    return ArtifactInfo(
        found.name,
        found.autotune_version,
        found.precision,
        tuple(cpus),
        tuple(_inputs_text(variant) for variant in found.variants),
        len(getattr(found, "segments", ())) or 1,
        path.stat().st_size,
        found.constants.nbytes,
        len(found.image.data),
    )


def _inputs_text(artifact: Artifact) -> str:
    return "; ".join(f"{end.name} ({extents_text(end)})" for end in artifact.own_inputs)


def machine_info(
    target: Target | None = None,
    measure: bool = True,
    variables: Mapping[str, str] | None = None,
    tell: Callable[[int, int], None] = lambda n, total: None,
) -> MachineInfo:
    """The facts of this machine. `target`: a CPU in place of its own one.

    With `measure`, peak rates as well, for some seconds; of a CPU that can run here. `tell` is
    called with how many numbers of threads were measured, of how many.
    """
    target = target or host_target()
    conditions = read_conditions()
    threads: tuple[int, ...] = ()
    if measure and runs_here(target):
        threads = tuple(dict.fromkeys((1, whole_cpus(conditions.cpus))))
    peaks = []
    for done, n in enumerate(threads):
        tell(done, len(threads))
        peaks.append(_peaks(target, n))
    folder = cache_folder()
    return MachineInfo(
        conditions=conditions,
        target=target,
        forms=tuple(form.name for form in target.isa.forms),
        peaks=tuple(peaks),
        versions=machine_versions(),
        cache=str(folder),
        cache_bytes=_size(folder),
        variables=dict(variables or {}),
        advice=conditions.advice,
    )


def _peaks(target: Target, n_threads: int) -> PeakRates:
    """The peak rates of so many threads."""
    forms = [form for form in target.isa.forms if form.terms > 1]
    found = LocalDevice(target, n_threads).peaks(evict=True, dots=forms)
    runs = sorted(fma_peaks(target, n_threads, _RUNS))
    first = target.isa.forms[0].name
    return PeakRates(
        n_threads,
        {first: found.flops_per_s} | {form.name: rate for form, rate in found.dots},
        found.warm_bytes_per_s,
        found.cold_bytes_per_s,
        1 - runs[_RUNS // 2] / runs[-1],
    )


def machine_versions() -> dict[str, str]:
    """Versions of this package and of those that it uses, as far as they are installed."""
    found = {"autotune": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["llvm"] = llvm_version()
    return found


def _size(folder: Path) -> int:
    """Bytes of the files in a folder, as far as they can be read."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
