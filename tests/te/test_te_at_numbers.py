"""Numbers of a call: which placeholders they are, and the DAG at a value."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.te.at_numbers import at, numbers_of, usual_numbers
from autotune.te.dag import Compute
from autotune.te.evaluate import evaluate
from tests.lengths_tasks import product, softmax


def test_numbers_are_found_with_their_most() -> None:
    assert numbers_of(product(96, 8, 16)) == {"n": 96}
    assert numbers_of(softmax(4, 50)) == {"n": 50}
    assert numbers_of(product(96, 8, 16, follows=False)) == {}


@pytest.mark.parametrize(
    ("most", "numbers"),
    [(512, [32, 128, 512]), (32, [1, 6, 32]), (16, [1, 4, 16]), (2, [1, 2]), (1, [1])],
)
def test_a_batch_of_one_and_a_sixteenth_of_a_length_are_usual(
    most: int, numbers: list[int]
) -> None:
    assert [p["n"] for p in usual_numbers(product(most, 8, 16))] == numbers


def test_a_static_task_has_no_usual_numbers() -> None:
    assert usual_numbers(product(16, 8, 16, follows=False)) == ()


@pytest.mark.parametrize("n", [1, 7, 50])
def test_a_task_at_a_number_is_static_and_in_the_memory_of_the_longest(n: int) -> None:
    dag = at(softmax(4, 50), {"n": n})
    static = {op.name: op for op in softmax(4, n, follows=False).computes}
    for op in dag.computes:
        assert [a.extent for a in op.axes] == [a.extent for a in static[op.name].axes]
        assert [a.extent for a in op.reduce_axes] == [a.extent for a in static[op.name].reduce_axes]
        assert all(a.limit is None for a in op.axes)
        assert isinstance(whole := softmax(4, 50)[op.name], Compute)
        assert op.tensor.shape == whole.tensor.shape
        assert not any(x.tensor.name == "n" for x in op.reads)


def test_what_counts_is_what_the_static_task_computes(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 50)).astype(np.float32)
    whole = evaluate(softmax(4, 50), {"x": x, "n": np.array([13])})["y"][:, :13]
    static = evaluate(softmax(4, 13, follows=False), {"x": x[:, :13]})["y"]
    np.testing.assert_allclose(whole, static, rtol=1e-6)
