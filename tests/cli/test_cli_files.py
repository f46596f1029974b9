"""Paths that users give: what is refused before any work, what is followed, what is kept."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import LogLost
from autotune.files import require_place
from autotune.records import Journal, read_log
from tests.cli.conftest import mlp
from tests.forking import Cli, Outcome

ROOT = Path(__file__).parent.parent.parent


def refused(outcome: Outcome, code: int, *texts: str) -> None:
    lines = outcome.err.strip().splitlines()
    assert (outcome.code, len(lines)) == (code, 2), outcome.err
    assert lines[0].startswith("error:")
    assert lines[1].startswith("hint:")
    assert outcome.out == ""
    for text in texts:
        assert text in outcome.err


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """What is no file, and links to it."""
    paths = {kind: tmp_path / kind for kind in ("pipe", "socket", "folder", "loop")}
    os.mkfifo(paths["pipe"])
    paths["folder"].mkdir()
    paths["loop"].symlink_to("loop")
    for kind in ("pipe", "socket", "folder"):
        paths[f"link to {kind}"] = tmp_path / f"link-{kind}"
        paths[f"link to {kind}"].symlink_to(kind)
    paths |= {"/dev/null": Path("/dev/null"), "/dev/stdout": Path("/dev/stdout")}
    with socket.socket(socket.AF_UNIX) as listening:
        old = Path.cwd()
        os.chdir(tmp_path)  # names of sockets are short
        listening.bind("socket")
        os.chdir(old)
        yield paths


ODD = ("pipe", "socket", "folder", "loop", "link to pipe", "link to socket", "link to folder")
REASONS = {"pipe": "is a pipe", "socket": "is a socket", "folder": "is a directory"}


@pytest.fixture
def writers(
    model: Path, tuned: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[object]]:
    """Every command that writes a file, up to its path; none of them gets as far as work."""

    def work(*_: object, **__: object) -> None:
        pytest.fail("worked before it tried the place")

    for name in (
        "autotune.api.bindings.network_at",
        "autotune.network.runtime.loading.load",
        "autotune.records.distill",
        "autotune.api.reporting.read_log",
    ):
        monkeypatch.setattr(name, work)
    return {
        "tune": ["tune", model, "--log"],
        "compile": ["compile", model, "-o"],
        "compile from a log": ["compile", "--log", tuned, "-o"],
        "distill": ["distill", tuned, "-o"],
        "run": ["run", artifact, "-o"],
        "report": ["report", tuned, "-o"],
    }


@pytest.mark.parametrize("kind", [*ODD, "/dev/null", "/dev/stdout"])
def test_what_is_no_file_is_not_written(
    here: Cli, odd: dict[str, Path], writers: dict[str, list[object]], kind: str
) -> None:
    reason = REASONS.get(kind.split()[-1], kind)
    for command in writers.values():
        refused(here(*command, odd[kind]), 2, reason)
    assert stat.S_ISFIFO(odd["pipe"].stat().st_mode)


@pytest.mark.parametrize("kind", [*ODD, "/dev/zero"])
def test_what_is_no_file_is_not_read(
    here: Cli, odd: dict[str, Path], model: Path, artifact: Path, tmp_path: Path, kind: str
) -> None:
    path = odd.get(kind, Path(kind))
    new = ("--log", tmp_path / "new.jsonl")
    for command in (
        ["tasks", path],
        ["resume", path],
        ["distill", path],
        ["compile", "--log", path],
        ["explain", path, "--task", 0],
        ["report", path, "--format", "md"],
        ["run", path],
        ["bench", path],
        ["run", artifact, "--input", path],
        ["tune", model, *new, "--preset", path],
        ["tune", model, *new, "--warm-start", path],
    ):
        refused(here(*command), 2, str(path))
    assert not new[1].exists()


def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    here: Cli, writers: dict[str, list[object]], model: Path, tmp_path: Path
) -> None:
    for name, command in writers.items():
        refused(here(*command, model / "x"), 2, "cannot open")
        refused(here(*command, tmp_path / ("x" * 300)), 2, "File name too long")
        refused(here(*command, "/proc/x"), 2, "/proc/x")
        if name not in ("tune", "distill"):  # they make the folders of a log
            refused(here(*command, tmp_path / "none" / "x"), 2, "there is no folder")
    assert list(tmp_path.iterdir()) == []


def test_inputs_are_not_overwritten_by_whatever_name(
    here: Cli, model: Path, tuned: Path, artifact: Path, tmp_path: Path
) -> None:
    large = onnx.load(model)
    onnx.save(
        large,
        tmp_path / "large.onnx",
        save_as_external_data=True,
        location="large.data",
        size_threshold=0,
    )
    log = Path(shutil.copy(tuned, tmp_path / "log.jsonl"))
    array = tmp_path / "x.npy"
    np.save(array, np.zeros((4, 8), np.float32))
    soft, hard = tmp_path / "soft", tmp_path / "hard"
    for source, command in {
        log: ["distill", log, "-o"],
        artifact: ["run", artifact, "-o"],
        array: ["run", artifact, "--input", f"x={array}", "-o"],
        tmp_path / "large.data": ["compile", tmp_path / "large.onnx", "-o"],
        tmp_path / "large.onnx": ["compile", tmp_path / "large.onnx", "-o"],
    }.items():
        before = source.read_bytes()
        soft.symlink_to(source)
        os.link(source, hard)
        for path in (source, soft, hard):
            refused(here(*command, path), 2, "-o")
        assert source.read_bytes() == before
        soft.unlink()
        hard.unlink()


def test_links_are_followed_and_modes_kept(
    here: Cli, model: Path, tuned: Path, artifact: Path, tmp_path: Path
) -> None:
    """Nothing else is left in the folder: no temporary file."""
    place, links = tmp_path / "place", tmp_path / "links"
    place.mkdir()
    links.mkdir()
    old = os.umask(0o027)
    try:
        for command in (
            ["compile", model, "--no-check", "-o"],
            ["distill", tuned, "-o"],
            ["run", artifact, "-o"],
            ["tune", model, "--trials", 1, "--threads", 1, "--log"],
        ):
            target, link = place / command[0], links / command[0]
            link.symlink_to(target)  # to where nothing is yet
            done = here(*command, link)
            assert done.code == 0, done.err
            assert link.is_symlink()
            assert stat.S_IMODE(target.stat().st_mode) == 0o640
            if command[0] == "tune":
                continue
            target.write_bytes(b"")
            target.chmod(0o604)
            assert here(*command, link).code == 0
            assert link.is_symlink()
            assert stat.S_IMODE(target.stat().st_mode) == 0o604
            assert target.stat().st_size > 0
    finally:
        os.umask(old)
    assert sorted(p.name for p in place.iterdir()) == ["compile", "distill", "run", "tune"]


def test_outputs_keep_their_names(here: Cli, tmp_path: Path) -> None:
    """`numpy.savez` takes no array that is called "file"."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] file) { file = Relu(x) }
    """)
    onnx.save(model, tmp_path / "m.onnx")
    assert here("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.atn").code == 0
    np.savez(tmp_path / "x.npz", x=np.float32([-1, 2, -3, 4]))
    done = here(
        *("run", tmp_path / "m.atn", "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    )
    assert done.code == 0, done.err
    with np.load(tmp_path / "y.npz") as found:
        assert found["file"].tolist() == [0, 2, 0, 4]


def test_files_that_are_too_large_are_not_loaded(
    here: Cli, artifact: Path, model: Path, tmp_path: Path
) -> None:
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 40)
    refused(here("tasks", huge), 1, "at most 2 GiB")
    refused(here("distill", huge), 4, "is no autotune log")
    refused(here("run", huge), 4, "is not a network")
    refused(here("run", artifact, "--input", huge), 2, "is no NumPy array")
    refused(here("tune", model, "--preset", huge), 2, "is not TOML")
    with huge.open("r+b") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 38,)}
        np.lib.format.write_array_header_1_0(file, header)
    refused(here("run", artifact, "--input", huge), 2, "more than the inputs can take")


def test_an_archive_that_unpacks_to_far_more_is_not_loaded(here: Cli, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    bomb = tmp_path / "x.npz"
    np.savez_compressed(bomb, x=np.zeros(75 << 20, np.float32))
    made = ("-o", tmp_path / "m.atn")
    text = "unpacks from"
    refused(
        here("compile", tmp_path / "m.onnx", *made, "--check-input", tmp_path / "x.npz"), 2, text
    )
    refused(here("quantise", tmp_path / "m.onnx", "--data", tmp_path / "x.npz"), 2, text)


def test_too_little_room_is_an_error_before_any_work(
    here: Cli, writers: dict[str, list[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = os.statvfs(tmp_path)
    small = os.statvfs_result((*free[:4], 1, *free[5:]))  # one block is free
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    for command in writers.values():
        refused(here(*command, tmp_path / "x"), 1, "no room for")


def test_a_log_that_is_being_written_is_not_replaced(
    here: Cli, model: Path, tuned: Path, artifact: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(tuned, tmp_path / "live.jsonl"))
    before = path.read_bytes()
    with Journal.open(path):
        for command in (
            ["distill", tuned, "-o"],
            ["compile", model, "-o"],
            ["run", artifact, "-o"],
        ):
            refused(here(*command, path), 1, "another autotune process is writing")
    assert path.read_bytes() == before
    assert here("distill", tuned, "-o", path).code == 0


def change(path: Path, how: str) -> None:
    match how:
        case "deleted":
            path.unlink()
        case "cut off":
            os.truncate(path, 100)
        case "replaced":
            other = path.with_name("other")
            other.write_bytes(path.read_bytes() * 2)
            other.replace(path)
        case "overwritten":
            path.write_bytes(path.read_bytes().upper() * 2)
        case "gone with its folder":
            shutil.rmtree(path.parent)


CHANGES = ("deleted", "cut off", "replaced", "overwritten")


@pytest.mark.parametrize("how", [*CHANGES, "gone with its folder"])
def test_a_log_that_is_lost_while_it_is_written_is_saved(
    tuned: Path, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "logs" / "log.jsonl"
    path.parent.mkdir()
    shutil.copy(tuned, path)
    whole = read_log(path)
    again, later = whole.records[-2:]
    with Journal.open(path) as journal:
        journal.append([again])
        change(path, how)
        with pytest.raises(LogLost, match="while autotune was writing it") as info:
            journal.append([later])
        saved = path.with_name("log-saved.jsonl")
        assert str(saved) in info.value.hint
        journal.append(whole.ends)  # goes there
        with pytest.raises(LogLost):
            journal.check()
    found = read_log(saved)
    assert found.records == (*whole.records, again, later)
    assert (found.headers, found.workloads) == (whole.headers, whole.workloads)
    assert found.ends == whole.ends * 2


@pytest.mark.slow
def test_a_session_that_loses_its_log_says_where_it_is_saved(model: Path, tmp_path: Path) -> None:
    log, saved = tmp_path / "log.jsonl", tmp_path / "log-saved.jsonl"
    command = ("tune", model, "--log", log, "--preset", "ci", "--threads", 1, "--trials", 999)
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    ) as process:
        while not log.exists() or log.read_bytes().count(b'"measure"') < 3:
            time.sleep(0.01)
        log.unlink()
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"error: {log} was deleted while autotune was writing it" in told
    assert f"go on: autotune resume {saved}" in told
    assert len(read_log(saved).records) >= 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_of_a_file_that_is_replaced_is_kept(
    here: Cli, artifact: Path, tmp_path: Path
) -> None:
    path = tmp_path / "y.npz"
    path.touch()
    os.chown(path, 1234, 1235)
    assert here("run", artifact, "-o", path).code == 0
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


def test_without_unnamed_files_nothing_is_left_either(
    here: Cli, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that cannot give an open file a name."""
    monkeypatch.setattr("autotune.files._unnamed", lambda folder: None)
    path = tmp_path / "y.npz"
    for _ in range(2):
        assert here("run", artifact, "-o", path).code == 0
        assert [p.name for p in tmp_path.iterdir()] == ["y.npz"]
    require_place(path)

    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    refused_code = here("run", artifact, "-o", path).code
    assert (refused_code, path.read_bytes() == before) == (1, True)
    assert [p.name for p in tmp_path.iterdir()] == ["y.npz"]


