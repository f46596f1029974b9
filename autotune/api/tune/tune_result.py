"""⑪ A search from its first event to its last, and its result or the reason for none.

run_to_end(start, log, show) ─► TuneResult
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autotune.api.showing import Show, showing
from autotune.display.lines import in_turns_text
from autotune.errors import NoValidSchedule
from autotune.records import InTurns, read_log
from autotune.tuner import Event, NetworkTimed, SessionFinished, StopReason, of_target
from autotune.units import counted, format_seconds

Events: TypeAlias = Generator[Event, None, None]
"""A search, event by event; to close it ends the search in an orderly way."""


@dataclass(frozen=True, slots=True, repr=False)
class TuneResult:
    """Result of a search: its `log`, and the latency of the network in seconds.

    `before`: untuned, `after`: from the log, as sums over the same calls; None where nothing can be
    compared. `finished`: the last event, which tells the rest. All of the first kind of CPU;
    `others`: the last events of the other kinds of a fleet. `in_turns`: the compiled network beside
    the untuned one; None where it was not timed.
    """

    log: Path
    finished: SessionFinished
    others: tuple[SessionFinished, ...] = ()
    in_turns: InTurns | None = None

    @property
    def before(self) -> float | None:
        """Latency of the programs that the analytic cost model chooses, in seconds."""
        return self.finished.totals.untuned_s or None

    @property
    def after(self) -> float | None:
        """Latency of the best programs of the log, in seconds."""
        return self.finished.totals.tuned_s or None

    @property
    def trials(self) -> int:
        """Number of measured candidates, those of earlier runs of the log included."""
        return self.finished.n_trials

    def __repr__(self) -> str:
        seconds = "nothing to compare"
        if self.before and self.after:
            seconds = f"{format_seconds(self.before)} -> {format_seconds(self.after)}"
        if self.in_turns:
            seconds = f"{in_turns_text(self.in_turns)}; estimate {seconds}"
        return f"TuneResult({_ending(str(self.log))}: {seconds}, {counted(self.trials, 'trial')})"

    def _repr_html_(self) -> str:
        from autotune.api.reporting import report

        return report(self.log)._repr_html_()


def _ending(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"…{text[-_MOST_SHOWN:]}"


_MOST_SHOWN = 120
"""Characters of a path that are shown."""


def run_to_end(start: Callable[[], Events], log: Path, show: Show) -> TuneResult:
    """Show a search as `show` says, until it ends. Raises as the search, and as `require_valid`."""
    found: dict[str, SessionFinished] = {}
    in_turns = None
    with showing(show) as tell, closing(start()) as events:
        for event in events:
            tell(event)
            target, own = of_target(event)
            if isinstance(own, SessionFinished):
                found[target] = own
            if isinstance(own, NetworkTimed):
                in_turns = own.in_turns
    for finished in found.values():
        require_valid(finished, log)
    first, *others = found.values()
    return TuneResult(log, first, tuple(others), in_turns)


def require_valid(finished: SessionFinished, log: Path) -> None:
    """Raise NoValidSchedule where no candidate of a task works and the search was not stopped."""
    if not finished.invalid or finished.reason is StopReason.INTERRUPTED:
        return
    ids = {key: str(i) for i, (key, _) in enumerate(read_log(log).header.tasks)}
    names = [ids[key] for key in finished.invalid]
    causes = ", ".join(f"{n} {status}" for status, n in finished.failures.items())
    raise NoValidSchedule(
        f"no candidate of task {', '.join(names)} was valid ({causes})",
        f"see why: autotune explain {log} --task {names[0]}",
    )
