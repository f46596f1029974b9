"""⑦ This machine as a `Device`: processes on socket pairs build and run programs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from autotune.machine import read_limits
from autotune.measure.build import Build, build_program
from autotune.measure.measurer import Measurer, measurer_of
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.builder import LocalBuilder
from autotune.measure.processes.run_worker import setup
from autotune.measure.processes.runner import LocalRunner
from autotune.measure.timing.peak import Peaks, measure_peaks, stay_cached
from autotune.target import Target
from autotune.target.isa import MultiplyAdd


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """This machine: `target` describes its CPU, and `n_threads` of it run one program."""

    target: Target
    n_threads: int = 1

    def peaks(self, evict: bool, dots: Collection[MultiplyAdd] = ()) -> Peaks:
        """Peaks of all threads together: see `peak.measure_peaks`."""
        return measure_peaks(self.target, self.n_threads, evict, dots)

    def stays_cached(self, n_bytes: int, flops: int) -> bool:
        """Whether `n_bytes` stay in the shared cache between inferences: see `peak.stay_cached`."""
        return stay_cached(self.target, self.n_threads, n_bytes, flops)

    def builder(self, options: MeasureOptions, build: Build = build_program) -> LocalBuilder:
        """A pool of builder processes, as many as `options` say."""
        return local_builder(self.target, options, build)

    def runner(self, options: MeasureOptions) -> LocalRunner:
        """One isolated run worker."""
        return LocalRunner(setup(self.target, self.n_threads, options), options)


def local_builder(target: Target, options: MeasureOptions, build: Build) -> LocalBuilder:
    """A pool of builder processes, as many as `options` say."""
    return LocalBuilder(
        build,
        target,
        options.n_builders or read_limits().n_busy,
        options.build_timeout_s,
        options.start_timeout_s,
        options.builder_bytes,
    )


def local_measurer(
    target: Target,
    n_threads: int = 1,
    options: MeasureOptions | None = None,
    build: Build = build_program,
) -> Measurer:
    """A measurer on this machine; `n_threads` threads run a program."""
    return measurer_of(LocalDevice(target, n_threads), options or MeasureOptions(), build)
