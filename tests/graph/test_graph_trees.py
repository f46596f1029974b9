"""Ensembles of decision trees against ONNX Runtime, LightGBM, and their own definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from autotune.errors import UnsupportedOperator
from autotune.graph.network import Network, build_network
from tests.graph import random_forests as forests
from tests.graph.onnx_models import execute, onnxruntime_outputs, save

Array = NDArray[Any]


def assert_equal(proto: ModelProto, x: Array, folder: Path) -> Network:
    network = build_network(save(proto, folder))
    found, expected = execute(network, {"x": x}), onnxruntime_outputs(proto, {"x": x})
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        assert (found[name].shape, found[name].dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(found[name], want, rtol=2e-5, atol=2e-5)
    return network


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(200))
def test_a_random_forest_is_what_onnxruntime_makes_of_it(seed: int, tmp_path: Path) -> None:
    proto, x = forests.random_forest(np.random.default_rng(seed))
    assert_equal(proto, x, tmp_path)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_the_walk_from_node_to_node_is_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.graph.operators.trees._is_walked", lambda *of: True)
    proto, x = forests.random_forest(np.random.default_rng(seed))
    network = assert_equal(proto, x, tmp_path)
    assert not any("TreeWords" in call.label for call in network.calls)


@pytest.mark.parametrize(
    ("n_rows", "n_leaves", "walks"), [(1, 6, False), (1, 300, True), (64, 60, False)]
)
def test_few_rows_walk_through_large_trees(
    n_rows: int, n_leaves: int, walks: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    proto = forests.ensemble("TreeEnsembleRegressor", forests.forest(rng, [n_leaves] * 9), n_rows)
    network = assert_equal(proto, forests.features(rng, n_rows), tmp_path)
    assert any("TreeSteps" in call.label for call in network.calls) is walks


def test_trees_of_many_nodes_have_wide_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr("autotune_operators.forests._MOST_OF_HALF", 4)
    proto = forests.ensemble("TreeEnsembleRegressor", forests.forest(rng, [300] * 9), 1)
    network = assert_equal(proto, forests.features(rng, 1), tmp_path)
    assert np.dtype(np.int64) in {a.dtype for c in network.calls for a in c.constants.values()}


@pytest.mark.parametrize("mode", forests.MODES[:6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_mode_on_its_thresholds(
    mode: str, dtype: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    trees = forests.forest(rng, [40, 9, 1], modes=(mode,))
    proto = forests.ensemble("TreeEnsembleRegressor", trees, 64, dtype)
    assert_equal(proto, forests.features(rng, 64, dtype), tmp_path)


def test_numbers_next_to_a_threshold_are_told_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for mode in ("LEQ", "LT", "GTE", "GT"):
        trees = forests.forest(rng, [2] * 8, modes=(mode,))
        t = np.array([0.0, 1.0, -1.0, 1e-3], np.float32)
        near = np.concatenate([t, np.nextafter(t, np.float32(9)), np.nextafter(t, np.float32(-9))])
        x = np.repeat(near[:, None], forests.N_FEATURES, 1)
        assert_equal(forests.ensemble("TreeEnsembleRegressor", trees, len(x)), x, tmp_path)


@pytest.mark.parametrize("n_targets", [3, 9])
@pytest.mark.parametrize("dense", [True, False])
def test_targets_of_their_own_trees_and_of_all(
    n_targets: int, dense: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    sizes = [33, 5, 40] * n_targets
    trees = forests.forest(rng, sizes, n_targets, dense=dense)
    proto = forests.ensemble("TreeEnsembleRegressor", trees, 20, post_transform="SOFTMAX")
    assert_equal(proto, forests.features(rng, 20), tmp_path)


def test_trees_of_many_sizes_have_tables_of_their_own(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    trees = forests.forest(rng, [31] * 70 + [4] * 90 + [1])
    network = assert_equal(
        forests.ensemble("TreeEnsembleRegressor", trees, 8), forests.features(rng, 8), tmp_path
    )
    tables = [a.shape for call in network.calls for a in call.constants.values()]
    assert {(70, 32), (91, 3)} <= {shape[-2:] for shape in tables}


def test_scores_are_transformed_by_probit(rng: np.random.Generator, tmp_path: Path) -> None:
    trees = forests.forest(rng, [8])
    trees.weights = [(*place, float(rng.uniform(0.05, 0.95))) for *place, _ in trees.weights]
    proto = forests.ensemble("TreeEnsembleRegressor", trees, 9, post_transform="PROBIT")
    assert_equal(proto, forests.features(rng, 9), tmp_path)


@pytest.mark.parametrize("base", [[], [0.3]])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_one_score_for_two_classes(
    base: list[float], positive: bool, transform: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    trees = forests.forest(rng, [8, 8])
    if positive:
        trees.weights = [(*place, abs(w) / 2) for *place, w in trees.weights]
    attrs: dict[str, Any] = {"classlabels_int64s": [4, 2], "post_transform": transform}
    if base:
        attrs["base_values"] = base
    proto = forests.ensemble("TreeEnsembleClassifier", trees, 33, **attrs)
    assert_equal(proto, forests.features(rng, 33), tmp_path)


def test_a_tree_of_one_leaf_and_an_ensemble_without_trees(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = forests.features(rng, 5)
    trees = forests.forest(rng, [1])
    assert_equal(forests.ensemble("TreeEnsembleRegressor", trees, 5), x, tmp_path)
    empty = forests.ensemble("TreeEnsembleRegressor", forests.forest(rng, []), 5, base_values=[2.5])
    found = execute(build_network(save(empty, tmp_path)), {"x": x})
    np.testing.assert_array_equal(found["y"], np.full((5, 1), 2.5, np.float32))


def test_members_of_a_set_are_exact_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    trees = forests.forest(rng, [24, 24], modes=("MEMBER",), dense=False)
    x = np.trunc(np.nan_to_num(forests.features(rng, 64), posinf=5, neginf=-5))
    assert_equal(forests.by_places(trees, 64), x.astype(np.float32), tmp_path)


def test_lightgbm_predicts_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, forests.N_FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, 0] * x[:, 1] + np.abs(x[:, 2]))
    settings = {"objective": "regression", "num_leaves": 40, "verbose": -1, "num_threads": 1}
    settings["min_data_in_leaf"] = 2
    booster = lightgbm.train(settings, lightgbm.Dataset(x, y), 12)
    proto = forests.ensemble("TreeEnsembleRegressor", _of_lightgbm(booster), len(x))
    found = execute(build_network(save(proto, tmp_path)), {"x": x})["y"]
    np.testing.assert_allclose(found[:, 0], booster.predict(x), rtol=1e-5, atol=1e-6)


def test_every_row_reaches_the_leaves_that_it_reaches_in_lightgbm(tmp_path: Path) -> None:
    """Sums of multiples of 1/256 are exact in any order and type: numbers have the same bits."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2000, forests.N_FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    settings = {"objective": "regression", "num_leaves": 40, "verbose": -1, "num_threads": 1}
    y = np.nan_to_num(x[:, 0] * x[:, 1] + np.abs(x[:, 2]))
    booster = lightgbm.train(settings, lightgbm.Dataset(x, y), 30)
    for n, tree in enumerate(booster.dump_model()["tree_info"]):
        for leaf in range(tree["num_leaves"]):
            booster.set_leaf_output(n, leaf, round(256 * booster.get_leaf_output(n, leaf)) / 256)
    trees = _of_lightgbm(booster)
    on_thresholds = np.resize(np.array(trees.rows["value"], np.float32), x.shape)
    for rows in (x, on_thresholds, np.nextafter(on_thresholds, np.float32(np.inf))):
        proto = forests.ensemble("TreeEnsembleRegressor", trees, len(rows))
        found = execute(build_network(save(proto, tmp_path)), {"x": rows})["y"]
        assert np.array_equal(found[:, 0], booster.predict(rows))


