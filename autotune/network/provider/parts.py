"""⑩ A network of which ONNX Runtime computes a part, as a model of ONNX with several contexts.

Each compiled segment is an `EPContext` node of one library (NAME_0, NAME_1, …); between them are
the nodes of the other segments, as their files have them, under names of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import compose, helper

from autotune.dtypes import DTYPES
from autotune.errors import ArtifactError
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.cpus import joined_cpus
from autotune.network.artifact.hybrid import HybridArtifact, HybridSegment
from autotune.network.export.interface import interface_of
from autotune.network.provider.context import context_nodes, save_context, values


def require_parts(artifact: HybridArtifact) -> None:
    """Raise ArtifactError for a network whose parts no nodes can be."""
    if artifact.others:
        raise ArtifactError(
            f"'{artifact.name}' has parts for several shapes, and a model of nodes has one",
            "compile it for single sizes with `dims`",
        )
    if any(segment.control is not None for segment in artifact.segments):
        raise ArtifactError(
            f"'{artifact.name}' has compiled parts within branches or bodies that data decide",
            "export the models of the parts around them",
        )
    if not artifact.networks():
        raise ArtifactError(
            f"nothing of '{artifact.name}' is compiled", "give the model to ONNX Runtime as it is"
        )
    for end in (*artifact.inputs, *artifact.outputs):
        if not end.dtype:
            raise ArtifactError(
                f"'{end.name}' is a sequence or a map, which exports do not take",
                "take the tensors out of it in the model",
            )


def parts_of(artifact: HybridArtifact) -> list[Artifact]:
    """The compiled segments in their order, each for all CPUs."""
    of_cpus: list[Any] = [one.networks() for one in artifact.by_cpu]
    return [joined_cpus(several) for several in zip(*of_cpus, strict=True)]


def write_parts_context(artifact: HybridArtifact, name: str, folder: Path) -> Path:
    """Write NAME_ctx.onnx beside the library of all parts that `write_parts` wrote."""
    library = folder / f"lib{name}.so"
    interfaces = [interface_of(one, f"{name}_{n}") for n, one in enumerate(parts_of(artifact))]
    contexts = iter(interfaces)
    nodes: list[onnx.NodeProto] = []
    between: list[onnx.ValueInfoProto] = []
    files: list[onnx.ModelProto] = []
    for n, segment in enumerate(artifact.segments):
        if segment.network is not None:
            own, types = context_nodes(next(contexts), library)
            nodes += own
            between += types
        else:
            files.append(_named_apart(segment, f"{name}_{n}/"))
            nodes += files[-1].graph.node
    graph = helper.make_graph(
        nodes,
        name,
        [_value(end) for end in artifact.inputs],
        [_value(end) for end in artifact.outputs],
        [tensor for file in files for tensor in file.graph.initializer],
        value_info=[*between, *_between(interfaces, artifact)],
    )
    graph.sparse_initializer.extend(t for f in files for t in f.graph.sparse_initializer)
    return save_context(graph, _opsets(files), folder, name)


def _named_apart(segment: HybridSegment, prefix: str) -> onnx.ModelProto:
    """The file of a segment, whose own names no other has."""
    model = onnx.load_from_string(segment.onnx)
    if model.functions:
        raise ArtifactError(
            f"a part that ONNX Runtime computes calls functions: {segment.label()}",
            "inline them in the model: `onnx.inliner`",
        )
    return compose.add_prefix(model, prefix, rename_inputs=False, rename_outputs=False)


def _between(interfaces: Sequence[Any], artifact: HybridArtifact) -> Iterator[onnx.ValueInfoProto]:
    """Types of what contexts give to others."""
    outer = {end.name for end in artifact.outputs}
    for interface in interfaces:
        known = outer | {*interface.artifact.written.values()}
        yield from (value for value in values(interface.outputs) if value.name not in known)


def _value(end: Endpoint) -> onnx.ValueInfoProto:
    dtype = onnx.TensorProto.STRING if end.dtype == "string" else DTYPES[end.dtype].onnx
    return helper.make_tensor_value_info(end.name, dtype, [None if n < 0 else n for n in end.shape])


def _opsets(files: Sequence[onnx.ModelProto]) -> list[onnx.OperatorSetIdProto]:
    """Those of all files, which are of one model."""
    found: dict[str, int] = {}
    for one in (one for file in files for one in file.opset_import):
        found[one.domain] = max(found.get(one.domain, 0), one.version)
    return [helper.make_opsetid(domain, version) for domain, version in found.items()]
