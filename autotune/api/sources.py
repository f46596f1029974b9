"""⑪ Model files that a user names: the default one, sizes, and the note on random weights."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from autotune.errors import ModelError, UsageError


def model_path(model: Path | None) -> Path:
    """The model to use: the one given, or the ResNet-50 that comes with the `onnx` package."""
    if model is not None:
        return model
    from autotune.graph.reader.random_weights import default_model  # imports onnx

    path = default_model()
    if not path.is_file():
        raise UsageError("this onnx package comes without its light models", "name a model file")
    return path


def model_bytes(path: Path) -> int:
    """Size of a model's file; 0 without a file."""
    return path.stat().st_size if path.is_file() else 0


def model_files(path: Path) -> list[Path]:
    """A model's file, and those that hold its weights as far as they can be told."""
    from autotune.graph.reader.onnx_reader import external_files

    files = [path]
    with suppress(ModelError, UsageError):
        files += external_files(path)
    return files


def total_bytes(path: Path) -> int:
    """`model_bytes` of all files of a model."""
    return sum(map(model_bytes, model_files(path)))


def random_weights_note(name: str) -> str:
    """The note beside every latency and output of a network with random weights."""
    return f"{name} comes without weights: random ones are used"
