"""① Definition of an operator: its record, and the scope in which it computes.

    OPERATORS = {"CumSum": Operator(define=running_sum, any_type=True, resolve=_axis_operand)}

Every file of an operator family ends with such a table; `table` joins them. The reader, the passes,
the partition and the subgraphs ask for a field of the record, never for the name of an operator,
unless they state a rewrite of that one operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array, Editor, Node, Shape
from autotune.graph.rewriter import Rewrite
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder, compute
from autotune.te.expr import (
    Axis,
    Cast,
    Const,
    Expr,
    Load,
    Tensor,
    cast,
    distinct,
    dtype_of,
    f32,
    idx,
    map_expr,
    maximum,
    minimum,
)

Operand: TypeAlias = Tensor | Const
"""Operand of an operator: a tensor, or a literal for a constant of one element."""
Operands: TypeAlias = Sequence[Operand | None]
"""Absent optional operands are None."""

POINT = (Axis("n", 1),)
"""The axes of a scalar: a computation has at least one."""
_AXIS_NAMES = {1: "c", 2: "nc", 3: "nwc", 4: "nhwc", 5: "nhwgc"}


class Scope:
    """Collects the operations of one subgraph. Equal subgraphs get equal names."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._used: Counter[str] = Counter()

    def placeholder(
        self, role: str, shape: Sequence[int], constant: bool = False, dtype: str = "float32"
    ) -> Tensor:
        """Declare an input called after its role."""
        op = Placeholder(Tensor(self._name(role), tuple(shape), dtype), constant)
        self.ops.append(op)
        return op.tensor

    def compute(self, role: str, axes: Sequence[Axis], body: Expr) -> Tensor:
        """Define an intermediate or the result."""
        op = compute(self._name(role), axes, _in_one_type(body))
        self.ops.append(op)
        return op.tensor

    def take_copy(self, x: Tensor) -> Compute | None:
        """The computation of `x` where it only permutes another tensor; it is then forgotten."""
        op = next((o for o in self.ops if o.name == x.name), None)
        if not isinstance(op, Compute) or not x.name.startswith("transpose"):
            return None
        self.ops.remove(op)
        return op

    def dag(self, *outputs: Tensor) -> ComputeDAG:
        """The finished subgraph."""
        return ComputeDAG(tuple(self.ops), tuple(t.name for t in outputs))

    def _name(self, role: str) -> str:
        self._used[role] += 1
        n = self._used[role]
        return role if n == 1 else f"{role}{n}"


def _in_one_type(body: Expr) -> Expr:
    """`body` with the float32 literals of a formula as float64 where that is what it computes in.

    Formulas are written once, with literals that both types have exactly; others ask for the type.
    """
    kinds = {dtype_of(e) for e in distinct(body) if isinstance(e, Load | Cast)}
    if "float64" not in kinds or "float32" in kinds:
        return body

    def widened(e: Expr) -> Expr | None:
        is_single = isinstance(e, Const) and e.dtype == "float32"
        return Const(e.value, "float64") if isinstance(e, Const) and is_single else None

    return map_expr(body, widened)


