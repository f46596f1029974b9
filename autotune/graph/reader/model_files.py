"""① A model as a file, given as a path, the bytes of a file, or a ModelProto."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto
from onnx.external_data_helper import uses_external_data

from autotune.errors import AutotuneError, ModelError, UsageError
from autotune.graph.reader.external_data import Places, load_external, tensors_of
from autotune.work_folders import work_folder

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto"
"""The path of an ONNX file, its contents, or the model that `onnx` makes of them."""

_MOST_BYTES = (2 << 30) - 1
"""Most bytes of a protocol buffer; a larger model has its weights beside it."""


@contextmanager
def model_file(model: ModelSource, name: str = "model") -> Iterator[Path]:
    """The file of a model; one that was given otherwise is written to a temporary folder.

    `name`: of the temporary file. Raises UsageError for anything but a model.
    """
    if is_path(model):
        yield Path(model)  # type: ignore[arg-type]
        return
    with work_folder() as folder:
        path = folder / f"{name}.onnx"
        _write(model, path)
        yield path


def is_path(model: object) -> bool:
    """Whether a model is given by its path."""
    return isinstance(model, str | os.PathLike)


def _write(model: object, path: Path) -> None:
    match model:
        case bytes() | bytearray() | memoryview():
            path.write_bytes(model)
        case ModelProto() if model.ByteSize() > _MOST_BYTES:
            copy = ModelProto()
            copy.CopyFrom(model)
            onnx.save(copy, str(path), save_as_external_data=True, location=f"{path.name}.data")
        case ModelProto():
            path.write_bytes(model.SerializeToString(deterministic=True))
        case _:
            raise UsageError(
                f"a value of type {type(model).__name__} is no model",
                "give the path of an ONNX file, its bytes, or an onnx.ModelProto",
            )


def with_external_data(content: bytes, folder: str | Path) -> bytes:
    """The bytes of a model with the external data in them that are beside it in `folder`.

    Raises ModelError where they are not there.
    """
    if b"location" not in content:
        return content
    try:
        model = onnx.load_model_from_string(content)
        if not any(map(uses_external_data, tensors_of(model))):
            return content
        load_external(model, Places.in_folder(Path(folder)))
        return bytes(model.SerializeToString())
    except DecodeError:  # the reader says so
        return content
    except AutotuneError as error:
        raise ModelError(
            error.message,
            "give the path of the model, or the folder of its data as the entry "
            "'session.model_external_initializers_file_folder_path' of its SessionOptions",
        ) from error
