"""⑦ Protocols of measuring: a `Device`, its `Builder` and its `Runner`, over any transport.

    candidates --Builder.build--> BuildResults --Runner.run--> MeasureResults

`Measurer` composes a builder and a runner and knows nothing else of them. This machine is
`local.LocalDevice`, whose builder and runner are processes on socket pairs. Another transport
brings its own classes and uses the same messages (`messages`): plain JSON and bytes, none of which
is executed or unpickled on arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from autotune.measure.build import Build
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.messages import BuildResult, Time
from autotune.measure.timing.peak import Peaks
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class Built:
    """So many candidates of a batch are built, while none of it is measured yet."""

    n_done: int


class Abandoned(Exception):
    """The results of a build are not wanted any more."""


class Builder(Protocol):
    """Lowers and compiles candidates for one target."""

    @property
    def pids(self) -> list[int]:
        """Ids of the processes of this machine that it runs now."""
        ...

    @property
    def n_built(self) -> int:
        """Candidates that the last `build` has done; another thread may ask meanwhile."""
        ...

    def build(self, dag: ComputeDAG, candidates: Sequence[Steps]) -> list[BuildResult]:
        """One result per candidate, in order; a failed one has a status. Raises Abandoned."""
        ...

    def abandon(self) -> None:
        """Make a `build` in another thread raise Abandoned within a fraction of a second."""
        ...

    def close(self) -> None:
        """Free all processes; a later build starts new ones."""
        ...


class Runner(Protocol):
    """A machine, or several equal ones, that checks and times programs, one at a time on each.

    `run` may be called in so many threads at a time as `n_slots` says.
    """

    @property
    def n_slots(self) -> int:
        """Batches that keep it busy; 1: one, and nothing may be built meanwhile (`Measurer`)."""
        ...

    @property
    def devices(self) -> Sequence[str]:
        """Names of its machines, where it has several."""
        ...

    @property
    def pids(self) -> list[int]:
        """Ids of the processes of this machine that it runs now."""
        ...

    def start(self) -> None:
        """Start the processes of `run` without waiting for them."""
        ...

    def run(
        self, dag: ComputeDAG, built: Sequence[BuildResult], time: Time
    ) -> Iterator[MeasureResult]:
        """One result per element of `built`, in order, each as soon as it is there.

        What was not built, does not run or computes wrong numbers has a status. Raises WorkerError
        where the machine cannot be reached or the inputs of the task cannot be made.
        """
        ...

    def close(self) -> None:
        """Free all processes; a later run starts new ones."""
        ...


@runtime_checkable
class TellsOfMachines(Protocol):
    """A runner that tells what is wrong with its machines."""

    @property
    def noises(self) -> Mapping[str, Mapping[str, Any]]:
        """Noise as `NoiseWatch.to_json` has it, by the name of the machine."""
        ...

    @property
    def left_out(self) -> Mapping[str, LeftOut]:
        """Machines that measure no more, by their addresses."""
        ...


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A machine that measures no more, and the reason as one line."""

    device: str
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"device {self.device} is left out: {self.reason}"


class Device(Protocol):
    """A machine that is measured: its CPU, its peaks, its builder and its runner."""

    @property
    def target(self) -> Target:
        """The CPU."""
        ...

    @property
    def n_threads(self) -> int:
        """Threads that run one program."""
        ...

    def peaks(self, evict: bool, dots: Collection[MultiplyAdd] = ()) -> Peaks:
        """Peaks of all threads together: see `peak.measure_peaks`."""
        ...

    def stays_cached(self, n_bytes: int, flops: int) -> bool:
        """Whether bytes that every inference reads stay in the shared cache (`peak`)."""
        ...

    def builder(self, options: MeasureOptions, build: Build) -> Builder:
        """A builder for the CPU; it need not run on the machine itself."""
        ...

    def runner(self, options: MeasureOptions) -> Runner:
        """The only runner of the machine while it is open, unless others can take turns."""
        ...
