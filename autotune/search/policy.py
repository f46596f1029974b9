"""⑥ The policy: candidates of one task to measure next: `propose`, then `observe`.

A round evolves a population per sketch under the ranker's estimate: random rows, the best measured
rows, and the elite pool of other tasks are mutated and crossed for a few generations. The first
batch takes the best row of every sketch, so that each structure is measured once. Proposals depend
only on the seed and the observations, so a policy that replays a log continues as before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Algorithm, NarrowProducts, Steps, Winograd, steps_text
from autotune.search.cost.ranker import Array, Ranker
from autotune.search.cost.sketch_facts import SketchFacts
from autotune.search.elite_pool import ElitePool
from autotune.search.partial import Rule
from autotune.search.reading_order import order_holes
from autotune.search.recognise import Recogniser
from autotune.search.sketch import generate_sketches
from autotune.search.space import Rows, Sketch, first_of_each
from autotune.target import Target
from autotune.te.at_numbers import Numbers
from autotune.te.dag import ComputeDAG

POPULATION = 1024
ELITE = 96
GENERATIONS, CHILDREN = 3, 6
RELATIVES = 64
"""Of a row that was chosen for other extents."""
PRUNE_LOG2 = 1.0
"""Structures whose best estimate is this far above the best of all (log2 s) are not evolved."""
EXPLORE = 0.1
FIRST_BATCH = 8
"""Candidates of a task's first batch, one of each structure if those are more, or half as many as
are asked for: the next ones are better."""
MAX_ALIKE = 3
"""Most candidates of one batch with equal estimates."""
MAX_INACCURATE = 3
"""An algorithm with so many inaccurate candidates and no valid one is not proposed again."""


WINOGRAD_ERROR, NARROW_ERROR = 2e-5, 2e-5
"""Largest observed errors of minimal filtering with six points, such as F(4,3), and of three
products of bfloat16 for one of float32 (6e-6 for many terms), relative to the largest output."""


Pool: TypeAlias = tuple[Rows, Array, Rows]
"""Valid rows of a structure, one per program, best first; estimated log2 seconds; identities."""


class MeasuredSchedule(Protocol):
    """A schedule that was measured, in this run or in a log."""

    @property
    def sketch(self) -> str:
        """Name of the sketch."""
        ...

    @property
    def steps_json(self) -> str:
        """Its steps as `steps_text` writes them."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to measure; `sketch` names its structure, `predicted_s` is the estimate."""

    steps: Steps
    sketch: str
    predicted_s: float | None = None

    @property
    def steps_json(self) -> str:
        """The text of the steps."""
        return steps_text(self.steps)


@dataclass(frozen=True, slots=True)
class _Studied:
    """Features of the measured rows of one structure, and the identities of their programs."""

    features: dict[bytes, Array] = field(default_factory=dict)
    identities: set[bytes] = field(default_factory=set)


