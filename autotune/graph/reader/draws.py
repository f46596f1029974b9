"""① Random numbers that nothing depends on, because they are multiplied by zero.

RandomNormalLike(x) · 0               ->  0
(RandomNormalLike(x) · e) · 0         ->  0 · e, which is NaN where e is not finite

Random numbers are finite, and so are results of them and of finite constants by operators
that cannot overflow at such values. Integers times zero are zero wherever they come from. Other
products stay: the factor may not be finite, and the sign of a zero is the factor's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod

import numpy as np

from autotune.graph.ir import Array, Editor, Node
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.rewriter import Rewriter

_DEVIATIONS = 40.0
"""Standard deviations beyond which no generator of normal numbers in float64 gets."""
_LARGEST = {kind: float(np.finfo(kind).max) for kind in ("float16", "float32", "float64")}
_LARGEST["bfloat16"] = 2.0**127


class Draws:
    """Random tensors of a graph with bounds of their elements, node by node."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._bounds: dict[str, float] = {}
        self._products: dict[str, tuple[str, str]] = {}

    def draw(self, node: Node) -> None:
        """A node that draws random numbers."""
        attrs = node.attrs
        if "Normal" in node.op:
            bound = abs(attrs.get("mean", 0.0)) + _DEVIATIONS * abs(attrs.get("scale", 1.0))
        else:
            bound = max(abs(attrs.get("low", 0.0)), abs(attrs.get("high", 1.0)))
        self._keep(node.output, bound)

    def see(self, node: Node) -> None:
        """A node whose results may be random: it reads random numbers."""
        floats = [n for n in node.inputs if self._dtype(n) in _LARGEST]
        drawn = [n for n in floats if n in self._bounds or n in self._products]
        if not drawn:
            return
        bound_of = _moved if Trait.MOVES in operator_of(node.op).traits else _BOUNDS.get(node.op)
        if bound_of is not None:
            bound = bound_of([self._bound(n) for n in floats])
            for name in filter(None, node.outputs):
                self._keep(name, bound)
        if node.op == "Mul" and node.output not in self._bounds:
            other = node.inputs[1 - node.inputs.index(drawn[0])]
            self._products[node.output] = drawn[0], other

    def times_zero(self, rw: Rewriter) -> None:
        """Mul(x, zeros) -> zeros, unless it has to stay."""
        node = rw.node
        kind = rw.types.get(node.output) if node.op == "Mul" else None
        if kind is None or min(kind.shape, default=0) < 0:
            return
        for x, zero in (node.inputs, node.inputs[::-1]):
            if not _is_zero(self.editor.constants.get(zero)):
                continue
            if x in self._bounds or self._dtype(x).startswith(("int", "uint")):
                self.editor.set_constant(node.output, np.zeros(kind.shape, kind.dtype))
                return
            if x in self._products:
                drawn, other = self._products[x]
                rw.result("Mul", rw("Mul", drawn, zero), other)
                return

    def _keep(self, name: str, bound: float) -> None:
        if bound <= _LARGEST.get(self._dtype(name), -inf):
            self._bounds[name] = bound

    def _bound(self, name: str) -> float:
        value = self.editor.constants.get(name)
        if value is None or not value.size:
            return self._bounds.get(name, inf)
        largest = float(np.abs(value.astype(np.float64)).max())
        return largest if largest < inf else inf

    def _dtype(self, name: str) -> str:
        kind = self.editor.types.get(name)
        return kind.dtype if kind is not None else ""


def _is_zero(value: Array | None) -> bool:
    return value is not None and value.size > 0 and not np.any(value)


def _moved(bounds: Sequence[float]) -> float:
    return max(bounds)


_BOUNDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(("Identity", "Neg", "Abs", "Relu", "Cast", "Min", "Max", "Clip"), _moved),
    **dict.fromkeys(("Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Softmax"), lambda bounds: 1.0),
    **dict.fromkeys(("Add", "Sub"), sum),
    "Mul": prod,
}
