"""① Outputs of the last new place alone, and all that follows from it.

    logits (1, 128, 151936)  ─►  Slice (1, 1, 151936)
    Slice(MatMul(x, W))      ─►  MatMul(Slice(x), W)

A prompt needs the scores of its last place; those of 151,936 tokens are a fourth of its products.
The Slice moves up through every node that computes rows one by one, whatever the operator is
(`samples.keeps_apart`): the product with the table, the last norm, the last layer's second half.
What lies behind it is then what a step of a single place computes, with the same programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from autotune.graph.ir import Array, Graph, Node, Shape, TensorType, frozen_attrs, moves_nothing
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import permutes, view_of
from autotune.graph.operators.windows import open_ends_of
from autotune.graph.passes.driver import rewrite
from autotune.graph.rewriter import Rewriter, Rule
from autotune.graph.samples import keeps_apart

_LAST = ".last"
"""Ends the name of a row of a tensor."""
_MOST_CHOICES = 64
"""Combinations of operands' dimensions that are tried for one node."""


def with_last_rows(graph: Graph, axes: Mapping[str, int]) -> Graph:
    """`graph` with the last row of outputs, by the names in the file, along these dimensions.

    An output of one row stays.
    """
    stated, nodes = dict(graph.output_names), list(graph.nodes)
    types, constants = dict(graph.types), dict(graph.constants)
    outputs = []
    for name in graph.outputs:
        axis = axes.get(stated.get(name, name))
        if axis is None or graph.shape(name)[axis] == 1:
            outputs.append(name)
            continue
        made, kind = f"{name}{_LAST}", graph.types[name]
        bounds = {"start": kind.shape[axis] - 1, "end": kind.shape[axis], "axis": axis}
        for key, value in bounds.items():
            constants[f"{made}.{key}"] = np.array([value], np.int64)
            types[f"{made}.{key}"] = TensorType((1,), "int64")
        operands = name, *(f"{made}.{key}" for key in bounds)
        nodes.append(Node(made, "Slice", operands, (made,)))
        types[made] = _with_one(kind, axis)
        stated[made] = stated.pop(name, name)
        outputs.append(made)
    return replace(
        graph,
        nodes=tuple(nodes),
        outputs=tuple(outputs),
        constants=constants,
        types=types,
        output_names=stated,
    )


def rows_first(graph: Graph) -> Graph:
    """A prepared graph in which what reads a last row alone is computed for that row alone."""
    return rewrite(graph, Rule("last-rows", _LastRows().apply, {"Slice"}))


@dataclass(slots=True)
class _LastRows:
    """Slice(node(x)) -> node(Slice(x)), for the last row of what no one else reads."""

    proofs: dict[object, tuple[int | None, ...]] = field(default_factory=dict)
    """Of a form of nodes, the dimension of rows of each operand; () where rows are not apart."""

    def apply(self, rw: Rewriter) -> None:
        """Slice(node(x)) -> node(Slice(x)) where the node computes rows one by one."""
        axis = _last_row(rw)
        maker = rw.private(rw.node.inputs[0])
        if axis is None or maker is None or len(maker.outputs) != 1 or open_ends_of(maker):
            return
        dims = self._rows_of(rw, maker, axis)
        if any(dim is not None for dim in dims):
            rows = {x: d for x, d in zip(maker.inputs, dims, strict=True) if d is not None}
            lasts = {x: _sliced(rw, x, d) for x, d in rows.items()}
            made = tuple(lasts.get(x, x) for x in maker.inputs)
            is_move = permutes(maker)
            if is_move and moves_nothing(maker.attrs["perm"], rw.types[made[0]].shape):
                rw.result("Reshape", *made)
            else:
                rw.like(maker, *made)

    def _rows_of(self, rw: Rewriter, maker: Node, axis: int) -> tuple[int | None, ...]:
        if view_of(maker) is ViewKind.WHOLE:
            made, source = (rw.types[x].shape for x in (maker.output, maker.inputs[0]))
            return (_same_rows(made, axis, source),)
        small = (
            (rw.types.get(x), id(rw.constants[x]) if x in rw.constants else None)
            for x in maker.inputs
        )
        key = maker.op, frozen_attrs(maker), tuple(small), rw.types[maker.output], axis
        if key not in self.proofs:
            found = (dims for dims in _choices(rw, maker, axis) if _is_apart(rw, maker, dims, axis))
            self.proofs[key] = next(found, ())
        return self.proofs[key]


def _last_row(rw: Rewriter) -> int | None:
    """The dimension of whose rows a Slice takes the last one; None where it takes anything else."""
    before, after = rw.kind(0).shape, rw.type.shape
    taken = [d for d, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    if len(taken) != 1 or after[taken[0]] != 1:
        return None
    wanted = [n - 1 if d == taken[0] else 0 for d, n in enumerate(before)]
    return taken[0] if list(rw.attr("starts")) == wanted else None


def _same_rows(shape: Shape, axis: int, other: Shape) -> int | None:
    """The dimension of rows of the same elements in another shape."""
    n, step = shape[axis], math.prod(shape[axis + 1 :])
    found = (d for d, extent in enumerate(other) if extent == n and n > 1)
    return next((d for d in found if math.prod(other[d + 1 :]) == step), None)


def _choices(rw: Rewriter, maker: Node, axis: int) -> Iterator[tuple[int | None, ...]]:
    """Dimensions that may have the rows of each operand: of data rather than of constants."""
    n = rw.types[maker.output].shape[axis]
    options: list[list[int | None]] = []
    for name in maker.inputs:
        able = [d for d, extent in enumerate(rw.types[name].shape) if extent == n] if name else []
        options.append([None, *able] if name in rw.constants else [*able, None])
    if math.prod(map(len, options)) <= _MOST_CHOICES:
        yield from product(*options)


def _is_apart(rw: Rewriter, maker: Node, dims: tuple[int | None, ...], axis: int) -> bool:
    own: dict[str, int] = {}
    for name, dim in zip(maker.inputs, dims, strict=True):
        if dim is not None and own.setdefault(name, dim) != dim:
            return False
    types = {x: rw.types[x] for x in (*maker.inputs, maker.output) if x}
    constants = {x: rw.constants[x] for x in maker.inputs if x in rw.constants}
    graph = Graph((), (), (), constants, types)
    return bool(own) and keeps_apart(graph, maker, own, axis)


def _sliced(rw: Rewriter, name: str, axis: int) -> str:
    """The last row of an operand, which others may have asked for as well."""
    kind = rw.types[name]
    value: Array | None = rw.constants.get(name)
    if value is not None:
        return rw.array(np.ascontiguousarray(value.take([kind.shape[axis] - 1], axis)))
    starts = tuple(n - 1 if d == axis else 0 for d, n in enumerate(kind.shape))
    attrs: dict[str, Any] = {"starts": starts, "steps": (1,) * len(starts)}
    for node in rw.editor.makers.values():
        if (node.op, node.inputs, node.attrs) == ("Slice", (name,), attrs):
            return node.output
    made = rw.editor.new(f"{name}{_LAST}", _with_one(kind, axis).shape, kind.dtype)
    rw.nodes.append(Node(made, "Slice", (name,), (made,), attrs))
    return made


def _with_one(kind: TensorType, axis: int) -> TensorType:
    return replace(kind, shape=tuple(1 if d == axis else n for d, n in enumerate(kind.shape)))
