"""A compiled network as a function: inputs and outputs by name or in order, arrays of others."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from autotune import Model, Task, UsageError, te


def sums(n: int, m: int) -> tuple[te.Tensor, te.Tensor]:
    a, b = te.placeholder((n, m), "a"), te.placeholder((n, m), "b")
    both = te.compute((n, m), lambda i, j: a[i, j] + b[i, j], "both")
    return both, te.compute((n, m), lambda i, j: both[i, j] * 2, "twice")


@pytest.fixture(scope="module")
def model() -> Model:
    return Task(sums, (3, 5), threads=1).build().model


A, B = (np.arange(15, dtype=np.float32).reshape(3, 5) * k for k in (1, 10))


class Foreign:
    """An array of another library, by the array protocol alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self._array is None:
            raise RuntimeError("on another device")
        return self._array


def test_inputs_by_name_and_in_order_and_of_others(model: Model) -> None:
    by_name = model.run({"a": A, "b": B})
    assert list(by_name) == ["both", "twice"]
    for found in (model(A, B), tuple(model.run([A, B]).values()), model(Foreign(A), Foreign(B))):
        assert isinstance(found, tuple)
        np.testing.assert_array_equal(found[0], A + B)
        np.testing.assert_array_equal(found[1], 2 * (A + B))


def test_outputs_are_written_where_they_are_asked_for(model: Model) -> None:
    both, twice = np.empty((2, 3, 5), np.float32)
    found = model(A, B, out=(both, twice))
    assert isinstance(found, tuple)
    assert found[0] is both
    np.testing.assert_array_equal(twice, 2 * (A + B))
    columns = np.zeros((5, 3), np.float32)
    assert model.run([A, B], out={"both": columns.T})["both"].base is columns
    np.testing.assert_array_equal(columns.T, A + B)


def test_an_output_may_be_an_input(model: Model) -> None:
    a = A.copy()
    model.run({"a": a, "b": B}, out={"twice": a})
    np.testing.assert_array_equal(a, 2 * (A + B))


def fixed() -> Any:
    array = np.empty((3, 5), np.float32)
    array.flags.writeable = False
    return array


C = np.empty((3, 5), np.float32)


@pytest.mark.parametrize(
    ("inputs", "out", "message"),
    [
        ([A], None, "1 arrays are given, expected 2"),
        (A, None, "1 arrays are given, expected 2"),
        ([A, [1, 2]], None, "input 'b' is a list"),
        ([A, Foreign(None)], None, "input 'b' gives no array: on another device"),
        ([A, B], C, "1 arrays are given, expected 2"),
        ([A, B], {"z": C}, "there is no output 'z'"),
        ([A, B], {"both": C[:2]}, "`out` of 'both' is float32"),
        ([A, B], {"both": C.astype(np.float64)}, "`out` of 'both' is float64"),
        ([A, B], {"both": [0]}, "`out` of 'both' is a list"),
        ([A, B], {"both": fixed()}, "`out` of 'both' cannot be written"),
        ([A, B], [C, C], "arrays of `out` share memory"),
    ],
)
def test_what_does_not_fit_is_told(model: Model, inputs: Any, out: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model.run(inputs, out)


def test_a_model_is_shown_and_pickled(model: Model) -> None:
    assert repr(model) == (
        "Model(sums, 1 thread: a float32[3, 5], b float32[3, 5] -> both float32[3, 5], "
        "twice float32[3, 5])"
    )
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again(A, B)[0], A + B)
