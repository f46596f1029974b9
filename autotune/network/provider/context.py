"""⑩ A model of ONNX whose one node is a compiled network: what ONNX Runtime calls an EPContext.

The node names the exported library beside it, with its digest; ONNX Runtime's provider of this
package runs it (`provider.c`). Symbolic dimensions are the lengths of the network.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from onnx import helper

from autotune.codegen.image.relocations import WASM32
from autotune.dtypes import DTYPES
from autotune.errors import ArtifactError
from autotune.extent import Length
from autotune.files import make_folder, open_input, replacing
from autotune.graph.reader.onnx_reader import external_files
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.interface import LibraryInterface, Tensor, interface_of
from autotune.network.provider.library import NAME, digest_of
from autotune.version import __version__

DOMAIN = "com.microsoft"
_IR_VERSION, _OPSET = 9, 17  # old enough for every ONNX Runtime that loads providers


def require_context(artifact: Artifact) -> None:
    """Raise ArtifactError for a network that no node can be."""
    if artifact.image.machine == WASM32.name:
        raise ArtifactError(
            f"'{artifact.name}' is for WebAssembly, which ONNX Runtime's providers are not",
            "compile it for the CPU that ONNX Runtime runs on",
        )
    if artifact.state is not None:
        raise ArtifactError(
            f"'{artifact.name}' keeps a state between calls, which no node of ONNX can",
            "compile it without a capacity: the caches stay inputs and outputs",
        )
    for end in (*artifact.own_inputs, *artifact.outputs):
        if "\n" in end.name:
            raise ArtifactError(
                f"the name {end.name!r} has a line break", "rename the tensor in the model"
            )


def write_context(artifact: Artifact, name: str, folder: Path, original: str = "") -> Path:
    """Write NAME_ctx.onnx and NAME.digest beside the library NAME that `export` wrote to `folder`.

    `original`: the file in `folder` that ONNX Runtime runs where the library does not fit.
    """
    interface = interface_of(artifact, name)
    library = folder / f"lib{name}.so"
    (folder / f"{name}.digest").write_text(f"{digest_of(library)}\n", encoding="utf-8")
    node = context_node(interface, library, original)
    outputs = [t for t in interface.outputs if t.first.name not in artifact.written.values()]
    cuts = [n for t in outputs if t.first.written for n in _cut(t, node, artifact.written)]
    ports = values(interface.inputs), values(outputs)
    made = zip(node.output, interface.outputs, strict=True)
    known = [
        helper.make_tensor_value_info(n, DTYPES[t.first.dtype].onnx, None)
        for n, t in made
        if n not in {t.first.name for t in outputs}
    ]
    graph = helper.make_graph([node, *cuts], name, *ports, value_info=known)
    return save_context(graph, [helper.make_opsetid("", _OPSET)], folder, name)


def _cut(
    tensor: Tensor, node: onnx.NodeProto, written: Mapping[str, str]
) -> Iterator[onnx.NodeProto]:
    """Nodes that give an output as far as the lengths say that the network writes; that of `node`
    gets another name."""
    name = tensor.first.name
    whole = f"{name}.whole"
    node.output[list(node.output).index(name)] = whole
    lengths = [(n, e) for n, e in enumerate(tensor.first.written) if isinstance(e, Length)]
    own = [(n, e) for n, e in lengths if e.name in written]
    ends = []
    for n, length in own:
        product, end = f"{name}.product{n}", f"{name}.end{n}"
        factor, offset = _numbers(f"{end}.factor", [length.factor]), [length.offset]
        yield factor
        yield helper.make_node("Mul", [written[length.name], factor.output[0]], [product])
        yield (more := _numbers(f"{end}.offset", offset))
        yield helper.make_node("Add", [product, more.output[0]], [end])
        ends.append(end)
    yield helper.make_node("Concat", ends, [f"{name}.ends"], axis=0)
    starts = _numbers(f"{name}.starts", [0] * len(own))
    axes = _numbers(f"{name}.axes", [n for n, _ in own])
    yield from (starts, axes)
    operands = [whole, starts.output[0], f"{name}.ends", axes.output[0]]
    yield helper.make_node("Slice", operands, [name])


def _numbers(name: str, values: list[int]) -> onnx.NodeProto:
    value = helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], value=value)


def context_node(interface: LibraryInterface, library: Path, original: str = "") -> onnx.NodeProto:
    """The node of a network in a library."""
    names = [tensor.first.name for tensor in (*interface.inputs, *interface.outputs)]
    return helper.make_node(
        "EPContext",
        [tensor.first.name for tensor in interface.inputs],
        [tensor.first.name for tensor in interface.outputs],
        name=interface.name,
        domain=DOMAIN,
        main_context=1,
        embed_mode=0,
        ep_cache_context=library.name,
        ep_sdk_version=__version__,
        hardware_architecture=interface.cpu,
        notes="\n".join([digest_of(library), *names]),
        onnx_model_filename=original,
        partition_name=interface.name,
        source=NAME,
    )


def save_context(
    graph: onnx.GraphProto, opsets: list[onnx.OperatorSetIdProto], folder: Path, name: str
) -> Path:
    """Write NAME_ctx.onnx. `opsets`: without that of `EPContext`."""
    known = [one for one in opsets if one.domain != DOMAIN]
    known.append(helper.make_opsetid(DOMAIN, 1))
    model = helper.make_model(graph, opset_imports=known, ir_version=_IR_VERSION)
    model.producer_name, model.producer_version = "autotune", __version__
    place = folder / f"{name}_ctx.onnx"
    onnx.save(model, place)
    return place


def copied_model(model: Path, folder: Path) -> str:
    """Copy a model and its external data; its name there. Raises InputError, OutputError."""
    for file in (model, *external_files(model)):
        place = folder / file.relative_to(model.parent)
        make_folder(place.parent)
        with open_input(file) as source, replacing(place) as out:
            shutil.copyfileobj(source, out)
    return model.name


def values(tensors: Iterable[Tensor]) -> list[onnx.ValueInfoProto]:
    """The types of ports."""
    return [
        helper.make_tensor_value_info(
            tensor.first.name, DTYPES[tensor.first.dtype].onnx, _dimensions(tensor)
        )
        for tensor in tensors
    ]


def _dimensions(tensor: Tensor) -> list[int | str | None]:
    """Numbers; names of lengths; None where only a call tells."""
    found: list[int | str | None] = []
    end = tensor.first
    for n, extent in enumerate(end.written or end.extents or end.shape):
        if isinstance(extent, Length):
            is_plain = extent.factor == 1 and not extent.offset
            found.append(extent.name if is_plain else None)
        else:
            found.append(extent if len({end.shape[n] for end in tensor.ends}) == 1 else None)
    return found