def _of_lightgbm(booster: lightgbm.Booster) -> forests.Trees:
    """The trees of a booster; thresholds are those of float32 features."""
    trees = forests.Trees(np.random.default_rng(0), (), 1)

    def add(tree: int, node: dict[str, Any]) -> int:
        at = len([t for t in trees.rows["tree"] if t == tree])
        is_test = "split_feature" in node
        row = {"tree": tree, "node": at, "feature": 0, "mode": "LEAF", "value": 0.0}
        row |= {"true": 0, "false": 0, "missing": 0}
        for name, value in row.items():
            trees.rows[name].append(value)
        place = len(trees.rows["tree"]) - 1
        if not is_test:
            trees.weights.append((tree, at, 0, node["leaf_value"]))
            return at
        threshold = min(node["threshold"], 3e38)
        value = np.float32(threshold)
        if float(value) > threshold:
            value = np.nextafter(value, np.float32(-np.inf))
        known = {"feature": node["split_feature"], "mode": "BRANCH_LEQ", "value": float(value)}
        known |= {"missing": int(node["default_left"] and node["missing_type"] == "NaN")}
        known["true"] = add(tree, node["left_child"])
        known["false"] = add(tree, node["right_child"])
        for name, item in known.items():
            trees.rows[name][place] = item
        return at

    for n, tree in enumerate(booster.dump_model()["tree_info"]):
        add(n, tree["tree_structure"])
    return trees


