"""The oracle of tasks that round to whole numbers: a step at a tie is right, many are not."""

from __future__ import annotations

import numpy as np
import pytest

from autotune import te
from autotune.measure.oracle import check, random_values, reference
from autotune.te.dag import ComputeDAG
from autotune.te.language import dag_of


def quantised_product(
    x_type: str = "uint8", w_type: str = "int8", sum_type: str = "int32", n: int = 200, k: int = 64
) -> ComputeDAG:
    x = te.placeholder((n, k), "x", x_type)
    w = te.placeholder((k, n), "w", w_type, constant=True)
    scale = te.placeholder((n,), "scale", constant=True)
    r = te.reduce_axis(k, "r")
    s = te.compute(
        (n, n),
        lambda i, j: te.sum(x[i, r].astype(sum_type) * w[r, j].astype(sum_type), r),
        "s",
    )
    whole = te.compute((n, n), lambda i, j: s[i, j].astype("int32"), "whole")

    def quantised(i: te.Expression, j: te.Expression) -> te.Expression:
        steps = te.round(whole[i, j].astype("float32") * scale[j]) + 128.0
        return te.minimum(te.maximum(steps, 0.0), 255.0).astype("uint8")

    return dag_of(te.compute((n, n), quantised, "y"))


DAG = quantised_product()
REFERENCE = reference(DAG, 0, 1e-4)


def test_bytes_take_all_values_and_results_are_not_all_saturated() -> None:
    values = random_values(DAG, 0)
    assert values["x"].min() < 5
    assert values["x"].max() > 250
    assert values["w"].min() < -120
    inside = (REFERENCE.expected["y"] > 0) & (REFERENCE.expected["y"] < 255)
    assert inside.mean() > 0.8


@pytest.mark.parametrize("types", [("uint8", "float32"), ("bfloat16", "bfloat16")])
def test_floats_that_stand_for_integers_are_whole(types: tuple[str, str]) -> None:
    """So that sums of them are exact, as they are in the network."""
    ref = reference(quantised_product(*types, sum_type="float32"), 0, 1e-4)
    x, w = (ref.values[name].astype(np.float64) for name in "xw")
    assert (w == np.round(w)).all()
    assert w.std() > 50
    want = np.clip(np.round((x @ w).astype(np.float32) * ref.values["scale"]) + 128, 0, 255)
    np.testing.assert_array_equal(ref.expected["y"], want)
    assert ((want > 0) & (want < 255)).mean() > 0.8


@pytest.mark.parametrize(("n_off", "step", "right"), [(0, 0, True), (9, 1, True), (60, 1, False)])
def test_few_may_be_one_step_away(n_off: int, step: int, right: bool) -> None:
    found = REFERENCE.expected["y"].copy()
    at = np.flatnonzero((found > 10) & (found < 240))[:n_off]
    found.reshape(-1)[at] += np.uint8(step)
    assert (check("y", found, REFERENCE).problem == "") is right


def test_a_tie_of_whole_numbers_is_no_inaccuracy() -> None:
    found = REFERENCE.expected["y"].copy()
    found.reshape(-1)[np.flatnonzero((found > 10) & (found < 240))[0]] += np.uint8(1)
    assert check("y", found, REFERENCE).max_error == 0.0


def test_not_even_one_may_be_far_away() -> None:
    found = REFERENCE.expected["y"].copy()
    found.reshape(-1)[np.flatnonzero(found < 100)[0]] += np.uint8(100)
    assert "wrong" in check("y", found, REFERENCE).problem


def test_sums_of_integers_must_be_exact() -> None:
    x = te.placeholder((50, 8), "x", "uint8")
    r = te.reduce_axis(8, "r")
    dag = dag_of(te.compute((50,), lambda i: te.sum(x[i, r].astype("int32"), r), "s"))
    ref = reference(dag, 0, 1e-4)
    found = ref.expected["s"].copy()
    assert check("s", found, ref).problem == ""
    found[3] += 1
    assert "wrong" in check("s", found, ref).problem
