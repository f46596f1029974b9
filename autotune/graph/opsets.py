"""① From any opset to one: what is older is converted, what is newer or compound is expanded.

check_operators ─► expand the newer ─► convert to opset 22 ─► expand the compound
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from autotune.errors import ModelError, UnsupportedOperator
from autotune.graph.operators import NATIVE
from autotune.graph.random_weights import replace_all
from autotune.graph.unfolding import CONTROL, is_unfolded

OPSET = 22
IR_VERSION = 10
_RESIZE_WITH_MODES = 11
"""The opset from which on Resize says where results lie in the source."""
_PRELU_THAT_BROADCASTS = 7
"""The opset from which on a slope per channel has as many dimensions as what it scales."""


def to_one_opset(model: ModelProto) -> ModelProto:
    """`model` in opset 22, with operators that the compiler knows and the types of all results.

    Where there are branches, loops or sequences, types are left out: ONNX does not know them all.
    Raises UnsupportedOperator for what that opset cannot say, ModelError for shapes that do not
    fit together.
    """
    opset = source_opset(model)
    while any(_is_newer(n) and _has_body(n.op_type, opset) for n in model.graph.node):
        model = _infer(_expand(model, _is_newer))
    _check_newer(model)
    model = _infer(forget_shapes(_convert(_infer(model))))
    model = _infer(_expand(model, _is_foreign))
    return forget_shapes(model) if any(is_unfolded(n.op_type) for n in model.graph.node) else model


def source_opset(model: ModelProto) -> int:
    """Version of the standard operator set that the model imports."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def check_operators(model: ModelProto) -> None:
    """Raises UnsupportedOperator for one that neither the standard nor the model defines."""
    opset = source_opset(model)
    local = {(f.domain, f.name) for f in model.functions}
    for node in model.graph.node:
        if (node.domain, node.op_type) in local:
            continue
        if node.domain not in ("", "ai.onnx") or not _is_standard(node.op_type, opset):
            raise _unknown(node, opset)


def _unknown(node: NodeProto, opset: int, reason: str = "") -> UnsupportedOperator:
    return UnsupportedOperator(
        f"operator '{operator_name(node)}' (node '{node_name(node)}', opset {opset}) "
        f"is not supported{reason}",
        "export the model with standard ONNX operators only",
    )


