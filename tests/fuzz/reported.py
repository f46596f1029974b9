"""Small models rebuilt from public bug reports of other runtimes, with their siblings.

A kind is a function that gives models; its docstring names the report and says what went wrong
there. Expected is what onnxruntime gives without optimisations, or `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper, shape_inference

from tests.fuzz.judging import Question

Array = NDArray[Any]
Made = tuple[ModelProto, dict[str, Array]]
Kind = Callable[[], Iterator[Made]]


class Fed:
    """An input that gets this array; a tuple instead of it is the shape of a random float one."""

    def __init__(self, *values: Any, dtype: Any = np.float32) -> None:
        self.array = np.asarray(values[0] if len(values) == 1 else values, dtype)


def fed(array: Any) -> Fed:
    """An input that gets an array as it is."""
    array = np.asarray(array)
    return Fed(array, dtype=array.dtype)


def values(*shape: int, seed: int = 0) -> Array:
    """Normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*numbers: int) -> Array:
    """A list of int64 numbers."""
    return np.array(numbers, np.int64)


def n(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> NodeProto:
    """`n("Add", "a b")`; "_" stands for an absent input."""
    names = ["" if name == "_" else name for name in inputs.split()]
    stated = {k: v for k, v in attrs.items() if v is not None}
    return helper.make_node(op, names, outputs.split(), **stated)


def made(
    nodes: NodeProto | Sequence[NodeProto], opset: int = 17, outputs: str = "", **operands: Any
) -> Made:
    """A model of some nodes. Operands by name: an array is a constant, see `Fed` for the others.

    Its outputs are `outputs`, or all that no node reads.
    """
    listed = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
    read = {i for node in listed for i in node.input}
    names = outputs.split() or [o for x in listed for o in x.output if o and o not in read]
    feeds: dict[str, Array] = {}
    constants: dict[str, Array] = {}
    for name, operand in operands.items():
        if isinstance(operand, tuple):
            feeds[name] = values(*operand, seed=len(feeds))
        elif isinstance(operand, Fed):
            feeds[name] = operand.array
        else:
            constants[name] = np.asarray(operand)
    proto = _proto(listed, names, feeds, constants, opset)
    return proto, feeds


def _proto(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    feeds: Mapping[str, Array],
    constants: Mapping[str, Array],
    opset: int,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "reported",
        [_port(name, array) for name, array in feeds.items()],
        [ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 8
    inferred = shape_inference.infer_shapes(proto, True, False, True)
    del proto.graph.output[:]
    proto.graph.output.extend(inferred.graph.output)
    return proto


def _port(name: str, array: Array) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def kinds() -> tuple[Kind, ...]:
    """Every kind of all areas."""
    from tests.fuzz import reported_graphs, reported_moves, reported_numbers, reported_windows

    areas = (reported_windows, reported_moves, reported_numbers, reported_graphs)
    return tuple(kind for area in areas for kind in area.KINDS)


@cache
def models() -> tuple[tuple[str, Made], ...]:
    """Every model with the name of its kind."""
    return tuple((kind.__name__, one) for kind in kinds() for one in kind())


def question(number: int) -> Question:
    """The model of that number."""
    name, (proto, feeds) = models()[number]
    return Question(f"{name} {number}", proto.SerializeToString(), 0, True, feeds)
