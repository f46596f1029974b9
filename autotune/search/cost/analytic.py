"""⑥ The analytic draft: cycles of a candidate from registers, ports, caches and idle cores.

No learned part and no measurement. It orders candidates before anything is known, gives untuned
networks their schedules, and is itself a feature of the ranker, which learns what it misses.

    step  = the largest of arithmetic / ports, loads / load ports, latency·chain of dependent
            operations, all instructions / issue width, and a little more where others are nearly as
            large (`autotune.target.isa.Core` has the figures of a core)
    tile  = steps·step + start and end of the register tile; where one step is all of it, neither
            its chain nor its ends are waited for, since the next tile does not depend on it
    total = the larger of tiles and L2 traffic, and a little more where both are nearly as large,
            + the exposed part of what comes from further away, which is smaller the earlier it is
            prefetched; never less than each of them alone.
            Inputs and outputs that fit half of L2 are there already; those beyond L3 are in memory,
            and what is written there counts twice.

Checked against 6,900 candidates drawn uniformly and 2,900 promising ones (docs/results/search.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.schedule.steps import Steps
from autotune.search.cost.analysis import Analysis, Statement, analyse, vector_passes
from autotune.search.cost.caches import USABLE
from autotune.search.cost.nest import Array
from autotune.search.space import Sketch
from autotune.target import Target
from autotune.te.dag import ComputeDAG

KERNEL_START_CYCLES = 1500.0
LOOP_EXIT_CYCLES = 6.0
EARLY_COST = 0.01
"""Share of a reduction's time that fetching the rows of its next tile takes: often for nothing."""
CROWDED_CYCLES, CROWDED_REGISTERS = 1.0, 31
"""For each of several terms where so many are in use: LLVM may load early, and spill for it. Of the
28 multiply-adds of a term that is little; with 16 registers, of 12, it was never seen."""
GUARD_INSTRUCTIONS, LOOP_INSTRUCTIONS = 3.0, 2.0
"""Comparing and choosing an address: padding that is read through a condition; counting."""
SHARPNESS = 5.0
"""Ports and dependences that are nearly as busy as the busiest delay it too: a p-norm."""
OVERLAP = 3.0
"""The p-norm of arithmetic and L2 traffic, which delay each other where they are nearly equal."""


def draft_seconds(analysis: Analysis, target: Target, n_threads: int) -> Array:
    """Estimated seconds of each candidate, shape [n]; infinite where it cannot be built."""
    total = np.zeros(len(analysis.valid))
    for s in analysis.statements:
        total = total + statement_cycles(s, target) * idle_factor(s, n_threads) / n_threads
        total = total + (KERNEL_START_CYCLES if n_threads > 1 else 100.0)
    return np.where(analysis.valid, total / target.core.clock_hz, np.inf)


def estimate_s(dag: ComputeDAG, steps: Steps, target: Target, n_threads: int) -> float:
    """Estimated seconds of one schedule, whatever it was made from."""
    sketch = Sketch("", steps, ())
    analysis = analyse(dag, sketch, np.zeros((1, 0), np.int64), target)
    return float(draft_seconds(analysis, target, n_threads)[0])


def idle_factor(s: Statement, n_threads: int) -> Array:
    """How much longer the slowest thread runs than the average: 1 is perfect balance."""
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
    total: Array = np.maximum(far + constants, both + exposed)
    return total


def written_bytes(s: Statement) -> Array:
    """What a pointwise statement leaves in memory: a line is read before it is written back.

    Elements count as four bytes.
    """
    stored = s.steps * s.stores * s.lanes * 4.0
    return np.where((s.local_bytes > 0) | s.reduces, 0.0, stored)


def step_cycles(s: Statement, target: Target) -> Array:
    """Cycles of one execution of the expanded body."""
    core = target.core
    passes = vector_passes(s.lanes, target)
    arithmetic = s.instructions * passes / core.ports
    loads = s.loads * passes / core.load_ports
    if not s.reduces:
        scalar = np.where(s.lanes == 1, 2.0, 0.0)
        return busiest(arithmetic, loads, s.stores * passes) + scalar + 2.0
    latency = np.where(_one_step(s), 0.0, core.fma_latency * s.chain)
    begun = s.instructions + s.loads + GUARD_INSTRUCTIONS * s.guards + LOOP_INSTRUCTIONS
    crowded = (s.accumulators + s.operands >= CROWDED_REGISTERS) & (s.chain > 1)
    spill = np.where(crowded, CROWDED_CYCLES * s.chain, 0.0)
    return busiest(arithmetic, loads, latency, begun / core.issue_width) + spill


def busiest(*limits: Array) -> Array:
    """Cycles of what takes longest, and a little more where others take nearly as long."""
    cycles: Array = sum(x**SHARPNESS for x in limits) ** (1 / SHARPNESS)
    return cycles


def tile_cycles(s: Statement, target: Target) -> Array:
    """Cycles to start and finish a register tile: clear or reload, drain, store."""
    if not s.reduces:
        return np.zeros_like(s.accumulators)
    stored = s.accumulators * vector_passes(s.lanes, target)
    looped = (2.0 + 2.0 * s.reloads) * stored + 24.0
    return np.where(_one_step(s), stored + 2.0, looped)


def _one_step(s: Statement) -> NDArray[np.bool_]:
    """Whether a reduction's tile is straight-line code: nothing accumulates from step to step."""
    found: NDArray[np.bool_] = (s.tiles >= 0.9 * s.steps) & s.reduces
    return found
