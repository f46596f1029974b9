"""Random models of two open dimensions: tensors are (batch, sequence, channels) in any order."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto

from tests.graph.onnx_models import model, node

Shape: TypeAlias = tuple[str, ...]
"""Extents as text: of equal texts, which is all that matters here."""
CHANNELS = 6


class OpenGraph:
    """Nodes drawn so far and the tensors that they make, with their shapes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Any] = {}
        self.tensors: dict[str, Shape] = {"x": ("b", "s", str(CHANNELS))}

    def drawn(self, n_nodes: int) -> ModelProto:
        """A model of about `n_nodes` whose outputs are the tensors that nothing reads."""
        for _ in range(n_nodes):
            draw = self.rng.choice(list(_DRAWS))
            _DRAWS[draw](self, *self._pick())
        read = {name for n in self.nodes for name in n.input}
        ends = [name for name in self.tensors if name not in read]
        return model(self.nodes, {"x": ("b", "s", CHANNELS)}, self.constants, " ".join(ends))

    def _pick(self) -> tuple[str, Shape]:
        name = str(self.rng.choice(list(self.tensors)[-4:]))
        return name, self.tensors[name]

    def axis(self, shape: Shape) -> int:
        return int(self.rng.integers(len(shape)))

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32) / 2)

    def add(self, op: str, inputs: str, shape: Shape | None, **attrs: object) -> str:
        """A node; `shape` None: of a tensor that only shapes are made of."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attrs))
        if shape is not None:
            self.tensors[name] = shape
        return name


def _with(shape: Shape, axis: int, extent: str) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _product(g: OpenGraph, x: str, shape: Shape) -> None:
    if shape and shape[-1].isdigit():
        g.add("MatMul", f"{x} {g.weight(int(shape[-1]), 4)}", (*shape[:-1], "4"))


def _gram(g: OpenGraph, x: str, shape: Shape) -> None:
    if len(shape) == 3:
        turned = g.add("Transpose", x, None, perm=[0, 2, 1])
        g.add("MatMul", f"{x} {turned}", (shape[0], shape[1], shape[1]))


def _sum(g: OpenGraph, x: str, shape: Shape) -> None:
    same = [name for name, other in g.tensors.items() if other == shape]
    g.add(str(g.rng.choice(["Add", "Mul", "Max"])), f"{x} {g.rng.choice(same)}", shape)


def _scaled(g: OpenGraph, x: str, shape: Shape) -> None:
    g.add("Tanh", g.add("Mul", f"{x} {g.weight(1)}", None), shape)


def _softmax(g: OpenGraph, x: str, shape: Shape) -> None:
    g.add("Softmax", x, shape, axis=g.axis(shape))


def _transpose(g: OpenGraph, x: str, shape: Shape) -> None:
    perm = g.rng.permutation(len(shape)).tolist()
    g.add("Transpose", x, tuple(shape[p] for p in perm), perm=perm)


def _reduce(g: OpenGraph, x: str, shape: Shape) -> None:
    axis = g.axis(shape)
    op = str(g.rng.choice(["ReduceMean", "ReduceMax", "ReduceL2", "ReduceMin"]))
    g.add(op, x, _with(shape, axis, "1"), axes=[axis], keepdims=1)


def _concat(g: OpenGraph, x: str, shape: Shape) -> None:
    axis = g.axis(shape)
    same = [name for name, other in g.tensors.items() if other == shape]
    g.add(
        "Concat", f"{x} {g.rng.choice(same)}", _with(shape, axis, f"2*({shape[axis]})"), axis=axis
    )


def _ends(g: OpenGraph, x: str, shape: Shape) -> None:
    """The first or the last place, or all but it."""
    axis = g.axis(shape)
    begin, end, extent = [
        (0, 1, "1"),
        (-1, 1 << 40, "1"),
        (0, 1 << 40, shape[axis]),
    ][int(g.rng.integers(3))]
    bounds = f"{g.integers(begin)} {g.integers(end)} {g.integers(axis)}"
    g.add("Slice", f"{x} {bounds}", _with(shape, axis, extent))


def _reversed(g: OpenGraph, x: str, shape: Shape) -> None:
    bounds = f"{g.integers(-1)} {g.integers(-(1 << 40))} {g.integers(g.axis(shape))}"
    g.add("Slice", f"{x} {bounds} {g.integers(-1)}", shape)


def _flattened(g: OpenGraph, x: str, shape: Shape) -> None:
    """Rows of the first two dimensions, and back."""
    if len(shape) == 3 and shape[-1].isdigit():
        n = int(shape[-1])
        rows = g.add("Reshape", f"{x} {g.integers(-1, n)}", None)
        made = g.add("Gemm", f"{rows} {g.weight(n, 4)} {g.weight(4)}", None)
        front = g.add("Slice", f"{g.add('Shape', x, None)} {g.integers(0)} {g.integers(2)}", None)
        whole = g.add("Concat", f"{front} {g.integers(4)}", None, axis=0)
        g.add("Reshape", f"{made} {whole}", (*shape[:2], "4"))


def _heads(g: OpenGraph, x: str, shape: Shape) -> None:
    """Channels in two halves, one behind the other in the batch, and back."""
    if len(shape) == 3 and shape[-1].isdigit() and int(shape[-1]) % 2 == 0:
        n = int(shape[-1]) // 2
        apart = g.add("Reshape", f"{x} {g.integers(0, 0, 2, n)}", None)
        moved = g.add("Transpose", apart, None, perm=[0, 2, 1, 3])
        lengths = g.add("Shape", x, None)
        front = g.add("Slice", f"{lengths} {g.integers(1)} {g.integers(2)}", None)
        whole = g.add("Concat", f"{g.integers(-1)} {front} {g.integers(n)}", None, axis=0)
        joined = g.add("Reshape", f"{moved} {whole}", None)
        soft = g.add("Softmax", joined, None, axis=1)
        batch = g.add("Slice", f"{lengths} {g.integers(0)} {g.integers(1)}", None)
        again = g.add("Concat", f"{batch} {g.integers(2)} {front} {g.integers(n)}", None, axis=0)
        back = g.add(
            "Transpose", g.add("Reshape", f"{soft} {again}", None), None, perm=[0, 2, 1, 3]
        )
        g.add("Reshape", f"{back} {g.integers(0, 0, 2 * n)}", shape)


def _padded(g: OpenGraph, x: str, shape: Shape) -> None:
    axis, mode = g.axis(shape), str(g.rng.choice(["constant", "edge"]))
    amounts = [0] * (2 * len(shape))
    amounts[axis], amounts[len(shape) + axis] = (int(n) for n in g.rng.integers(0, 3, 2))
    extent = f"{shape[axis]}+{sum(amounts)}" if sum(amounts) else shape[axis]
    kept = extent if not shape[axis].isdigit() else str(int(shape[axis]) + sum(amounts))
    g.add("Pad", f"{x} {g.integers(*amounts)}", _with(shape, axis, kept), mode=mode)


def _sums(g: OpenGraph, x: str, shape: Shape) -> None:
    attrs = {"reverse": int(g.rng.integers(2)), "exclusive": int(g.rng.integers(2))}
    g.add("CumSum", f"{x} {g.constant(np.int64(g.axis(shape)))}", shape, **attrs)


def _peak(g: OpenGraph, x: str, shape: Shape) -> None:
    axis = g.axis(shape)
    places = g.add("ArgMax", x, None, axis=axis)
    g.add("Cast", places, _with(shape, axis, "1"), to=1)


def _places(g: OpenGraph, x: str, shape: Shape) -> None:
    """The number of each place is added."""
    axis = g.axis(shape)
    lengths = g.add("Shape", x, None)
    extent = g.add("Gather", f"{lengths} {g.constant(np.int64(axis))}", None)
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    numbers = g.add("Cast", g.add("Range", f"{zero} {extent} {one}", None), None, to=1)
    behind = list(range(1, len(shape) - axis))
    if behind:
        numbers = g.add("Unsqueeze", f"{numbers} {g.integers(*behind)}", None)
    if g.rng.integers(2):
        numbers = g.add("Div", f"{numbers} {g.add('Cast', extent, None, to=1)}", None)
    g.add("Add", f"{x} {numbers}", shape)


def _repeated(g: OpenGraph, x: str, shape: Shape) -> None:
    axis = g.axis(shape)
    repeats = [2 if a == axis else 1 for a in range(len(shape))]
    n = shape[axis]
    extent = str(2 * int(n)) if n.isdigit() else f"2*({n})"
    g.add("Tile", f"{x} {g.integers(*repeats)}", _with(shape, axis, extent))


def _window(g: OpenGraph, x: str, shape: Shape) -> None:
    if len(shape) == 3 and shape[1].isdigit():
        g.add("Conv", f"{x} {g.weight(4, int(shape[1]), 3)}", _with(shape, 1, "4"), pads=[1, 1])


def _chosen(g: OpenGraph, x: str, shape: Shape) -> None:
    is_large = g.add("Greater", f"{x} {g.constant(np.float32(0))}", None)
    g.add("Where", f"{is_large} {x} {g.weight(1)}", shape)


_DRAWS = {
    draw.__name__: draw
    for draw in (
        *(_product, _gram, _sum, _scaled, _softmax, _transpose, _reduce, _concat, _ends),
        *(_reversed, _flattened, _heads, _padded, _sums, _peak, _places, _repeated, _window),
        _chosen,
    )
}
