"""① Definition of an operator: its record, and the scope in which it computes.

    OPERATORS = {"CumSum": Operator(define=running_sum, resolve=_axis_operand)}

Every file of an operator family ends with such a table; `table` joins them. The reader, the passes,
the partition and the subgraphs ask for a field of the record, never for the name of an operator,
unless they state a rewrite of that one operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, TypeAlias

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array, Node, Shape, TensorType, malformed
from autotune.graph.rewriter import Rewrite, Rewriter
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
from autotune.units import format_shape

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

    def named(self, role: str) -> str:
        """A name for a tensor that is none of those so far."""
        return self._name(role)

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
    """`body` with the float32 literals of a formula as float64 where it computes in float64.

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


def dtype_named(to: int | str) -> str:
    """The type of a number of ONNX or of a name; "" for one that no program computes with."""
    return next((d.name for d in DTYPES.values() if to in (d.onnx, d.name)), "")


def accumulator_of(a: str, b: str) -> str:
    """The type in which products of two types are summed; beside a float, integers are floats."""
    kinds = DTYPES[a], DTYPES[b]
    floats = tuple(kind for kind in kinds if kind.is_float)
    return min(floats or kinds, key=lambda dtype: dtype.bits).accumulator


def product_of(a: Expr, b: Expr) -> Expr:
    """a · b in the type of its sums: int32 for narrower integers, float32 for half precision."""
    wide = accumulator_of(dtype_of(a), dtype_of(b))
    return cast(wide, a) * cast(wide, b)


def inside(index: Expr, extent: int) -> Expr:
    """`index`, moved to the nearest end where it is outside of a dimension."""
    return maximum(idx(0), minimum(index, idx(extent - 1)))


def literal(value: float, dtype: str = "float32") -> Const:
    """A float literal: the nearest float32, or float64 in computations of float64."""
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


class ViewKind(Enum):
    """What a view is of memory (`Fusion.VIEW`): all elements in another shape, a part of each
    dimension, operands behind one another along `axis`, or the first one with rows of the second.
    """

    WHOLE = "whole"
    PART = "part"
    JOINED = "joined"
    APPENDED = "appended"


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
    """It stays, for its readers are rewritten."""
    DRAWN = "drawn"
    """Its result is random."""
    REQUIRED = "required"
    """It exists in a model only until it is folded."""


class Trait(Flag):
    """Further properties of an operator."""

    CHEAP = auto()
    """It may be recomputed inside the tiles of an anchor that reads it."""
    WIDENS = auto()
    """Readers may compute it themselves where its operand is smaller than its result."""
    MOVES = auto()
    """Its results consist of elements of its first operand (of all operands for Concat)."""
    SELECTS = auto()
    """Its result consists of operand elements and no computation could be fused to it."""
    COMMUTATIVE = auto()
    KEEPS_RANGE = auto()
    """Integers of the result are about as large as those of the operands."""
    LITERALS = auto()
    """A constant of one element becomes part of the computation."""
    PLACED = auto()
    """Elements depend on their place along the last dimension."""
    AXIS_MAY_BE_RANK = auto()
    """Attribute `axis` may name the dimension behind the last one."""


