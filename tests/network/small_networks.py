"""Networks built by hand from tensor expressions, as the graph importer would give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.graph.network import Network, Port, TaskCall
from autotune.graph.tasks.storage import Activation
from autotune.schedule.steps import Annotate, Pack, Parallel, Reorder, Split, Steps
from autotune.strides import dense
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, add, f32, maximum, mul


def value(name: str, shape: Sequence[int]) -> Activation:
    return Activation(name, tuple(shape), "float32", dense(tuple(shape)), None, 0)


def window(
    name: str, shape: Sequence[int], strides: Sequence[int], parent: str, offset: int
) -> Activation:
    return Activation(name, tuple(shape), "float32", tuple(strides), parent, offset)


def port(name: str, shape: Sequence[int], at: str) -> Port:
    return Port(name, tuple(shape), "float32", at)


def network(
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    values: Sequence[Activation],
    calls: Sequence[TaskCall],
    tasks: dict[str, ComputeDAG],
) -> Network:
    by_name = {v.name: v for v in values}
    return Network("small", tuple(inputs), tuple(outputs), by_name, tuple(calls), tasks, "0" * 64)


def linear_relu(n: int, m: int, k: int) -> ComputeDAG:
    """y[n, m] = max(0, x[n, k] · w[k, m] + b[m])."""
    i, j, r = Axis("i", n), Axis("j", m), Axis("r", k)
    x, w = placeholder("x", (n, k)), placeholder("w", (k, m), constant=True)
    b = placeholder("b", (m,), constant=True)
    dot = compute("dot", (i, j), Reduce("sum", mul(x.tensor[i, r], w.tensor[r, j]), (r,)))
    y = compute("y", (i, j), maximum(f32(0), add(dot.tensor[i, j], b.tensor[j])))
    return ComputeDAG((x, w, b, dot, y), ("y",))


def packed_steps(lanes: int = 8) -> Steps:
    """A schedule for `linear_relu` with packed weights and a parallel range."""
    return (
        Split("dot", "j", (lanes,)),
        Reorder("dot", ("i", "j.0", "r", "j.1")),
        Annotate("dot", "j.1", "vectorize"),
        Pack("w", "dot"),
        Parallel("dot", 2),
        Parallel("y", 2),
    )


def conv(h: int, w: int, c: int, k: int, size: int) -> ComputeDAG:
    """NHWC convolution without padding, stride 1, plus relu."""
    y, x, o = Axis("y", h - size + 1), Axis("x", w - size + 1), Axis("o", k)
    r, s, q = Axis("r", size), Axis("s", size), Axis("q", c)
    a = placeholder("a", (1, h, w, c))
    f = placeholder("f", (size, size, c, k), constant=True)
    n = Axis("n", 1)
    at = a.tensor[n, add(y.var, r.var), add(x.var, s.var), q]
    body = Reduce("sum", mul(at, f.tensor[r, s, q, o]), (r, s, q))
    total = compute("total", (n, y, x, o), body)
    out = compute("out", (n, y, x, o), maximum(f32(0), total.tensor[n, y, x, o]))
    return ComputeDAG((a, f, total, out), ("out",))


def add_flat(n: int, m: int) -> ComputeDAG:
    """Sum of two matrices."""
    i, j = Axis("i", n), Axis("j", m)
    a, b = placeholder("a", (n, m)), placeholder("b", (n, m))
    c = compute("c", (i, j), add(a.tensor[i, j], b.tensor[i, j]))
    return ComputeDAG((a, b, c), ("c",))


def weights(seed: int, *shape: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) / 4).astype(np.float32)


def mlp() -> Network:
    """(1, 3, 4) → 20 → 20 → (20,): the last two layers share one task."""
    first, rest = linear_relu(1, 20, 12), linear_relu(1, 20, 20)
    values = [value("x", (1, 12)), *(value(n, (1, 20)) for n in ("a", "b", "y"))]

    def call(task: str, source: str, target: str, k: int) -> TaskCall:
        constants = {"w": weights(k, k, 20), "b": weights(7, 20)}
        return TaskCall(task, {"x": source}, constants, {"y": target}, f"linear {target}")

    calls = [call("first", "x", "a", 12), call("rest", "a", "b", 20), call("rest", "b", "y", 20)]
    return network(
        [port("image", (1, 3, 4), "x")],
        [port("scores", (20,), "y")],
        values,
        calls,
        {"first": first, "rest": rest},
    )


def branches() -> Network:
    """Two convolutions side by side into one concatenation, which is then added to itself.

    `join` holds the branches at channels 0..7 and 8..15; the sum reads both as (36, 8) windows and
    writes a window of the output, whose other half is a plain copy of branch a (by a sum with 0).
    """
    values = [
        value("x", (1, 6, 6, 4)),
        value("join", (1, 6, 6, 16)),
        window("a", (1, 6, 6, 8), (576, 96, 16, 1), "join", 0),
        window("b", (1, 6, 6, 8), (576, 96, 16, 1), "join", 8),
        value("out", (1, 6, 6, 16)),
        window("left", (36, 8), (16, 1), "out", 0),
        window("right", (1, 6, 6, 8), (576, 96, 16, 1), "out", 8),
    ]
    point, total = conv(6, 6, 4, 8, 1), add_flat(36, 8)
    f, g = weights(1, 1, 1, 4, 8), weights(2, 1, 1, 4, 8)
    calls = [
        TaskCall("conv", {"a": "x"}, {"f": f}, {"out": "a"}, "branch a"),
        TaskCall("conv", {"a": "x"}, {"f": g}, {"out": "b"}, "branch b"),
        TaskCall("add", {"a": "a", "b": "b"}, {}, {"c": "left"}, "sum"),
        TaskCall("add", {"a": "a"}, {"b": np.zeros((36, 8), np.float32)}, {"c": "right"}, "copy"),
    ]
    return network(
        [port("x", (1, 6, 6, 4), "x")],
        [port("y", (1, 6, 6, 16), "out"), port("sum", (36, 8), "left")],
        values,
        calls,
        {"conv": point, "add": total},
    )
