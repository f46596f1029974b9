"""① The writer of a composition: appends the nodes that stand for one node, and names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from autotune.dtypes import DTYPES
from autotune.errors import UnsupportedOperator
from autotune.graph.ir import Array, Editor, Node, Shape


class Composer:
    """Writes the nodes that stand for one node."""

    def __init__(self, node: Node, editor: Editor) -> None:
        self.node, self.types, self.constants = node, editor.types, editor.constants
        self.nodes: list[Node] = []

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Append an operator and return the name of its result."""
        return self.several(op, 1, *inputs, **attrs)[0]

    def several(self, op: str, n: int, *inputs: str, **attrs: Any) -> tuple[str, ...]:
        """The same for an operator of `n` results."""
        stem = f"{self.node.output}[{op}{len(self.nodes)}"
        names = tuple(f"{stem}.{k}]" if k else f"{stem}]" for k in range(n))
        self._append(op, inputs, names, attrs)
        return names

    def result(self, op: str, *inputs: str, **attrs: Any) -> None:
        """Append the operator whose result is the first one of the node."""
        self._append(op, inputs, (self.node.output,), attrs)

    def results(self, op: str, *inputs: str, **attrs: Any) -> None:
        """Append the operator whose first three results are those of the node."""
        self._append(op, inputs, self.node.outputs[:3], attrs)

    def bind(self, n: int, name: str) -> None:
        """Let result `n` of the node, where it is asked for, be a tensor."""
        if self.wants(n):
            self._append("Identity", (name,), (self.node.outputs[n],), {})

    def wants(self, n: int) -> bool:
        """Whether anybody asks for result `n`."""
        return n < len(self.node.outputs) and bool(self.node.outputs[n])

    def refuse_results(self, *numbers: int) -> None:
        """Raise the error for results that have no composition here."""
        if any(map(self.wants, numbers)):
            raise self.refuse("a further output is used")

    def float(self, value: float) -> str:
        """A number as a tensor."""
        return self("Constant", value_float=value)

    def integers(self, *values: int) -> str:
        """Whole numbers as a tensor."""
        return self.array(np.array(values, np.int64))

    def rank(self, n: int) -> int:
        """Dimensions of input `n`; it is refused where they are not known."""
        kind = self.types.get(self.input(n))
        if kind is None:
            raise self.refuse("the shape of an operand is not known")
        return len(kind.shape)

    def shape(self, n: int) -> Shape:
        """Extents of input `n`; it is refused where one is not known."""
        kind = self.types.get(self.input(n))
        if kind is None or min(kind.shape, default=0) < 0:
            raise self.refuse("the shape of an operand is not known")
        return kind.shape

    def value(self, n: int) -> Array | None:
        """Input `n` where it is a constant."""
        return self.constants.get(self.input(n))

    def array(self, value: Array) -> str:
        """An array as a tensor."""
        return self("Constant", value=value)

    def cast(self, x: str, dtype: str) -> str:
        """`x` as elements of `dtype`."""
        return self("Cast", x, to=DTYPES[dtype].onnx)

    def reshaped(self, x: str, *shape: int) -> str:
        """`x` in another shape."""
        return self("Reshape", x, self.integers(*shape))

    def _append(
        self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attrs: dict[str, Any]
    ) -> None:
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        name = f"{self.node.name}/{op}"
        self.nodes.append(Node(name, op, inputs, outputs, attrs))

    def input(self, n: int) -> str:
        """Name of an input; "" where it is left out."""
        return self.node.inputs[n] if n < len(self.node.inputs) else ""

    def attr(self, name: str, default: Any) -> Any:
        """An attribute of the node."""
        return self.node.attrs.get(name, default)

    def refuse(self, reason: str) -> UnsupportedOperator:
        """The error for a form that has no composition here."""
        return UnsupportedOperator(
            f"operator '{self.node.op}' (node '{self.node.name}') is not supported: {reason}",
            "change the model or export it with other options",
            reason,
        )

    def dequantised(self, first: int, **attrs: Any) -> str:
        """Inputs `first` (integers), `first + 1` (scale) and `first + 2` (zero point) as floats."""
        q, scale, zero = (self.input(first + k) for k in range(3))
        return self("DequantizeLinear", q, scale, zero, **attrs)

    def integer_product(self, operands: tuple[str, ...], scales: tuple[str, str]) -> str:
        """The product of two matrices of bytes (with two zero points) as floats of both scales."""
        total = self.cast(self("MatMulInteger", *operands), "float32")
        return self("Mul", total, self("Mul", *scales))

    def quantised(self, x: str, scale: int) -> None:
        """`x` quantised by inputs `scale` and `scale + 1` as the result."""
        self.result("QuantizeLinear", x, self.input(scale), self.input(scale + 1))


Composition: TypeAlias = Callable[[Composer], None]