NO_TRAITS = Trait(0)
FLOAT32 = frozenset(("float32",))
FLOATS = frozenset(("float32", "float64"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Kind of an operator with factors: a product, a window, or a look-up in a table."""

    weight_input: int | None = None
    """Position of the weights or the table, which keep their own shape."""
    channel_axis: int | None = None
    """Dimension of the result over which the weights' output channels run, in ONNX's order."""
    n_narrow: int = 0
    """Leading operands that are stored in half precision where products are computed so."""
    takes_prologue: bool = False
    """Whether the anchor computes cheap operators on its first operand while it reads it."""
    n_terms: Callable[[Sequence[Array]], int] = lambda given: 1
    """Products that are summed for one element of the result, at most, for these operands."""


NO_FACTORS = Factors()

Types: TypeAlias = list[TensorType | None]
"""Those of the results of a node; None for one that is not told. Empty where none is."""
Infer: TypeAlias = Callable[..., Types]
"""Attributes that a node leaves out -> the types that the `onnx` package infers; none for a node
that a pass writes. Raises ModelError."""
Typing: TypeAlias = Callable[[Rewriter, Infer], Types]
"""The types of results. Raises ModelError where attributes and operands do not fit together."""
Check: TypeAlias = Callable[[Rewriter], str]
"""Fault of attributes and operands of a node; "" for none."""


def typed(
    after: Check | None = None,
    *,
    before: Check | None = None,
    own: Callable[[Rewriter], Types] | None = None,
    fallback: Callable[[Rewriter], Types] | None = None,
) -> Typing:
    """Types as the package infers them, or `own` ones where it infers less, or the `fallback` where
    it infers none; and what it leaves to check, `before` that, and `after` it with known types."""

    def typing(rw: Rewriter, infer: Infer) -> Types:
        require(rw, before)
        kinds = (own(rw) if own else []) or infer() or (fallback(rw) if fallback else [])
        known = zip(rw.node.outputs, kinds, strict=False)
        rw.types |= {name: kind for name, kind in known if name and kind is not None}
        if kinds and all(n in rw.types for n in (*rw.node.inputs, *rw.node.outputs) if n):
            require(rw, after)
        return kinds

    return typing


def require(rw: Rewriter, check: Check | None) -> None:
    """Raises ModelError where a check gives a reason."""
    reason = check(rw) if check is not None else ""
    if reason:
        raise malformed(rw.node, reason)


def repeating(n: int) -> Check:
    """Operand `n` repeats along the result, which it does not widen."""

    def check(rw: Rewriter) -> str:
        small, large = rw.types[rw.input(n)].shape if rw.input(n) else (), rw.type.shape
        if repeats_along(small, large):
            return ""
        return f"an operand of {format_shape(small)} for a result of {format_shape(large)}"

    return check


def like_first(rw: Rewriter) -> Types:
    """The type of the first operand."""
    return [rw.kind(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Record of one operator. A field that is left out asks for nothing special."""

    # --- computation and fusion ---
    define: Definition | None = None
    """Its computation; None where a pass rewrites it into other operators."""
    formula: Formula | None = None
    """The formula of an elementwise operator."""
    dtypes: Set[str] = frozenset(DTYPES)
    """Types of elements that it is defined for."""
    fusion: Fusion = Fusion.ANCHOR
    view: ViewKind | None = None
    traits: Trait = NO_TRAITS
    factors: Factors = NO_FACTORS

    # --- operands ---
    roles: tuple[str, ...] = ("x",)
    """Names of the placeholders of its operands in a task."""
    constant_role: str = "constant"
    """Name of the placeholder of a constant operand beyond `roles`."""
    indexed: Callable[[Node, Shape, Shape], Shape] | None = None
    """The extents that the elements of operand 1 choose from, given the shapes of both operands."""

    # --- passes ---
    layout: Layout = Layout.ONNX
    canonical: Rewrite | None = None
    """Rewrites a node in ONNX's order of dimensions (pass `canonical`)."""
    resolve: Rewrite | None = None
    """Makes attributes of operands that are no data, on the stored layout (pass `resolve`)."""
    is_identity: Callable[[Rewriter], bool] | None = None
    """Whether a node returns its first operand."""

    # --- types and values ---
    typing: Typing | None = None
    """The types of its results, where the `onnx` package does not tell them or asks too little."""
    folding: Folding = Folding.ALWAYS
    fold: Callable[[Rewriter], list[Array] | None] | None = None
    """The results where types or constants tell them without any computation."""
    evaluate: Callable[[Node, list[Array]], list[Array]] | None = None
    """The results for constant operands where the reference implementation is not used."""

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
