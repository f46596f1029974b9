"""⑦ Any machine as a `Device`: the measuring program behind a command (`program`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autotune.cache import program_store
from autotune.errors import UsageError
from autotune.measure.build import Build, build_program
from autotune.measure.far.program import (
    ProgramExecutor,
    connected,
    described_by,
    measuring_program,
)
from autotune.measure.local import local_builder
from autotune.measure.options import MeasureOptions
from autotune.measure.processes import run_worker
from autotune.measure.processes.builder import LocalBuilder
from autotune.measure.processes.runner import LocalRunner
from autotune.measure.timing.executor import Executors
from autotune.measure.timing.peak import Peaks, measure_peaks, stay_cached
from autotune.target import Target
from autotune.target.isa import MultiplyAdd


@dataclass(frozen=True, slots=True)
class ProgramDevice:
    """The machine that `command` reaches: `target` describes its CPU, `n_threads` run a program.

    A process here makes the inputs and compares the outputs; one there computes.
    """

    command: str
    target: Target
    n_threads: int = 1
    program: bytes = field(default=b"", repr=False)
    engine: str = ""
    """As of `MachineFacts`."""

    def peaks(self, evict: bool, dots: Collection[MultiplyAdd] = ()) -> Peaks:
        """Peaks of all threads together: see `peak.measure_peaks`. Raises WorkerError."""
        with self._executors() as executors:
            return measure_peaks(self.target, self.n_threads, evict, dots, executors)

    def stays_cached(self, n_bytes: int, flops: int) -> bool:
        """Whether `n_bytes` stay in the shared cache: see `peak.stay_cached`."""
        with self._executors() as executors:
            return stay_cached(self.target, self.n_threads, n_bytes, flops, executors)

    def builder(self, options: MeasureOptions, build: Build = build_program) -> LocalBuilder:
        """Builder processes of this machine."""
        return local_builder(self.target, options, build)

    def runner(self, options: MeasureOptions) -> LocalRunner:
        """One worker process here, and the program there."""
        far = run_worker.FarSide(self.command, self.program)
        return LocalRunner(run_worker.setup(self.target, self.n_threads, options, far), options)

    @contextmanager
    def _executors(self) -> Iterator[Executors]:
        with connected(self.command, self.program) as connection:
            yield lambda n: ProgramExecutor(connection, self.target, n)


def program_device(command: str, target: Target, n_threads: int = 0) -> ProgramDevice:
    """The device of a command: caches, and threads where 0 are asked for, are those of the machine.

    Raises UsageError for a command that cannot be run and for threads that the target has not,
    WorkerError where the program does not start, MissingDependency without a compiler of C for it.
    """
    if n_threads > 1 and not target.isa.has_threads:
        raise UsageError(f"a program for {target.cpu} has one thread", "leave `threads` out")
    program = measuring_program(target, program_store())
    with connected(command, program) as connection:
        facts = connection.facts()
    n_threads = n_threads or max(1, len(facts.cpus))
    return ProgramDevice(command, described_by(target, facts), n_threads, program, facts.engine)
