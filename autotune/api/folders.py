"""⑪ A folder as onnxruntime-genai's builder writes it: the model, and the capacity of its state.

genai_config.json {"model": {"context_length": 32768, "decoder": {"filename": "model.onnx"}}}
─►  model.onnx, capacity 4096
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from autotune.api.request import Note, Source, silent
from autotune.errors import UsageError
from autotune.files import read_input
from autotune.graph.reader.grown import GENAI_CONFIGURATION, MOST_CONFIGURATION_BYTES
from autotune.graph.reader.model_files import is_path

S = TypeVar("S", bound=Source)

USUAL_CAPACITY = 4096
"""Places of a state where a folder has a longer context: buffers are as long as the capacity."""


def source_in(source: S, note: Note = silent) -> S:
    """`source` with the file of its folder as its model, if it names a folder.

    Its state has as many places as the context, up to `USUAL_CAPACITY`, where no other number is
    asked for; `note` is told. Raises UsageError for a folder that onnxruntime-genai's builder has
    not written.
    """
    given: Any = source.model
    if given is None or not is_path(given) or not Path(given).is_dir():
        return source
    folder = Path(given)
    model = _model_in(folder)
    decoder = model.get("decoder")
    name = decoder.get("filename") if isinstance(decoder, dict) else None
    if not isinstance(name, str) or not (folder / name).is_file():
        raise UsageError(
            f"'{folder / GENAI_CONFIGURATION}' names no decoder that is there", _named(folder)
        )
    length = model.get("context_length")
    if source.capacity is not None or not isinstance(length, int) or length < 1:
        return replace(source, model=folder / name)
    capacity = min(length, USUAL_CAPACITY)
    more = (
        f" of {length:,} that the model can have: `capacity` for more" if length > capacity else ""
    )
    note(f"{name} with a state of {capacity:,} places{more}")
    return replace(source, model=folder / name, capacity=capacity)


def _model_in(folder: Path) -> dict[str, Any]:
    """What a folder's configuration says of its model. Raises UsageError."""
    path = folder / GENAI_CONFIGURATION
    if not path.is_file():
        raise UsageError(f"'{folder}' is a folder without {GENAI_CONFIGURATION}", _named(folder))
    try:
        found = json.loads(read_input(path, MOST_CONFIGURATION_BYTES))["model"]
    except (UsageError, ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"'{path}' cannot be read", _named(folder))
    return found


def _named(folder: Path) -> str:
    """The hint that names the models of a folder."""
    names = sorted(path.name for path in folder.glob("*.onnx"))
    if not names:
        return "name an ONNX file"
    return f"name a model in it: {', '.join(names[:6])}{', …' if names[6:] else ''}"
