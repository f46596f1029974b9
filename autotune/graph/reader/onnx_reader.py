"""① From a file to one ONNX model of static shapes, without half precision and stray initialisers.

    path ─parse─► widen ─► bind dimensions ─► take out large constants ─► check

The `onnx` package does the parsing and checking. It does so on a model whose large constants were
replaced by typed inputs, which takes milliseconds instead of seconds and has no 2 GB limit. The
model keeps its opset and its functions; nodes are brought to one opset by `import_engine`.
`prepare_model` gives a plain `ModelProto` that other runtimes load as well, so that a check or a
benchmark runs on exactly the weights that are compiled.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from autotune import dtypes
from autotune.cache import FileStore, key_of
from autotune.errors import ModelError, NotCompilable, UsageError
from autotune.files import Stamps, open_input, require_regular
from autotune.graph.constant_values import Constants
from autotune.graph.ir import OPSET
from autotune.graph.limits import check_size
from autotune.graph.reader.constant_inputs import bind_constants, fed, shapes_of
from autotune.graph.reader.dimensions import Shapes, is_tensor, require_static, shapes_at
from autotune.graph.reader.external_data import Places, load_external
from autotune.graph.reader.external_data import external_files as places_of_data
from autotune.graph.reader.node_order import all_nodes, bodies, names_read, put_in_order
from autotune.graph.reader.numbered_texts import number_texts
from autotune.graph.reader.opsets import opset_of, require_known_versions, schema_of
from autotune.graph.reader.random_weights import replace_all, take_constant_fills
from autotune.graph.reader.sparse_constants import make_dense
from autotune.graph.reader.tensors import Array, array_of
from autotune.graph.reader.upgrades import is_converted
from autotune.graph.reader.weights_apart import FileRange, parted, read_weights
from autotune.graph.reader.widening import narrow_ports, widen
from autotune.graph.texts import NO_TEXTS, Texts
from autotune.names import require_known
from autotune.units import format_bytes
from autotune.wording import arguments

_LARGE = 1024
_BLOCK = 256 << 10
_SETTLED_S = 2.0
"""A file that was changed later may be changed again at what its times call the same moment."""
"""Initialisers with more elements than this never decide a shape: they are stripped."""

_IR_VERSION_WITH_OPSETS = 3
"""The first version of the file format that states opsets; before, all was opset 1."""
_MOST_BYTES = (2 << 30) - 1
"""Most bytes of a protocol buffer."""

_IR_VERSION = 10
"""The version of the file format that is written: its inputs need not list all initialisers."""

_SUPERSEDED = "superseded"
"""The domain of nodes that are not shown to ONNX's checker."""

_CONTEXT = re.compile(r"Bad node spec for node\. Name: (.*?) OpType: (\S+)")
"""The part of the checker's message that names the node."""

Parted: TypeAlias = tuple[ModelProto, dict[str, Array]]
"""The model of a file, and its large initialisers that have no data there."""

_ALL_KINDS = TensorProto.DataType.values()


@dataclass(frozen=True)
class OnnxModel:
    """A model: `proto` lacks the large constants, which `weights` holds by name.

    In `proto` they appear as typed inputs. `opset` is that of the file. `halves`: dtypes of the
    inputs and outputs that are in half precision in the file, and float32 in `proto`. `texts`: of
    strings of the file, which are numbers in `proto`.
    """

    proto: ModelProto
    weights: dict[str, Array]
    opset: int
    halves: Mapping[str, str] = field(default_factory=dict)
    texts: Texts = NO_TEXTS

    def complete(self) -> ModelProto:
        """The model with all weights among its initialisers, for other runtimes."""
        model = ModelProto()
        model.CopyFrom(self.proto)
        used = set(names_read(model.graph))
        inputs = [i for i in model.graph.input if i.name not in self.weights]
        replace_all(model.graph.input, inputs)
        replace_all(model.graph.initializer, [t for t in model.graph.initializer if t.name in used])
        for name, array in self.weights.items():
            if name in used:
                tensor = model.graph.initializer.add()
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))
        use_older_opset(model)
        return model


