"""① Affine types of dequantised tensors, and their propagation through a graph.

    DequantizeLinear(constants)          ->  constant          but for weights and tables
    Dequantize(Quantize(x, s, z), t, v)  ->  the same of uint8, z + 128 and v + 128, where of int8
    Transpose(Dequantize(q, s, z))       ->  Dequantize(Transpose(q), Transpose(s), Transpose(z))
    Gather(Dequantize(q, s, z), i)       ->  Dequantize(Gather(q, i), s, z)     one s, one z

So products behind moves still have dequantised operands (`passes.quantised`), constants are moved
once, here, and tables of embeddings stay bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from autotune.graph.ir import Array, Node
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.quantisation import check_zero, dequantised, spread
from autotune.graph.operators.table import REARRANGING, operator_of, operators_with, permutes
from autotune.graph.rewriter import Rewriter, Rule

BYTES = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class Affine:
    """Numbers (q - zero) · scale, where q is tensor `name`; zero None: 0."""

    name: str
    scale: Array
    zero: Array | None = None

    @property
    def is_single(self) -> bool:
        """Whether all of the tensor has one scale and one zero point."""
        return self.scale.size == 1 and (self.zero is None or self.zero.size == 1)

    @property
    def zero_point(self) -> int:
        """The one zero point."""
        return 0 if self.zero is None else int(self.zero.reshape(-1)[0])


def affine_of(rw: Rewriter, name: str, *dtypes: str) -> Affine | None:
    """Affine type of a tensor dequantised from `dtypes`; scales and zero points are constants."""
    maker = rw.maker(name, "Dequantize")
    if maker is None or rw.types[maker.inputs[0]].dtype not in dtypes:
        return None
    q, *factors = maker.inputs
    known = [rw.constants[n] for n in factors if n in rw.constants]
    return Affine(q, *known) if len(known) == len(factors) else None


# --- constants --------------------------------------------------------------------------------


def _dequantise(rw: Rewriter) -> None:
    """DequantizeLinear(constants) -> constant, except for weights of products and for tables."""
    if not _stays_small(rw, rw.node.output):
        _fold(rw)


def _fold(rw: Rewriter) -> None:
    """Dequantize(constants) -> constant, where no reader took it as integers."""
    names = [n for n in rw.node.inputs if n]
    if any(n not in rw.constants for n in names):
        return
    q, *factors = (rw.constants[n] for n in names)
    if rw.node.op == "DequantizeLinear":
        check_zero(rw.node, factors[0].shape, factors[1].shape if factors[1:] else None)
        factors = [spread(rw.node, a, q.shape) for a in factors]
    rw.fold(dequantised(q, *factors))


def _stays_small(rw: Rewriter, name: str) -> bool:
    """Whether only products read a tensor, as their weights, some of them moved, and look-ups."""
    readers = rw.readers(name)
    return bool(readers) and all(_keeps(rw, reader, name) for reader in readers)


def _keeps(rw: Rewriter, user: Node, name: str) -> bool:
    """Whether `user` reads tensor `name` as its weight, or as the table of a look-up."""
    operator, position = operator_of(user.op), user.inputs.index(name)
    if operator.indexed is not None:
        return position == 0
    if Trait.MOVES in operator.traits:
        return _stays_small(rw, user.output)
    return operator.factors.weight_input == position


# --- signs ------------------------------------------------------------------------------------


def _unsigned(rw: Rewriter) -> None:
    """Dequantize(Quantize(x, s, z), t, v) of int8 -> of uint8, z and v 128 higher.

    Where nothing but such nodes reads the int8.
    """
    name = rw.input(0)
    maker, readers = rw.maker(name, "Quantize"), rw.readers(name)
    if maker is None or maker.attrs != {"to": "int8"} or len(readers) != rw.editor.uses[name]:
        return
    are_known = all(n in rw.constants for node in (maker, *readers) for n in node.inputs[2:])
    if are_known and all(node.op == "Dequantize" for node in readers):
        x, scale, *_ = (*maker.inputs, "")
        q = rw("Quantize", x, scale, _raised(rw, maker), to="uint8")
        rw.result("Dequantize", q, rw.input(1), _raised(rw, rw.node))


def _raised(rw: Rewriter, node: Node) -> str:
    """The zero point of a node, 128 higher."""
    old = rw.constants[node.inputs[2]] if len(node.inputs) > 2 else np.zeros((1,), np.int8)
    return rw.array((old.astype(np.int32) + 128).astype(np.uint8))


# --- moves ------------------------------------------------------------------------------------


def _move(rw: Rewriter) -> None:
    """Reshape, Transpose, Gather of Dequantize(q, s, z) -> Dequantize(moved q, moved s, moved z).

    Left where scales vary along a dimension of `q` that a Reshape splits or merges and `q` is
    computed; a constant `q` gets a scale for each of its elements there.
    """
    source = affine_of(rw, rw.input(0), *BYTES)
    if source is None:
        return
    node, factors = rw.node, rw.editor.makers[rw.input(0)].inputs[1:]
    if all(rw.constants[n].size == 1 for n in factors):
        moved = factors
    elif node.op in REARRANGING:
        moved = tuple(_moved_factor(rw, source.name, n) for n in factors)
    else:
        return
    if all(moved):
        q = rw(node.op, source.name, *node.inputs[1:], shape=rw.type.shape, **node.attrs)
        rw.result("Dequantize", q, *moved)


def _moved_factor(rw: Rewriter, q: str, name: str) -> str:
    """Scales or zero points of `q` as they repeat along the result; "" where they do not."""
    value, shape, target = rw.constants[name], rw.types[q].shape, rw.type.shape
    if value.size == 1:
        return name
    value = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if permutes(rw.node):
        return rw.array(np.ascontiguousarray(value.transpose(rw.attr("perm"))))
    if value.shape == shape:
        return rw.array(value.reshape(target))
    (axis, *others) = [n for n, extent in enumerate(value.shape) if extent > 1]
    for n, extent in enumerate(target):
        is_same = extent == shape[axis] and prod(target[:n]) == prod(shape[:axis])
        if is_same and not others:
            return rw.array(value.reshape((1,) * n + (extent,) + (1,) * (len(target) - n - 1)))
    if q not in rw.constants:
        return ""
    return rw.array(np.ascontiguousarray(np.broadcast_to(value, shape).reshape(target)))


_MOVING = REARRANGING | operators_with(lambda operator: operator.indexed is not None)

DEQUANTISE = Rule("dequantise", _dequantise, {"DequantizeLinear"})
FOLD = Rule("fold-dequantised", _fold, {"Dequantize"})
UNSIGNED = Rule("unsigned", _unsigned, {"Dequantize"})
MOVE = Rule("move-dequantise", _move, _MOVING)
