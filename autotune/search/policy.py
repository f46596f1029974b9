"""⑥ Which candidates of one task to measure next: `propose`, then `observe`.

A round evolves a population per sketch under the ranker's estimate: random rows, the best measured
rows, and what other tasks found good for the same structure are mutated and crossed for a few
generations. The first batch takes the best of every sketch, so that each structure is seen once.
What is proposed depends on the seed and the observations alone, so a policy to which a log is
replayed goes on as the one did that wrote it.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.errors import NoValidSchedule, ScheduleError
from autotune.loopir.lower import lower
from autotune.measure.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Hole, Split, Step, Steps, Winograd
from autotune.search.analysis import analyse
from autotune.search.features import features
from autotune.search.model import Array, Ranker
from autotune.search.sketch import generate_sketches
from autotune.search.space import Rows, Sketch
from autotune.search.transfer import Hall
from autotune.target import Target
from autotune.te.dag import ComputeDAG

POPULATION = 1024
ELITE = 96
GENERATIONS = 3
HOPELESS = 1.0
"""A structure whose best is estimated at twice the best of all (log2) is not looked into."""
EXPLORE = 0.1
FIRST_BATCH = 8
"""Candidates of a task's first batch, or one of each structure if those are more."""
_MAX_DEFAULTS = 8
MAX_ALIKE = 3
"""Most candidates of one batch between which the estimate sees no difference."""
MAX_INACCURATE = 3
"""An algorithm that gave so many inaccurate candidates, and no valid one, is left alone."""


WINOGRAD_ERROR = 2e-5
"""Largest error seen of minimal filtering with six points, F(4,3) and the like."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to measure; `sketch` names its structure, `predicted_s` is the estimate."""

    steps: Steps
    sketch: str
    predicted_s: float | None = None


