"""⑪ Several runs at a time into one log: one for each kind of CPU in a fleet.

    SeveralTunings([Tuning, …]).events() ─► OfTarget(key, event), …

They take turns in one thread: while one waits for its devices, another searches.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from itertools import count

from autotune.api.request import Note
from autotune.api.tune.tuning import Tuning
from autotune.api.tune.warm import WarmStart
from autotune.measure.processes.process import WorkerError
from autotune.tuner import Event, OfTarget


class SeveralTunings:
    """Runs of a session that are ready to start. `note` is told of one that ends early."""

    def __init__(self, tunings: Sequence[Tuning], note: Note, n_records: int = 0) -> None:
        """`n_records`: of the log; those of all runs are numbered on from there."""
        self._tunings, self._note = tunings, note
        numbers = count(n_records)
        for tuning in tunings:
            tuning.numbers = numbers

    @property
    def warm(self) -> WarmStart:
        """Warm start of the first."""
        return self._tunings[0].warm

    def events(self) -> Generator[Event, None, None]:
        """Tune for all; the last event of each is SessionFinished.

        Where the devices of one are lost for good, the others go on; the error is raised at last.
        """
        lost: list[WorkerError] = []
        with ExitStack() as stack:
            running = {
                tuning.target.key: stack.enter_context(closing(tuning.turns()))
                for tuning in self._tunings
            }
            while running:
                for key in list(running):
                    try:
                        is_waiting = yield from _turn(key, running[key])
                    except WorkerError as error:
                        lost.append(error)
                        self._note(f"{key}: {error.message}")
                        is_waiting = False
                    if not is_waiting:
                        del running[key]
        if lost:
            raise lost[0]


def _turn(key: str, turns: Generator[Event | None, None, None]) -> Generator[OfTarget, None, bool]:
    """Events until a run waits; False when it has ended."""
    for event in turns:
        if event is None:
            return True
        yield OfTarget(key, event)
    return False
