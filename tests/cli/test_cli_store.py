"""Stores from the command line: several models and processes over one, and what is refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from autotune.network.runtime.loading import read_artifact
from autotune.records import read_log
from tests.cli.conftest import mlp
from tests.forking import Cli, Outcome, in_process


@pytest.fixture
def store(tmp_path: Path, cli: Cli, tuned: Path) -> Path:
    done = cli("distill", tuned, "--store", tmp_path / "store")
    assert (done.code, done.out) == (0, f"{tmp_path / 'store'}\n"), done.err
    return tmp_path / "store"


def listed(cli: Cli, *arguments: object) -> list[dict[str, object]]:
    done = cli("store", "list", *arguments, "--format", "json")
    assert done.code == 0, done.err
    found: list[dict[str, object]] = json.loads(done.out)
    return found


def test_compile_takes_records_of_the_store_where_the_log_has_none_and_says_so(
    tmp_path: Path, cli: Cli, store: Path, tuned: Path, model: Path
) -> None:
    command = ("compile", model, "--threads", 1, "--no-check", "--no-cache")
    with_log = tmp_path / "log.atn"
    assert cli(*command, "--log", tuned, "-o", with_log).code == 0
    for name, options, env in (
        ("option.atn", ("--store", store), {}),
        ("variable.atn", (), {"AUTOTUNE_STORE": str(store)}),
    ):
        done = cli(*command, *options, "-o", tmp_path / name, **env)
        assert f"note: 2 of 2 tasks take records of {store}" in done.err
        artifact = read_artifact(tmp_path / name)
        assert set(artifact.stored) == set(artifact.tuned) == set(artifact.tasks)
        assert artifact.image.data == read_artifact(with_log).image.data
    for options, env in (
        (("--log", tuned), {"AUTOTUNE_STORE": str(store)}),
        (("--store", "none"), {"AUTOTUNE_STORE": str(store)}),
    ):
        done = cli(*command, *options, "-o", tmp_path / "no.atn", **env)
        assert "take records of" not in done.err
        assert read_artifact(tmp_path / "no.atn").stored == ()


def test_explain_shows_a_task_of_a_store_as_it_shows_that_of_the_log(
    cli: Cli, store: Path, tuned: Path
) -> None:
    key = read_log(tuned).header.tasks[0][0]
    for stage in (("--stage", "steps"), ("--stage", "asm"), ()):
        shown = cli("explain", "--store", store, "--task", key[:6], *stage)
        of_log = cli("explain", tuned, "--task", key, *stage)
        assert (shown.code, of_log.code) == (0, 0), shown.err
        if stage:
            assert shown.out == of_log.out
        assert key in shown.out or stage
    by_variable = cli("explain", "--store", "--task", key, AUTOTUNE_STORE=str(store))
    assert by_variable.out == cli("explain", "--store", store, "--task", key).out
    for words, text in (
        ((), "a task is explained by a log or by a store"),
        ((tuned, "--store", store), "a task is explained by a log or by a store"),
        (("--store", store, "--task", "zz"), "no task of it is 'zz'"),
        (("--store", store, "--task", ""), "2 tasks fit ''"),
    ):
        refused = cli("explain", "--task", key, *words)
        assert (refused.code, refused.out) == (2, "")
        assert text in refused.err


def test_part_of_the_tasks_from_the_log_and_part_from_the_store(
    tmp_path: Path, cli: Cli, store: Path, tuned: Path, model: Path
) -> None:
    """A log that has lost its measurements of one task."""
    first = read_log(tuned).header.tasks[0][0]
    lines = tuned.read_text().splitlines()
    part = [x for x in lines if not ('"type":"measure"' in x and f'"workload":"{first}"' in x)]
    (tmp_path / "part.jsonl").write_text("\n".join([*part, ""]))
    out = tmp_path / "m.atn"
    command = ("compile", model, "--log", tmp_path / "part.jsonl", "--no-check", "-o", out)
    done = cli(*command, "--store", store)
    assert "note: 1 of 2 tasks takes records of" in done.err
    assert read_artifact(out).stored == (first,)
    assert "analytic default" not in done.err


def test_tune_begins_with_what_the_store_knows_of_the_tasks_and_of_their_form(
    tmp_path: Path, cli: Cli, store: Path, model: Path
) -> None:
    best = {row["task"]: row["best_s"] for row in listed(cli, "--store", store)}
    onnx.save(mlp(batch=6), tmp_path / "other.onnx")
    told = {}
    for name, path in (("same", model), ("other", tmp_path / "other.onnx")):
        log = tmp_path / f"{name}.jsonl"
        options = ("--log", log, "--trials", 4, "--threads", 1, "--preset", "ci")
        done = cli("tune", path, *options, "--store", store)
        assert done.code == 0, done.err
        told[name] = done.err
        assert read_log(log).settings["store"] == str(store)
    assert "2 of these tasks in this model" in told["same"]
    assert "0 of these tasks in this model, 2 of the form of some" in told["other"]
    measured = {r.workload: r.steps_json for r in read_log(tmp_path / "same.jsonl").records}
    assert measured.keys() <= best.keys()
    resumed = cli("resume", tmp_path / "same.jsonl", "--trials", 2)
    assert "2 of these tasks in this model" in resumed.err
    again = cli("distill", tmp_path / "same.jsonl", tmp_path / "other.jsonl", "--store", store)
    assert again.code == 0
    assert len(listed(cli, "--store", store)) > 2


def test_several_commands_write_one_store_at_once(
    tmp_path: Path, cli: Cli, store: Path, tuned: Path
) -> None:
    where = tmp_path / "shared"
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(in_process, "distill", tuned, "--store", where) for _ in range(6)]
        assert [call.result().err for call in calls if call.result().code] == []
    assert cli("store", "merge", store, "--store", where).out == f"{where}\n"
    done = cli("store", "verify", "--store", where, "--format", "json")
    found = json.loads(done.out)
    assert (found["entries"], found["tasks"], found["damaged"]) == (2, 2, [])


def test_verify_finds_what_is_damaged_and_prune_removes_what_is_named(
    cli: Cli, store: Path
) -> None:
    broken = min(store.rglob("*.gz"))
    broken.write_bytes(broken.read_bytes()[:100])
    (store / "notes.txt").write_text("mine")
    done = cli("store", "verify", "--store", store)
    assert done.code == 4
    assert "1 entry" in done.err.splitlines()[-2]
    assert {line.split()[0] for line in done.out.splitlines()[:-1]} == {
        str(broken.relative_to(store)),
        "notes.txt",
    }
    told = cli("store", "prune", "--store", store, "--damaged", "--dry-run")
    assert told.out == f"{broken.relative_to(store)}\n"
    assert broken.exists()
    assert cli("store", "prune", "--store", store, "--damaged").out == told.out
    assert cli("store", "verify", "--store", store).code == 0
    assert cli("store", "prune", "--store", store, "--older", "1d").out == ""
    assert cli("store", "prune", "--store", store, "--target", "none").out == ""
    assert len(listed(cli, "--store", store)) == 1
    assert len(cli("store", "prune", "--store", store, "--target", "").out.splitlines()) == 1
    assert listed(cli, "--store", store) == []
    assert (store / "notes.txt").read_text() == "mine"


def refused(done: Outcome, code: int, *texts: str) -> None:
    lines = done.err.strip().splitlines()
    assert done.code == code, done.err
    assert [line.split(":")[0] for line in lines[-2:]] == ["error", "hint"], done.err
    assert "Traceback" not in done.err
    assert all(text in done.err for text in texts), done.err


def test_what_is_no_store_is_one_line_with_a_hint_and_a_code(
    tmp_path: Path, cli: Cli, tuned: Path, model: Path
) -> None:
    later, foreign = tmp_path / "later", tmp_path / "foreign"
    for folder in (later, foreign):
        folder.mkdir()
    (later / "autotune-store.json").write_text('{"format": "autotune-store", "version": 99}')
    (foreign / "thesis.tex").write_text("mine")
    commands = (
        ("distill", tuned, "--store"),
        ("tune", model, "--log", tmp_path / "x.jsonl", "--trials", 1, "--store"),
        ("compile", model, "-o", tmp_path / "x.atn", "--store"),
        *(("store", verb, "--store") for verb in ("list", "merge", "verify")),
    )
    for command in commands:
        refused(cli(*command, later), 4, "version 99", "upgrade")
        refused(cli(*command, foreign), 4, "is no store of autotune", "empty folder")
        refused(cli(*command, "odd://x"), 2, "is no place of a store", "s3://")
        refused(cli(*command, "s3://x/y"), 1, "needs", "pip install")
        if command[0] != "distill":
            refused(cli(*command, tmp_path / "none"), 2, "there is no store", "check the name")
    for verb in ("list", "merge", "verify"):
        empty = str(tmp_path / "empty")
        refused(cli("store", verb, AUTOTUNE_STORE=empty), 2, "no store yet", "distill")
    refused(cli("store", "prune", "--store", later), 2, "nothing is named", "--older")
    refused(cli("distill", tuned, "--store", model / "x"), 2, "cannot open")
    assert not (tmp_path / "x.jsonl").exists()
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    assert len([*later.iterdir()]) == 1


@pytest.fixture(scope="module")
def of_two_lengths(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> tuple[Path, Path]:
    """A model of any length, and a log of two."""
    folder = tmp_path_factory.mktemp("lengths")
    onnx.save(mlp(batch="n"), folder / "m.onnx")
    options = ("--trials", 32, "--threads", 1, "--preset", "ci", "--log", folder / "m.jsonl")
    done = cli("tune", folder / "m.onnx", "--dim", "n=4,24", *options)
    assert done.code == 0, done.err
    return folder / "m.onnx", folder / "m.jsonl"


@pytest.mark.sampled(0)
def test_lengths_that_were_not_tuned_take_what_was_measured_at_others_and_are_right(
    tmp_path: Path, cli: Cli, of_two_lengths: tuple[Path, Path]
) -> None:
    """One artifact of several lengths, without a trial; each is compared with ONNX Runtime."""
    model, log = of_two_lengths
    assert cli("distill", log, "--store", tmp_path / "store").code == 0
    for option, place, lengths in (
        ("--log", log, "1,5,16,33"),
        ("--store", tmp_path / "store", "7"),
    ):
        out = tmp_path / "m.atn"
        command = ("compile", model, "--dim", f"n={lengths}", "--threads", 1, "--no-cache")
        done = cli(*command, option, place, "-o", out)
        assert done.code == 0, done.err
        assert "tasks take schedules measured at other extents" in done.err
        assert len(read_artifact(out).variants) == len(lengths.split(","))
        assert "outputs agree with ONNX Runtime" in done.err


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_store_of_the_environment_that_is_not_there_is_noted(
    cli: Cli, model: Path, tmp_path: Path, form: str
) -> None:
    place = form.format(tmp_path / "none")
    if "://" in place:
        pytest.importorskip("fsspec")
    for words in (("tune", model, "--dry-run"), ("compile", model, "-o", tmp_path / "m.atn")):
        done = cli(*words, AUTOTUNE_STORE=place)
        assert done.code == 0, done.err
        assert done.err.count("note: no store is at ") == 1
        assert str(tmp_path / "none") in done.err
