"""⑩ A model of ONNX whose one node is a compiled network: what ONNX Runtime calls an EPContext.

The node names the exported library beside it, with its digest; ONNX Runtime's provider of this
package runs it (`nodes.c`). Symbolic dimensions are the lengths of the network.
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
    nodes, between = context_nodes(interface, library, original)
    hidden = artifact.written.values()
    outputs = [tensor for tensor in interface.outputs if tensor.first.name not in hidden]
    ports = values(interface.inputs), values(outputs)
    graph = helper.make_graph(nodes, name, *ports, value_info=between)
    return save_context(graph, [helper.make_opsetid("", _OPSET)], folder, name)


def context_nodes(
    interface: LibraryInterface, library: Path, original: str = ""
) -> tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto]]:
    """The node of a network in a library, with those that cut its outputs where the network writes
    lengths of them; and the types of what is between these."""
    node = _context(interface, library, original)
    written = interface.artifact.written
    cuts: list[onnx.NodeProto] = []
    between = []
    for n, tensor in enumerate(interface.outputs):
        if tensor.first.written:
            cuts += _cut(tensor, f"{tensor.first.name}.whole", written)
            node.output[n] = f"{tensor.first.name}.whole"
        if tensor.first.written or tensor.first.name in written.values():
            dtype = DTYPES[tensor.first.dtype].onnx
            between.append(helper.make_tensor_value_info(node.output[n], dtype, None))
    return [node, *cuts], between


def _cut(tensor: Tensor, whole: str, written: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
    """Nodes that give an output, `whole`, as far as the lengths say that the network writes."""
    name, ends, axes = tensor.first.name, [], []
    for n, length in enumerate(tensor.first.written):
        if not isinstance(length, Length) or length.name not in written:
            continue
        factor, offset = f"{name}.factor{n}", f"{name}.offset{n}"
        product, end = f"{name}.product{n}", f"{name}.end{n}"
        yield _numbers(factor, [length.factor])
        yield _numbers(offset, [length.offset])
        yield helper.make_node("Mul", [written[length.name], factor], [product])
        yield helper.make_node("Add", [product, offset], [end])
        ends.append(end)
        axes.append(n)
    yield _numbers(f"{name}.starts", [0] * len(axes))
    yield _numbers(f"{name}.axes", axes)
    yield helper.make_node("Concat", ends, [f"{name}.ends"], axis=0)
    operands = [whole, f"{name}.starts", f"{name}.ends", f"{name}.axes"]
    yield helper.make_node("Slice", operands, [name])


def _numbers(name: str, values: list[int]) -> onnx.NodeProto:
    value = helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], value=value)


def _context(interface: LibraryInterface, library: Path, original: str) -> onnx.NodeProto:
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