def use_older_opset(model: ModelProto) -> None:
    """Declare opset 22 where it has all operators of the model: more runtimes support it.

    Later versions of these operators changed in types, not in semantics.
    """
    known = all(
        n.domain in ("", "ai.onnx") and schema_of(n.op_type, OPSET) for n in model.graph.node
    )
    if opset_of(model.opset_import) > OPSET and known and not model.functions:
        for entry in model.opset_import:
            if entry.domain in ("", "ai.onnx"):
                entry.version = OPSET


def load_model(
    path: str | Path,
    shapes: Shapes | None = None,
    random_weights: bool = False,
    constants: Constants | None = None,
    compilable: bool = True,
    parted: Parted | None = None,
) -> OnnxModel:
    """Read `path`, or take what `parted` holds of it, and give it static shapes.

    `shapes` binds the dimensions of inputs by name, `constants` whole inputs; `random_weights`: see
    `random_weights.take_constant_fills`. `compilable`: make numbers of strings, refuse
    types of inputs and outputs that the compiler does not have (NotCompilable), and operators
    unknown to ONNX's checker.

    Raises UsageError for a missing file or an unknown input, ModelError for a file that is no
    readable model, DynamicShape for a dimension without a value.
    """
    model, held = read_parted(Path(path)) if parted is None else (ModelProto(), parted[1])
    if parted is not None:
        model.CopyFrom(parted[0])
    drop_initializers_from_inputs(model)
    bind_constants(model, constants or {})
    halves = narrow_ports(model)
    widen(model)
    texts = number_texts(model) if compilable else NO_TEXTS
    bind_inputs(model, shapes or {})
    if compilable:
        _require_types(model)
    weights = take_constant_fills(model, random_weights)
    weights |= _take_large(model, held)
    _declare(model, weights)
    if compilable:
        _check(model)
    return OnnxModel(model, weights, opset_of(model.opset_import), halves, texts)


def prepare_model(
    path: str | Path,
    shapes: Shapes | None = None,
    random_weights: bool = False,
    constants: Constants | None = None,
) -> ModelProto:
    """The model that is compiled, as one proto with its weights in place: see `load_model`.

    The inputs named in `constants` stay inputs, of the shapes of these: give it `fed`.
    """
    bound = dict(shapes or {})
    if constants:
        bound |= shapes_of(fed(read_outline(Path(path)), constants))
    return load_model(path, bound, random_weights, compilable=False).complete()


def model_hash(path: str | Path, store: FileStore | None = None) -> str:
    """SHA-256 of the model file and of the files that hold its external data.

    `store`: where digests of files are kept. A file is known by where it is, by its size and by the
    times of its last change, as build systems know it, once these lie some seconds back.
    """
    files = (Path(path), *external_files(path))
    stamps = Stamps.of(files)
    if store is None or not stamps.are_older_than(_SETTLED_S):
        return _hash(files)
    key = key_of("model", json.dumps([(str(file), known) for file, known in stamps.stamps]))
    kept = store.get(key)
    if kept is not None:
        return kept.decode()
    digest = _hash(files)
    stamps.require_same()
    store.put(key, digest.encode())
    return digest


def _hash(files: Iterable[Path]) -> str:
    digest, block = hashlib.sha256(), bytearray(_BLOCK)
    for name in files:
        with open_input(name) as file:
            while n_bytes := file.readinto(block):  # type: ignore[attr-defined]
                digest.update(memoryview(block)[:n_bytes])
    return digest.hexdigest()


def external_files(path: str | Path) -> list[Path]:
    """The files beside a model that hold its external data."""
    _require_file(Path(path))
    model = read_outline(Path(path))
    return places_of_data(model, Places.of(Path(path)))


def read_file(path: Path) -> ModelProto:
    """Parse an ONNX file together with its external data; nodes are in topological order."""
    return _checked(_parse(path), path)


def _checked(model: ModelProto, path: Path) -> ModelProto:
    """`model` with its nodes in order. Raises ModelError where a file holds none."""
    if not model.graph.output:
        raise ModelError(f"'{path}' holds no ONNX graph", "give the path of an .onnx file")
    graphs = (model.graph, *model.functions)
    check_size(sum(1 for graph in graphs for _ in all_nodes(graph)), path)
    if any(entry.version < 1 for entry in model.opset_import):
        raise ModelError(f"'{path}' is of an opset below 1", "export the model again")
    require_known_versions(model)
    if not model.opset_import and model.ir_version < _IR_VERSION_WITH_OPSETS:
        model.opset_import.add(version=1)
    make_dense(model)
    put_in_order(model.graph)
    return model


