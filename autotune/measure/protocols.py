"""⑦ What measuring is made of: a `Builder` and a `Runner`, wherever they are and however reached.

    candidates --Builder.build--> BuildResults --Runner.run--> MeasureResults

`Measurer` composes the two and knows nothing else of them. Those of this machine are processes on
socket pairs (`builder`, `runner`). Another transport brings its own two classes and uses the same
messages (`messages`): plain JSON and bytes, none of which is executed or unpickled on arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from autotune.measure.messages import BuildResult, Time
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG


class Abandoned(Exception):
    """The results of a build are not wanted any more."""


class Builder(Protocol):
    """Lowers and compiles candidates for one target."""

    @property
    def pids(self) -> list[int]:
        """Ids of the processes of this machine that it runs now."""
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
    """One machine that checks and times programs. Only one of its programs runs at any time."""

    @property
    def pids(self) -> list[int]:
        """Ids of the processes of this machine that it runs now."""
        ...

    def start(self) -> None:
        """Start what `run` needs without waiting for it."""
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