def operator_name(node: NodeProto) -> str:
    """Operator type with its domain when that is not the standard one."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def node_name(node: NodeProto) -> str:
    """Name of a node; nodes without one are known by their first output."""
    return node.name or next((o for o in node.output if o), node.op_type)


def _is_standard(op_type: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, min(opset, onnx.defs.onnx_opset_version()))
    except onnx.defs.SchemaError:
        return False
    return True


def state_defaults(model: ModelProto) -> None:
    """State the defaults of attributes that operators defined by others lack: bodies need them."""
    opset = source_opset(model)
    for node in (n for n in model.graph.node if _has_body(n.op_type, opset)):
        given = {a.name for a in node.attribute}
        known = onnx.defs.get_schema(node.op_type, opset).attributes
        missing = (a.default_value for name, a in known.items() if name not in given)
        node.attribute.extend(a for a in missing if a.type != AttributeProto.UNDEFINED)


def forget_shapes(model: ModelProto) -> ModelProto:
    """Remove what the model says of results: for other inputs or another opset it may be wrong."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def _convert(model: ModelProto) -> ModelProto:
    standard = source_opset(model)
    if standard != OPSET:
        try:
            model = onnx.version_converter.convert_version(model, OPSET)
        except Exception as error:  # the C++ converter raises RuntimeError and its relatives
            if standard < OPSET:
                raise ModelError(
                    f"the model cannot be converted from opset {standard} to {OPSET}: "
                    f"{str(error).strip().splitlines()[0]}",
                    "export it with a newer opset",
                ) from error
            # going down, adapters exist for few operators; what changed since is types, not meaning
    if standard < _RESIZE_WITH_MODES:
        for node in model.graph.node:
            if node.op_type == "Resize":  # the converter leaves open what went without saying
                modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
                node.attribute.extend(helper.make_attribute(*mode) for mode in modes.items())
    if standard < _PRELU_THAT_BROADCASTS:
        _spread_slopes(model)
    replace_all(model.opset_import, [helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    return model


def _spread_slopes(model: ModelProto) -> None:
    """PRelu with a slope per channel, of shape (c,) -> with one of shape (c, 1, …)."""
    known = (*model.graph.input, *model.graph.value_info)
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in known}
    ranks |= {t.name: len(t.dims) for t in model.graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        more = ranks.get(node.input[0], 0) - 2 if node.op_type == "PRelu" else 0
        if more > 0 and ranks.get(node.input[1]) == 1:
            name = f"{node.output[0]}.slope"
            shape = numpy_helper.from_array(np.array([-1] + [1] * more), f"{name}.shape")
            model.graph.initializer.append(shape)
            nodes.append(helper.make_node("Reshape", [node.input[1], shape.name], [name]))
            node.input[1] = name
        nodes.append(node)
    replace_all(model.graph.node, nodes)


def _check_newer(model: ModelProto) -> None:
    """Raises UnsupportedOperator for what opset 22 cannot say."""
    opset = source_opset(model)
    for node in model.graph.node if opset > OPSET else ():
        attribute = None if _is_newer(node) else _newer_attribute(node, opset)
        if _is_newer(node) or attribute:
            raise _unknown(node, opset, f": attribute '{attribute}'" if attribute else "")


def _newer_attribute(node: NodeProto, opset: int) -> str | None:
    """An attribute of `node` that came after opset 22 and is not at its default."""
    known = onnx.defs.get_schema(node.op_type, OPSET).attributes
    now = onnx.defs.get_schema(node.op_type, min(opset, onnx.defs.onnx_opset_version())).attributes
    for attribute in node.attribute:
        if attribute.name not in known:
            default = now[attribute.name].default_value
            if helper.get_attribute_value(attribute) != helper.get_attribute_value(default):
                return str(attribute.name)
    return None


def _expand(model: ModelProto, wanted: Callable[[NodeProto], bool]) -> ModelProto:
    """The wanted operators that the standard defines by others (Attention, …) -> those others."""
    opset = source_opset(model)
    compound = {
        (node.domain, node.op_type): node
        for node in model.graph.node
        if wanted(node) and _has_body(node.op_type, opset)
    }
    if not compound:
        return model
    typed = ModelProto()
    typed.CopyFrom(model)
    for tensor in model.graph.initializer:  # the inliner asks for the type of every operand
        typed.graph.value_info.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    absent = helper.make_tensor_value_info("", TensorProto.FLOAT, None)  # and of those left out
    typed.graph.value_info.append(absent)
    try:
        model = onnx.inliner.inline_selected_functions(
            typed, sorted(compound), exclude=False, inline_schema_functions=True
        )
    except RuntimeError as error:  # a type that ONNX cannot infer
        reason = str(error).strip().splitlines()[0].rpartition(": ")[2]
        raise _unknown(next(iter(compound.values())), opset, f": {reason}") from error
    replace_all(model.graph.value_info, [v for v in model.graph.value_info if v.name])
    return model


def _is_newer(node: NodeProto) -> bool:
    """Whether an operator came after the opset that models are brought to."""
    return not _is_standard(node.op_type, OPSET)


def _is_foreign(node: NodeProto) -> bool:
    """Whether nothing here knows an operator."""
    return node.op_type not in NATIVE


def _has_body(op_type: str, opset: int) -> bool:
    schema: Any = onnx.defs.get_schema(op_type, opset)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _infer(model: ModelProto) -> ModelProto:
    """Types of all results, as far as ONNX can tell."""
    for node in _normalisations_by_group(model):
        node.op_type = "InstanceNormalization"  # ONNX cannot tell the shape of the former
    strict = all(
        n.op_type not in CONTROL for n in model.graph.node
    )  # what is not taken may not fit
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"the shapes of the model do not fit together: {reason}",
            "check the shapes given with --shape",
        ) from error
    for node in _normalisations_by_group(model):
        node.op_type = "GroupNormalization"
    return model


def _normalisations_by_group(model: ModelProto) -> list[NodeProto]:
    return [n for n in model.graph.node if any(a.name == "num_groups" for a in n.attribute)]
