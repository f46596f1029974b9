"""① Text of a graph between two passes: one line per node.

    y: float32[1, 64, 56, 56] = Conv(x, w: float32[64, 3, 7, 7], b: float32[64]) {strides=(2, 2)}

The type of a constant stands where it is read; "-" is an absent operand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autotune.graph.ir import Graph, TensorType
from autotune.printable import one_line

_MOST_SHOWN = 8
"""Most elements of a constant that are printed."""


def print_graph(graph: Graph) -> str:
    """Inputs, nodes and outputs of a graph."""
    return "\n".join(map(one_line, _lines(graph)))


def _lines(graph: Graph) -> Iterator[str]:
    for name in graph.inputs:
        yield f"input {name}: {_type(graph.types[name])}"
    for node in graph.nodes:
        results = (f"{name or '-'}: {_type(graph.types.get(name))}" for name in node.outputs)
        operands = ", ".join(_operand(graph, name) for name in node.inputs)
        yield f"{', '.join(results)} = {node.op}({operands}){_attributes(node.attrs)}"
    yield f"output {', '.join(graph.outputs)}"


def _operand(graph: Graph, name: str) -> str:
    value = graph.constants.get(name)
    if value is None:
        return name or "-"
    if value.size <= _MOST_SHOWN:
        return f"{name}: {value.dtype}{value.tolist()}"
    return f"{name}: {_type(graph.types[name])}"


def _attributes(attrs: Mapping[str, Any]) -> str:
    shown = (f"{name}={_value(value)}" for name, value in attrs.items())
    return f" {{{', '.join(shown)}}}" if attrs else ""


def _value(value: Any) -> str:
    match value:
        case np.ndarray():
            return f"{value.dtype}{list(value.shape)}"
        case int() | float() | str() | tuple():
            return repr(value)
        case _:  # a function of a user's operator, a graph
            return type(value).__name__


def _type(kind: TensorType | None) -> str:
    return "?" if kind is None else f"{kind.dtype}[{', '.join(map(str, kind.shape))}]"
