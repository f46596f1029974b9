"""Where a model lies is nobody else's business: logs and artifacts hold its name, and find it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autotune.api.origins import origin, remember
from autotune.cache import program_store
from autotune.graph.reader.onnx_reader import model_hash
from tests.forking import Cli


def test_equal_models_in_two_folders_give_equal_artifacts(
    here: Cli, model: Path, tmp_path: Path
) -> None:
    made = []
    for user in ("alice", "bob"):
        (tmp_path / user).mkdir()
        own, out = (tmp_path / user / name for name in ("m.onnx", "m.atn"))
        shutil.copy(model, own)
        assert here("compile", own, "-o", out, "--threads", 1, "--no-check").code == 0
        made.append(out.read_bytes())
    assert made[0] == made[1]
    assert b"alice" not in made[0]


def test_a_log_names_its_model_and_finds_it(
    here: Cli, tuned: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(model.parent) not in tuned.read_text()
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.jsonl"
    shutil.copy(tuned, log)
    compiling = ("compile", "--log", log, "-o", "m.atn", "--no-check")
    assert here(*compiling).code == 0  # where it was
    assert here("bench", "m.atn", "--against", "onnxruntime", "--time", "0.05s").code == 0
    shutil.rmtree(program_store().folder)
    told = here(*compiling)
    assert (told.code, "the model of the log is gone" in told.err) == (2, True)
    told = here("bench", "m.atn", "--against", "onnxruntime", "--time", "0.05s")
    assert (told.code, "there is no model file" in told.err) == (2, True)
    shutil.copy(model, tmp_path)  # beside them
    assert here(*compiling).code == 0
    assert here("bench", "m.atn", "--against", "onnxruntime", "--time", "0.05s").code == 0


def test_a_log_of_a_former_version_finds_its_model(
    here: Cli, tuned: Path, model: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in tuned.read_text().splitlines()]
    for line in lines:
        if line["type"] == "header":
            line["model_path"] = str(model.resolve())
    log = tmp_path / "old.jsonl"
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shutil.rmtree(program_store().folder, ignore_errors=True)
    assert here("compile", "--log", log, "-o", tmp_path / "m.atn", "--no-check").code == 0


def test_the_file_with_the_contents_is_taken(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    digest, name = model_hash(model), "mlp.onnx"
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / name).write_bytes(b"another")
    remember(model, digest)
    assert origin(name, digest, tmp_path / "made" / "m.atn") == model
    assert origin(name, "0" * 64, tmp_path / "made" / "m.atn") == tmp_path / "made" / name
    assert origin("none.onnx", "0" * 64) == Path("none.onnx")
