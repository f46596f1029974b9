"""How good an order is, and how fast a policy gets to the best recorded: pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.cost.ranker import Array, Ranker, ordered_pairs
from benchmarks.search_policies import Batches
from benchmarks.search_spaces import Space

Positions = NDArray[np.intp]

TRIALS = (8, 16, 32, 64, 128)
TOP = 8


# --- orders -----------------------------------------------------------------------------------


def pairwise_accuracy(scores: Array, latency_s: Array) -> float:
    """Share of pairs of clearly different latency that scores order rightly; equal ones count ½."""
    return ordered_pairs(scores, np.log2(latency_s))


def top_recall(scores: Array, latency_s: Array, k: int = TOP) -> float:
    """Share of the `k` fastest among the `k` lowest scores."""
    fastest, liked = (np.argsort(x, kind="stable")[:k] for x in (latency_s, scores))
    return len(np.intersect1d(fastest, liked)) / len(fastest)


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a ranker orders candidates of a task that it did not see."""

    accuracy: float
    recall: float


def from_others(spaces: Sequence[Space], ranker: type[Ranker], seed: int) -> list[Quality]:
    """Every task, by a ranker trained on all the others."""
    ran = [_ran(s) for s in spaces]
    found = []
    for k, space in enumerate(spaces):
        others = [pair for i, pair in enumerate(zip(spaces, ran, strict=True)) if i != k]
        found.append(_quality(_trained(ranker(seed), others), space, ran[k]))
    return found


def from_halves(spaces: Sequence[Space], ranker: type[Ranker], seed: int) -> list[Quality]:
    """One half of every task, by a ranker trained on the other halves, drawn at random."""
    rng = np.random.default_rng(seed)
    mixed = [rng.permutation(_ran(s)) for s in spaces]
    seen = [(s, m[: len(m) // 2]) for s, m in zip(spaces, mixed, strict=True)]
    model = _trained(ranker(seed), seen)
    return [_quality(model, s, m[len(m) // 2 :]) for s, m in zip(spaces, mixed, strict=True)]


def _ran(space: Space) -> Positions:
    """Positions of the candidates that did not fail."""
    return np.flatnonzero(np.isfinite(space.latency_s))


def _trained(model: Ranker, known: Iterable[tuple[Space, Positions]]) -> Ranker:
    for space, which in known:
        model.teach(space.task.key, space.x[which], space.latency_s[which])
    model.train()
    return model


def _quality(model: Ranker, space: Space, which: Positions) -> Quality:
    scores, latency_s = model.predict(space.x[which]), space.latency_s[which]
    return Quality(pairwise_accuracy(scores, latency_s), top_recall(scores, latency_s))


# --- curves -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """Best latency so far over the best recorded: 1 is the end.

    `first`: after the first batch; `after`: after so many trials, where the space holds more.
    """

    first: float
    after: dict[int, float]


def curve(batches: Batches, best_s: float) -> Curve:
    """What a session found, whose space had been measured entirely at its end."""
    so_far = np.minimum.accumulate(np.concatenate(batches)) / best_s
    after = {t: float(so_far[t - 1]) for t in TRIALS if t < len(so_far)}
    return Curve(float(so_far[len(batches[0]) - 1]), after)


def median_and_worst(values: Iterable[float], lowest: bool = False) -> tuple[float, float]:
    """The median and the highest value (or the lowest); nan where there is none."""
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return math.nan, math.nan
    return statistics.median(known), (min if lowest else max)(known)
