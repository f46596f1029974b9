"""Bad input: one line, a hint, the documented exit code. In real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest
from onnx import helper

from autotune import threads
from autotune.cli.main import run
from autotune.network import load
from autotune.network.runtime.loading import read_artifact
from autotune.records import Journal, read_log, write_log
from tests.cli.conftest import mlp
from tests.forking import Cli, Outcome, environment, in_process


def refused(outcome: Outcome, code: int, *texts: str) -> None:
    """One `error:` line, one `hint:` line, no traceback, nothing on stdout."""
    lines = outcome.err.strip().splitlines()
    assert outcome.code == code, outcome.err
    assert [line.split(":")[0] for line in lines[-2:]] == ["error", "hint"], outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    for text in texts:
        assert text in outcome.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["tune", "none.onnx"], "there is no model file 'none.onnx'"),
        (["resume", "none.jsonl"], "there is no file none.jsonl"),
        (["distill", "none.jsonl"], "there is no file none.jsonl"),
        (["compile", "--log", "none.jsonl"], "there is no file none.jsonl"),
        (["run", "none.atn"], "none.atn"),
        (["bench", "none.atn"], "none.atn"),
        (["explain", "none.jsonl", "--task", "0"], "there is no file none.jsonl"),
        (["report", "none.jsonl"], "there is no file none.jsonl"),
        (["report", "none.jsonl", "--format", "pdf"], "pdf"),
        (["tune", "m.onnx", "--trials", "-1"], "--trials"),
        (["tune", "m.onnx", "--trials", "many"], "--trials"),
        (["tune", "m.onnx", "--time", "soon"], "'soon' is not a duration"),
        (["tune", "m.onnx", "--time", "0"], "'0' is not a duration"),
        (["tune", "m.onnx", "--threads", "0"], "--threads"),
        (["tune", "m.onnx", "--threads", "100000"], "cannot run on 100000 threads"),
        (["tune", "m.onnx", "--threads", "1000000000000"], "--threads"),
        (["tune", "m.onnx", "--seed", "99999999999999999999"], "--seed"),
        (["tune", "m.onnx", "--trials", "99999999999"], "--trials"),
        (["compile", "m.onnx", "--threads", "100000"], "cannot run on 100000 threads"),
        (["compile", "m.onnx", "--target", "native", "--threads", "9999"], "cannot run on 9999"),
        (["tune", "m.onnx", "--max-error", "0"], "--max-error"),
        (["tune", "m.onnx", "--shape", "x"], "'x' is not a shape"),
        (["tune", "m.onnx", "--shape", "x:1", "--shape", "x:2"], "given twice"),
        (["tune", "m.onnx", "--preset", "slow"], "there is no preset 'slow'"),
        (["tune", "m.onnx", "--target", "vax"], "unknown target 'vax'"),
        (["tune", "m.onnx", "--speed", "9"], "--speed"),
        (["tunes"], "there is no command 'tunes'"),
        (["distill"], "LOG"),
    ],
)
def test_usage_errors(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(arguments)
    err = capsys.readouterr().err
    assert (code, text in err, "hint:" in err) == (2, True, True), err


def test_usage_errors_of_a_real_process() -> None:
    refused(in_process("tune", "none.onnx"), 2, "there is no model file", "hint:")


def test_help_and_version_are_data(cli: Cli) -> None:
    assert cli("--version").out.startswith("autotune ")
    outcome = cli("tune", "--help")
    assert (outcome.code, outcome.err) == (0, "")
    for option in ("--log", "--trials", "--time", "--threads", "--shape", "--preset", "--seed"):
        assert option in outcome.out


def test_broken_models(here: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "torn.onnx").write_bytes(model.read_bytes()[:200])
    refused(here("tasks", tmp_path / "empty.onnx"), 1, "empty")
    refused(here("tasks", tmp_path / "torn.onnx"), 1, "torn.onnx")


def test_an_unsupported_operator_is_named(here: Cli, model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    proto.graph.node[1].CopyFrom(helper.make_node("RandomNormalLike", ["a"], ["b"], name="noise"))
    onnx.save(proto, tmp_path / "odd.onnx")
    arguments = ("tasks", tmp_path / "odd.onnx", "--no-fallback")
    refused(here(*arguments), 1, "RandomNormalLike", "noise", "opset 17")


def test_sizes_of_a_dynamic_shape_are_some_or_any(here: Cli, model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(proto, tmp_path / "dynamic.onnx")
    path = tmp_path / "dynamic.onnx"
    done = here("tasks", path)
    assert (done.code, "all sizes: rows up to 512" in done.err) == (0, True)
    refused(here("tasks", path, "--dim", "rows=..0"), 2, "up to 0")
    refused(here("tasks", path, "--dim", "rows=1..99"), 2, "99 combinations")
    refused(here("tasks", path, "--dim", "rows=1:0"), 2, "positive")
    refused(here("tasks", path, "--dim", "row=1"), 2, "no dimension 'row'", "rows (x.0)")
    refused(here("tasks", path, "--dim", "rows=-1"), 2, "no extents", "--dim batch=4")
    refused(here("compile", path, "--dim", "rows=1..200"), 2, "200 combinations")
    assert here("tasks", path, "--shape", "x:4x8").code == 0
    assert here("tasks", path, "--dim", "rows=4").code == 0


def test_tune_refuses_an_existing_log(here: Cli, model: Path, tuned: Path) -> None:
    before = tuned.read_bytes()
    refused(here("tune", model, "--log", tuned), 2, "exists", f"autotune resume {tuned}")
    assert tuned.read_bytes() == before


def test_tune_into_a_place_that_cannot_be_written(here: Cli, model: Path) -> None:
    refused(here("tune", model, "--log", model / "x.jsonl"), 2, "cannot open", "may write")
    refused(here("tune", model, "--log", "/proc/x.jsonl"), 2, "/proc/x.jsonl")


@pytest.mark.parametrize("command", ["resume", "distill", "compile", "explain", "report"])
def test_a_foreign_file_is_no_log(here: Cli, model: Path, command: str) -> None:
    more = {"compile": ["--log"], "explain": ["--task", "0"]}.get(command, [])
    before = model.read_bytes()
    refused(here(command, *more, model), 4, "is no autotune log")
    assert model.read_bytes() == before


def test_a_log_of_another_cpu(here: Cli, tuned: Path, model: Path, tmp_path: Path) -> None:
    log = read_log(tuned)
    other = replace(log.header.target, cpu="znver9")
    records = tuple(replace(r, target_key=other.key) for r in log.records)
    path = tmp_path / "other.jsonl"
    write_log(path, replace(log, headers=(replace(log.header, target=other),), records=records))
    refused(here("resume", path), 4, "znver9", "start a new log here")
    refused(here("compile", "--log", path, "-o", tmp_path / "x.atn"), 4, "znver9")
    refused(here("compile", model, "--log", path, "-o", tmp_path / "x.atn"), 4, "znver9")


def test_a_log_without_a_valid_record(here: Cli, tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    write_log(path, replace(read_log(tuned), records=()))
    refused(here("compile", "--log", path), 4, "no valid measurement")
    refused(here("distill", path), 4, "no log holds a valid measurement")
    refused(here("compile", "--log", tuned, "--max-error", "1e-12"), 4, "as accurate")


def test_a_log_of_another_model(here: Cli, tuned: Path, model: Path, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 8] x) => (float[4, 8] y)'
    onnx.save(onnx.parser.parse_model(f"{text} {{ y = Tanh(x) }}"), tmp_path / "other.onnx")
    plain = tmp_path / "log.jsonl"
    log = read_log(tuned)
    write_log(plain, replace(log, headers=(replace(log.header, shapes={}),)))
    refused(here("compile", tmp_path / "other.onnx", "--log", plain), 4, "no record for any task")


def test_a_model_that_changed_since_the_log(here: Cli, tuned: Path, tmp_path: Path) -> None:
    log = read_log(tuned)
    path = tmp_path / "log.jsonl"
    write_log(path, replace(log, headers=(replace(log.header, model_hash="0" * 64),)))
    onnx.save(mlp(seed=1), tmp_path / log.header.model_path)
    refused(here("compile", "--log", path), 4, "contents have changed")
    gone = replace(log.header, model_path=str(tmp_path / "gone.onnx"), model_hash="0" * 64)
    write_log(path, replace(log, headers=(gone,)))
    refused(here("compile", "--log", path), 2, "is gone")


def test_a_second_writer_is_refused(here: Cli, tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(tuned.read_bytes())
    with Journal.open(path):
        refused(here("resume", path), 1, "another autotune process is writing")


def test_distill_does_not_overwrite_its_inputs(here: Cli, tuned: Path) -> None:
    before = tuned.read_bytes()
    refused(here("distill", tuned, "-o", tuned), 2, "is one of the logs")
    assert tuned.read_bytes() == before


def test_inputs_that_do_not_fit(here: Cli, artifact: Path, model: Path, tmp_path: Path) -> None:
    refused(here("run", artifact, "--input", "z=none.npy"), 2, "there is no file none.npy")
    refused(here("run", artifact, "--input", f"x={model}"), 2, "no NumPy array")
    (tmp_path / "torn.atn").write_bytes(artifact.read_bytes()[:1000])
    refused(here("run", tmp_path / "torn.atn"), 4)
    refused(here("run", model), 4)


def test_unknown_tasks(here: Cli, tuned: Path) -> None:
    refused(here("explain", tuned, "--task", "99"), 2, "no task '99'", "from 0 to 1")


def test_without_lightgbm_the_cost_model_ranks_and_a_note_says_so(
    model: Path, tmp_path: Path
) -> None:
    """Other commands need none of it."""
    hidden = "import sys; sys.modules['lightgbm'] = None; from autotune.cli.main import run; "
    tune = ["tune", str(model), "--log", "l.jsonl", "--trials", "48"]
    for words in (tune, ["resume", "l.jsonl", "--trials", "8"], ["tasks", str(model)]):
        done = subprocess.run(
            [sys.executable, "-c", f"{hidden} sys.exit(run({words!r}))"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert ("pip install lightgbm" in done.stderr) == (words[0] != "tasks")


def test_missing_libgomp_is_one_line(cli: Cli, model: Path, tmp_path: Path) -> None:
    text = "libgomp.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "lightgbm.py").write_text(f"raise OSError({text!r})\n")
    path = f"{tmp_path}:{Path(__file__).parent.parent.parent}"
    outcome = cli("tune", model, "--log", tmp_path / "l.jsonl", PYTHONPATH=path)
    refused(outcome, 1, "libgomp", "apt-get install libgomp1")


def test_a_reader_that_goes_away(tuned: Path) -> None:
    command = [sys.executable, "-m", "autotune", "explain", str(tuned), "--task", "0"]
    process = subprocess.Popen(
        [*command, "--stage", "asm"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), told) == (141, b"")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tasks", "none.onnx", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("autotune.cli.tasks.model_path", broken)
    assert run(["tasks"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ZeroDivisionError: by\nhint: this is a bug")


@pytest.mark.parametrize("command", ["run", "bench"])
def test_more_threads_than_cores(here: Cli, artifact: Path, command: str) -> None:
    refused(here(command, artifact, "--threads", 100_000), 2, "this process may use", "at most")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["tune", "compile", "run", "bench", "tasks"])
def test_an_environment_that_says_no_number_of_threads(
    here: Cli,
    model: Path,
    artifact: Path,
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts, and is read, where the command line says nothing."""
    monkeypatch.setenv("AUTOTUNE_THREADS", "x")
    monkeypatch.setenv("AUTOTUNE_TUNE_TRIALS", "1")
    monkeypatch.setenv("AUTOTUNE_TUNE_LOG", str(tmp_path / "x.jsonl"))
    monkeypatch.setenv("AUTOTUNE_COMPILE_OUTPUT", str(tmp_path / "x.atn"))
    if command == "tasks":
        assert here(command, model).code == 0
        return
    arguments: tuple[object, ...] = (command, artifact if command in ("run", "bench") else model)
    arguments += ("--no-check",) if command == "compile" else ()
    refused(here(*arguments), 2, "AUTOTUNE_THREADS is 'x'", "unset")
    assert here(*arguments, "--threads", 1).code == 0


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_a_session_says_what_its_number_of_threads_follows_from(
    here: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_THREADS", "1")
    told = here("tune", model, "--log", tmp_path / "x.jsonl", "--trials", 1)
    assert "1 thread (AUTOTUNE_THREADS), seed" in told.err
    monkeypatch.delenv("AUTOTUNE_THREADS")
    monkeypatch.setattr(threads, "cpu_quota", lambda root: 0.5)
    monkeypatch.setattr(threads, "usable_cpus", lambda: frozenset({0, 1}))
    told = here("tune", model, "--log", tmp_path / "y.jsonl", "--trials", 1)
    assert "1 thread (a quota of 0.5 CPUs), seed" in told.err
    assert "1 thread (a quota of 0.5 CPUs)" in here("tune", model, "--dry-run").out


def test_code_for_another_machine_may_have_more_threads_than_this_one(
    here: Cli, model: Path, tmp_path: Path
) -> None:
    done = here(
        *("compile", model, "--target", "x86-64-v3", "--threads", 64, "-o", tmp_path / "x.atn")
    )
    assert done.code == 0, done.err
    assert read_artifact(tmp_path / "x.atn").n_threads == 64
    assert 1 <= load(tmp_path / "x.atn").n_threads < 64


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_log_is_used_where_fewer_cores_are_allowed(
    cli: Cli, tuned: Path, model: Path, tmp_path: Path
) -> None:
    on_one_core = partial(cli, cpus={min(os.sched_getaffinity(0))})
    log = tmp_path / "copy.jsonl"
    shutil.copy(tuned, log)
    compiled = on_one_core("compile", model, "--log", log, "-o", tmp_path / "x.atn")
    assert compiled.code == 0, compiled.err
    assert "analytic default" not in compiled.err
    assert on_one_core("resume", log, "--trials", 2).code == 0
    assert on_one_core("run", tmp_path / "x.atn").code == 0
    two = tmp_path / "two.jsonl"
    assert cli("tune", model, "--log", two, "--trials", 4, "--threads", 2).code == 0
    refused(on_one_core("resume", two), 2, "cannot run on 2 threads", "taskset")
    compiled = on_one_core("compile", model, "--log", two, "-o", tmp_path / "two.atn")
    assert compiled.code == 0, compiled.err
    assert on_one_core("run", tmp_path / "two.atn").code == 0