def read_outline(path: Path) -> ModelProto:
    """The model of a file as it is, without its large weights and external data."""
    return _outline(path)[0]


def read_parted(path: Path) -> Parted:
    """The model of a file as `read_file`, and large initialisers that have no data in it."""
    model, places = _outline(path)
    load_external(model, Places.of(path))
    with open_input(path) as file:
        return _checked(model, path), read_weights(file, places)


def _outline(path: Path) -> tuple[ModelProto, dict[str, FileRange]]:
    """See `weights_apart`."""
    _require_file(path)
    with open_input(path) as file:
        try:
            found = parted(file, _LARGE)
            return ModelProto.FromString(found.text), found.places
        except (DecodeError, ValueError):
            return _parse(path, with_external=False), {}


def _parse(path: Path, with_external: bool = True) -> ModelProto:
    _require_file(path)
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise _not_readable(path, error) from error
    if with_external:
        load_external(model, Places.of(path))
    return model


def _not_readable(path: Path, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else "not readable"
    return ModelError(
        f"'{path}' is truncated or not an ONNX model: {reason}",
        "export or download the model again",
    )


def _require_file(path: Path) -> None:
    """Raises UsageError or ModelError for a file that cannot be ONNX by its kind or size."""
    try:
        info = path.stat()
    except OSError as error:
        raise UsageError(
            f"there is no model file '{path}'", "give the path of an .onnx file"
        ) from error
    require_regular(path, info)
    n_bytes = info.st_size
    if n_bytes == 0:
        raise ModelError(f"'{path}' is empty", "export or download the model again")
    if n_bytes > _MOST_BYTES:
        raise ModelError(
            f"'{path}' has {format_bytes(n_bytes)}; an ONNX file has at most 2 GiB",
            "save the model with its weights as external data",
        )


def drop_initializers_from_inputs(model: ModelProto) -> None:
    """Before IR 4 every weight was also listed as an input: keep the true inputs only."""
    known = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in known]
    replace_all(model.graph.input, inputs)
    model.ir_version = _IR_VERSION


def bind_inputs(model: ModelProto, shapes: Shapes) -> None:
    """Give the inputs of `model` these shapes, and other inputs the values of symbolic dimensions.

    See `load_model`.
    """
    inputs = {i.name: i for i in model.graph.input}
    require_known("input", shapes, inputs)
    for name, shape in shapes.items():
        _require_rank(inputs[name], shape)
    for name, shape in shapes_at(model, {}, shapes).items():
        _bind(inputs[name], shape)
    require_static(model)
    if shapes:
        _forget_shapes(model)


