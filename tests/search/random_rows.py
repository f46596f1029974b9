"""Random candidates of every sketch of a task, run as machine code."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from autotune.loopir.lower import lower
from autotune.search.cost.analysis import analyse
from autotune.search.policy import algorithm_error
from autotune.search.sketch import generate_sketches
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from tests.schedule.running import assert_computes, random_inputs


def assert_random_rows_compute(
    dag: ComputeDAG, target: Target, n_samples: int, n_chunks: Iterable[int], seed: int
) -> None:
    """The first two valid ones of `n_samples` rows of every sketch mean what `dag` defines."""
    rng, chunks = np.random.default_rng(seed), tuple(n_chunks)
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    for sketch in generate_sketches(dag, target):
        rows = sketch.sample(n_samples, rng)
        for row in rows[analyse(dag, sketch, rows, target).valid][:2]:
            program = lower(dag, sketch.bind(row), verify=True)
            limit = max(3e-6, algorithm_error(sketch))
            assert_computes(program, inputs, expected, target, chunks, limit)
