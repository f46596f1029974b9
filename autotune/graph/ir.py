"""① The graph: operators on named tensors of static shape, between reading ONNX and te.

    graph = Graph(inputs, outputs, nodes, constants, types)     nodes in topological order
    node  = Node(name, op, inputs, outputs, attrs, opset)       "": an absent optional input

Passes are functions `Graph -> Graph`. While a model is read, nodes are in the opset of the file or
of the function that they come from. Later on operators mean what opset 22 says, but for what passes
introduce: `MatMul` may have a bias as third input and `trans_a`/`trans_b`; `Reshape` has one input
and takes its shape from the type of its output; after the layout pass, `Conv` and pooling read
channels last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import dtype_bytes
from autotune.errors import ModelError, UnsupportedOperator
from autotune.graph.written import WrittenLengths

Array = NDArray[Any]
Shape = tuple[int, ...]

OPSET = 22
"""The opset that all nodes are brought to."""
_FIRST = 1024
"""Elements that are compared first: most arrays that are not equal differ in them."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Static shape and element type."""

    shape: Shape
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `name` identifies it in messages.

    `op` is prefixed by its domain unless that is the standard one; `opset` is the version of `op`.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = OPSET

    @property
    def output(self) -> str:
        """The first output."""
        return self.outputs[0]


def frozen_attrs(node: Node) -> Hashable:
    """The attributes of a node, to compare them with others of nodes that still exist."""
    return tuple((name, frozen(node.attrs[name])) for name in sorted(node.attrs))


def frozen(value: Any) -> Hashable:
    """Key of a value: the same for equal types and bits; records are equal to themselves
    alone."""
    match value:
        case np.ndarray():
            return str(value.dtype), value.shape, value.tobytes()
        case list() | tuple():
            return tuple(map(frozen, value))
        case dict():
            return tuple((frozen(k), frozen(v)) for k, v in value.items())
        case bool() | int() | float() | str() | bytes() | np.generic() | None:
            return type(value).__name__, repr(value)
        case _:
            return id(value)


def same(a: Array, b: Array) -> bool:
    """Whether arrays are equal in every bit."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind == "O":
        return False
    if a.strides == b.strides and a.ctypes.data == b.ctypes.data:  # views, as of weights read once
        return True
    one, other = (np.ascontiguousarray(x).reshape(-1) for x in (a, b))
    one, other = one.view(np.uint8), other.view(np.uint8)
    return np.array_equal(one[:_FIRST], other[:_FIRST]) and np.array_equal(one, other)


@dataclass(frozen=True, slots=True)
class ModelFunction:
    """An operator that a model or the standard defines by others.

    Attributes of its nodes may be an `AttributeReference` to one of the call or of `defaults`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttributeReference:
    """An attribute inside of a function whose value is that of an attribute of its call."""

    name: str


@dataclass(frozen=True)
class Graph:
    """A model. `constants` holds every known tensor, `types` the type of every tensor.

    `opset` is that of the file, `functions` the operators that it defines. `output_names`: the
    name of an output in the file, where it differs from the name of the tensor.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: dict[str, Array]
    types: dict[str, TensorType]
    opset: int = OPSET
    functions: Mapping[str, ModelFunction] = field(default_factory=dict)
    output_names: Mapping[str, str] = field(default_factory=dict)

    def shape(self, name: str) -> Shape:
        """Shape of a tensor."""
        return self.types[name].shape

    def is_constant(self, name: str) -> bool:
        """Whether the value of a tensor is known; absent inputs are not constants."""
        return name in self.constants

    @cached_property
    def makers(self) -> dict[str, Node]:
        """The node that makes each result."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """Readers of every tensor, one entry per use."""
        out: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                out.setdefault(name, []).append(node)
        return out

    @property
    def n_constant_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(a.size * dtype_bytes(str(a.dtype)) for a in self.constants.values())


def to_last(rank: int) -> tuple[int, ...]:
    """Permutation (n, c, …) -> (n, …, c)."""
    return (0, *range(2, rank), 1) if rank > 1 else tuple(range(rank))


def to_first(rank: int) -> tuple[int, ...]:
    """Permutation (n, …, c) -> (n, c, …)."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 1 else tuple(range(rank))


def moves_nothing(perm: Sequence[int], shape: Shape) -> bool:
    """Whether a permutation of `shape` moves only dimensions of 1, as a Reshape can."""
    longer = [p for p in perm if shape[p] != 1]
    return longer == sorted(longer)


