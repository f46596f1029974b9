"""Random ensembles of decision trees as models of ai.onnx.ml, with features that lie on thresholds.

proto, feeds = random_forest(rng)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

Array = NDArray[Any]

ML = "ai.onnx.ml"
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
N_FEATURES = 5
_NUMBERS = np.array([-3.5, -1.0, -0.0, 0.0, 1e-3, 1.0, 2.0, 3.0, 7.25])
"""Thresholds and features, so that they meet."""


class Trees:
    """Nodes of a few trees, and their leaves, in lists."""

    def __init__(self, rng: np.random.Generator, modes: tuple[str, ...], targets: int) -> None:
        self.rng, self.modes, self.n_targets = rng, modes, targets
        self.rows: dict[str, list[Any]] = {
            name: []
            for name in ("tree", "node", "feature", "mode", "value", "true", "false", "missing")
        }
        self.weights: list[tuple[int, int, int, float]] = []

    def grow(self, tree: int, n_leaves: int, dense: bool) -> None:
        """One tree, of which a branch may be much deeper than another."""
        todo, own = [(0, n_leaves)], 1
        while todo:
            node, n = todo.pop()
            true = false = 0
            if n > 1:
                left = int(self.rng.integers(1, n))
                true, false = own, own + 1
                own += 2
                todo += [(true, left), (false, n - left)]
            self._row(tree, node, n > 1, true, false)
            if n == 1:
                self._weigh(tree, node, dense)

    def _row(self, tree: int, node: int, is_test: bool, true: int, false: int) -> None:
        mode = str(self.rng.choice(self.modes)) if is_test else ""
        row = {
            "tree": tree,
            "node": node,
            "feature": int(self.rng.integers(N_FEATURES)) if is_test else 0,
            "mode": f"BRANCH_{mode}" if is_test else "LEAF",
            "value": float(self.rng.choice(_NUMBERS)) if is_test else 0.0,
            "true": true,
            "false": false,
            "missing": int(self.rng.integers(2)),
        }
        for name, value in row.items():
            self.rows[name].append(value)

    def _weigh(self, tree: int, node: int, dense: bool) -> None:
        targets = range(self.n_targets) if dense else [tree % self.n_targets]
        for target in targets:
            self.weights.append((tree, node, target, float(self.rng.normal())))


def forest(
    rng: np.random.Generator,
    sizes: list[int],
    n_targets: int = 1,
    modes: tuple[str, ...] = MODES[:6],
    dense: bool = True,
) -> Trees:
    """Trees of so many leaves; `dense`: each leaf has a weight of every target."""
    trees = Trees(rng, modes, n_targets)
    for tree, n in enumerate(sizes):
        trees.grow(tree, n, dense)
    return trees


def features(rng: np.random.Generator, n_rows: int, dtype: str = "float32") -> Array:
    """Rows on thresholds, between them, infinite, and NaN."""
    x = rng.choice([*_NUMBERS, 0.5, 2.5, np.inf, -np.inf, np.nan], (n_rows, N_FEATURES))
    if np.dtype(dtype).kind == "i":
        x = np.trunc(np.nan_to_num(x, posinf=9, neginf=-9))
    found: Array = x.astype(dtype)
    return found


def ensemble(
    op: str, trees: Trees, n_rows: int, dtype: str = "float32", **attrs: Any
) -> ModelProto:
    """A TreeEnsembleRegressor or TreeEnsembleClassifier."""
    kind = "class" if op.endswith("Classifier") else "target"
    names = {"tree": "treeids", "node": "nodeids", "feature": "featureids", "mode": "modes"}
    names |= {"value": "values", "true": "truenodeids", "false": "falsenodeids"}
    attrs |= {f"nodes_{names[k]}": v for k, v in trees.rows.items() if k in names}
    attrs["nodes_missing_value_tracks_true"] = trees.rows["missing"]
    columns = [*zip(*trees.weights, strict=True)] or [()] * 4
    for name, values in zip(("treeids", "nodeids", "ids", "weights"), columns, strict=True):
        attrs[f"{kind}_{name}"] = [*values]
    if kind == "target":
        attrs["n_targets"] = trees.n_targets
    attrs = {k: v for k, v in attrs.items() if not isinstance(v, list) or v}
    outputs = ["label", "y"] if kind == "class" else ["y"]
    node = helper.make_node(op, ["x"], outputs, domain=ML, **attrs)
    return _model(node, n_rows, dtype, outputs, 3, "float32", "classlabels_strings" in attrs)


def by_places(trees: Trees, n_rows: int, dtype: str = "float32", **attrs: Any) -> ModelProto:
    """The same as a TreeEnsemble (opset 5), of one weight a leaf; a MEMBER asks for two numbers."""
    rows = trees.rows
    keys = [*zip(rows["tree"], rows["node"], strict=True)]
    tests = [k for k, mode in zip(keys, rows["mode"], strict=True) if mode != "LEAF"]
    place = {k: n for n, k in enumerate(tests)}
    place |= {(t, n): k for k, (t, n, *_) in enumerate(trees.weights)}
    at = [n for n, mode in enumerate(rows["mode"]) if mode != "LEAF"]
    modes = [rows["mode"][n].removeprefix("BRANCH_") for n in at]
    for side in ("true", "false"):
        children = [(rows["tree"][n], rows[side][n]) for n in at]
        attrs[f"nodes_{side}nodeids"] = [place[c] for c in children]
        attrs[f"nodes_{side}leafs"] = [int(c not in tests) for c in children]
    sets = [
        m for mode in modes if mode == "MEMBER" for m in (*trees.rng.choice([-1, 2, 3], 2), np.nan)
    ]
    tensors = {
        "nodes_splits": np.array([rows["value"][n] for n in at], dtype),
        "nodes_modes": np.array([MODES.index(m) for m in modes], np.uint8),
        "leaf_weights": np.array([w for *_, w in trees.weights], dtype),
        "membership_values": np.array(sets, dtype),
    }
    attrs |= {k: numpy_helper.from_array(v) for k, v in tensors.items() if v.size}
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain=ML,
        tree_roots=[place[tree, 0] for tree in sorted({*rows["tree"]})],
        nodes_featureids=[rows["feature"][n] for n in at],
        nodes_missing_value_tracks_true=[rows["missing"][n] for n in at],
        leaf_targetids=[target for *_, target, _ in trees.weights],
        n_targets=trees.n_targets,
        **attrs,
    )
    return _model(node, n_rows, dtype, ["y"], 5, dtype)


def _model(
    node: Any,
    n_rows: int,
    dtype: str,
    outputs: list[str],
    version: int,
    result: str,
    strings: bool = False,
) -> ModelProto:
    def kind(name: str) -> int:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(name)))

    ports = {"label": 8 if strings else kind("int64"), "y": kind(result)}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind(dtype), [n_rows, N_FEATURES])],
        [helper.make_tensor_value_info(o, ports[o], None) for o in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def random_forest(rng: np.random.Generator) -> tuple[ModelProto, Array]:
    """A model of any kind, and rows for it."""
    n_rows = int(rng.choice([1, 2, 5, 16, 33]))
    n_trees = int(rng.integers(1, 9))
    sizes = [int(n) for n in rng.choice([1, 2, 3, 8, 31, 32, 33, 64, 100], n_trees)]
    modes = MODES[:6] if rng.random() < 0.5 else (str(rng.choice(MODES[:6])),)
    n_targets = int(rng.choice([1, 2, 3, 9]))
    dtype = str(rng.choice(["float32", "float32", "float64", "int64"]))
    style = str(rng.choice(["regressor", "classifier", "places"]))
    transform = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"][int(rng.integers(4))]
    aggregate = int(rng.integers(4))
    attrs: dict[str, Any] = {"post_transform": transform}
    if style == "places":
        modes, dtype = MODES, "float64" if dtype == "float64" else "float32"
        trees = forest(rng, [max(n, 2) for n in sizes], n_targets, modes, dense=False)
        number = 3 * int(n_targets > 1 and transform == "SOFTMAX_ZERO")
        proto = by_places(trees, n_rows, dtype, aggregate_function=aggregate, post_transform=number)
        x = features(rng, n_rows, dtype)  # ONNX Runtime asks for members of whole numbers alone
        return proto, np.where(np.isfinite(x), np.trunc(x), x).astype(dtype)
    if style == "classifier":
        n_targets = max(2, n_targets)
        attrs["classlabels_int64s"] = [int(n) for n in rng.permutation(n_targets) - 1]
        trees = forest(rng, sizes, 1 if n_targets == 2 else n_targets, modes, rng.random() < 0.7)
        if n_targets > 2 and rng.random() < 0.5:
            attrs["base_values"] = [float(b) for b in rng.normal(size=n_targets)]
        proto = ensemble("TreeEnsembleClassifier", trees, n_rows, dtype, **attrs)
        return proto, features(rng, n_rows, dtype)
    dtype = dtype.replace("int64", "float32")  # which ONNX Runtime does not take
    trees = forest(rng, sizes, n_targets, modes, n_trees < n_targets or rng.random() < 0.5)
    if n_targets == 1:
        attrs["post_transform"] = "NONE"
    attrs["aggregate_function"] = ["AVERAGE", "SUM", "MIN", "MAX"][aggregate]
    if rng.random() < 0.5:
        attrs["base_values"] = [float(b) for b in rng.normal(size=n_targets)]
    proto = ensemble("TreeEnsembleRegressor", trees, n_rows, dtype, **attrs)
    return proto, features(rng, n_rows, dtype)