class SketchPolicy:
    """Search state of one task.

    `elite_pool`: best rows of all tasks of a run, shared by their policies. `rules`: sketch rules
    of the user, in addition to those of `search.sketch`. `points`: see `SketchFacts`.
    """

    def __init__(
        self,
        dag: ComputeDAG,
        target: Target,
        n_threads: int,
        model: Ranker,
        rng: np.random.Generator,
        elite_pool: ElitePool | None = None,
        rules: Sequence[Rule] = (),
        points: Sequence[Numbers] | None = None,
    ) -> None:
        self.dag, self.target, self.n_threads = dag, target, n_threads
        self._elite_pool = elite_pool or ElitePool()
        self.model, self.rng = model, rng
        self._seed = int(rng.integers(2**63))
        self._n_observed, self._n_asked = 0, 0
        self.sketches = {s.name: s for s in generate_sketches(dag, target, extra=rules)}
        self._measured: dict[str, dict[bytes, float | None]] = {n: {} for n in self.sketches}
        self._studied = {n: _Studied() for n in self.sketches}
        facts = partial(SketchFacts, dag, target=target, n_threads=n_threads, points=points)
        self._facts = {n: facts(sketch) for n, sketch in self.sketches.items()}
        self._features_of = {n: partial(self._features, n) for n in self.sketches}
        self._recognisers: dict[str, Recogniser] = {}
        self._inaccurate: Counter[Steps] = Counter()

    def propose(self, n: int) -> list[Candidate]:
        """Up to `n` candidates not measured yet, most promising first; none when all are known."""
        self.rng = np.random.default_rng([self._seed, self._n_observed, self._n_asked])
        self._n_asked += 1
        seeds = {name: self._seed_rows(self.sketches[name]) for name in self._promising()}
        limit = min((s[0] for _, s, _ in seeds.values() if len(s)), default=0.0) + PRUNE_LOG2
        pools = {
            name: self._evolve(self.sketches[name], *found)
            for name, found in seeds.items()
            if len(found[1]) and (found[1][0] <= limit or self._is_owed(name))
        }
        first = not any(self._measured.values())
        chosen = self._best_of_each(pools, n) if first else []
        n = min(n, max(FIRST_BATCH, n // 2, len(chosen))) if first else n
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

    def unmeasured_best(
        self, widths: Sequence[int], factor: float = math.inf, one_per_order: bool = False
    ) -> Iterator[Candidate]:
        """`best_of` the pools of `unmeasured`."""
        return self.best_of(self.unmeasured(widths, one_per_order), factor)

    def best_of(self, pools: Mapping[str, Pool], factor: float = math.inf) -> Iterator[Candidate]:
        """Candidates by the estimate alone: the best of each structure, then the rest.

        Only those estimated at most at `factor` times the best.
        """
        least = min((float(scores[0]) for _, scores, _ in pools.values()), default=0.0)
        most = least + math.log2(factor)
        ranked = sorted(
            (k > 0, score, name, k)
            for name, (_, scores, _) in pools.items()
            for k, score in enumerate(scores.tolist())
            if score <= most
        )
        return (self._candidate(name, *pools[name][:2], k) for _, _, name, k in ranked)

    def unmeasured(
        self,
        widths: Sequence[int],
        one_per_order: bool = False,
        n_children: int = CHILDREN,
        begun: Mapping[str, Rows] | None = None,
    ) -> dict[str, Pool]:
        """The best rows of each structure that has any, by the estimate alone.

        `one_per_order`: of rows whose programs certainly read their constants in the same order,
        the best alone lives on; without it, the first hundreds may differ in prefetching and in
        tiles of pixels only.

        Structures evolve side by side. In generation g only the `widths[g]` best of them go on, so
        most of the work is spent on few; the others keep the rows that they have. `n_children`: of
        each parent. `begun`: rows of structures, around which these are looked for.
        """
        self.rng = np.random.default_rng([self._seed, self._n_observed, self._n_asked])
        begun = begun or {}
        seeds = {
            name: self._score(sketch, self._around(sketch, begun[name]))
            if name in begun
            else self._seed_rows(sketch)
            for name, sketch in self.sketches.items()
        }
        pools = {name: found for name, found in seeds.items() if len(found[0])}
        orders = {n: order_holes(self.dag, self.sketches[n]) for n in pools if one_per_order}
        for width in widths:
            for name in sorted(pools, key=lambda n: float(pools[n][1][0]))[:width]:
                pools[name] = self._generation(self.sketches[name], *pools[name], n_children)
                if one_per_order:
                    kept = np.sort(first_of_each(pools[name][0][:, orders[name]]))
                    rows, scores, identity = pools[name]
                    pools[name] = rows[kept], scores[kept], identity[kept]
        return pools

    def near(self, name: str, row: Rows) -> Iterator[Candidate]:
        """A row of a structure and its relatives, those that the estimate likes best first."""
        sketch = self.sketches[name]
        self.rng = np.random.default_rng([self._seed, self._n_observed, self._n_asked])
        relatives = sketch.mutate(np.repeat(row[None], RELATIVES, axis=0), self.rng)
        found = self._score(sketch, np.concatenate([row[None], relatives]))
        rows, scores, _ = self._generation(sketch, *found)
        return (self._candidate(name, rows, scores, k) for k in range(len(scores)))

    def at(self, name: str, row: Rows) -> Candidate | None:
        """The candidate of a row of a structure; None where that has no program."""
        rows, scores, _ = self._score(self.sketches[name], row[None])
        return self._candidate(name, rows, scores, 0) if len(rows) else None

    def _is_owed(self, name: str) -> bool:
        """Whether a structure of a user's rule is unmeasured; the cost model may misjudge it."""
        return self.sketches[name].is_foreign and not self._measured[name]

    def observe(self, results: Sequence[tuple[MeasuredSchedule, MeasureResult]]) -> None:
        """Learn from measurements, live or replayed; schedules of unknown sketches are ignored.

        Inaccurate candidates count as failed ones: a latency that cannot be chosen is no example.
        Those of a batch that the machine was slow in are examples for one another alone.
        """
        self._n_observed, self._n_asked = self._n_observed + len(results), 0
        for schedule, result in results:
            sketch = self.sketches.get(schedule.sketch)
            row = self._recognise(sketch, schedule.steps_json) if sketch else None
            if sketch is None or row is None:
                continue
            latency_s = self._measured[sketch.name][row.tobytes()] = result.at_full_pace_s
            if result.status is MeasureStatus.INACCURATE:
                self._inaccurate[algorithm(sketch)] += 1
            if latency_s is not None:
                self._elite_pool.enter(self.dag.key, sketch, row, latency_s)
                of = self._features_of[sketch.name]
                alike = f"{self.dag.key} {self._n_observed}" if result.is_slow else self.dag.key
                self.model.observe(alike, row[None], np.array([latency_s]), of)

    def _recognise(self, sketch: Sketch, text: str) -> Rows | None:
        if sketch.name not in self._recognisers:
            self._recognisers[sketch.name] = Recogniser(sketch)
        return self._recognisers[sketch.name].row(text)

    def _features(self, name: str, rows: Rows) -> Array:
        """Features of measured rows, shape [n, n_features]."""
        studied = self._study(name).features
        return np.stack([studied[row.tobytes()] for row in rows])

    def _study(self, name: str) -> _Studied:
        """Features of the measured programs of a structure; each is analysed once, on demand."""
        studied = self._studied[name]
        new = [row for row in self._measured[name] if row not in studied.features]
        if new:
            rows = np.stack([np.frombuffer(row, np.int64) for row in new])
            identity, x = self._facts[name].features(rows)
            studied.features.update(zip(new, x, strict=True))
            studied.identities.update(i.tobytes() for i in identity)
        return studied

    def _promising(self) -> list[str]:
        """The structures to evolve in this round, and one of the others at random.

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

    def _seed_rows(self, sketch: Sketch) -> Pool:
        """Random rows, those of other tasks, and relatives of the best, as `_score` gives them."""
        population = sketch.sample(min(POPULATION, 4 * sketch.size), self.rng)
        others = self._elite_pool.rows(self.dag.key, sketch, self.rng)
        population = np.concatenate([population, others, sketch.mutate(others, self.rng)])
        good = self._good_rows(sketch)
        if len(good):
            again = np.repeat(good, max(1, POPULATION // (4 * len(good))), axis=0)
            population = np.concatenate([population, sketch.mutate(again, self.rng)])
        return self._score(sketch, population)

    def _around(self, sketch: Sketch, rows: Rows) -> Rows:
        """These rows, relatives of them, and others at random."""
        again = np.repeat(rows, max(1, POPULATION // (2 * len(rows))), axis=0)
        near = sketch.mutate(again, self.rng)
        return np.concatenate([rows, near, sketch.sample(POPULATION // 4, self.rng)])

    def _evolve(
        self, sketch: Sketch, rows: Rows, scores: Array, identity: Rows
    ) -> tuple[Rows, Array]:
        """Unmeasured rows of one sketch and their estimated log2 seconds, best first."""
        for _ in range(GENERATIONS):
            rows, scores, identity = self._generation(sketch, rows, scores, identity)
        known = self._study(sketch.name).identities
        new = np.array([i.tobytes() not in known for i in identity], bool).reshape(len(rows))
        return rows[new], scores[new]

    def _generation(
        self,
        sketch: Sketch,
        rows: Rows,
        scores: Array,
        identity: Rows,
        n_children: int = CHILDREN,
    ) -> Pool:
        """Parents and the `n_children` of each, as `_score` gives them."""
        parents = rows[:ELITE]
        if not len(parents):
            return rows, scores, identity
        children = np.repeat(parents, n_children, axis=0)
        mates = parents[self.rng.integers(0, len(parents), len(children))]
        crossed = sketch.cross(children, mates, self.rng)
        half = self.rng.random(len(children))[:, None] < 0.3
        children = sketch.mutate(np.where(half, crossed, children), self.rng)
        more, more_scores, more_identity = self._score(sketch, children)
        rows = np.concatenate([rows[: 4 * ELITE], more])
        scores = np.concatenate([scores[: 4 * ELITE], more_scores])
        identity = np.concatenate([identity[: 4 * ELITE], more_identity])
        first = first_of_each(identity)
        order = first[np.argsort(scores[first], kind="stable")]
        return rows[order], scores[order], identity[order]

    def _score(self, sketch: Sketch, rows: Rows) -> Pool:
        """Those of these rows that are valid."""
        rows = rows[first_of_each(rows)]
        is_trained = self.model.is_trained
        kept, identity, found = self._facts[sketch.name].programs(rows, is_trained)
        scores = self.model.predict(found) if is_trained and len(kept) else found
        rows = rows[kept]
        order = np.argsort(scores, kind="stable")
        return rows[order], scores[order], identity[order]

    def _inaccurate_algorithms(self) -> set[Steps]:
        """Algorithms whose rounding errors exceed the limit in every structure."""
        valid = {algorithm(s) for n, s in self.sketches.items() if any(self._measured[n].values())}
        return {a for a, n in self._inaccurate.items() if n >= MAX_INACCURATE} - valid

    def _good_rows(self, sketch: Sketch) -> Rows:
        timed = [(t, r) for r, t in self._measured[sketch.name].items() if t is not None]
        best = sorted(timed)[:8]
        width = len(sketch.parameters)
        rows = [np.frombuffer(r, np.int64) for _, r in best]
        return np.stack(rows) if rows else np.zeros((0, width), np.int64)

    def _best_of_each(self, pools: dict[str, tuple[Rows, Array]], n: int) -> list[tuple[str, int]]:
        """The best row of each structure whose estimate is within a factor of two of the best."""
        tops = sorted((s[0], name) for name, (_, s) in pools.items() if len(s))
        return [(name, 0) for score, name in tops[:n] if score <= tops[0][0] + PRUNE_LOG2]

    def _candidate(self, name: str, rows: Rows, scores: Array, k: int) -> Candidate:
        return Candidate(self.sketches[name].bind(rows[k]), name, float(np.exp2(scores[k])))


def algorithm(sketch: Sketch) -> tuple[Algorithm, ...]:
    """The steps of a sketch that rewrite sums; none: sums as they are defined."""
    return tuple(step for step in sketch.steps if isinstance(step, Algorithm))


def algorithm_error(sketch: Sketch) -> float:
    """The largest error of its algorithms that was ever observed."""
    errors = {Winograd: WINOGRAD_ERROR, NarrowProducts: NARROW_ERROR}
    return max((errors[type(step)] for step in algorithm(sketch)), default=0.0)
