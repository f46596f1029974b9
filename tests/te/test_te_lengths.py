"""Random tasks along an axis that ends at a number of the call, for every value of the number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.te.at_numbers import at, at_usual, numbers_of, usual, usual_numbers
from autotune.te.chosen_rows import blocked, chosen_rows
from autotune.te.codec import dag_from_json, dag_to_json
from autotune.te.collapse import collapse
from autotune.te.dag import Compute, ComputeDAG, Op, compute, placeholder, rename
from autotune.te.evaluate import counted, evaluate
from autotune.te.expr import (
    INDEX,
    Axis,
    Expr,
    Reduce,
    Tensor,
    add,
    cast,
    compare,
    f32,
    idx,
    maximum,
    mul,
    select,
)
from autotune.te.numbers import numbers, spans
from autotune.te.validate import require_valid
from tests.lengths_tasks import NUMBER, length, number

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Limited:
    """`expected`: what counts of the output, of the part of the input that counts."""

    dag: ComputeDAG
    shape: tuple[int, ...]
    at: int
    most: int
    length: Callable[[int], int]
    expected: Callable[[Array, Array], Array]
    is_reduced: bool

    @property
    def least(self) -> int:
        """The least number with an element."""
        return next(n for n in range(1, self.most + 1) if self.length(n) > 0)


def limited(seed: int) -> Limited:
    """relu(x + w) along a limited axis, its sum or maximum over that or another axis."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 6, int(rng.integers(2, 5))))
    at_axis, factor = int(rng.integers(len(shape))), int(rng.integers(1, 4))
    most, offset = int(rng.integers(3, 6)), int(rng.integers(-2, 3))
    shape = (*shape[:at_axis], factor * most + offset, *shape[at_axis + 1 :])
    n = number()
    end = length(n, factor, offset)
    axes = [Axis(f"a{k}", m, end if k == at_axis else None) for k, m in enumerate(shape)]
    x = placeholder("x", shape)
    w = placeholder("w", shape[-1:], constant=True)
    made = maximum(add(x.tensor[tuple(axes)], w.tensor[axes[-1]]), f32(0))
    y = compute("y", axes, made)
    if rng.random() < 0.4:
        return Limited(
            ComputeDAG((x, w, n, y), ("y",)), shape, at_axis, most,
            lambda v: factor * v + offset, lambda a, b: np.maximum(a + b, 0), False,
        )  # fmt: skip
    gone, op = int(rng.integers(len(shape))), "sum" if rng.random() < 0.5 else "max"
    k = Axis("k", shape[gone])
    index = [k.var if m == gone else axes[m].var for m in range(len(shape))]
    term: Expr = y.tensor[tuple(index)]
    if gone == at_axis:
        term = select(compare("lt", k.var, end), term, f32(0))
    else:  # the last one does not count
        term = select(compare("ne", k.var, idx(k.extent - 1)), term, f32(0))
    z = compute("z", [a for m, a in enumerate(axes) if m != gone], Reduce(op, term, (k,)))
    fold = np.sum if op == "sum" else np.max

    def expected(a: Array, b: Array) -> Array:
        made = np.maximum(a + b, 0)
        counts = made.shape[gone] - (gone != at_axis)
        return np.asarray(fold(front(made, gone, counts), axis=gone, initial=0))

    dag = ComputeDAG((x, w, n, y, z), ("z",))
    return Limited(dag, shape, at_axis, most, lambda v: factor * v + offset, expected, True)


def front(array: Array, axis: int, n: int) -> Array:
    return array[(slice(None),) * axis + (slice(n),)]


