"""⑥ The analytical cost model: cycles of a candidate from registers, ports, caches and idle cores.

Register pressure costs cycles: with many live registers LLVM spills.

It has no learned part and needs no measurement. It ranks the candidates of a first batch, chooses
the schedules of untuned networks, and is a feature of the ranker, which learns its residual.

    step  = p-norm of arithmetic / ports, loads / load ports, latency · chain of dependent
            operations, all instructions / issue width (`autotune.target.isa.Core` has the
            figures of a core)
    tile  = steps · step + prologue and epilogue of the register tile; a tile of one step overlaps
            with the next tile, so its chain and its ends cost nothing
    total = p-norm of tiles and L2 traffic + the exposed part of L3 and memory traffic, which
            prefetching reduces; at least each of them alone.
            Inputs and outputs of up to half of L2 are assumed to be cached there; those larger
            than L3 are in memory, and stores to memory count twice (write-allocate).

Checked against 6,900 candidates drawn uniformly and 2,900 promising ones (docs/results/search.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.schedule.steps import Steps
from autotune.search.cost.amounts import Array
from autotune.search.cost.analysis import Analysis, Population
from autotune.search.cost.caches import USABLE
from autotune.search.cost.stage_facts import Statement, vector_passes
from autotune.search.space import Sketch
from autotune.target import Target
from autotune.te.at_numbers import Numbers, usual_numbers
from autotune.te.dag import ComputeDAG

KERNEL_START_CYCLES = 1500.0
LOOP_EXIT_CYCLES = 6.0
EARLY_COST = 0.01
"""Overhead of prefetching the rows of the next tile, as a share of the reduction's time."""
CROWDED_CYCLES, CROWDED_REGISTERS = 1.0, 31
"""Cycles per unrolled term when at least so many registers are live: LLVM hoists loads and spills.
A tile of 28 multiply-adds per term hides most of it; it was not observed with 16 registers."""
HELD_CYCLES = 0.8
"""Cycles per operand of a step that finds no register where the order is not kept (`Isa`): 0.55 to
0.9 in products of 256 × 256 × 256 by Node 20 and 22; Node 24 keeps it."""
GUARD_INSTRUCTIONS, LOOP_INSTRUCTIONS = 3.0, 2.0
"""Instructions of a conditional load (compare, select an address) and of a loop counter."""
NARROW_GUARD_CYCLES = 2.0
"""Cycles of a conditional load of half precision in a step of several terms: LLVM loads what has
one address together, and spills it (0.6 to 5 in 60 candidates of convolutions of 4 channels)."""
SHARPNESS = 5.0
"""Exponent of the p-norm over ports and dependences: near-equal bottlenecks delay one another."""
OVERLAP = 3.0
"""Exponent of the p-norm over arithmetic and L2 traffic."""


def analytic_seconds(analysis: Analysis, target: Target, n_threads: int) -> Array:
    """Estimated seconds of each candidate, shape [n]; infinite where it cannot be built."""
    cycles = [statement_cycles(s, target) for s in analysis.statements]
    return seconds_of(analysis, cycles, target, n_threads)


def seconds_of(
    analysis: Analysis, cycles: Sequence[Array], target: Target, n_threads: int
) -> Array:
    """`analytic_seconds` where the cycles of every statement are known."""
    total = np.zeros(len(analysis.valid))
    for s, of_one_core in zip(analysis.statements, cycles, strict=True):
        total = total + of_one_core * idle_factor(s, n_threads) / n_threads
        total = total + (KERNEL_START_CYCLES if n_threads > 1 else 100.0)
    return np.where(analysis.valid, total / target.core.clock_hz, np.inf)


def estimate_s(
    dag: ComputeDAG,
    steps: Steps,
    target: Target,
    n_threads: int,
    points: Sequence[Numbers] | None = None,
) -> float:
    """Estimated seconds of one schedule, whatever it was made from.

    `points`: numbers of a call, the usual ones by default; the geometric mean over them.
    """
    points = usual_numbers(dag) if points is None else points
    population = Population.of(dag, Sketch("", steps, ()), {}, 1, target)
    found = (analytic_seconds(a, target, n_threads)[0] for a in population.analyses(points))
    return statistics.geometric_mean(map(float, found))


def idle_factor(s: Statement, n_threads: int) -> Array:
    """Time of the slowest thread over the average, at least 1 (perfect balance)."""
    per_thread: Array = np.ceil(s.chunks / n_threads)
    return per_thread * n_threads / s.chunks


