"""① From a file to one canonical ONNX model: opset 22, static shapes, no stray initialisers.

    path ─parse─► widen ─► bind dimensions ─► take out large constants ─► convert ─► infer shapes

The `onnx` package does the parsing, checking, conversion and inference. It does so on a model whose
large constants were replaced by typed inputs, which takes milliseconds instead of seconds and has
no 2 GB limit. `prepare_model` gives a plain `ModelProto` that other runtimes load as well, so that
a check or a benchmark runs on exactly the weights that are compiled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from autotune.errors import DynamicShape, ModelError, UnsupportedOperator, UsageError
from autotune.graph.operators import NATIVE
from autotune.graph.random_weights import Array, replace_all, take_constant_fills
from autotune.graph.widening import widen

OPSET = 22
IR_VERSION = 10
_RESIZE_WITH_MODES = 11
"""The opset from which on Resize says where results lie in the source."""
_PRELU_THAT_BROADCASTS = 7
"""The opset from which on a slope per channel has as many dimensions as what it scales."""
_LARGE = 1024
"""Initialisers with more elements than this never decide a shape: they are stripped."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Model:
    """A canonical model: `proto` lacks the large constants, which `weights` holds by name.

    In `proto` they appear as typed inputs. `opset` is that of the file.
    """

    proto: ModelProto
    weights: dict[str, Array]
    opset: int

    def complete(self) -> ModelProto:
        """The model with all weights among its initialisers, for other runtimes."""
        model = ModelProto()
        model.CopyFrom(self.proto)
        used = {name for node in model.graph.node for name in node.input}
        inputs = [i for i in model.graph.input if i.name not in self.weights]
        replace_all(model.graph.input, inputs)
        replace_all(model.graph.initializer, [t for t in model.graph.initializer if t.name in used])
        for name, array in self.weights.items():
            if name in used:
                tensor = model.graph.initializer.add()
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return model


def load_model(path: str | Path, shapes: Shapes | None = None) -> Model:
    """Read `path` and bring it to opset 22 with static shapes.

    `shapes` binds the dimensions of inputs by name. Raises UsageError for a missing file or an
    unknown input, ModelError for a file that is no readable model, UnsupportedOperator for an
    operator without a definition in the standard, DynamicShape for a dimension without a value.
    """
    model = read_file(Path(path))
    opset = source_opset(model)
    _check_operators(model)
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    drop_initializers_from_inputs(model)
    widen(model)
    _bind_shapes(model, shapes or {})
    _state_defaults(model)
    weights = take_constant_fills(model)
    weights |= _take_large(model)
    _declare(model, weights)
    _check(model)
    while any(_is_newer(n) and _has_body(n.op_type, opset) for n in model.graph.node):
        model = _infer(_expand(model, _is_newer))
    _check_newer(model)
    model = _infer(_forget_shapes(_convert(_infer(model))))
    return Model(_infer(_expand(model, _is_foreign)), weights, opset)


def prepare_model(path: str | Path, shapes: Shapes | None = None) -> ModelProto:
    """The model that is compiled, as one proto with its weights in place: see `load_model`."""
    return load_model(path, shapes).complete()