@pytest.mark.slow
def test_names_that_are_no_utf8(model: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xe9\xff")
    path = tmp_path / f"{odd}.onnx"
    shutil.copy(model, path)
    log = tmp_path / f"{odd}.jsonl"
    command = ["tune", path, "--log", log, "--trials", 1, "--threads", 1]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *map(str, command)],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert read_log(log).header.model_path == path.name
    out = tmp_path / f"{odd}.atn"
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "compile", "--log", str(log), "-o", str(out)],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, os.fsencode(out) + b"\n"), done.stderr
    assert autotune.load(out).artifact.model_path == path.name


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", ["is empty", "delete it and tune again"]),
        (b'{"type":"header","format":"autotune-lo', ["is no autotune log", "cut off"]),
        (b"\x7fELF\x00\xff" * 99, ["is no autotune log"]),
        (b'{"name": "package", "version": 1}\n', ["is no autotune log"]),
    ],
)
def test_half_born_and_foreign_logs(
    here: Cli, model: Path, tmp_path: Path, content: bytes, texts: list[str]
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    refused(here("tune", model, "--log", path), 2, "exists")
    for command in (["resume", path], ["distill", path], ["compile", "--log", path]):
        refused(here(*command), 4, *texts)
    assert path.read_bytes() == content


def test_a_log_that_has_lost_its_tasks_is_not_resumed(
    here: Cli, tuned: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(tuned.read_bytes().splitlines(keepends=True)[0])
    before = path.read_bytes()
    refused(here("resume", path), 4, "lacks the computation of 2 of its tasks")
    assert path.read_bytes() == before


def test_a_kill_leaves_no_log_without_a_header(tmp_path: Path, tuned: Path) -> None:
    """A log has its name only when its header is in it."""
    script = (
        "import os, sys; from pathlib import Path; from autotune.records import Journal, read_log\n"
        "from autotune import files\n"
        "files.PendingFile.publish = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "Journal.create(Path(sys.argv[2]), read_log(Path(sys.argv[1])).header)"
    )
    command = [sys.executable, "-c", script, str(tuned), str(tmp_path / "log.jsonl")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