def _forget_shapes(model: ModelProto) -> None:
    """Remove the declared shapes of results: they may be wrong for other input shapes."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        forget_shape(output)


def forget_shape(value: ValueInfoProto) -> None:
    """Remove the shape that is stated of a tensor; others stay as they are."""
    if value.type.WhichOneof("value") == "tensor_type":
        value.type.tensor_type.ClearField("shape")


def forget_extents(value: ValueInfoProto) -> None:
    """Remove the extents that are stated of a tensor; its rank stays."""
    if value.type.HasField("tensor_type"):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _require_rank(value: ValueInfoProto, shape: tuple[int, ...]) -> None:
    if not is_tensor(value):
        raise UsageError(f"input '{value.name}' is no tensor", "give no shape for it")
    dims = value.type.tensor_type.shape.dim
    has_shape = value.type.tensor_type.HasField("shape")
    if (has_shape and len(dims) != len(shape)) or any(extent < 0 for extent in shape):
        raise UsageError(
            f"input '{value.name}' has {len(dims)} dimensions, found {'x'.join(map(str, shape))}",
            f"use {arguments(shapes={value.name: _example(value)})}",
        )


def _bind(value: ValueInfoProto, shape: tuple[int, ...]) -> None:
    dtype = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, shape))


def _require_tensor(value: ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    if not is_tensor(value):
        raise NotCompilable(
            f"'{value.name}' is of type '{kind.removesuffix('_type')}', not a tensor",
            "only models from tensors to tensors can be compiled",
        )


def _require_types(model: ModelProto) -> None:
    """Raises NotCompilable for an input or output of a type that the compiler does not have."""
    for value in (*model.graph.input, *model.graph.output):
        _require_tensor(value)
    for value in model.graph.input:
        _require_dtype(value)


def _require_dtype(value: ValueInfoProto) -> None:
    """Raises NotCompilable for an input dtype that the runtime does not support, even if unused."""
    kind = value.type.tensor_type.elem_type
    small = {d.onnx for d in dtypes.SMALL_TYPES.values()}
    if kind not in {d.onnx for d in dtypes.DTYPES.values()} | small:
        label = TensorProto.DataType.Name(kind).lower() if kind in _ALL_KINDS else str(kind)
        raise NotCompilable(
            f"input '{value.name}' has elements of type '{label}'",
            f"remove it, or convert it outside of the model to one of: {', '.join(dtypes.DTYPES)}",
        )


def _example(value: ValueInfoProto) -> tuple[int, ...]:
    dims = [d.dim_value for d in value.type.tensor_type.shape.dim] or [0, 0, 0, 0]
    usual = (1, 3, 224, 224) if len(dims) == 4 else (1,) * len(dims)
    return tuple(d or u for d, u in zip(dims, usual, strict=True))


def _take_large(model: ModelProto, held: Mapping[str, Array]) -> dict[str, Array]:
    """Move large initialisers out of the model; `held`: of some that have no data there."""
    large = [
        t
        for t in model.graph.initializer
        if math.prod(t.dims) > _LARGE and t.data_type != TensorProto.STRING
    ]
    arrays = {t.name: held[t.name] if t.name in held else array_of(t, "initialiser") for t in large}
    replace_all(
        model.graph.initializer, [t for t in model.graph.initializer if t.name not in arrays]
    )
    return arrays


def _declare(model: ModelProto, weights: dict[str, Array]) -> None:
    """Declare typed inputs in place of the weights that were moved out."""
    for name, array in weights.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))


def _make_outputs(node: NodeProto) -> None:
    """Copy outputs of branches that are outer tensors: the checker does not accept those."""
    for body in bodies(node):
        for inner in body.node:
            _make_outputs(inner)
        made = {o for n in body.node for o in n.output}
        made |= {i.name for i in body.input} | {t.name for t in body.initializer}
        for output in body.output:
            if output.name not in made:
                body.node.add(op_type="Identity", input=[output.name], output=[f"{output.name}*"])
                output.name += "*"


def _set_superseded_apart(nodes: Iterable[NodeProto], opset: int) -> bool:
    """Move nodes that ONNX calls deprecated, but that have a conversion, to a domain of their own.

    Whether there is such a node, at any depth; the checker looks at no operator of that domain.
    """
    found = False
    for node in nodes:
        schema = schema_of(node.op_type, opset) if node.domain in ("", "ai.onnx") else None
        if schema is not None and schema.deprecated and is_converted(node.op_type, opset):
            node.domain, found = _SUPERSEDED, True
        for body in bodies(node):
            found |= _set_superseded_apart(body.node, opset)
    return found


def _check(model: ModelProto) -> None:
    """Raises ModelError where the model is not valid; output shapes need not be declared.

    Functions are left out: the checker does not accept those of other opsets.
    """
    stated = ModelProto()
    stated.CopyFrom(model)
    del stated.functions[:]
    for output in stated.graph.output:
        output.type.tensor_type.shape.SetInParent()
    for node in stated.graph.node:
        node.name = node.name or next((o for o in node.output if o), node.op_type)
        _make_outputs(node)
    if _set_superseded_apart(stated.graph.node, opset_of(stated.opset_import)):
        stated.opset_import.add(domain=_SUPERSEDED, version=1)
    try:
        onnx.checker.check_model(stated)
    except onnx.checker.ValidationError as error:
        reason, _, context = " ".join(str(error).split()).partition("==> Context:")
        if reason.startswith("No Op registered"):
            return  # the import names all unsupported operators
        where = _CONTEXT.search(context)
        if where:
            reason = f"operator '{where[2]}' (node '{where[1]}'): {reason}"
        message = f"the model is not valid: {reason.strip()}"
        raise ModelError(message, "export the model again") from error