def model_hash(path: str | Path) -> str:
    """SHA-256 of the model file and of the files that hold its external data."""
    digest = hashlib.sha256(Path(path).read_bytes())
    model = onnx.load(str(path), format="protobuf", load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in sorted(names):
        with (Path(path).parent / name).open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def source_opset(model: ModelProto) -> int:
    """Version of the standard operator set that the model imports."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def read_file(path: Path) -> ModelProto:
    """Parse an ONNX file together with its external data."""
    if not path.is_file():
        raise UsageError(f"there is no model file '{path}'", "give the path of an .onnx file")
    if path.stat().st_size == 0:
        raise ModelError(f"'{path}' is empty", "export or download the model again")
    try:
        model = onnx.load(str(path), format="protobuf")
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "not readable"
        raise ModelError(
            f"'{path}' is truncated or not an ONNX model: {reason}",
            "export or download the model again; external data must lie beside the file",
        ) from error
    if not model.graph.output or not source_opset(model):
        raise ModelError(f"'{path}' holds no ONNX graph", "give the path of an .onnx file")
    return model


def drop_initializers_from_inputs(model: ModelProto) -> None:
    """Before IR 4 every weight was also listed as an input: keep the true inputs only."""
    known = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in known]
    replace_all(model.graph.input, inputs)
    model.ir_version = IR_VERSION


def _check_operators(model: ModelProto) -> None:
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


def _state_defaults(model: ModelProto) -> None:
    """State the defaults of attributes that operators defined by others lack: bodies need them."""
    opset = source_opset(model)
    for node in (n for n in model.graph.node if _has_body(n.op_type, opset)):
        given = {a.name for a in node.attribute}
        known = onnx.defs.get_schema(node.op_type, opset).attributes
        missing = (a.default_value for name, a in known.items() if name not in given)
        node.attribute.extend(a for a in missing if a.type != AttributeProto.UNDEFINED)


def _is_standard(op_type: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, min(opset, onnx.defs.onnx_opset_version()))
    except onnx.defs.SchemaError:
        return False
    return True


def _bind_shapes(model: ModelProto, shapes: Shapes) -> None:
    inputs = {i.name: i for i in model.graph.input}
    for name, shape in shapes.items():
        if name not in inputs:
            known = ", ".join(inputs) or "none"
            raise UsageError(f"the model has no input '{name}'", f"its inputs are: {known}")
        _bind(inputs[name], shape)
    for value in (*inputs.values(), *model.graph.output):
        _require_tensor(value)
    for value in inputs.values():
        _require_static(value)
    if shapes:
        _forget_shapes(model)


def _forget_shapes(model: ModelProto) -> ModelProto:
    """Remove what the model says of results: for other inputs or another opset it may be wrong."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def _bind(value: ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = value.type.tensor_type.shape.dim
    has_shape = value.type.tensor_type.HasField("shape")
    if (has_shape and len(dims) != len(shape)) or any(extent < 1 for extent in shape):
        raise UsageError(
            f"input '{value.name}' has {len(dims)} dimensions, found {'x'.join(map(str, shape))}",
            f"use --shape {value.name}:{_example(value)}",
        )
    dtype = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, shape))


def _require_tensor(value: ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        raise ModelError(
            f"'{value.name}' is of type '{kind.removesuffix('_type')}', not a tensor",
            "only models from tensors to tensors can be compiled",
        )


def _require_static(value: ValueInfoProto) -> None:
    tensor = value.type.tensor_type
    if tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim):
        return
    dims = "x".join(d.dim_param or str(d.dim_value or "?") for d in tensor.shape.dim) or "unknown"
    raise DynamicShape(
        f"input '{value.name}' has the dynamic shape {dims}",
        f"give its dimensions: --shape {value.name}:{_example(value)}",
    )


def _example(value: ValueInfoProto) -> str:
    dims = [d.dim_value for d in value.type.tensor_type.shape.dim] or [0, 0, 0, 0]
    usual = (1, 3, 224, 224) if len(dims) == 4 else (1,) * len(dims)
    return "x".join(str(d or u) for d, u in zip(dims, usual, strict=True))


def _take_large(model: ModelProto) -> dict[str, Array]:
    """Move large initialisers out of the model."""
    large = [t for t in model.graph.initializer if math.prod(t.dims) > _LARGE]
    arrays = {t.name: numpy_helper.to_array(t) for t in large}
    replace_all(
        model.graph.initializer, [t for t in model.graph.initializer if t.name not in arrays]
    )
    return arrays


def _declare(model: ModelProto, weights: dict[str, Array]) -> None:
    """Typed inputs stand in for the weights that were moved out."""
    for name, array in weights.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))


def _check(model: ModelProto) -> None:
    """Whether the model is well formed; the shapes of its outputs need not be stated."""
    stated = ModelProto()
    stated.CopyFrom(model)
    for output in stated.graph.output:
        output.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(stated)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"the model is not valid: {reason}", "export the model again") from error


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
    strict = all(n.op_type != "If" for n in model.graph.node)  # a branch not taken may not fit
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
