"""A model's file that somebody writes while it is compiled or prepared for tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from autotune.api.compile.compiling import compile_plan, plan
from autotune.api.request import CompileRequest, Source
from autotune.api.tune import session
from autotune.config import TuneConfig
from autotune.errors import ModelError

TEXT = '<ir_version: 8, opset_import: ["" : 17]>\nm (float[4] x) => (float[4] y) { y = Abs (x) }'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def rewritten(path: Path) -> None:
    onnx.save(onnx.parser.parse_model(TEXT.replace("Abs", "Neg")), path)


@pytest.mark.parametrize("change", [rewritten, Path.unlink])
def test_a_model_that_changes_while_it_is_compiled_gives_no_artifact(
    model: Path, change: Callable[[Path], Any]
) -> None:
    @contextmanager
    def progress(what: str) -> Iterator[Any]:
        if model.exists():
            change(model)
        yield lambda n_done, n_all: None

    chosen = replace(plan(CompileRequest(model, threads=1, check=False)), progress=progress)
    with pytest.raises(ModelError, match="has changed while it was read"):
        compile_plan(chosen)


def test_a_model_that_changes_while_it_is_read_is_not_tuned(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = session.sources_of

    def read_and_changed(*arguments: Any) -> Any:
        found = read(*arguments)
        rewritten(model)
        return found

    monkeypatch.setattr(session, "sources_of", read_and_changed)
    with pytest.raises(ModelError, match="has changed while it was read"):
        session.prepare(Source(model), TuneConfig(threads=1))
