"""⑥ Features of a population for the ranker: one NumPy array from one walk of the structure.

`MAIN` and `OTHER` document the columns.
Magnitudes are log2(1 + x). "Main" is the statement with the most arithmetic; "rest" all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.array_program import Columns
from autotune.search.cost.amounts import Array
from autotune.search.cost.analysis import Analysis
from autotune.search.cost.analytic import (
    analytic_seconds,
    idle_factor,
    seconds_of,
    statement_cycles,
    step_cycles,
)
from autotune.search.cost.stage_facts import Statement, vector_passes
from autotune.search.space import Role, Rows, Sketch, Tag
from autotune.target import Target


@dataclass(frozen=True, slots=True)
class Feature:
    """A column: name, unit, meaning, and its value for the main statement."""

    name: str
    unit: str
    meaning: str
    of: Callable[[Statement, Target], Array]


def _log(x: Array) -> Array:
    return np.log2(1.0 + x)


def _per_flop(x: Array, s: Statement) -> Array:
    return np.log2(1e-6 + x / max(s.flops, 1.0))


MAIN: tuple[Feature, ...] = (
    Feature("flops", "log2", "arithmetic of the main statement", lambda s, t: _flops(s)),
    Feature("steps", "log2", "runs of the expanded body", lambda s, t: _log(s.steps)),
    Feature("tiles", "log2", "register tiles started", lambda s, t: _log(s.tiles)),
    Feature("accumulators", "registers", "register tile size", lambda s, t: s.accumulators),
    Feature("operands", "registers", "registers for operands", lambda s, t: s.operands),
    Feature(
        "register_use",
        "share",
        "registers needed over registers there are",
        lambda s, t: (s.accumulators + s.operands) / t.n_registers,
    ),
    Feature("instructions", "log2", "arithmetic per step", lambda s, t: _log(s.instructions)),
    Feature(
        "loads_per_op", "ratio", "loads over arithmetic", lambda s, t: s.loads / s.instructions
    ),
    Feature("chain", "operations", "dependent operations per step", lambda s, t: s.chain),
    Feature("vector_use", "share", "lanes over lanes there are", lambda s, t: s.lanes / t.lanes),
    Feature("tail_waste", "ratio", "points computed over needed", lambda s, t: s.waste),
    Feature(
        "l1_misses", "log2 B/flop", "traffic beyond L1", lambda s, t: _per_flop(s.traffic[0], s)
    ),
    Feature(
        "l2_misses", "log2 B/flop", "traffic beyond L2", lambda s, t: _per_flop(s.traffic[1], s)
    ),
    Feature(
        "l3_misses", "log2 B/flop", "traffic beyond L3", lambda s, t: _per_flop(s.traffic[2], s)
    ),
    Feature(
        "loads_per_byte",
        "log2 B/B",
        "bytes loaded over bytes touched: windows that overlap load theirs again",
        lambda s, t: np.log2(1e-6 + 4.0 * s.loads * s.lanes * s.steps / s.unique_bytes),
    ),
    Feature("guards", "count", "conditional loads of a step", lambda s, t: s.guards),
    Feature("unique", "log2 B", "bytes touched at all", lambda s, t: _log(s.unique_bytes)),
    Feature("chunks", "log2", "iterations of the parallel range", lambda s, t: _log(s.chunks)),
    Feature("local_l1", "ratio", "local tile over L1", lambda s, t: s.local_bytes / t.l1_bytes),
    Feature("local_l2", "ratio", "local tile over L2", lambda s, t: s.local_bytes / t.l2_bytes),
    Feature("inner_trips", "log2", "trips of the innermost loop", lambda s, t: _log(s.inner_trips)),
    Feature("reloads", "bool", "reduction in blocks", lambda s, t: s.reloads),
    Feature(
        "utilisation",
        "ratio",
        "ideal over estimated cycles of a step",
        lambda s, t: s.instructions * s.heights * vector_passes(s.lanes, t) / 2 / step_cycles(s, t),
    ),
    Feature("cold", "log2 B/flop", "constants per flop", lambda s, t: _per_flop(_cold(s), s)),
)
OTHER = (
    ("analytic", "log2 s", "estimate of the analytical cost model"),
    ("idle", "ratio", "slowest thread over average"),
    ("rest_cycles", "ratio", "estimated cycles of all other statements over the main one"),
    ("rest_local", "log2 B", "local buffers of all other statements"),
    ("statements", "count", "stages that are not inlined"),
    ("prefetch", "log2 B", "largest prefetch distance"),
    ("prefetch_next", "bool", "constants are prefetched one weight panel ahead"),
    ("prefetch_consumer", "bool", "operands of the consumer are prefetched in the reduction"),
    ("prefetch_tile", "bool", "activations of the next tile are prefetched in the reduction"),
)
NAMES: tuple[str, ...] = (
    *(f.name for f in MAIN),
    *(name for name, _, _ in OTHER),
    *(f"structure {tag}" for tag in Tag),
)


def features(
    analysis: Analysis, sketch: Sketch, rows: Rows, target: Target, n_threads: int
) -> Array:
    """Matrix of shape [n, len(NAMES)] for the candidates `rows` of `sketch`."""
    return features_of(analysis, sketch, sketch.values(rows), target, n_threads)


def features_of(
    analysis: Analysis, sketch: Sketch, holes: Columns, target: Target, n_threads: int
) -> Array:
    """`features` of candidates with these values of the holes of `sketch`."""
    n = len(analysis.valid)
    every = analysis.statements
    at = max(range(len(every)), key=lambda k: every[k].flops)
    main, rest = every[at], [*every[:at], *every[at + 1 :]]
    columns = [np.broadcast_to(f.of(main, target), (n,)) for f in MAIN]
    cycles = [statement_cycles(s, target) for s in every]
    others = sum((*cycles[:at], *cycles[at + 1 :]), np.zeros(n))
    prefetch = _first(sketch, n, holes, Role.PREFETCH)  # negative: a weight panel ahead
    columns += [
        _log2_seconds(seconds_of(analysis, cycles, target, n_threads)),
        idle_factor(main, n_threads),
        others / cycles[at],
        _log(sum((s.local_bytes for s in rest), np.zeros(n))),
        np.full(n, len(analysis.statements)),
        _log(np.maximum(prefetch, 0)),
        (prefetch < 0).astype(np.float64),
        _first(sketch, n, holes, Role.PREFETCH_CONSUMER),
        -_first(sketch, n, holes, Role.PREFETCH_NEXT_TILE),
    ]
    columns += [np.full(n, float(tag in sketch.tags)) for tag in Tag]
    return np.stack([c.astype(np.float64) for c in columns], axis=1)


def log2_seconds(analysis: Analysis, target: Target, n_threads: int) -> Array:
    """The feature "analytic" by itself: the prediction of an untrained ranker, shape [n]."""
    return _log2_seconds(analytic_seconds(analysis, target, n_threads))


def _log2_seconds(seconds: Array) -> Array:
    return np.log2(np.maximum(seconds, 1e-9))


def _flops(s: Statement) -> Array:
    return np.full_like(s.steps, np.log2(1.0 + s.flops))


def _cold(s: Statement) -> Array:
    return np.full_like(s.steps, s.cold_bytes)


def _first(sketch: Sketch, n: int, holes: Columns, role: Role) -> Array:
    """Columns of the first hole of a role that is not 0; 0 for sketches without one."""
    found = np.zeros(n)
    for parameter in sketch.parameters:
        if parameter.role is role:
            found = np.where(found == 0, holes[parameter.name], found)
    return found