def test_branches_that_are_shared_are_no_more_than_a_few(tmp_path: Path) -> None:
    trees = forests.forest(np.random.default_rng(0), [2], modes=("LEQ",))
    n = 60  # each node but the last has the next one as both branches: 2^59 leaves
    for name, values in {"tree": [0] * n, "node": [*range(n)], "feature": [0] * n}.items():
        trees.rows[name] = values
    trees.rows["mode"] = ["BRANCH_LEQ"] * (n - 1) + ["LEAF"]
    trees.rows["value"], trees.rows["missing"] = [0.0] * n, [0] * n
    trees.rows["true"] = trees.rows["false"] = [*range(1, n), 0]
    trees.weights = [(0, n - 1, 0, 1.0)]
    path = save(forests.ensemble("TreeEnsembleRegressor", trees, 4), tmp_path)
    with pytest.raises(UnsupportedOperator, match="no trees, or too many leaves"):
        build_network(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodes_featureids": [9, 0, 0]}, "feature 9 of 5"),
        ({"nodes_truenodeids": [7, 0, 0]}, "no node 7 in tree 0"),
        ({"nodes_truenodeids": [0, 0, 0]}, "no trees"),
        ({"nodes_values": [1.0, 0.0]}, "attributes of 2 and 3 nodes"),
        ({"n_targets": 1 << 40}, "1099511627776 targets"),
        ({"target_ids": [0, 5]}, "a target that is none of 1"),
        ({"aggregate_function": "MEDIAN"}, "aggregate_function MEDIAN"),
        ({"post_transform": "SOFTMAX"}, "post_transform of one target"),
        ({"base_values": [1.0, 2.0]}, "2 base values for 1 target"),
    ],
)
def test_attributes_that_are_no_trees_are_refused_with_the_reason(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    trees = forests.forest(np.random.default_rng(0), [2], modes=("LEQ",))
    proto = forests.ensemble("TreeEnsembleRegressor", trees, 4)
    node = proto.graph.node[0]
    kept = [a for a in node.attribute if a.name not in change]
    added = forests.helper.make_node("N", [], [], **change).attribute
    del node.attribute[:]
    node.attribute.extend([*kept, *added])
    with pytest.raises(UnsupportedOperator, match=reason):
        build_network(save(proto, tmp_path))