class SketchPolicy:
    """Search state of one task; `hall`: what the policies of a run find, for all of them."""

    def __init__(
        self,
        dag: ComputeDAG,
        target: Target,
        n_threads: int,
        model: Ranker,
        rng: np.random.Generator,
        hall: Hall | None = None,
    ) -> None:
        self.dag, self.target, self.n_threads = dag, target, n_threads
        self._hall = hall or Hall()
        self.model, self.rng = model, rng
        self._seed = int(rng.integers(2**63))
        self._n_observed, self._n_asked = 0, 0
        self.sketches = {s.name: s for s in generate_sketches(dag, target)}
        self._measured: dict[str, dict[bytes, float | None]] = {n: {} for n in self.sketches}
        self._known: dict[str, set[bytes]] = {n: set() for n in self.sketches}
        self._inaccurate: Counter[Steps] = Counter()

    def propose(self, n: int) -> list[Candidate]:
        """Up to `n` candidates not measured yet, most promising first; none when all are known."""
        self.rng = np.random.default_rng([self._seed, self._n_observed, self._n_asked])
        self._n_asked += 1
        seeds = {name: self._seed_rows(self.sketches[name]) for name in self._promising()}
        limit = min((s[0] for _, s, _ in seeds.values() if len(s)), default=0.0) + HOPELESS
        pools = {
            name: self._evolve(self.sketches[name], *found)
            for name, found in seeds.items()
            if len(found[1]) and found[1][0] <= limit
        }
        first = not any(self._measured.values())
        chosen = self._best_of_each(pools, n) if first else []
        n = min(n, max(FIRST_BATCH, len(chosen))) if first else n
        ranked = sorted(
            (
                (float(p), name, k)
                for name, (_, score) in pools.items()
                for k, p in enumerate(score)
            ),
            key=lambda item: item[0],
        )
        taken = set(chosen)
        n_explore = 0 if first else round(EXPLORE * n)
        alike: Counter[float] = Counter()
        for score, name, k in ranked:
            if len(chosen) >= n - n_explore:
                break
            same = round(score, 3)
            if (name, k) not in taken and np.isfinite(score) and alike[same] < MAX_ALIKE:
                alike[same] += 1
                taken.add((name, k))
                chosen.append((name, k))
        rest = [(name, k) for score, name, k in ranked[: 40 * n] if (name, k) not in taken]
        for i in self.rng.permutation(len(rest))[: n - len(chosen)]:
            chosen.append(rest[int(i)])
        return [self._candidate(name, *pools[name], k) for name, k in chosen]

    def observe(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Learn from measurements, live or replayed; candidates of unknown sketches are ignored.

        Inaccurate candidates count as failed ones: a latency that cannot be chosen is no example.
        """
        self._n_observed, self._n_asked = self._n_observed + len(results), 0
        rows: dict[str, dict[int, Rows]] = {}
        for n, (candidate, result) in enumerate(results):
            sketch = self.sketches.get(candidate.sketch)
            row = match(sketch, candidate.steps) if sketch else None
            if sketch is not None and row is not None:
                rows.setdefault(sketch.name, {})[n] = row
                self._measured[sketch.name][row.tobytes()] = result.latency_s
                if result.latency_s is not None:
                    self._hall.enter(self.dag.key, sketch, row, result.latency_s)
                self._inaccurate[algorithm(sketch)] += result.status is MeasureStatus.INACCURATE
        samples: dict[int, Array] = {}
        for name, numbered in rows.items():
            samples |= zip(
                numbered, self._known_now(name, np.stack([*numbered.values()])), strict=True
            )
        for n in sorted(samples):  # in the order of the log, however it was batched
            latency_s = results[n][1].latency_s
            if latency_s is not None:
                self.model.observe(self.dag.key, samples[n][None], np.array([latency_s]))

    def _known_now(self, name: str, rows: Rows) -> Array:
        """Features of measured rows, whose programs are not proposed again."""
        found = analyse(self.dag, self.sketches[name], rows, self.target)
        self._known[name] |= {i.tobytes() for i in found.identity}
        return features(found, self.sketches[name], rows, self.target, self.n_threads)

    def _promising(self) -> list[str]:
        """The structures worth a look in this round, and one of the others by chance.

        The more candidates of a structure have been measured, the nearer its best must be to the
        best of all: twice as slow after two, a quarter slower after eight.
        """
        rough = self._inaccurate_algorithms()
        names = [n for n, s in self.sketches.items() if algorithm(s) not in rough]
        times = {n: [t for t in self._measured[n].values() if t is not None] for n in names}
        best = min((t for found in times.values() for t in found), default=0.0)
        near = [n for n, t in times.items() if not t or min(t) <= best * (1.0 + 2.0 / len(t))]
        rest = [n for n in names if n not in near]
        if rest:
            near.append(rest[int(self.rng.integers(len(rest)))])
        return near

    # --- evolution ----------------------------------------------------------------------------

    def _seed_rows(self, sketch: Sketch) -> tuple[Rows, Array, Rows]:
        """Random rows, those of other tasks, and relatives of the best, as `_score` gives them."""
        population = sketch.sample(min(POPULATION, 4 * sketch.size), self.rng)
        others = self._hall.rows(self.dag.key, sketch, self.rng)
        population = np.concatenate([population, others, sketch.mutate(others, self.rng)])
        good = self._good_rows(sketch)
        if len(good):
            again = np.repeat(good, max(1, POPULATION // (4 * len(good))), axis=0)
            population = np.concatenate([population, sketch.mutate(again, self.rng)])
        return self._score(sketch, population)

    def _evolve(
        self, sketch: Sketch, rows: Rows, scores: Array, identity: Rows
    ) -> tuple[Rows, Array]:
        """Unmeasured rows of one sketch and their estimated log2 seconds, best first."""
        for _ in range(GENERATIONS):
            parents = rows[:ELITE]
            if not len(parents):
                break
            children = np.repeat(parents, 6, axis=0)
            mates = parents[self.rng.integers(0, len(parents), len(children))]
            crossed = sketch.cross(children, mates, self.rng)
            half = self.rng.random(len(children))[:, None] < 0.3
            children = sketch.mutate(np.where(half, crossed, children), self.rng)
            more, more_scores, more_identity = self._score(sketch, children)
            rows = np.concatenate([rows[: 4 * ELITE], more])
            scores = np.concatenate([scores[: 4 * ELITE], more_scores])
            identity = np.concatenate([identity[: 4 * ELITE], more_identity])
            first = _first_of_each(identity)
            order = first[np.argsort(scores[first], kind="stable")]
            rows, scores, identity = rows[order], scores[order], identity[order]
        known = self._known[sketch.name]
        new = np.array([i.tobytes() not in known for i in identity], bool).reshape(len(rows))
        return rows[new], scores[new]

    def _score(self, sketch: Sketch, rows: Rows) -> tuple[Rows, Array, Rows]:
        """Valid rows, one per program, best first; estimated log2 seconds; identities."""
        rows = rows[_first_of_each(rows)]
        found = analyse(self.dag, sketch, rows, self.target)
        keep = np.zeros(len(rows), bool)
        keep[_first_of_each(found.identity)] = True
        keep &= found.valid
        if not keep.any():
            return rows[:0], np.zeros(0), found.identity[:0]
        x = features(found, sketch, rows, self.target, self.n_threads)[keep]
        scores = self.model.predict(x)
        order = np.argsort(scores, kind="stable")
        return rows[keep][order], scores[order], found.identity[keep][order]

    def _inaccurate_algorithms(self) -> set[Steps]:
        """Algorithms that round too much, whatever the structure and its numbers."""
        valid = {algorithm(s) for n, s in self.sketches.items() if any(self._measured[n].values())}
        return {a for a, n in self._inaccurate.items() if n >= MAX_INACCURATE} - valid

    def _good_rows(self, sketch: Sketch) -> Rows:
        timed = [(t, r) for r, t in self._measured[sketch.name].items() if t is not None]
        best = sorted(timed)[:8]
        width = len(sketch.parameters)
        rows = [np.frombuffer(r, np.int64) for _, r in best]
        return np.stack(rows) if rows else np.zeros((0, width), np.int64)

    def _best_of_each(self, pools: dict[str, tuple[Rows, Array]], n: int) -> list[tuple[str, int]]:
        """The best of each structure that the draft does not take for twice as slow as another."""
        tops = sorted((s[0], name) for name, (_, s) in pools.items() if len(s))
        return [(name, 0) for score, name in tops[:n] if score <= tops[0][0] + HOPELESS]

    def _candidate(self, name: str, rows: Rows, scores: Array, k: int) -> Candidate:
        return Candidate(self.sketches[name].bind(rows[k]), name, float(np.exp2(scores[k])))


def _first_of_each(rows: Rows) -> NDArray[np.intp]:
    """Where each different row stands first, by a 64-bit hash, in the order of the hashes."""
    factors = np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.int64) | 1
    first: NDArray[np.intp] = np.unique(rows @ factors, return_index=True)[1]
    return first


def default_steps(
    dag: ComputeDAG, target: Target, n_threads: int, max_error: float = math.inf
) -> Steps:
    """The schedule that the analytic draft likes best; no measurement.

    Nobody measured its error: where that might exceed `max_error`, it is a direct sum.
    Raises NoValidSchedule when no sketch of the task has a valid row.
    """
    rng = np.random.default_rng(0)
    policy = SketchPolicy(dag, target, n_threads, Ranker(0, 1), rng)
    if max_error < WINOGRAD_ERROR:
        policy.sketches = {n: s for n, s in policy.sketches.items() if not algorithm(s)}
    for candidate in policy.propose(_MAX_DEFAULTS):
        with contextlib.suppress(ScheduleError):
            lower(dag, candidate.steps)  # the draft bounds buffers, lowering knows them
            return candidate.steps
    raise NoValidSchedule(
        f"no schedule fits task {dag.key}", "report the output of `autotune tasks --dag`"
    )


def algorithm(sketch: Sketch) -> Steps:
    """The steps of a sketch that change what is summed up; none: sums as they are defined."""
    return tuple(step for step in sketch.steps if isinstance(step, Winograd))


def match(sketch: Sketch, steps: Steps) -> Rows | None:
    """The row of `sketch` whose schedule is `steps`, or None."""
    if len(steps) != len(sketch.steps):
        return None
    holes: dict[str, int] = {}
    for pattern, step in zip(sketch.steps, steps, strict=True):
        for name, value in _holes(pattern, step):
            if holes.setdefault(name, value) != value:
                return None
    try:
        row = [p.domain.index(holes[p.name]) for p in sketch.parameters]
    except (KeyError, ValueError):
        return None
    found = np.array(row, np.int64)
    return found if sketch.bind(found) == steps else None


def _holes(pattern: Step, step: Step) -> list[tuple[str, int]]:
    if type(pattern) is not type(step):
        return []
    if isinstance(pattern, Split) and isinstance(step, Split):
        pairs = zip(pattern.factors, step.factors, strict=False)
        return [
            (p.name, int(v)) for p, v in pairs if isinstance(p, Hole) and not isinstance(v, Hole)
        ]
    found = []
    for field in ("factor", "distance"):
        hole, value = getattr(pattern, field, None), getattr(step, field, None)
        if isinstance(hole, Hole) and isinstance(value, int):
            found.append((hole.name, value))
    return found
