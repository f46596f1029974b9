"""① Quantising a sum of scaled integers again: its scale goes into the factors of the sum.

    Quantize(Relu(f·m + b), t, z)                ->  Quantize(Relu(f·(m/t) + b/t), -, z)
    Quantize(Dequantize(p, r) + Dequantize(q, s), t, z)
                                  ->  Quantize(Dequantize(p, r/t) + Dequantize(q, s/t), -, z)

So nothing is divided at run time. Factors are rounded once more than in the definition.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.graph.ir import Editor, Graph, Node

_LINEAR = ("Add", "Sub")
_HOMOGENEOUS = ("Relu", "LeakyRelu")
"""f(a·x) = a·f(x) for a > 0."""
_SMALLEST, _LARGEST = 2.0**-60, 2.0**60
"""Of scales and factors: their quotient is a float32, and so are its products with integers."""


def fold_requantisation(graph: Graph) -> Graph:
    """Quantize(sum of scaled terms, t, z) -> Quantize(sum of terms scaled by 1/t, -, z)."""
    return _Requantisations(graph).run()


class _Requantisations:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.editor = graph, Editor(graph)
        self.makers = {n.output: n for n in graph.nodes}
        self.readers = graph.consumers()
        self.copies: dict[str, list[Node]] = {}
        """What is dequantised by other scales as well, by the tensor of the first one."""

    def run(self) -> Graph:
        for node in self.graph.nodes:
            scale = self._scale(node) if node.op == "Quantize" else None
            if scale is not None and self._is_sum(node.inputs[0]):
                name = self._divided(node.inputs[0], scale)
                self.makers[node.output] = replace(node, inputs=(name, "", *node.inputs[2:]))
        for node in self.graph.nodes:
            self.editor.emit(self.makers[node.output])
            for copy in self.copies.get(node.output, ()):
                self.editor.emit(copy)
        return self.editor.build()

    def _scale(self, node: Node) -> float | None:
        value = self.graph.constants.get(node.inputs[1])
        if value is None or value.size != 1:
            return None
        scale = float(value.reshape(-1)[0])
        return scale if _SMALLEST < scale < _LARGEST else None

    def _is_sum(self, name: str) -> bool:
        """Whether a tensor is a sum of scaled terms. One quantised term alone is none: a table."""
        terms = self._terms(name)
        return bool(terms) and (len(terms) > 1 or terms[0].op == "Mul")

    def _terms(self, name: str) -> list[Node]:
        """The nodes that scale the terms of a sum by constants; none where something else does."""
        maker = self.makers.get(name)
        if maker is None or not self._is_scaled(maker):
            return []
        if maker.op == "Dequantize":
            return [maker]
        if len(self.readers.get(name, ())) != 1 or name in self.graph.outputs:
            return []
        if maker.op == "Mul":
            return [maker]
        parts = [self._terms(n) for n in maker.inputs if n and n not in self.graph.constants]
        return [term for part in parts for term in part] if all(parts) else []

    def _is_scaled(self, node: Node) -> bool:
        """Whether its result is divided where its constants and what else it adds up are."""
        known = [n in self.graph.constants for n in node.inputs if n]
        if node.op == "Mul":
            fits = any(known)
        elif node.op in _LINEAR or node.op in _HOMOGENEOUS:
            fits = True
        else:
            fits = node.op in ("Clip", "Dequantize") and all(known[1:])
        return fits and all(map(self._is_moderate, node.inputs))

    def _is_moderate(self, name: str) -> bool:
        """Whether no finite number of a constant becomes infinite by a division."""
        value = self.graph.constants.get(name)
        return value is None or not (np.isfinite(value) & (np.abs(value) > _LARGEST)).any()

    def _divided(self, name: str, scale: float) -> str:
        """The tensor that is `name` divided by `scale`; `name` itself where only it is read."""
        value = self.graph.constants.get(name)
        if value is not None:
            quotient = (value.astype(np.float64) / scale).astype(np.float32)
            return self.editor.constant(f"{name}.divided", quotient)
        if not name:
            return name
        maker = self.makers[name]
        if maker.op == "Dequantize":
            q, step, *zero = maker.inputs
            copy = self.editor.new(f"{name}.divided", self.editor.types[name].shape)
            made = replace(maker, inputs=(q, self._divided(step, scale), *zero), outputs=(copy,))
            self.copies.setdefault(name, []).append(made)
            return copy
        inputs = list(maker.inputs)
        if maker.op == "Mul":
            factor = next(n for n in inputs if n in self.graph.constants)
            inputs[inputs.index(factor)] = self._divided(factor, scale)
        else:
            inputs = [self._divided(n, scale) for n in inputs]
        self.makers[name] = replace(maker, inputs=tuple(inputs))
        return name