def statement_cycles(s: Statement, target: Target) -> Array:
    """Cycles of one statement on one core."""
    compute = s.steps * step_cycles(s, target) + s.tiles * tile_cycles(s, target)
    compute = compute + np.where(_one_step(s), 0.0, LOOP_EXIT_CYCLES * s.steps / s.inner_trips)
    l1, l2, l3 = s.traffic
    core = target.core
    cold = np.full_like(compute, s.cold_bytes)
    near = l1 / core.l2_bytes_per_cycle
    warm = np.clip(s.unique_bytes - cold, 0.0, target.l2_bytes / 2)
    far = np.maximum(l2 - np.minimum(cold, l2) - warm, 0.0) / core.l3_bytes_per_cycle
    spilt = np.maximum(l3 - cold, 0.0) + written_bytes(s)
    spilt = np.where(s.unique_bytes > USABLE[2] * target.l3_bytes, spilt, 0.0)
    far = np.maximum(far, spilt / core.memory_bytes_per_cycle)
    constants = cold / core.memory_bytes_per_cycle
    waits = np.where(s.prefetch < 0, 0.3, np.where(s.prefetch > 0, 0.4, 0.5))
    exposed = waits * constants + np.where(s.early, 0.25, waits) * far
    compute = compute * np.where(s.early & s.reduces, 1.0 + EARLY_COST, 1.0)
    both = (compute**OVERLAP + near**OVERLAP) ** (1 / OVERLAP)
    total: Array = np.maximum(far + constants * (1.0 + s.late), both + exposed)
    return total


def written_bytes(s: Statement) -> Array:
    """Bytes that a pointwise statement stores; they are counted once more for write-allocate.

    Elements count as four bytes.
    """
    stored = s.steps * s.stores * s.lanes * 4.0
    return np.where((s.local_bytes > 0) | s.reduces, 0.0, stored)


def step_cycles(s: Statement, target: Target) -> Array:
    """Cycles of one execution of the expanded body."""
    core = target.core
    passes = vector_passes(s.lanes, target)
    arithmetic = s.instructions * passes * s.port_cycles / core.ports
    loads = s.loads * passes / core.load_ports
    if not s.reduces:
        scalar = np.where(s.lanes == 1, 2.0, 0.0)
        return busiest(arithmetic, loads, s.stores * passes) + scalar + 2.0
    if s.unit is not None:
        waits = s.unit.latency * s.chain
        return busiest(s.instructions * s.heights, s.lines * s.unit.row_cycles, waits)
    latency = np.where(_one_step(s), 0.0, core.fma_latency * s.chain)
    begun = s.instructions + s.loads + GUARD_INSTRUCTIONS * s.guards + LOOP_INSTRUCTIONS
    crowded = (s.accumulators + s.operands >= CROWDED_REGISTERS) & (s.chain > 1)
    spill = np.where(crowded, CROWDED_CYCLES * s.chain, 0.0)
    if not target.isa.keeps_order:
        spill = HELD_CYCLES * np.maximum(s.loads + s.accumulators - target.n_registers, 0.0)
    spill = spill + NARROW_GUARD_CYCLES * s.narrow_guards
    return busiest(arithmetic, loads, latency, begun / core.issue_width) + spill


def busiest(*limits: Array) -> Array:
    """p-norm of lower bounds in cycles: at least the largest of them."""
    cycles: Array = sum(x**SHARPNESS for x in limits) ** (1 / SHARPNESS)
    return cycles


def tile_cycles(s: Statement, target: Target) -> Array:
    """Cycles to start and finish a register tile: clear or reload, drain, store."""
    if not s.reduces:
        return np.zeros_like(s.accumulators)
    stored = s.accumulators * s.heights * vector_passes(s.lanes, target)
    if s.unit is not None:  # clearing is free, rows are stored and loaded one by one
        return (1.0 + s.reloads) * stored + 24.0
    looped = (2.0 + 2.0 * s.reloads) * stored + 24.0
    return np.where(_one_step(s), stored + 2.0, looped)


def _one_step(s: Statement) -> NDArray[np.bool_]:
    """Whether a reduction's tile is a single step: straight-line code without a carried sum."""
    found: NDArray[np.bool_] = (s.tiles >= 0.9 * s.steps) & s.reduces
    return found