def axes_of(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Axes n, h, w, c of a tensor of `shape`."""
    names = _AXIS_NAMES.get(len(shape)) or tuple(f"i{n}" for n in range(len(shape)))
    return tuple(Axis(name, extent) for name, extent in zip(names, shape, strict=True))


def broadcast_shape(operands: Sequence[Operand]) -> tuple[int, ...]:
    """NumPy's shape of an elementwise result."""
    return np.broadcast_shapes(*(o.shape if isinstance(o, Tensor) else () for o in operands))


def repeats_along(small: Shape, large: Shape) -> bool:
    """Whether a tensor of shape `small` repeats along the dimensions of `large` without widening
    them."""
    tail = large[len(large) - len(small) :]
    fits = (a in (1, b) for a, b in zip(small, tail, strict=False))
    return len(small) <= len(large) and all(fits)


def shape_text(shape: Sequence[int]) -> str:
    """`2x3x4`, or `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def read(operand: Operand, axes: Sequence[Axis]) -> Expr:
    """The element of `operand` at `axes`, dimensions aligned at the end and 1s repeated."""
    if isinstance(operand, Const):
        return operand
    tail = axes[len(axes) - len(operand.shape) :]
    pairs = zip(operand.shape, tail, strict=True)
    return operand[tuple(idx(0) if extent == 1 else axis.var for extent, axis in pairs)]


def biased(scope: Scope, x: Tensor, bias: Tensor | None) -> Tensor:
    """x + bias, which varies along the last dimension (both, in a grouped convolution)."""
    if bias is None:
        return x
    axes = axes_of(x.shape)
    return scope.compute("add", axes, read(x, axes) + read(bias, axes))


def accumulator_of(a: str, b: str) -> str:
    """The type in which products of two types are summed."""
    return min((DTYPES[a], DTYPES[b]), key=lambda dtype: dtype.bits).accumulator


def product_of(a: Expr, b: Expr) -> Expr:
    """a · b in the type of its sums: int32 for narrower integers, float32 for half precision."""
    wide = accumulator_of(dtype_of(a), dtype_of(b))
    return cast(wide, a) * cast(wide, b)


def inside(index: Expr, extent: int) -> Expr:
    """`index`, moved to the nearest end where it is outside of a dimension."""
    return maximum(idx(0), minimum(index, idx(extent - 1)))


def literal(value: float, dtype: str = "float32") -> Const:
    """A float literal: the nearest float32, or float64 where that is what is computed in."""
    return Const(value, dtype) if dtype == "float64" else f32(float(np.float32(value)))


def tensor(operands: Operands, n: int) -> Tensor:
    """Operand `n`, which must be a tensor."""
    operand = operands[n]
    if not isinstance(operand, Tensor):
        raise TypeError(f"operand {n} must be a tensor, found {operand}")
    return operand


def optional(operands: Operands, n: int) -> Tensor | None:
    """Operand `n` where it is given."""
    return tensor(operands, n) if n < len(operands) and operands[n] is not None else None


# --- the record -----------------------------------------------------------------------------

Attrs: TypeAlias = Mapping[str, Any]
Definition: TypeAlias = Callable[[Scope, Node, Operands, Shape], Tensor]
"""Defines an operator on tensors as they are stored: the scope of the subgraph, the node, its
operands and the shape of its result -> the tensor that it computes."""
Formula: TypeAlias = Callable[..., Expr]
"""Attributes and one element of each operand -> the element of the result; an absent optional
operand is None."""


class Fusion(Enum):
    """Role of an operator in a fused subgraph."""

    ELEMENTWISE = "elementwise"
    """Each element depends on one element of each operand; joins the subgraph of its producer."""
    INJECTIVE = "injective"
    """Each element is read from one place of the operand; may stand in front of an anchor."""
    VIEW = "view"
    """A view of memory or a part of a larger tensor: `storage` decides, no subgraph holds it."""
    ANCHOR = "anchor"
    """A reduction or anything else: at most one per subgraph."""


class Layout(Enum):
    """Rule for an operator when activations are stored channels last."""

    ONNX = "onnx"
    """It needs the order of dimensions that ONNX has."""
    SPATIAL = "spatial"
    """Its first operand is always channels last, the others keep ONNX's order."""
    ELEMENTWISE = "elementwise"
    """Any order, the same for all operands."""
    AXIS = "axis"
    """Any order; attribute `axis` is renumbered."""
    REDUCTION = "reduction"
    """Any order; the axes that are reduced are renumbered."""
    PAD = "pad"
    SLICE = "slice"
    TRANSPOSE = "transpose"
    RESHAPE = "reshape"


class Folding(Enum):
    """Conditions of constant folding of an operator while the model is read."""

    ALWAYS = "always"
    FINITE = "finite"
    """Only for finite operands: the reference implementation pads with NaN."""
    NEVER = "never"
    """It stays, for what reads it is rewritten."""
    DRAWN = "drawn"
    """Its result is random."""
    REQUIRED = "required"
    """It exists in a model only until it is folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Record of one operator. A field that is left out asks for nothing special."""

    # --- computation and fusion ---
    define: Definition | None = None
    """Its computation; None where a pass rewrites it into other operators."""
    formula: Formula | None = None
    """The formula of an elementwise operator."""
    fusion: Fusion = Fusion.ANCHOR
    is_cheap: bool = False
    """Whether it may be recomputed inside the tiles of an anchor that reads it."""
    takes_prologue: bool = False
    """Whether the anchor computes cheap operators on its first operand while it reads it."""
    widens: bool = False
    """Whether readers may compute it themselves where its operand is smaller than its result."""
    moves: bool = False
    """Whether its results consist of elements of its first operand (of all operands for Concat)."""
    n_narrow: int = 0
    """Leading operands that are stored in half precision where products are computed so."""
    is_commutative: bool = False
    any_type: bool = False
    """Whether it is defined for all of `DTYPES`; otherwise for float32 alone."""
    of_doubles: bool = False
    """Whether it is defined for float64 as well, where it is not for all types."""

    # --- operands ---
    roles: tuple[str, ...] = ("x",)
    """Names of the placeholders of its operands in a task."""
    constant_role: str = "constant"
    """Name of the placeholder of a constant operand beyond `roles`."""
    weight_input: int | None = None
    """Position of the weights; they keep their own shape."""
    scalar_is_literal: bool = False
    """Whether a constant of one element becomes part of the computation."""
    channel_axis: int | None = None
    """Dimension of the result over which the weights' output channels run, in ONNX's order."""
    selects: bool = False
    """Whether its result consists of operand elements and no computation could be fused to it."""
    keeps_range: bool = False
    """Whether integers of the result are about as large as those of the operands."""
    indexed: Callable[[Node, Shape, Shape], Shape] | None = None
    """The extents that the elements of operand 1 choose from, given the shapes of both operands."""

    # --- passes ---
    layout: Layout = Layout.ONNX
    default_axis: int = 0
    """Attribute `axis` where it is left out."""
    canonical: Rewrite | None = None
    """Rewrites a node in ONNX's order of dimensions (pass `canonical`)."""
    resolve: Rewrite | None = None
    """Makes attributes of operands that are no data, on the stored layout (pass `resolve`)."""
    is_identity: Callable[[Editor, Node], bool] | None = None
    """Whether a node returns its first operand."""

    # --- while the model is read ---
    precondition: Callable[[Editor, Node], str] | None = None
    """Fault of attributes and operand shapes, before shape inference; "" for none."""
    shape: Callable[[Editor, Node], Shape | None] | None = None
    """The shape of the result where the `onnx` package infers less; None leaves it to that."""
    results: Callable[[Editor, Node], Sequence[Shape]] | None = None
    """The shapes of all results of an operator that opset 22 lacks and that has several."""
    dtype: Callable[[Editor, Node], str | None] | None = None
    """The type of the result of an operator that opset 22 lacks, where it is not that of its first
    operand; None for one that no program computes with."""
    check: Callable[[Editor, Node], str] | None = None
    """Fault of operands after shape inference, which asks less; "" for none."""
    completed: Callable[[Editor, Node], Node] | None = None
    """The node with the attributes that inference needs and a model may leave out."""
    axis_may_be_rank: bool = False
    """Whether attribute `axis` may name the dimension behind the last one."""
    folding: Folding = Folding.ALWAYS
    fold: Callable[[Editor, Node], list[Array] | None] | None = None
    """The results where types or constants tell them without any computation."""
    evaluate: Callable[[Node, list[Array]], list[Array]] | None = None
    """The results for constant operands where the reference implementation is not used."""
    n_terms: Callable[[Sequence[Array]], int] | None = None
    """Products that are summed for one element of the result, at most; 1 if left out."""

    @property
    def is_native(self) -> bool:
        """Whether it has a meaning here; others are expanded into their standard body."""
        is_kept = self.is_defined or self.is_identity is not None
        is_rewritten = self.canonical is not None or self.resolve is not None
        return is_kept or is_rewritten or self.folding is Folding.REQUIRED

    @property
    def is_defined(self) -> bool:
        """Whether it may remain in the graph after all passes."""
        return self.define is not None or self.fusion is Fusion.VIEW

    @property
    def is_elementwise(self) -> bool:
        """Whether each element depends on one element of each operand."""
        return self.fusion is Fusion.ELEMENTWISE

    @property
    def is_injective(self) -> bool:
        """Whether each element is computed from one element of each operand."""
        return self.fusion in (Fusion.ELEMENTWISE, Fusion.INJECTIVE)


UNKNOWN = Operator()
"""The record of an operator that is not in the table."""
