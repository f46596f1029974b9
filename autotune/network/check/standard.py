"""⑩ A model by the definitions of its operators: whether ONNX Runtime keeps to them, node by node.

    operands ─┬─► ONNX Runtime ─────────────────────┬─► as defined: go on with them
              └─► onnx.reference, or `definitions` ─┘ else the node is named, and goes on as defined

Nodes that only one of both can compute are taken from it. So the operators that `onnx.reference`
lacks, or computes wrongly, hide nothing of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from autotune.errors import MissingDependency, ModelError
from autotune.graph.fallback.segments import reads
from autotune.network.check.differences import difference, flat_outputs, tolerance
from autotune.network.check.oracles import Arrays, by_onnxruntime, by_reference

_POOLS = ("MaxPool", "AveragePool", "LpPool")
"""Operators with `auto_pad`, of which ONNX Runtime forgets the dilations, and `onnx.reference` the
side that is padded more."""
_MOVED_SHARE = 0.01
"""Integers that may differ by rounding: values halfway between two steps."""


@dataclass(frozen=True)
class Judgement:
    """Outputs of a model by definition; `deviating`: nodes where ONNX Runtime differs."""

    outputs: Arrays
    deviating: tuple[str, ...]


def by_definition(model: ModelProto, inputs: Arrays, n_threads: int) -> Judgement:
    """The outputs of `model`, and where ONNX Runtime's are others.

    Raises ModelError where no evaluator has a node, MissingDependency without ONNX Runtime.
    """
    values: dict[str, Any] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    constants = set(values)
    values |= inputs
    deviating: list[str] = []
    for node in model.graph.node:
        operands = {n: values[n] for n in reads(node) if n in values}
        ask = partial(_answer, model, operands=operands, constants=constants)
        theirs = ask(node, partial(by_onnxruntime, n_threads))
        defined = ask(_with_explicit_pads(node, operands), by_reference)
        if theirs is None and defined is None:
            raise ModelError(f"nobody computes {_named(node)}")
        if theirs is not None and defined is not None and _differ(theirs, defined):
            deviating.append(_named(node))
            theirs = None
        values |= defined or {} if theirs is None else theirs
        if constants.issuperset(operands):
            constants |= set(node.output)
    outputs = {o.name: values[o.name] for o in model.graph.output}
    return Judgement(outputs, tuple(deviating))


def _answer(
    model: ModelProto,
    node: NodeProto,
    make: Callable[[ModelProto], Callable[[Arrays], dict[str, Any]]],
    operands: Mapping[str, Any],
    constants: set[str],
) -> dict[str, Any] | None:
    """Results of one node; None where it cannot be computed."""
    single = _model_of(model, node, operands, constants)
    given = {name: value for name, value in operands.items() if name not in constants}
    try:
        return make(single)(given)
    except MissingDependency:
        raise
    except Exception:  # of the evaluator or of protobuf: another evaluator may succeed
        return None


def _model_of(
    model: ModelProto, node: NodeProto, operands: Mapping[str, Any], constants: set[str]
) -> ModelProto:
    """A model of one node. Constants stay such: some operators take nothing else."""
    single = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    single.functions.extend(model.functions)
    graph = single.graph
    graph.name = "node"
    graph.node.append(node)
    graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
    for name, value in operands.items():
        if name in constants:
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        else:
            graph.input.append(_declared(name, value))
    return single


def _declared(name: str, value: Any) -> ValueInfoProto:
    """An input as its value has it: a tensor, or a sequence of tensors."""
    if isinstance(value, list):
        kind = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else 1
        return helper.make_tensor_sequence_value_info(name, kind, None)
    dtype = np.dtype(object) if value.dtype.kind in "OU" else value.dtype
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), value.shape)


def _differ(theirs: Arrays, defined: Arrays) -> bool:
    """Whether results are others than rounding makes them."""
    ours, others = flat_outputs(defined), flat_outputs(theirs)
    return ours.keys() != others.keys() or any(
        not difference(others[name], array).within(
            tolerance(array.dtype), math.ceil(_MOVED_SHARE * array.size)
        )
        for name, array in ours.items()
    )


def _named(node: NodeProto) -> str:
    """`MaxPool (node 'pool')`."""
    return f"{node.op_type} (node '{node.name or next(iter(node.output), '')}')"


def _with_explicit_pads(node: NodeProto, operands: Mapping[str, Any]) -> NodeProto:
    """`node` with the padding that SAME_UPPER and SAME_LOWER are defined to be.

    The result has ⌈extent / stride⌉ elements of each dimension; the odd one goes to that side.
    """
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    side = attrs.get("auto_pad", b"")
    if node.op_type not in _POOLS or side not in (b"SAME_UPPER", b"SAME_LOWER"):
        return node
    extents = operands[node.input[0]].shape[2:]
    ones = [1] * len(extents)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    steps = zip(extents, attrs["kernel_shape"], strides, dilations, strict=True)
    totals = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in steps]
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [*less, *more] if side == b"SAME_UPPER" else [*more, *less]
    explicit = NodeProto()
    explicit.CopyFrom(node)
    del explicit.attribute[:]
    explicit.attribute.extend(_others(node.attribute))
    explicit.attribute.append(helper.make_attribute("pads", pads))
    return explicit


def _others(attributes: Sequence[AttributeProto]) -> Iterator[AttributeProto]:
    return (a for a in attributes if a.name not in ("auto_pad", "pads", "ceil_mode"))
