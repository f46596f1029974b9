"""Folders of onnxruntime-genai's builder: the model, and the capacity of its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.api.folders import USUAL_CAPACITY, source_in
from autotune.api.request import Source
from autotune.errors import UsageError


def folder(path: Path, model: Any, *names: str) -> Path:
    if model is not None:
        (path / "genai_config.json").write_text(json.dumps({"model": model}))
    for name in names:
        (path / name).write_bytes(b"")
    return path


def decoder(length: Any = 512, name: Any = "model.onnx") -> dict[str, Any]:
    return {"context_length": length, "decoder": {"filename": name, "head_size": 8}}


@pytest.mark.parametrize(
    ("length", "asked", "capacity"),
    [(512, None, 512), (131072, None, USUAL_CAPACITY), (512, 64, 64), ("long", None, None)],
)
def test_a_folder_names_its_model_and_its_capacity(
    tmp_path: Path, length: Any, asked: int | None, capacity: int | None
) -> None:
    notes: list[str] = []
    where = folder(tmp_path, decoder(length), "model.onnx")
    found = source_in(Source(where, capacity=asked), notes.append)
    assert (found.model, found.capacity) == (where / "model.onnx", capacity)
    assert [f"{capacity:,} places" in note for note in notes] == [True] * (
        asked is None and capacity is not None
    )
    assert ("131,072" in "".join(notes)) == (length == 131072)


@pytest.mark.parametrize(
    ("model", "names", "message", "hint"),
    [
        (None, ("b.onnx", "a.onnx"), "a folder without", "name a model in it: a.onnx, b.onnx"),
        (None, (), "a folder without", "name an ONNX file"),
        ([], ("a.onnx",), "cannot be read", "a.onnx"),
        (decoder(name="other.onnx"), ("a.onnx",), "names no decoder", "a.onnx"),
        (decoder(name=3), (), "names no decoder", "name an ONNX file"),
    ],
)
def test_other_folders_are_refused(
    tmp_path: Path, model: Any, names: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        source_in(Source(folder(tmp_path, model, *names)))
    assert hint in error.value.hint


def test_a_file_is_left_as_it_is(tmp_path: Path) -> None:
    source = Source(tmp_path / "model.onnx")
    assert source_in(source) is source
    assert source_in(Source(b"model")).model == b"model"
