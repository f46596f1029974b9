from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    """`saved(text)` writes the model that a text describes."""

    def save(text: str) -> Path:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        return path

    return save