class Editor:
    """Collects the nodes of a rewritten graph. The original is not changed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.constants = dict(graph.constants)
        self.types = dict(graph.types)
        self.makers: dict[str, Node] = {}
        """The node that makes a tensor, of those emitted so far."""
        self.uses = Counter(
            n for names in (*(n.inputs for n in graph.nodes), graph.outputs) for n in names
        )
        """Number of uses of a tensor: operands of nodes and outputs of the graph."""
        self.derived: dict[tuple[str, Callable[[Array], Array | None]], str] = {}
        """Constants that are computed of others, by these and the function; "": there is none."""
        self.written: WrittenLengths | None = None
        """Lengths that operators write, where they are followed."""
        self._used: dict[str, int] = {}

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """Readers of every tensor of the original graph, one entry per use."""
        return self.graph.consumers()

    def emit(self, node: Node) -> None:
        """Append a node whose output types are known."""
        self.nodes.append(node)
        self.makers |= dict.fromkeys(filter(None, node.outputs), node)

    def infer(self, node: Node) -> TensorType | None:
        """The type of a result, where it is inferred as soon as a node is written."""
        return None

    def fold(self, node: Node, shape: Shape | None) -> Array | None:
        """The value of a result (of `shape`, where it is stated), where it is computed as soon as
        a node is written."""
        return None

    def new(self, stem: str, shape: Iterable[int], dtype: str = "float32") -> str:
        """Declare a tensor with an unused name that begins with `stem`."""
        name = self.unused(stem)
        self.types[name] = TensorType(tuple(shape), dtype)
        return name

    def unused(self, stem: str) -> str:
        """A name that no tensor has and that is not given again."""
        n = self._used.get(stem, -1) + 1
        while (name := f"{stem}.{n}" if n else stem) in self.types:
            n += 1
        self._used[stem] = n
        return name

    def constant(self, stem: str, value: Array) -> str:
        """Add a constant."""
        name = self.new(stem, value.shape, str(value.dtype))
        self.constants[name] = value
        return name

    def set_constant(self, name: str, value: Array) -> None:
        """Make an existing tensor a constant."""
        self.constants[name] = value
        self.types[name] = TensorType(value.shape, str(value.dtype))

    def build(self) -> Graph:
        """The new graph. A graph output that became a constant gets an Identity."""
        made = set(self.graph.inputs) | {o for n in self.nodes for o in n.outputs}
        for name in self.graph.outputs:
            if name not in made:
                if name not in self.constants:
                    raise ModelError(f"no node makes output '{name}'", "export it again")
                source = self.constant(f"{name}.value", self.constants.pop(name))
                self.nodes = [reading(node, {name: source}) for node in self.nodes]
                self.nodes.append(Node(name, "Identity", (source,), (name,)))
        return replace(
            self.graph, nodes=tuple(self.nodes), constants=self.constants, types=self.types
        )


def reading(node: Node, names: Mapping[str, str]) -> Node:
    """`node` with operands under other names."""
    if names.keys().isdisjoint(node.inputs):
        return node
    return replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))


def float_array(value: Array) -> Array:
    """The value as a float32 array of its own shape."""
    return np.asarray(value, np.float32)


def is_denormal(value: Array) -> Array:
    """Mask of denormal float32 values: kernels treat them as zero (docs/numbers.md)."""
    found: Array = (value != 0) & (np.abs(value) < np.finfo(np.float32).tiny)
    return found


def unsupported(node: Node, graph: Graph, reason: str = "") -> UnsupportedOperator:
    """The error for an operator that cannot be compiled, naming it, its node and the opset."""
    tail = f": {reason}" if reason else ""
    return UnsupportedOperator(
        f"operator '{node.op}' (node '{node.name}', opset {graph.opset}) is not supported{tail}",
        "change the model or export it with other options" if reason else CUT_HINT,
        reason,
    )


def malformed(node: Node, reason: str) -> ModelError:
    """The error for a node whose attributes or operands do not fit together."""
    return ModelError(
        f"operator '{node.op}' (node '{node.name}') is not well formed: {reason}",
        "check the shapes given with `shapes`, or export the model again",
    )


CUT_HINT = (
    "export the model without them, or cut it there (onnx.utils.extract_model) and compute the "
    "rest elsewhere"
)
