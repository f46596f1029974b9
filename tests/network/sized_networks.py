"""A network with lengths, built by hand: what `runtime` needs of one, without importing a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.extent import Extent, Extents, Length, longest
from autotune.graph.network import Network, Port, TaskCall
from autotune.graph.tasks.storage import Activation
from autotune.network.artifact.artifact import Artifact
from autotune.network.compile.compiler import compile_variants
from autotune.network.compile.variants import tasks_of, unified
from autotune.search.defaults import default_steps
from autotune.target import host_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import (
    INDEX,
    Axis,
    Cast,
    Reduce,
    Select,
    compare,
    f32,
    idx,
    maximum,
    mul,
)
from tests.network.small_networks import network, value

Arrays = dict[str, NDArray[Any]]

IN, OUT = 5, 6
"""Features of a row, before and behind the layer."""


def layer(b: int, n: int) -> ComputeDAG:
    """y[b, n, m] = max(0, x[b, n, k] · w[k, m])."""
    axes, r = (Axis("h", b), Axis("i", n), Axis("j", OUT)), Axis("r", IN)
    x, w = placeholder("x", (b, n, IN)), placeholder("w", (IN, OUT), constant=True)
    product = mul(x.tensor[axes[0], axes[1], r], w.tensor[r, axes[2]])
    dot = compute("dot", axes, Reduce("sum", product, (r,)))
    y = compute("y", axes, maximum(f32(0), dot.tensor[axes]))
    return ComputeDAG((x, w, dot, y), ("y",))


def total(b: int, n: int) -> ComputeDAG:
    """s[b, m] = Σ y[b, n, m] over the rows that there are."""
    axes, r = (Axis("h", b), Axis("j", OUT)), Axis("r", n)
    y, rows = placeholder("y", (b, n, OUT)), placeholder("n", (1,), "int64")
    is_there = compare("lt", r.var, Cast(INDEX, rows.tensor[idx(0)]))
    term = Select(is_there, y.tensor[axes[0], r, axes[1]], f32(0))
    s = compute("s", axes, Reduce("sum", term, (r,)))
    return ComputeDAG((y, rows, s), ("s",))


def sized_network(batch: Extent, rows: Length) -> Network:
    """Inputs x (batch, rows, 5) and z (rows, 5); outputs y (batch, rows, 6), s (batch, 6) and
    z again."""
    b, n = longest((batch, rows))
    w = np.random.default_rng(0).standard_normal((IN, OUT)).astype(np.float32)
    one, two = layer(b, n), total(b, n)
    lengths = {e.name: f"{e.name}?" for e in (batch, rows) if isinstance(e, Length)}
    numbers = [Activation(name, (1,), "int64", (1,), None, 0) for name in lengths.values()]
    values = [value("x", (b, n, IN)), value("z", (n, IN)), value("y", (b, n, OUT))]
    values += [value("s", (b, OUT)), *numbers]
    calls = [
        TaskCall(one.key, {"x": "x"}, {"w": w}, {"y": "y"}, "MatMul+Relu"),
        TaskCall(two.key, {"y": "y", "n": lengths[rows.name]}, {}, {"s": "s"}, "ReduceSum"),
    ]

    def end(name: str, extents: Extents, at: str) -> Port:
        own = extents if any(isinstance(e, Length) for e in extents) else ()
        return Port(name, longest(extents), "float32", at, extents=own)

    inputs = [end("x", (batch, rows, IN), "x"), end("z", (rows, IN), "z")]
    hidden = [Port(port, (1,), "int64", port) for port in lengths.values()]
    outputs = [end("y", (batch, rows, OUT), "y"), end("s", (batch, OUT), "s")]
    outputs += [end("same", (rows, IN), "z")]
    tasks = {one.key: one, two.key: two}
    found = network([*inputs, *hidden], outputs, values, calls, tasks)
    return replace(found, lengths=lengths)


def sized_artifact(*sizes: tuple[Extent, Length]) -> Artifact:
    """The network of each batch and rows."""
    return compiled(*(sized_network(*each) for each in sizes))


def compiled(*networks: Network) -> Artifact:
    """Networks, compiled with default schedules for two threads."""
    made, target = unified(networks), host_target()
    steps = {key: default_steps(dag, target, 2) for key, dag in tasks_of(made).items()}
    return compile_variants(made, steps, target, 2)


def expected(made: Network, inputs: Arrays) -> Arrays:
    """What it computes, by NumPy."""
    w = made.calls[0].constants["w"]
    y = np.maximum(inputs["x"] @ w, 0)
    return {"y": y, "s": y.sum(1), "same": inputs["z"]}


def drawn(rng: np.random.Generator, b: int, n: int) -> Arrays:
    """Inputs of `b` samples of `n` rows."""
    shapes = {"x": (b, n, IN), "z": (n, IN)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