def shrunk(dag: ComputeDAG) -> ComputeDAG:
    """`dag` with no memory behind the ends of axes."""
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for op in dag.ops:
        if isinstance(op, Compute):
            tensor = replace(op.tensor, shape=tuple(a.extent for a in op.axes))
            op = rename(op, tensor, {}, tensors)
            tensors[op.name] = tensor
        ops.append(op)
    return ComputeDAG(tuple(ops), dag.outputs)


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_every_form_of_a_task_computes_the_elements_in_front_of_its_end(seed: int) -> None:
    for one in map(limited, range(seed, seed + 10)):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(one.shape).astype(np.float32)
        w = rng.standard_normal(one.shape[-1:]).astype(np.float32)
        dag, (output,) = one.dag, one.dag.outputs
        require_valid(dag)
        assert dag_from_json(json.loads(json.dumps(dag_to_json(dag)))) == dag
        assert numbers_of(dag) in ({NUMBER: one.most}, {})
        every = at_usual(dag)
        assert every == (tuple(at(dag, n) for n in usual_numbers(dag)) or (dag,))
        assert usual(dag) in every
        for value in range(one.least, one.most + 1):
            end = one.length(value)
            width = end if one.at == len(one.shape) - 1 else one.shape[-1]
            want = one.expected(front(x, one.at, end), w[:width])
            feeds = {"x": x, "w": w, NUMBER: np.array([value])}
            part = counted(dag, feeds)[output]
            np.testing.assert_allclose(evaluate(dag, feeds)[output][part], want, rtol=1e-6)
            small = collapse(dag, ("x", "w", output))
            shapes = {p.name: p.tensor.shape for p in small.placeholders}
            reshaped = {name: a.reshape(shapes[name]) for name, a in feeds.items()}
            found = evaluate(small, reshaped)[output].reshape(dag[output].tensor.shape)
            np.testing.assert_allclose(found[part], want, rtol=1e-6)
            fixed = at(dag, {NUMBER: value})
            assert not any(a.limit for op in fixed.computes for a in op.axes)
            extents = {a.extent for a in fixed.computes[0].axes}
            assert extents == set(np.shape(front(x, one.at, end)))
            np.testing.assert_allclose(evaluate(shrunk(fixed), feeds)[output], want, rtol=1e-6)


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_an_axis_with_an_end_merges_with_those_inside_alone(seed: int) -> None:
    for one in map(limited, range(seed, seed + 10)):
        if one.is_reduced:
            continue
        small = collapse(one.dag, ("x", "w", "y"))
        runs = one.shape[: min(one.at, len(one.shape) - 1)], one.shape[one.at : -1]
        want = [math.prod(run) for run in runs if run] + [one.shape[-1]]  # w tells the last apart
        assert list(small["y"].tensor.shape) == want, one.dag


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_the_values_of_a_number_are_those_that_its_axes_have_room_for(seed: int) -> None:
    for one in map(limited, range(seed, seed + 10)):
        ((low, high),) = numbers(one.dag).values()
        assert (low, high) == (one.least, one.most)
        certain = next(n for n in range(one.most + 1) if one.length(n) > 0)
        assert spans(one.dag)[NUMBER] in ((certain, high), (-(1 << 40), 1 << 40))


@pytest.mark.parametrize("seed", range(8))
def test_blocks_of_rows_of_one_choice_compute_what_their_rows_do(seed: int) -> None:
    """y[s] = relu(x[s] · W[e[s]] + B[e[s]]) · g[s], of rows that are sorted into blocks."""
    rng = np.random.default_rng(seed)
    n_rows, n_choices, depth, width = (int(v) for v in rng.integers(2, 7, 4))
    most, size = n_rows, int(rng.integers(1, 4))
    n = number()
    s, c, k = Axis("r", n_rows, length(n)), Axis("c", width), Axis("k", depth)
    x, g = placeholder("x", (n_rows, depth)), placeholder("g", (n_rows, 1))
    w = placeholder("w", (n_choices, depth, width), constant=True)
    b = placeholder("b", (n_choices, width), constant=True)
    e = placeholder("e", (n_rows,), "int64")
    chosen = cast(INDEX, e.tensor[s])
    term = mul(x.tensor[s, k], w.tensor[chosen, k, c])
    t = compute("t", (s, c), Reduce("sum", term, (k,)))
    body = mul(maximum(add(t.tensor[s, c], b.tensor[chosen, c]), f32(0)), g.tensor[s, idx(0)])
    dag = ComputeDAG((x, g, w, b, e, n, t, compute("y", (s, c), body)), ("y",))
    rows = chosen_rows(dag)
    assert rows is not None
    assert (rows.n_choices, rows.told, rows.operands) == (n_choices, "e", ("x", "g"))
    counts = placeholder("n_blocks", (1,), "int64"), placeholder("n_places", (1,), "int64")
    axes = (Axis("q", most, length(counts[0])), Axis("j", size, length(counts[1])))
    made = blocked(dag, rows, *axes)
    require_valid(made)
    feeds: dict[str, Array] = {
        "x": rng.standard_normal((most, size, depth)).astype(np.float32),
        "g": rng.standard_normal((most, size, 1)).astype(np.float32),
        "w": rng.standard_normal((n_choices, depth, width)).astype(np.float32),
        "b": rng.standard_normal((n_choices, width)).astype(np.float32),
        "e": rng.integers(0, n_choices, most),
    }
    n_blocks, n_places = int(rng.integers(1, most + 1)), int(rng.integers(1, size + 1))
    given = feeds | {"n_blocks": np.array([n_blocks]), "n_places": np.array([n_places])}
    found = evaluate(made, given)["y"][:n_blocks, :n_places]
    products = np.einsum("qjk,qkc->qjc", feeds["x"], feeds["w"][feeds["e"]])
    want = np.maximum(products + feeds["b"][feeds["e"]][:, None], 0) * feeds["g"]
    np.testing.assert_allclose(found, want[:n_blocks, :n_places], rtol=1e-4, atol=1e-5)
    assert [p.name for p in made.placeholders if p.constant] == ["w", "b"]
