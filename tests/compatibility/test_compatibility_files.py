"""What released versions wrote is read for ever: the archives of this folder, a version each.

Artifacts compute what ONNX Runtime did when they were made; logs, stores, figures and libraries are
taken by the commands of today. docs/compatibility.md is the promise.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import autotune
from autotune.errors import ExitCode
from autotune.network.runtime.runtime import Model
from tests.compatibility.make import PROMPT
from tests.forking import Cli
from tests.network.conftest import client as client
from tests.network.provider_client import Client

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ARCHIVES = sorted(HERE.glob("*.zip"))
VERSIONS = [path.stem for path in ARCHIVES]
REFUSED = {("0.1.0", "plain.atn"): "has format version 1, this autotune reads 2 to"}
"""Before the promise began; the line is in the documentation."""
Call = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]


def names_in(suffix: str) -> list[tuple[str, str]]:
    """Version and name of every file that ends so."""
    found: list[tuple[str, str]] = []
    for path in ARCHIVES:
        with zipfile.ZipFile(path) as archive:
            found += [(path.stem, name) for name in archive.namelist() if name.endswith(suffix)]
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of each version."""
    root = tmp_path_factory.mktemp("released")
    for path in ARCHIVES:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(root / path.stem)
    return root


def calls_of(path: Path) -> Iterator[Call]:
    """Inputs and outputs of every call of an artifact that `make.py` has kept."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    n_calls = 1 + max(int(name.split(" ", 2)[1]) for name in arrays)
    for i in range(n_calls):
        sides = (f"in {i} ", f"out {i} ")
        given, right = (
            {n.removeprefix(s): a for n, a in arrays.items() if n.startswith(s)} for s in sides
        )
        yield given, right


def outputs(model: Model, given: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Of one call; of a decoder, a prompt and then token by token."""
    if model.artifact.state is None:
        return model.run(given)
    session, tokens = model.session(), given["input_ids"]
    logits = [session.step(tokens[:, :PROMPT])]
    logits += [session.step(tokens[:, i : i + 1]) for i in range(PROMPT, tokens.shape[1])]
    return {"logits": np.concatenate(logits, 1)}


@pytest.mark.parametrize(("version", "name"), names_in(".atn"))
def test_an_artifact_computes_what_it_did_or_is_refused(
    root: Path, version: str, name: str
) -> None:
    path = root / version / name
    if (version, name) in REFUSED:
        with pytest.raises(autotune.ArtifactError, match=REFUSED[version, name]) as caught:
            autotune.load(path)
        assert "compile it anew" in str(caught.value.hint)
        return
    if name == "fallback.atn":
        pytest.importorskip("onnxruntime")
    try:
        model = autotune.load(path, 1)
    except autotune.ArtifactError as error:
        if "this CPU lacks" not in error.message:  # it was made on another kind
            raise
        return
    if name == "formula.atn":
        a, b = np.ones((4, 8), np.float32), np.full((8, 6), 2, np.float32)
        assert np.array_equal(model.run({"a": a, "b": b})["c"], np.full((4, 6), 16))
        return
    for given, right in calls_of(path.with_suffix(".npz")):
        found = outputs(model, given)
        for key, expected in right.items():
            compared = expected[:, -found[key].shape[1] :] if key == "logits" else expected
            far = {"atol": 1e-5, "rtol": 1e-2 if name == "bf16.atn" else 1e-4}
            np.testing.assert_allclose(found[key], compared, **far, err_msg=key)


@pytest.mark.parametrize(("version", "name"), names_in(".so"))
def test_a_library_computes_what_it_did(root: Path, version: str, name: str) -> None:
    path = root / version / name
    model = autotune.ExportedModel(path, 1)
    for given, right in calls_of(root / version / f"{path.parent.name}.npz"):
        found = model.run(given)
        for key, expected in right.items():
            np.testing.assert_allclose(found[key], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("version", "name"), names_in("_ctx.onnx"))
def test_the_provider_of_today_runs_a_context(
    root: Path, version: str, name: str, client: Client
) -> None:
    path = root / version / name
    for given, right in calls_of(root / version / f"{path.parent.name}.npz"):
        found = client(path.parent, given, path.name)
        assert isinstance(found, list), found
        for one, expected in zip(found, right.values(), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("version", "name"), names_in(".jsonl"))
def test_commands_take_a_log(cli: Cli, root: Path, version: str, name: str, tmp_path: Path) -> None:
    log = root / version / name
    n_tasks = len(autotune.read_log(log).header.tasks)
    for words in (
        ("distill", log, "-o", tmp_path / "best.jsonl"),
        ("explain", log, "--task", "0", "--stage", "schedule"),
        ("report", log, "--format", "json"),
        ("compile", root / version / "plain.onnx", "--log", log, "--target", "log", "-o", "a.atn"),
    ):
        done = cli(*words, cwd=tmp_path)
        assert done.code == 0, done.err
    assert 0 < len(autotune.read_log(tmp_path / "best.jsonl").records) <= n_tasks
    manifest = autotune.load(tmp_path / "a.atn").artifact
    assert manifest.tuned


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("version", [v for v, name in names_in(".jsonl") if name == "plain.jsonl"])
def test_a_session_is_resumed(cli: Cli, root: Path, version: str, tmp_path: Path) -> None:
    for name in ("plain.jsonl", "plain.onnx"):
        (tmp_path / name).write_bytes((root / version / name).read_bytes())
    before = len(autotune.read_log(tmp_path / "plain.jsonl").records)
    done = cli("resume", "plain.jsonl", "--trials", "1", cwd=tmp_path)
    if "measured on another CPU" in done.err:
        assert done.code == ExitCode.MISMATCH
        return
    assert done.code == 0, done.err
    log = autotune.read_log(tmp_path / "plain.jsonl")
    assert len(log.records) > before
    assert log.n_skipped == 0


@pytest.mark.parametrize(("version", "name"), names_in("autotune-store.json"))
def test_commands_take_a_store(
    cli: Cli, root: Path, version: str, name: str, tmp_path: Path
) -> None:
    store, model = (root / version / name).parent, root / version / "plain.onnx"
    assert cli("store", "verify", "--store", store).code == 0
    words = ("compile", model, "--target", "x86-64-v3", "--threads", "1", "--store", store)
    done = cli(*words, "-o", tmp_path / "a.atn", "--format", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["stored"]


@pytest.mark.parametrize(("version", "name"), names_in("base.json"))
def test_figures_are_compared_with(cli: Cli, root: Path, version: str, name: str) -> None:
    """Figures of another machine are told to be that, not misread."""
    folder = root / version
    done = cli("bench", folder / "plain.atn", "--time", "0.05s", "--compare", folder / name)
    assert done.code == 0 or "was measured on" in done.err, done.err


@pytest.mark.parametrize(("version", "name"), names_in("machine.json"))
def test_a_machine_is_compiled_for(
    cli: Cli, root: Path, version: str, name: str, tmp_path: Path
) -> None:
    words = ("--target-file", root / version / name, "--no-check", "-o", tmp_path / "a.atn")
    done = cli("compile", root / version / "plain.onnx", *words)
    assert done.code == 0, done.err


def test_every_released_version_has_an_archive_which_never_changes() -> None:
    kept = dict(line.split("  ")[::-1] for line in (HERE / "SHA256SUMS").read_text().splitlines())
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in ARCHIVES}
    assert found == kept
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)} <= {*VERSIONS}
