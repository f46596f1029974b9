"""Weights in blocks: one order for programs whose tiles are of other widths."""

from __future__ import annotations

import itertools

import pytest

from autotune import te
from autotune.api.te.task import Task
from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.network.compile.sharing import forms, in_blocks, width
from autotune.schedule.steps import steps_from_json, steps_to_json
from autotune.search.defaults import default_alternatives
from autotune.target import host_target
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from tests.schedule.running import assert_computes, random_inputs

K, N = 48, 192


def product(rows: int) -> ComputeDAG:
    """rows x K, times a weight K x N."""
    x, w = te.placeholder((rows, K), "x"), te.placeholder((K, N), "w", constant=True)
    k = te.reduce_axis(K, "k")
    return Task([te.compute((rows, N), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y")]).dag


def look_up() -> ComputeDAG:
    """Columns of the weight that data tell."""
    at, w = te.placeholder(5, "at", dtype="int64"), te.placeholder((K, N), "w", constant=True)
    return Task([te.compute((5, K), lambda i, k: w[k, te.clip(at[i], 0, N - 1)], "y")]).dag


@pytest.mark.target
def test_programs_of_any_tiles_share_a_weight_in_blocks() -> None:
    target, widths = host_target(), set[int]()
    orders = {block: set[str]() for block in (16, 48, 64)}
    for dag in (product(1), product(7), look_up()):
        found = default_alternatives(dag, target, 1, 1.0, 40, 2.0)
        by_width = {width(dag, c.steps): c.steps for c in found}
        for steps, block in itertools.product([*by_width.values()][:3], orders):
            try:
                blocked = in_blocks(dag, steps, block)
                program = lower(dag, blocked, verify=True)
            except ScheduleError:
                continue  # vectors that end elsewhere
            assert steps_from_json(steps_to_json(blocked)) == blocked
            inputs = random_inputs(dag)
            assert_computes(program, inputs, evaluate(dag, inputs), target, (1,))
            orders[block].add(forms(dag, blocked)["w"])
            widths.add(width(dag, steps))
    assert [len(found) for found in orders.values()] == [1, 1, 1]
    assert len(widths) > 3


def test_weights_that_are_no_whole_blocks_are_left_in_the_order_of_the_loops() -> None:
    dag = product(1)
    with pytest.raises(ScheduleError, match="blocks of 80"):
        in_blocks(dag, (), 80)
