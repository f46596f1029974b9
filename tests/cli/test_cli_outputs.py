"""A file that a command did not write is not replaced by it: every command, every kind of file."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import numpy as np
import onnx
import pytest

from autotune import file_kinds
from autotune.cli import main
from autotune.errors import UsageError
from autotune.file_kinds import FileKind, require_kind
from autotune.files import require_place
from tests.cli.conftest import mlp
from tests.forking import Cli

WRITERS: Mapping[str, tuple[str, ...]] = {
    "compile": ("compile", "m.onnx", "--threads", "1", "-o"),
    "distill": ("distill", "log.jsonl", "-o"),
    "run": ("run", "m.atn", "-o"),
    "report": ("report", "log.jsonl", "--format", "md", "-o"),
    "figures": ("report", "log.jsonl", "--format", "json", "-o"),
    "bench": ("bench", "m.atn", "--time", "20ms", "--save"),
    "target": ("target", "-o"),
    "quantise": ("quantise", "m.onnx", "--data", "x.npz", "-o"),
}
"""Commands that write one file, up to its path, where `folder` has what they read."""
OF_THE_SAME_KIND = {"report": "figures", "figures": "report"}
FOREIGN: Mapping[str, Callable[[Path], object]] = {
    "model": lambda path: onnx.save(mlp(seed=1), path),
    "model without a producer": lambda path: path.write_bytes(b"\x08\x08:\x02\x08\x01"),
    "text": lambda path: path.write_text("# My project\n\nΣ\n"),
    "source": lambda path: path.write_text("int main(void) { return 0; }\n"),
    "page": lambda path: path.write_text("<!DOCTYPE html>\n<html><title>mine</title></html>\n"),
    "JSON": lambda path: path.write_text('{"cpu": 1, "search": "mine"}\n'),
    "lines of JSON": lambda path: path.write_text('{"type": "header"}\n{"loss": 1}\n'),
    "archive": lambda path: _archive(path, "manifest.json"),
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "one byte": lambda path: path.write_bytes(b"\0"),
}


def _archive(path: Path, name: str) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, '{"manifest_version": 3}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tuned: Path, artifact: Path, cli: Cli) -> Path:
    """A folder with inputs of all writers, and in `own` what each of them writes."""
    place = tmp_path_factory.mktemp("outputs")
    onnx.save(mlp(), place / "m.onnx")
    shutil.copy(tuned, place / "log.jsonl")
    shutil.copy(artifact, place / "m.atn")
    samples = np.random.default_rng(0).standard_normal((48, 8), np.float32)
    np.savez(place / "x.npz", x=samples)
    (place / "own").mkdir()
    for name, words in WRITERS.items():
        if name == "quantise":  # takes seconds; tests/cli/test_cli_quantise.py writes over its own
            proto = mlp()
            proto.producer_name = file_kinds.QUANTISER
            onnx.save(proto, place / "own" / name)
            continue
        done = cli(*words, Path("own", name), cwd=place)
        assert done.code == 0, done.err
    return place


@pytest.mark.parametrize("kind", [*FOREIGN, *WRITERS])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_file_of_another_kind_stays(
    here: Cli,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    is_linked: bool,
) -> None:
    monkeypatch.chdir(folder)
    path = tmp_path / "there"
    if kind in FOREIGN:
        FOREIGN[kind](path)
    else:
        shutil.copy(folder / "own" / kind, path)
    given = tmp_path / "link" if is_linked else path
    if is_linked:
        given.symlink_to(path)
    before = path.read_bytes()
    for name, words in WRITERS.items():
        if kind in (name, OF_THE_SAME_KIND.get(name)):
            continue
        done = here(*words, given)
        assert (done.code, done.out) == (2, ""), (name, done.err)
        error, hint = done.err.strip().splitlines()[-2:]
        assert error.startswith(f"error: {given} exists, and is ")
        assert hint.startswith("hint: ")
        assert hint.endswith("--force")
        assert path.read_bytes() == before


def test_a_command_writes_over_its_own_over_nothing_and_by_force(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    for name, words in WRITERS.items():
        if name != "quantise":
            done = cli(*words, Path("own", name), cwd=folder)
            assert done.code == 0, (name, done.err)
            path = tmp_path / name
            FOREIGN["model"](path)
            done = cli(*words, path, "--force", cwd=folder)
            assert done.code == 0, (name, done.err)
            require_kind(path, _kind_of(name))


def _kind_of(name: str) -> FileKind:
    names = {"compile": "ARTIFACT", "distill": "LOG", "run": "ARRAYS", "target": "CPU"}
    name = names.get(name, {"figures": "REPORT", "quantise": "QUANTISED"}.get(name, name.upper()))
    found: FileKind = getattr(file_kinds, name)
    return found


@pytest.mark.parametrize("name", WRITERS)
def test_what_each_command_writes_is_of_its_kind_alone(folder: Path, name: str) -> None:
    head = (folder / "own" / name).read_bytes()[:4096]
    assert [k for k in file_kinds._OWN if k.is_of(head)] == [_kind_of(name)]


def test_an_empty_file_is_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for kind in file_kinds._OWN:
        require_place(tmp_path / "empty", kind=kind)
        require_place(tmp_path / "none", kind=kind)


def test_former_artifacts_and_logs_are_ours(tmp_path: Path) -> None:
    assets = Path(__file__).parent.parent / "assets"
    require_kind(assets / "log-v1.jsonl", file_kinds.LOG)
    with zipfile.ZipFile(assets / "former-artifacts.zip") as former:
        for name in former.namelist():
            require_kind(Path(former.extract(name, tmp_path)), file_kinds.ARTIFACT)


def test_random_bytes_are_of_no_kind_of_ours(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "x"
    for kind in file_kinds._OWN:
        for n in (1, 2, 30, 5000):
            path.write_bytes(rng.bytes(n))
            with pytest.raises(UsageError, match="exists, and is"):
                require_kind(path, kind)


@pytest.mark.parametrize("name", ["demo.onnx", "demo.jsonl", "untuned.atn"])
def test_a_demo_replaces_nothing_of_others(tmp_path: Path, cli: Cli, name: str) -> None:
    (tmp_path / name).write_text("mine")
    outcome = cli("demo", "-o", tmp_path)
    assert outcome.code == 2, outcome.err
    assert (tmp_path / name).read_text() == "mine"


def test_every_command_that_writes_a_file_is_here() -> None:
    """One with `-o` or `--save` has `--force` as well, and is in the table above."""
    group = main.app
    assert isinstance(group, click.Group)
    found = set()
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        options = {word for param in command.params for word in param.opts}
        if options & {"-o", "--save"} and name != "demo":  # its commands are these
            assert "--force" in options, name
            found.add(name)
    assert found == {*(words[0] for words in WRITERS.values()), "export"}


FOLDERS: Mapping[str, Callable[[Path], object]] = {
    "a README and a source": lambda f: [FOREIGN[n](f / n) for n in ("text", "source")],
    "its names": lambda f: [(f / n).write_text("mine") for n in ("README.md", "example.c")],
    "a hidden file": lambda f: (f / ".gitignore").write_text("*.o"),
    "a folder": lambda f: (f / "src").mkdir(),
    "a pipe as README": lambda f: os.mkfifo(f / "README.md"),
    "a README that is a folder": lambda f: (f / "README.md").mkdir(),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_export_leaves_the_folders_of_others_alone(
    here: Cli, folder: Path, tmp_path: Path, kind: str
) -> None:
    FOLDERS[kind](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = here("export", folder / "m.atn", "-o", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert f"the folder {tmp_path} is not empty" in done.err
    assert "--force" in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_export_writes_an_empty_folder_its_own_and_others_by_force(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ziglang") if not shutil.which("cc") else None
    words = ("export", folder / "m.atn", "--format", "json", "-o")
    (tmp_path / "mine").write_text("mine")
    assert cli("export", folder / "m.atn", "-o", tmp_path / "mine").code == 2
    for place in (tmp_path / "new", tmp_path / "new", tmp_path):
        done = cli(*words, place, *(["--force"] if place == tmp_path else []))
        assert done.code == 0, done.err
        assert "m.h" in json.loads(done.out)["files"]
    assert (tmp_path / "mine").read_text() == "mine"
