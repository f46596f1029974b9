"""⑨ View of a session, a fold over its events: everything on the screen comes from here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from autotune.records import InTurns
from autotune.result import MeasureStatus
from autotune.tuner import (
    BatchMeasured,
    Budget,
    CandidateBuilt,
    CandidateMeasured,
    DefaultsMeasured,
    DevicesChanged,
    Event,
    FinalistsMeasured,
    NetworkChosen,
    NetworkProgress,
    NetworkTried,
    Outlook,
    SessionStarted,
    TaskFinished,
    TaskSelected,
    TaskStop,
    Totals,
    TuningTask,
)
from autotune.units import counted, format_duration, gflops


@dataclass(slots=True)
class TaskRow:
    """Row of a task on the screen."""

    id: int
    task: TuningTask
    n_trials: int = 0
    best_s: float | None = None
    finished: str = ""

    @property
    def gflops_text(self) -> str:
        """Rate of the best program."""
        rate = gflops(self.task.flops, self.best_s)
        return f"{rate:.1f}" if rate else "-"

    @property
    def bound_text(self) -> str:
        """Share of the roofline bound that the best program reaches, in percent."""
        bound = self.task.bound_s
        return f"{100 * bound / self.best_s:.0f}" if bound and self.best_s else "-"


@dataclass(slots=True)
class View:
    """A session as its events tell it. Everything on the screen comes from here."""

    rows: dict[str, TaskRow] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    current: str = ""
    elapsed_s: float = 0.0
    n_trials: int = 0
    totals: Totals = field(default_factory=Totals)
    outlook: Outlook | None = None
    has_begun: bool = False
    """Whether tasks and budget are known."""
    gained: InTurns | None = None
    """What an earlier session gained."""
    is_final: bool = False
    in_network: str = ""
    """What is done in the compiled network, at the end."""
    is_stopping: bool = False
    statuses: Counter[MeasureStatus] = field(default_factory=Counter)
    devices: dict[str, int] = field(default_factory=dict)
    """Trials of each device that measures now, of a fleet."""
    batch: tuple[int, int] = (0, 0)
    """Candidates of the batch that are measured, and all of them."""
    n_built: int = 0
    """Candidates of the batch that are built."""
    notes: list[str] = field(default_factory=list)
    """What a user should know, by the session and by those before it."""
    _on_device: Counter[str] = field(default_factory=Counter)

    def apply(self, event: Event) -> None:
        """Take one event into account."""
        match event:
            case SessionStarted():
                rows = [
                    TaskRow(i, p.task, p.n_trials, p.best_s, stop_text(p.stop))
                    for i, p in enumerate(event.tasks)
                ]
                self.has_begun, self.rows = True, {row.task.key: row for row in rows}
                self.budget, self.elapsed_s = event.budget, event.elapsed_s
                self.n_trials, self.totals = event.n_replayed, event.totals
                self.outlook, self.gained = event.outlook, event.in_turns
            case DefaultsMeasured():
                self.outlook = event.outlook
            case TaskSelected(task=task):
                self.current, self.batch, self.n_built = task, (0, 0), 0
            case CandidateBuilt(task=task, n_done=n_done, n_batch=n_batch):
                self.current, self.batch, self.n_built = task, (0, n_batch), n_done
                self.elapsed_s = event.elapsed_s
            case CandidateMeasured(task=task, n_done=n_done, n_batch=n_batch):
                self.current, self.batch = task, (n_done, n_batch)
                self.n_built = self.n_built if n_done else 0
            case BatchMeasured():
                self._batch(event)
            case DevicesChanged(devices=names):
                self.devices = {name: self._on_device[name] for name in names}
            case TaskFinished(task=task, reason=reason):
                self.rows[task].finished = stop_text(reason)
            case FinalistsMeasured(task=task, best_s=best_s):
                self.current, self.is_final = task, True
                self.rows[task].best_s = best_s
                self.elapsed_s, self.totals = event.elapsed_s, event.totals
            case NetworkProgress():
                self.in_network = network_text(event)
            case NetworkTried():
                self.in_network = tried_text(event)
            case NetworkChosen():
                self.in_network = chosen_text(event)

    def _batch(self, event: BatchMeasured) -> None:
        row, self.batch, self.n_built = self.rows[event.task], (0, 0), 0
        row.best_s, row.n_trials = event.best_s, event.n_trials
        self.elapsed_s, self.n_trials = event.elapsed_s, event.session_trials
        self.totals = event.totals
        self.statuses.update(r.status for r in event.results)
        self._on_device.update(r.device for r in event.results)
        self.devices = {name: self._on_device[name] for name in self.devices}

    @property
    def is_building(self) -> bool:
        """Whether candidates are built; a fleet builds and measures at a time."""
        n_done, n_batch = self.batch
        return not n_done and self.n_built < n_batch and not self.devices

    def share_done(self, elapsed_s: float) -> float | None:
        """Share of the budget that is spent, 0 to 1: of the limit that comes first, if any."""
        shares = []
        if self.budget.time_s:
            shares.append(elapsed_s / self.budget.time_s)
        if self.budget.trials:
            shares.append(self.n_trials / self.budget.trials)
        return min(1.0, max(shares)) if shares else None

    def left_text(self, elapsed_s: float) -> str:
        """Remaining budget: `8m45s or 46 trials left`."""
        parts = []
        if self.budget.time_s is not None:
            parts.append(format_duration(self.budget.time_s - elapsed_s))
        if self.budget.trials is not None:
            parts.append(counted(max(0, self.budget.trials - self.n_trials), "trial"))
        return f"{' or '.join(parts)} left" if parts else "no limit of time or trials"


def stop_text(stop: TaskStop | None) -> str:
    """`at bound`; nothing for a task that goes on."""
    return stop.value.replace("_", " ") if stop is not None else ""


_DOING = {
    "compiling": "compiling network {n}",
    "profiling": "timing {n} networks, kernel by kernel",
    "timing": "timing the network with {n} changed",
}


def network_text(event: NetworkProgress) -> str:
    """`finalists in the network: timing 4 networks, kernel by kernel`."""
    return f"finalists in the network: {_DOING[event.doing].format(n=event.n)}"


def tried_text(event: NetworkTried) -> str:
    """`finalists in the network: 5 changes, 1.021x (1.015x to 1.030x), kept`."""
    kept = "kept" if event.is_kept else "not kept"
    low, high = 1 / event.high, 1 / event.low
    ratios = f"{1 / event.ratio:.3f}x ({low:.3f}x to {high:.3f}x)"
    return f"finalists in the network: {counted(event.n_changes, 'change')}, {ratios}, {kept}"


def chosen_text(event: NetworkChosen) -> str:
    """`finalists in the network: 5 tasks chosen otherwise than alone, 1.021x`."""
    if not event.n_tried:
        return "finalists in the network: no time to try any"
    if not event.changed:
        return "finalists in the network: what is fastest alone is kept"
    tasks = counted(len(event.changed), "task")
    return f"finalists in the network: {tasks} chosen otherwise than alone, {1 / event.ratio:.3f}x"
