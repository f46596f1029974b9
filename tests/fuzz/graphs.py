"""Random small models: a few operators, odd attributes, any opset.

    made = random_model(seed)          # a serialised model; equal seeds give equal models

A drawer (`drawers_*.py`) adds one operator: it asks the drawing for operands of some rank and
dtype, which are tensors made before, inputs or constants, and draws every attribute. Shapes come
from ONNX's own inference after each node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper, shape_inference

Array = NDArray[Any]
Shape = tuple[int, ...]
Drawer = Callable[["Drawing"], None]

FIRST_OPSET, LAST_OPSET = 7, onnx.defs.onnx_opset_version()
MAX_ELEMENTS = 4000
FLOAT, INT, BOOL = "float32", "int64", "bool"


class NotPossible(Exception):
    """The operator cannot be drawn here: no operand fits, or the opset lacks it."""


class Drawing:
    """A graph that is being drawn. `tensors`: shape and dtype of what later nodes may read."""

    def __init__(self, seed: int, opset: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = opset or self.rng.randint(FIRST_OPSET, LAST_OPSET)
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.constants: dict[str, Array] = {}
        self.tensors: dict[str, tuple[Shape, str]] = {}
        self._n = 0

    # --- chances ---

    def maybe(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def one_of(self, choices: Sequence[Any]) -> Any:
        return self.rng.choice(list(choices))

    def int(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def shape(self, low: int, high: int, most: int = 6) -> Shape:
        """Small extents, ones and primes among them."""
        rank = self.int(low, high)
        extents = (1, 1, 2, 3, 4, 5, 7, 8, 13, 17)
        shape = tuple(min(self.one_of(extents), most) for _ in range(rank))
        return shape

    def axis(self, rank: int) -> int:
        """An axis, negative as often as not."""
        if rank == 0:
            raise NotPossible
        return self.int(-rank, rank - 1)

    def axes(self, rank: int, least: int = 1) -> list[int]:
        """Some different axes, in any order and sign."""
        if rank < least:
            raise NotPossible
        chosen = self.rng.sample(range(rank), self.int(least, rank))
        return [a - rank if self.maybe() else a for a in chosen]

    # --- operands ---

    def name(self, prefix: str) -> str:
        self._n += 1
        return f"{prefix}{self._n}"

    def values(self, shape: Shape, dtype: str = FLOAT) -> Array:
        kind = np.dtype(dtype).kind
        if kind == "b":
            return self.numbers.random(shape) < 0.5
        if kind in "iu":
            return self.numbers.integers(0 if kind == "u" else -4, 6, shape).astype(dtype)
        return self.numbers.standard_normal(shape).astype(dtype)

    def constant(self, value: object) -> str:
        name = self.name("c")
        self.constants[name] = np.asarray(value)
        return name

    def input(self, shape: Shape, dtype: str = FLOAT) -> str:
        name = self.name("x")
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.tensors[name] = shape, dtype
        return name

    def new(self, shape: Shape, dtype: str = FLOAT, constant: float = 0.3) -> str:
        """An operand of that shape: a tensor that exists, a constant or a further input."""
        fitting = [t for t, found in self.tensors.items() if found == (shape, dtype)]
        if fitting and self.maybe(0.4):
            return str(self.one_of(fitting))
        if self.inputs and self.maybe(constant):
            return self.constant(self.values(shape, dtype))
        return self.input(shape, dtype)

    def tensor(self, low: int = 0, high: int = 5, dtype: str = FLOAT) -> str:
        """A tensor of some rank: most often the last one made."""
        fitting = [t for t, (s, d) in self.tensors.items() if d == dtype and low <= len(s) <= high]
        if fitting and self.maybe(0.85):
            return fitting[-1] if self.maybe(0.7) else str(self.one_of(fitting))
        return self.input(self.shape(low, high), dtype)

    def shape_of(self, name: str) -> Shape:
        if name in self.constants:
            return self.constants[name].shape
        return self.tensors[name][0]

    def alike(self, name: str, dtype: str | None = None) -> str:
        """An operand that broadcasts with `name`: equal, of fewer dimensions, or with ones."""
        shape, own = self.tensors[name]
        kind = dtype or own
        if kind == own and self.maybe(0.15):
            return name
        other = [1 if self.maybe(0.3) else n for n in shape[self.int(0, len(shape)) :]]
        if len(other) == len(shape) and len(shape) < 5 and self.maybe(0.1):
            other.insert(0, self.int(1, 3))
        return self.new(tuple(other), kind)

    # --- nodes ---

    def node(self, op: str, inputs: Sequence[str], n: int = 1, **attrs: Any) -> list[str]:
        """Add an operator. Raises NotPossible where the opset lacks it or has no shape for it."""
        if not onnx.defs.has(op, self.opset, ""):
            raise NotPossible(op)
        known = onnx.defs.get_schema(op, self.opset, "").attributes
        outputs = [self.name("t") for _ in range(n)]
        stated = {k: v for k, v in attrs.items() if v is not None and k in known}
        made = helper.make_node(op, inputs, outputs, **stated)
        self.nodes.append(made)
        found = self._inferred(outputs)
        if found is None:
            self.nodes.pop()
            raise NotPossible(op)
        self.tensors |= found
        return outputs

    def _inferred(self, outputs: Sequence[str]) -> dict[str, tuple[Shape, str]] | None:
        try:
            model = shape_inference.infer_shapes(self.model(outputs), True, True, True)
        except Exception:
            return None
        out: dict[str, tuple[Shape, str]] = {}
        for port in model.graph.output:
            kind = port.type.tensor_type
            if not kind.HasField("shape") or not all(d.dim_value for d in kind.shape.dim):
                return None
            shape = tuple(d.dim_value for d in kind.shape.dim)
            if int(np.prod(shape)) > MAX_ELEMENTS or len(shape) > 6:
                return None
            out[port.name] = shape, str(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        return out

    def list_input(self, values: Sequence[int] | None, since: int) -> tuple[list[str], Any]:
        """Inputs and attribute for integers that are an input since an opset, else the other."""
        if values is None:
            return [], None
        if self.opset < since:
            return [], list(values)
        return [self.constant(np.array(values, np.int64))], None

    def model(self, outputs: Sequence[str]) -> ModelProto:
        """The model that gives these tensors."""
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            self.inputs,
            [ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(a, name) for name, a in self.constants.items()],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        proto.ir_version = 10 if self.opset >= 9 else 8
        return proto

    def finished(self) -> ModelProto:
        """The model with typed outputs: all that nothing reads, and now and then one more."""
        read = {name for node in self.nodes for name in node.input}
        made = [o for node in self.nodes for o in node.output]
        outputs = [o for o in made if o not in read]
        outputs = [o for o in outputs if o == outputs[-1] or self.maybe(0.8)]
        outputs += [o for o in made if o in read and self.maybe(0.1)]
        used = set(outputs) | read
        inputs = [i for i in self.inputs if i.name in used]
        del self.inputs[:]
        self.inputs += inputs
        self.constants = {n: a for n, a in self.constants.items() if n in used}
        proto = self.model([])
        for name in outputs:
            shape, dtype = self.tensors[name]
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            proto.graph.output.append(helper.make_tensor_value_info(name, kind, shape))
        return proto


def random_model(
    seed: int, drawers: Mapping[str, Drawer], most: int = 4, opset: int | None = None
) -> ModelProto:
    """A model of one to `most` drawn operators. The first is drawer `seed` modulo their number."""
    drawing = Drawing(seed, opset)
    names = sorted(drawers)
    first, tries = names[seed % len(names)], 0
    n_nodes = drawing.int(1, most)
    while len(drawing.nodes) < n_nodes and tries < 40:
        name = first if not drawing.nodes and tries < 20 else drawing.one_of(names)
        tries += 1
        try:
            drawers[name](drawing)
        except NotPossible:
            continue
    if not drawing.nodes:
        drawing.node("Relu", [drawing.input((2, 3))])
    return drawing.finished()
