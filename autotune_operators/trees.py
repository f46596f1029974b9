"""Ensembles of decision trees of ai.onnx.ml -> words of leaves and sums over them, of opset 22.

    TreeEnsembleRegressor(x), TreeEnsemble(x)  ->  post_transform(base + Σ leaves)
    TreeEnsembleClassifier(x)                  ->  label of the largest score, scores

What a tree is here, tells `forests`. Sums are float32, of features of float64 float64, as in ONNX
Runtime. What the standard leaves open about two classes is as ONNX Runtime has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.rewriter import Rewrite, Rewriter
from autotune_operators.forests import Forest, Malformed, Members, Tables, tables_of
from autotune_operators.labels import classes_of
from autotune_operators.transforms import post_transform

_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_MOST_TARGETS = 1 << 16
_LEAST_BY_ROW = 8
"""Targets of a leaf from which on they are lanes, instead of rows."""


# --- what files say -----------------------------------------------------------------------------


def _listed(rw: Rewriter, name: str, default: Any = ()) -> list[Any]:
    """An attribute, or the tensor that stands for it."""
    found = rw.attr(f"{name}_as_tensor")
    found = rw.attr(name, default) if found is None else found
    return np.asarray(found).reshape(-1).tolist()


def _equally_many(rw: Rewriter, lists: dict[str, list[Any]]) -> None:
    sizes = sorted({len(values) for values in lists.values()})
    if len(sizes) > 1:
        raise rw.refuse(f"attributes of {' and '.join(map(str, sizes))} nodes")


def _by_names(rw: Rewriter, weights: str) -> Forest:
    """The forest of a regressor or classifier, whose nodes have numbers within their tree."""
    fields = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    nodes = {name: _listed(rw, f"nodes_{name}") for name in fields}
    nodes["missing"] = _listed(rw, "nodes_missing_value_tracks_true") or [0] * len(nodes["modes"])
    _equally_many(rw, nodes)
    given = {f: _listed(rw, f"{weights}_{f}") for f in ("treeids", "nodeids", "ids", "weights")}
    _equally_many(rw, given)
    pairs = [*zip(nodes["treeids"], nodes["nodeids"], strict=True)]
    number = {pair: n for n, pair in enumerate(pairs)}
    modes = [_text(mode) for mode in nodes["modes"]]
    if len(number) < len(pairs):
        raise rw.refuse("two nodes of one number")
    found: dict[int, dict[int, float]] = {}
    try:
        true, false = (
            [
                n if mode == "LEAF" else number[tree, child]
                for n, (mode, tree, child) in enumerate(
                    zip(modes, nodes["treeids"], nodes[name], strict=True)
                )
            ]
            for name in ("truenodeids", "falsenodeids")
        )
        for tree, node, target, weight in zip(*given.values(), strict=True):
            own = found.setdefault(number[tree, node], {})
            own[target] = own.get(target, 0.0) + weight
    except KeyError as error:
        raise rw.refuse(f"no node {error.args[0][1]} in tree {error.args[0][0]}") from None
    trees = nodes["treeids"]
    roots = [n for n, tree in enumerate(trees) if not n or tree != trees[n - 1]]
    missing = [bool(m) for m in nodes["missing"]]
    return Forest(nodes["featureids"], modes, nodes["values"], missing, true, false, found, roots)


def _by_places(rw: Rewriter) -> Forest:
    """The forest of a TreeEnsemble, whose nodes and leaves are numbered through."""
    fields = ["modes", "splits", "featureids", "truenodeids", "trueleafs"]
    fields += ["falsenodeids", "falseleafs"]
    nodes = {name: _listed(rw, f"nodes_{name}") for name in fields}
    n = len(nodes["modes"])
    nodes["missing"] = _listed(rw, "nodes_missing_value_tracks_true") or [0] * n
    _equally_many(rw, nodes)
    leaves = {name: _listed(rw, f"leaf_{name}") for name in ("targetids", "weights")}
    _equally_many(rw, leaves)
    n_leaves = len(leaves["weights"])
    true, false = (
        [
            child + n if is_leaf else child
            for child, is_leaf in zip(nodes[f"{s}nodeids"], nodes[f"{s}leafs"], strict=True)
        ]
        for s in ("true", "false")
    )
    roots = _listed(rw, "tree_roots")
    if any(not 0 <= node < n + n_leaves for node in (*true, *false, *roots)):
        raise rw.refuse("a branch without a node")
    if any(not 0 <= mode < len(_MODES) for mode in nodes["modes"]):
        raise rw.refuse("a mode that is none")
    modes = [f"BRANCH_{_MODES[mode]}" for mode in nodes["modes"]] + ["LEAF"] * n_leaves
    pairs = zip(leaves["targetids"], leaves["weights"], strict=True)
    weights = {n + k: {target: weight} for k, (target, weight) in enumerate(pairs)}
    # a tree that is a leaf is a test whose branches are one
    is_single = {
        r: true[r] for r in roots if r < n and nodes["trueleafs"][r] and true[r] == false[r]
    }
    blank: list[Any] = [0] * n_leaves
    return Forest(
        nodes["featureids"] + blank,
        modes,
        nodes["splits"] + blank,
        [bool(m) for m in nodes["missing"]] + blank,
        true,
        false,
        weights,
        [is_single.get(r, r) for r in roots],
        _sets(modes, _listed(rw, "membership_values")),
    )


def _sets(modes: Sequence[str], numbers: Sequence[float]) -> dict[int, tuple[float, ...]]:
    """The numbers of each node that asks for one of several; NaN ends them."""
    rest = iter(numbers)
    asking = [n for n, mode in enumerate(modes) if mode == "BRANCH_MEMBER"]
    return {n: tuple(takewhile(lambda x: x == x, rest)) for n in asking}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# --- what is computed ---------------------------------------------------------------------------


class _Features(NamedTuple):
    """Features [n_rows, n] of floats."""

    x: str
    n_rows: int
    n: int
    dtype: str


def _features(rw: Rewriter) -> _Features:
    """The first operand; integers are float32, a vector is a row."""
    kind = rw.types.get(rw.input(0))
    if kind is None or kind.dtype in ("object", "string", "bool"):
        raise rw.refuse("the operand is not a tensor of numbers")
    x, shape, dtype = rw.input(0), rw.shape(0), kind.dtype
    if len(shape) not in (1, 2):
        raise rw.refuse(f"an operand of {len(shape)} dimensions")
    if len(shape) == 1:
        x, shape = rw.reshaped(x, 1, shape[0]), (1, *shape)
    if dtype not in ("float32", "float64"):
        x, dtype = rw.cast(x, "float32"), "float32"
    return _Features(x, shape[0], shape[1], dtype)


def _sums(rw: Rewriter, x: _Features, forest: Forest, op: str, n_targets: int) -> str:
    """The leaves of a forest, reduced over trees: [b, n_targets]."""
    if not 0 < n_targets <= _MOST_TARGETS:
        raise rw.refuse(f"{n_targets} targets")
    if any(not 0 <= t < n_targets for t in forest.targets):
        raise rw.refuse(f"a target that is none of {n_targets}")
    absent = {"sum": 0.0, "min": np.inf, "max": -np.inf}[op]
    try:
        tables, members = tables_of(forest, x.dtype, x.n, absent)
    except Malformed as error:
        raise rw.refuse(str(error)) from None
    if members:
        x = x._replace(x=rw("Concat", x.x, _membership(rw, x, members), axis=1))
    scores = _reduced(rw, x, tables, op)
    if op != "sum":  # a target without any leaf
        none = rw("Equal", scores, rw.scalar(absent, x.dtype))
        scores = rw("Where", none, rw.scalar(0.0, x.dtype), scores)
    if len(tables.targets) == n_targets:
        return scores
    place = np.full(n_targets, len(tables.targets), np.int64)
    place[[*tables.targets]] = np.arange(len(tables.targets))
    zeros = rw.array(np.zeros((x.n_rows, 1), x.dtype))
    return rw("Gather", rw("Concat", scores, zeros, axis=1), rw.array(place), axis=1)


def _reduced(rw: Rewriter, x: _Features, tables: Tables, op: str) -> str:
    """[b, targets that have leaves]."""
    n_rows = x.n_rows
    columns = [rw.array(a) for a in (tables.feature, tables.absent, tables.flip)]
    bits = str(tables.absent.dtype)
    shape = (len(tables.feature), n_rows)
    keys = rw("TreeKeys", x.x, *columns, shape=shape, dtype=bits)
    g, _, k, _ = tables.values.shape
    by_row = k >= _LEAST_BY_ROW
    values = tables.values.transpose(0, 1, 3, 2) if by_row else tables.values
    walk = tables.walk
    arrays = [np.ascontiguousarray(values), walk.values, walk.nodes]
    arrays += [a for tests in tables.tests for a in tests] + walk.roots
    return rw(
        "Trees",
        keys,
        *map(rw.array, arrays),
        shape=(n_rows, g * k),
        dtype=x.dtype,
        reduction=op,
        by_row=int(by_row),
        several=int(tables.several),
        n_tables=len(tables.tests),
        depths=walk.depths,
    )


def _membership(rw: Rewriter, x: _Features, members: Sequence[Members]) -> str:
    """Columns [b, m] that are 1 where a feature is one of some numbers, else 0."""
    most = max(1, *(len(m.numbers) for m in members))
    sets = np.full((len(members), most), np.nan, x.dtype)
    for n, m in enumerate(members):
        sets[n, : len(m.numbers)] = m.numbers
    features = rw.array(np.array([m.feature for m in members], np.int64))
    asked = rw("Gather", x.x, features, axis=1)
    if most == 1:
        found = rw("Equal", asked, rw.array(sets[:, 0]))
    else:
        each = rw("Equal", rw("Unsqueeze", asked, rw.integers(2)), rw.array(sets))
        some = rw("ReduceMax", rw.cast(each, "float32"), rw.integers(2), keepdims=0)
        found = rw.cast(some, "bool")
    if any(m.takes_nan for m in members):
        counts = rw.array(np.array([m.takes_nan for m in members]))
        found = rw("Or", found, rw("And", rw("IsNaN", asked), counts))
    return rw.cast(found, x.dtype)


def _with_base(rw: Rewriter, scores: str, base: Sequence[float], n_targets: int, dtype: str) -> str:
    if not base:
        return scores
    if len(base) != n_targets:
        raise rw.refuse(f"{len(base)} base values for {n_targets} targets")
    return rw("Add", scores, rw.array(np.array(base, dtype)))


def _aggregated(rw: Rewriter, x: _Features, forest: Forest, aggregate: str, n_targets: int) -> str:
    if aggregate not in _AGGREGATES:
        raise rw.refuse(f"aggregate_function {aggregate}")
    op = {"MIN": "min", "MAX": "max"}.get(aggregate, "sum")
    scores = _sums(rw, x, forest, op, n_targets)
    if aggregate == "AVERAGE":
        n_trees = rw.scalar(float(max(1, len(forest.roots))), x.dtype)
        scores = rw("Div", scores, n_trees)
    return scores


def _regressor(rw: Rewriter) -> None:
    """x[b, f] -> float32[b, targets]."""
    x, n_targets = _features(rw), int(rw.attr("n_targets", 1))
    aggregate = _text(rw.attr("aggregate_function", "SUM"))
    forest, base = _by_names(rw, "target"), _listed(rw, "base_values")
    scores = _aggregated(rw, x, forest, aggregate, n_targets)
    if base and 0 < len(forest.targets) < n_targets:
        raise rw.refuse("a base value of a target without leaves")  # runtimes differ
    scores = _with_base(rw, scores, base, n_targets, x.dtype)
    transform = _text(rw.attr("post_transform", "NONE"))
    _finish(rw, scores, transform, n_targets, (x.dtype, "float32"))


def _ensemble(rw: Rewriter) -> None:
    """x[b, f] -> [b, targets] of the type of x."""
    x, n_targets = _features(rw), int(rw.attr("n_targets", 1))
    aggregate, transform = int(rw.attr("aggregate_function", 1)), int(rw.attr("post_transform", 0))
    if not (0 <= aggregate < len(_AGGREGATES) and 0 <= transform < len(_TRANSFORMS)):
        raise rw.refuse("an aggregate_function or post_transform that is none")
    if _TRANSFORMS[transform] in ("SOFTMAX", "LOGISTIC"):
        raise rw.refuse("a post_transform whose number means another one in ONNX Runtime")
    scores = _aggregated(rw, x, _by_places(rw), _AGGREGATES[aggregate], n_targets)
    _finish(rw, scores, _TRANSFORMS[transform], n_targets, (x.dtype, rw.kind(0).dtype))


def _finish(
    rw: Rewriter, scores: str, transform: str, n_targets: int, dtypes: tuple[str, str]
) -> None:
    """`dtypes`: of the scores, and of the result.

    Of a single target ONNX Runtime transforms nothing but by PROBIT, against the standard.
    """
    if n_targets == 1 and transform not in ("NONE", "PROBIT"):
        raise rw.refuse("post_transform of one target")
    scores = post_transform(rw, scores, transform, dtypes[0])
    rw.result("Cast", scores, to=DTYPES[dtypes[1]].onnx)


# --- classes ------------------------------------------------------------------------------------


def _classifier(rw: Rewriter) -> None:
    """x[b, f] -> labels [b], float32[b, classes]."""
    forest, labels = _by_names(rw, "class"), classes_of(rw, "classlabels_int64s")
    transform, base = _text(rw.attr("post_transform", "NONE")), _listed(rw, "base_values")
    x, n = _features(rw), labels.size
    if n < 2:
        raise rw.refuse(f"{n} classes")
    scores = _sums(rw, x, forest, "sum", n)
    if n > 2:
        scores = _with_base(rw, scores, base, n, x.dtype)
        considered = scores
        if not base and len(forest.targets) < n:  # a class without leaves is never the label
            bars = np.full(n, -np.inf, x.dtype)
            bars[[*forest.targets]] = 0
            considered = rw("Add", scores, rw.array(bars))
        chosen = rw("ArgMax", considered, axis=1, keepdims=0)
        scores = post_transform(rw, scores, transform, x.dtype)
    else:
        chosen, scores = _of_two(rw, forest, scores, base, transform, x.dtype)
    if rw.wants(0):
        labels.emit(rw, chosen)
    if rw.wants(1):
        rw.bind(1, rw.cast(scores, "float32"))


def _of_two(
    rw: Rewriter, forest: Forest, scores: str, base: Sequence[float], transform: str, dtype: str
) -> tuple[str, str]:
    """Number of the label, and scores, of two classes."""
    first, second = (rw.slice(scores, [1], [n], [n + 1]) for n in range(2))
    is_binary, has_second = len(forest.targets) == 1, 1 in forest.targets
    is_positive = all(w >= 0 for own in forest.weights.values() for w in own.values())
    if len(base) > 1 or (base and 0 not in forest.targets):
        raise rw.refuse(f"{len(base)} base values for 2 classes")  # runtimes differ
    if base:
        first = rw("Add", first, rw.scalar(base[0], dtype))
    deciding = second if has_second else first
    bound = 0.5 if is_binary and is_positive else 0.0
    is_second = rw("Greater", deciding, rw.scalar(bound, dtype))
    chosen = rw("Squeeze", rw.cast(is_second, "int64"), rw.integers(1))
    if has_second:
        both = rw("Concat", first, second, axis=1)
        return chosen, post_transform(rw, both, transform, dtype)
    if transform == "PROBIT":
        raise rw.refuse("PROBIT of one score for two classes")
    negated = rw("Neg", first)
    if transform == "LOGISTIC":
        both = rw("Sigmoid", rw("Concat", negated, first, axis=1))
    elif is_positive:
        both = rw("Concat", rw("Sub", rw.scalar(1.0, dtype), first), first, axis=1)
    else:
        both = rw("Concat", negated, first, axis=1)
    return chosen, both


COMPOSITIONS: dict[str, Rewrite] = {
    "ai.onnx.ml.TreeEnsembleRegressor": _regressor,
    "ai.onnx.ml.TreeEnsembleClassifier": _classifier,
    "ai.onnx.ml.TreeEnsemble": _ensemble,
}
