"""① Data of tensors that lie in files beside an ONNX file, and which files these may be.

    load_external(model, Places.of(path)) ─► every tensor has its data
    external_files(model, Places.of(path)) ─► the files that they are in

A name leads to a file inside of the model's folder; also through links, and to what is beside the
file that the model itself is a link to: the cache of huggingface_hub has `snapshots/REV/model.onnx`
and what belongs to it as links to `blobs/HASH`. All else is refused: a model is not to read files
that its user has not given it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, helper
from onnx.external_data_helper import uses_external_data

from autotune.errors import ModelError, UsageError
from autotune.files import open_input
from autotune.printable import MOST_OF_CELL, shortened

_SNAPSHOTS, _BLOBS = "snapshots", "blobs"
"""Folders of a cache of huggingface_hub: links by their names, and what they lead to."""
_MOST_PARENTS = 8
_BITS = {2: ("INT2", "UINT2"), 4: ("INT4", "UINT4", "FLOAT4E2M1")}
_SMALL = {TensorProto.DataType.Value(n): bits for bits, names in _BITS.items() for n in names}
_BESIDE = "export or download the model again; external data must lie beside the file"


@dataclass(frozen=True, slots=True)
class Places:
    """`folder`: what names are relative to; `bases`: real folders that files may be in."""

    model: str
    folder: Path
    bases: tuple[Path, ...]

    @staticmethod
    def of(path: Path) -> Places:
        """Those of the file of a model."""
        folder = path.parent
        blobs = (p.parent / _BLOBS for p in _parents(folder) if p.name == _SNAPSHOTS)
        real = (folder.resolve(), path.resolve().parent, *(b.resolve() for b in blobs))
        return Places(path.name, folder, tuple(dict.fromkeys(real)))

    @staticmethod
    def in_folder(folder: Path) -> Places:
        """Those of a model whose data lie in `folder`."""
        return Places("the model", folder, (folder.resolve(),))

    def error(self, tensor: TensorProto, reason: str) -> ModelError:
        """External data of a tensor that cannot be had."""
        name = _told(tensor).get("location", "")
        where = f"'{shortened(name, MOST_OF_CELL)}' of '{tensor.name}' in {self.model}"
        return ModelError(f"external data {where}: {reason}", _BESIDE)

    def file(self, tensor: TensorProto) -> Path:
        """The file of the data of a tensor, by the name that leads there.

        Raises ModelError for one elsewhere.
        """
        name = _told(tensor).get("location", "")
        path = Path(name)
        if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
            raise self.error(tensor, "they are to lie beside the model")
        real = Path(os.path.realpath(self.folder / path))
        if not any(real.is_relative_to(base) for base in self.bases):
            raise self.error(tensor, f"a link leads out of the model's folder, to {real}")
        return self.folder / path

    def opened(self, tensor: TensorProto) -> BinaryIO:
        """That file; a link that has changed meanwhile is not followed. Raises ModelError."""
        path = self.file(tensor)
        try:
            return open_input(Path(os.path.realpath(path)))
        except UsageError as error:
            raise self.error(tensor, error.message) from error


def _parents(folder: Path) -> Iterator[Path]:
    """A folder and those that it is in, up to a number of them; links are not followed."""
    here = Path(os.path.abspath(folder))
    yield from (here, *here.parents[:_MOST_PARENTS])


def external_files(model: ModelProto, places: Places) -> list[Path]:
    """The files of the external data of a model, each once, sorted. Raises ModelError."""
    return sorted({places.file(t) for t in tensors_of(model) if uses_external_data(t)})


def load_external(model: ModelProto, places: Places) -> None:
    """Give all tensors of a model their data. Raises ModelError where these cannot be had."""
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for tensor in tensors_of(model):
            if uses_external_data(tensor):
                name = _told(tensor).get("location", "")
                if name not in files:
                    files[name] = stack.enter_context(places.opened(tensor))
                try:
                    tensor.raw_data = _read(tensor, files[name])
                except (ValueError, OSError) as error:
                    raise places.error(tensor, str(error)) from error
                tensor.data_location = TensorProto.DEFAULT
                del tensor.external_data[:]


def _told(tensor: TensorProto) -> dict[str, str]:
    """`location`, `offset`, `length`."""
    return {entry.key: entry.value for entry in tensor.external_data}


def _read(tensor: TensorProto, file: BinaryIO) -> bytes:
    """The bytes of a tensor: as many as are stated, else as its shape has. Raises ValueError."""
    told, end = _told(tensor), os.fstat(file.fileno()).st_size
    offset = int(told.get("offset", 0))
    n_bytes = int(told["length"]) if "length" in told else _n_bytes(tensor)
    if offset < 0 or n_bytes < 0 or offset + n_bytes > end:
        raise ValueError(f"{n_bytes:,} bytes from {offset:,} on are beyond its {end:,} bytes")
    file.seek(offset)
    return file.read(n_bytes)


def _n_bytes(tensor: TensorProto) -> int:
    """Bytes of the elements of a tensor; small ones lie together. Raises ValueError."""
    count: int = math.prod(tensor.dims)
    kind = tensor.data_type
    if kind in _SMALL:
        return -(-count * _SMALL[kind] // 8)
    if kind not in TensorProto.DataType.values() or not kind:
        raise ValueError("its elements are of no type that is known")
    return count * int(helper.tensor_dtype_to_np_dtype(kind).itemsize)


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model: initialisers, attributes, those of subgraphs and functions."""
    for graph in (model.graph, *model.functions):
        yield from _tensors(graph)


def _tensors(graph: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    if isinstance(graph, GraphProto):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        several = [*attribute.sparse_tensors]
        several += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for sparse in several:
            yield from (sparse.values, sparse.indices)
        for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
            yield from _tensors(body)
