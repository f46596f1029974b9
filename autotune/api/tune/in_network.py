"""⑪ Finalists in the compiled network: what wins there is the best of its task.

    alternatives of tasks and chains ─► networks, each with one alternative of many of them
    timed kernel by kernel, in turns ─► what is faster there than what is fastest alone
    whole inferences, in turns       ─► kept where the network is faster beyond its noise

A task alone has caches to itself, no layout before and after it, and no thread that it waits for.
All programs that are tried here have computed the right numbers alone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.api.bindings import variants_of
from autotune.api.compile.compiling import made_networks, measured_networks, plan_of_log
from autotune.api.compile.selection import CompilePlan
from autotune.api.request import CompileRequest, Note, never, silent
from autotune.api.sources import model_bytes
from autotune.api.tune.comparable import require_comparable
from autotune.errors import AutotuneError
from autotune.graph.network import Network
from autotune.machine import read_limits
from autotune.measure.memory_plan import private_bytes
from autotune.network.bench.alternatives import (
    Point,
    TaskSeconds,
    points_of,
    seconds_by_task,
    whole_ratio,
)
from autotune.network.bench.gate import GateVerdict, median_interval
from autotune.network.runtime.loading import proved_model
from autotune.network.runtime.runtime import Model
from autotune.records import InNetwork, MeasureRecord, ranked_records, read_log
from autotune.schedule.steps import Algorithm
from autotune.tuner import Event, NetworkChosen, NetworkProgress, NetworkTried, NetworkWinner

_HEAVY = 0.95
"""Of the time of all tasks: the heaviest that make up so much have alternatives."""
_NEAR, _DIFFERENT = 1.15, 1.4
"""Times the best alone: programs that are tried, and those of another algorithm or structure."""
_MOST_LEVELS = 3
"""Alternatives of a task that are tried, one in a network each."""
_GAINS = 0.985
"""Of its time: what gains less by kernel is not told from noise."""
_COMPILING, _PROFILING, _FIRST_TRY = 0.45, 0.7, 0.7
"""Shares of the time after which no further network is compiled, and profiling ends; and of what is
left, for the first try of a whole network."""
_MOST_TRIES = 4
_LEAST_S = 1.0
"""With less time nothing is tried."""


@dataclass(frozen=True)
class Change:
    """One decision made otherwise: another program of a task, or the other side of chains.

    `keys`: tasks whose calls tell what it gains; `taken`: whether tasks replace their parts.
    """

    keys: tuple[str, ...]
    programs: Mapping[str, MeasureRecord] = field(default_factory=dict)
    taken: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class _Gain:
    """A change, what its tasks take then over what they took, and the seconds that it gains."""

    change: Change
    ratio: float
    gain_s: float


def in_network(
    path: Path,
    time_s: float,
    stop: Callable[[], bool] = never,
    note: Note = silent,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Event, None, Sequence[NetworkWinner]]:
    """Try finalists of the log at `path` in its network, for about `time_s` seconds.

    Gives what won there. Where the network cannot run here, `note` says so and nothing is tried.
    """
    if time_s < _LEAST_S:
        return ()
    try:
        search = _Search(path, time_s, stop, clock)
        found = yield from search.run()
    except AutotuneError as error:
        note(f"no finalists in the compiled network: {error.message}")
        return ()
    return found


class _Search:
    """The networks that are compiled, and the clock that they are compiled and timed against."""

    def __init__(
        self, path: Path, time_s: float, stop: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._begun_s, self._time_s, self._clock, self._stop = clock(), time_s, clock, stop
        log = read_log(path)
        require_comparable(log)
        self._shares = [variant.share for variant in variants_of(log.header)]
        request = CompileRequest(log=path, target="log", check=False, store="none")
        plan = plan_of_log(request)
        self._sources = sources = plan.sources()
        self._measured = measured = measured_networks(sources.networks, plan)
        self._networks, self._best = measured.networks, measured.best
        self._n_known = 1 + max((r.sequence for r in log.records), default=-1)
        self._most = _most_models(plan)
        self._taken: dict[str, bool] = {}

    def run(self) -> Generator[Event, None, Sequence[NetworkWinner]]:
        """Progress, and what won."""
        yield NetworkProgress("compiling", 0)
        base = self._model(())
        called = _tasks_in(base)
        wholes = {key for network in self._networks for key in network.parts}
        self._taken = {key: key in called for key in wholes & self._best.keys()}
        levels = self._levels(called)
        models: list[Model] = []
        for changes in levels:
            is_late = self._is_after(_COMPILING if models else 1.0)
            if is_late or self._stop() or len(models) + 2 > self._most:
                break
            yield NetworkProgress("compiling", len(models) + 1)
            models.append(self._model(changes))
        if not models or self._stop():
            yield NetworkChosen(0, (), 1.0)
            return ()
        yield NetworkProgress("profiling", len(models) + 1)
        points = points_of(base, self._shares)
        left_s = _PROFILING * self._time_s - self._spent_s()
        seconds = seconds_by_task([base, *models], points, left_s, self._stop)
        del models
        tried = list(zip(levels, seconds[1:], strict=False))
        n_tried = sum(len(changes) for changes, _ in tried)
        gains = picked(seconds[0], tried, points)
        whole_s = seconds[0].of([*called], points)
        winners, ratio = yield from self._tried(base, points, gains, whole_s)
        yield NetworkChosen(n_tried, tuple(dict.fromkeys(w.task for w in winners)), ratio)
        return winners

    def _tried(
        self, base: Model, points: Sequence[Point], gains: Sequence[_Gain], whole_s: float
    ) -> Generator[Event, None, tuple[Sequence[NetworkWinner], float]]:
        """Whole inferences with all gains, and with fewer where those are not faster.

        `whole_s`: of all tasks.
        """
        for _ in range(_MOST_TRIES):
            if not gains or self._stop() or self._is_after(1.0):
                break
            yield NetworkProgress("timing", len(gains))
            now = self._model([gain.change for gain in gains])
            left_s = max(0.0, _FIRST_TRY * (self._time_s - self._spent_s()))
            found, likely = whole_ratio(now, base, points, left_s, self._stop)
            expected = 1.0 - sum(gain.gain_s for gain in gains) / whole_s
            is_kept = is_faster(found, likely, expected) and not self._stop()
            yield NetworkTried(len(gains), found.ratio, found.low, found.high, is_kept)
            if is_kept:
                return [w for gain in gains for w in self._winners(gain, found)], found.ratio
            gains = gains[: len(gains) // 2]
        return (), 1.0

    def _winners(self, gain: _Gain, found: GateVerdict) -> Iterator[NetworkWinner]:
        """The records that tell of a change."""
        change = gain.change
        told = InNetwork(
            found.ratio, found.low, found.high, found.n_rounds, gain.ratio, self._n_known
        )
        for key, record in change.programs.items():
            before = self._best[key].in_network
            is_taken = before.is_taken if before else None
            yield NetworkWinner(key, record, replace(told, is_taken=is_taken))
        for key, is_taken in change.taken.items():
            yield NetworkWinner(key, self._best[key], replace(told, is_taken=is_taken))

    def _model(self, changes: Sequence[Change]) -> Model:
        """The network with these changes."""
        best, taken = dict(self._best), dict(self._taken)
        for change in changes:
            best |= change.programs
            taken |= change.taken
        for key, is_taken in taken.items():
            told = InNetwork(1.0, 1.0, 1.0, 1, 1.0, 0, is_taken)
            best[key] = replace(best[key], in_network=told)
        (made,) = made_networks(self._sources, [replace(self._measured, best=best)])
        return proved_model(made.artifact)

    def _levels(self, called: frozenset[str]) -> list[list[Change]]:
        """Networks to compile, as their changes: the first alternative of each task, the next …

        Chains change their side in the second, where other tasks have another program.
        """
        levels: list[list[Change]] = [[] for _ in range(_MOST_LEVELS + 1)]
        flips = flipped(self._networks, called, self._best)
        chained = {key for flip in flips for key in flip.keys}
        levels[1] += flips
        for key, records in self._alternatives(called).items():
            first, *others = levels
            own = [first, *(others[1:] if key in chained else others)]
            for level, record in zip(own, records, strict=False):
                level.append(Change((key,), {key: record}))
        return [level for level in levels if level]

    def _alternatives(self, called: frozenset[str]) -> dict[str, list[MeasureRecord]]:
        """Other programs of the heaviest tasks."""
        weights: defaultdict[str, float] = defaultdict(float)
        shares = [*self._shares, *[1.0] * len(self._networks)]
        for network, share in zip(self._networks, shares, strict=False):
            for key, n in network.weights.items():
                weights[key] += share * n
        times = {
            key: weights[key] * (record.result.latency_s or 0.0)
            for key, record in self._best.items()
            if key in called
        }
        found, so_far, whole_s = {}, 0.0, sum(times.values())
        plan, log = self._measured.plan, self._measured.plan.log
        ranked = ranked_records(log.records if log else ())
        for key in sorted(times, key=lambda k: -times[k]):
            if so_far > _HEAVY * whole_s:
                break
            so_far += times[key]
            group = key, plan.target.key, self._best[key].n_threads
            found[key] = alternatives_of(self._best[key], ranked.get(group, ()))
        return {key: records for key, records in found.items() if records}

    def _spent_s(self) -> float:
        return self._clock() - self._begun_s

    def _is_after(self, share: float) -> bool:
        return self._spent_s() > share * self._time_s


def _most_models(plan: CompilePlan) -> int:
    """Networks that memory has room for, and each once more while it is timed."""
    room = read_limits().memory_bytes - private_bytes()
    return int(room // (3 * max(1, model_bytes(plan.bound.path))))


def _tasks_in(model: Model) -> frozenset[str]:
    """Tasks that the compiled network calls."""
    return frozenset(k.task for one in model.variants for k in one.artifact.kernels)


def alternatives_of(best: MeasureRecord, ranked: Sequence[MeasureRecord]) -> list[MeasureRecord]:
    """Programs to try in place of `best`: the default, the fastest of other algorithms and of other
    structures, and what comes next alone; `ranked`: fastest first.

    What is like the best alone is mostly like it in the network: structures divide the work among
    threads otherwise, and whether a thread finds in its own cache what it reads decides there.
    """
    best_s = best.result.latency_s or 0.0
    others = [r for r in ranked if r.steps_json != best.steps_json]
    timed = [(r, (r.result.latency_s or 0.0) / best_s) for r in others]
    different = [r for r, ratio in timed if ratio <= _DIFFERENT]
    default = [r for r in different if r.default_estimate_s is not None]
    algorithm = [r for r in different if _algorithm(r) != _algorithm(best)]
    near = [r for r, ratio in timed if ratio <= _NEAR]
    structures: dict[str, MeasureRecord] = {best.sketch: best}
    for record in different:
        structures.setdefault(record.sketch, record)
    found = [*default[:1], *algorithm[:1], *[*structures.values()][1:], *near]
    return list({r.steps_json: r for r in found}.values())[:_MOST_LEVELS]


def _algorithm(record: MeasureRecord) -> tuple[str, ...]:
    """The rewrites of the computation in a schedule."""
    return tuple(str(step) for step in record.steps if isinstance(step, Algorithm))


def flipped(
    networks: Sequence[Network], called: frozenset[str], best: Mapping[str, MeasureRecord]
) -> list[Change]:
    """Changes of what is fused: chains that share a task go together, for it tells of all."""
    groups: list[tuple[set[str], dict[str, bool]]] = []
    for network in networks:
        for whole, parts in network.parts.items():
            keys = {whole, *parts}
            if not keys <= best.keys():
                continue
            taken = {whole: whole not in called}
            joined = [g for g in groups if g[0] & keys]
            groups = [g for g in groups if not g[0] & keys]
            for others, also in joined:
                keys |= others
                taken |= also
            groups.append((keys, taken))
    return [Change(tuple(sorted(keys)), taken=taken) for keys, taken in groups]


def is_faster(found: GateVerdict, likely: float, expected: float) -> bool:
    """Whether changes are kept that are faster by kernel beyond noise: where the whole network is,
    too, or where it gains a third of what the kernels promise, `expected`, in the median.

    `likely`: what its ratio is below in nine of ten cases, which has to be a gain as well.
    """
    gains = found.ratio <= 1.0 - (1.0 - expected) / 3
    return found.high < 1.0 or (likely < 1.0 and gains)


def picked(
    base: TaskSeconds,
    levels: Sequence[tuple[Sequence[Change], TaskSeconds]],
    points: Sequence[Point],
) -> list[_Gain]:
    """Changes that are faster by kernel beyond noise: of each task the best, largest first."""
    gains = []
    for changes, seconds in levels:
        for change in changes:
            ratios = seconds.ratios(base, change.keys, points)
            ratio, _, high = median_interval(ratios)
            if ratio < _GAINS and high < 1.0:
                gain_s = (1.0 - ratio) * base.of(change.keys, points)
                gains.append(_Gain(change, ratio, gain_s))
    found: list[_Gain] = []
    for gain in sorted(gains, key=lambda g: -g.gain_s):
        if not any(set(gain.change.keys) & set(other.change.keys) for other in found):
            found.append(gain)
    return found
