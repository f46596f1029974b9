"""The whole path with real search, measurement and code, on a model of a few hundred weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import autotune
from autotune.cli.main import run
from autotune.errors import WrongNumbers
from autotune.records import Log, best_records, ranked_records, read_log
from autotune.schedule.steps import steps_text
from autotune.search.defaults import default_steps
from tests.forking import in_process

Cli = Callable[..., Any]
ROOT = Path(__file__).parent.parent.parent


def test_tune_wrote_a_log_that_explains_itself(tuned: Path, model: Path) -> None:
    log = read_log(tuned)
    assert log.header.model_path == model.name
    assert log.header.config["trials"] == 16
    assert len(log.workloads) == len(log.header.tasks) == 2
    assert sum(not r.final for r in log.records) == 16
    assert any(r.result.ok for r in log.records)
    assert [end.reason for end in log.ends] == ["trials"]


def default_text(log: Log, key: str) -> str:
    """Steps of the program that `compile` takes of a task without a log."""
    header = log.header
    found = default_steps(
        log.workloads[key].dag, header.target, header.n_threads, header.config["max_error"]
    )
    return steps_text(found)


def test_the_first_trial_of_every_task_is_its_default_program(tuned: Path) -> None:
    log = read_log(tuned)
    first = {r.workload: r for r in reversed(log.records)}
    assert {key: r.steps_json for key, r in first.items()} == {
        key: default_text(log, key) for key in log.workloads
    }
    assert all(r.default_estimate_s for r in first.values())
    for ranked in ranked_records(log.records).values():
        (default,) = [r for r in ranked if r.default_estimate_s]
        (best,) = best_records(r for r in log.records if r.workload == default.workload).values()
        assert (best.result.latency_s or 1.0) <= (default.result.latency_s or 0.0)


def test_resume_goes_on_where_the_log_ends(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = tuned.read_bytes()
    path.write_bytes(whole + b'{"type":"measure","run_')  # as a kill leaves it
    done = cli("resume", path, "--trials", 6, "--events", "jsonl")
    assert done.code == 0, done.err
    assert "removed a line that was cut off" in done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    assert (events[0]["event"], events[0]["n_replayed"]) == ("session_started", 16)
    assert events[-1]["event"] == "session_finished"
    log = read_log(path)
    assert path.read_bytes().startswith(whole)
    assert (log.n_skipped, log.torn, len(log.headers)) == (0, False, 2)
    trials = [r for r in log.records if not r.final]
    assert len(trials) == 22
    assert len({(r.workload, r.steps_json) for r in trials}) == 22
    assert [r.sequence for r in log.records] == list(range(len(log.records)))


def test_resume_of_a_finished_session_only_says_so(cli: Cli, tuned: Path) -> None:
    n_before = len(read_log(tuned).records)
    done = cli("resume", tuned)
    assert done.code == 0, done.err
    assert "stopped: trials after 16 trials" in done.err
    assert len(read_log(tuned).records) == n_before


@pytest.mark.sampled(0)
def test_resume_with_another_limit_on_errors(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(tuned.read_bytes())
    done = cli("resume", path, "--trials", 2, "--max-error", "1e-3")
    assert done.code == 0, done.err
    done = cli("resume", path, "--trials", 1)
    assert done.code == 0, done.err
    limits = [header.config["max_error"] for header in read_log(path).headers]
    assert (limits[0], limits[-2:]) == (5e-5, [1e-3, 1e-3])
    assert cli("explain", path, "--task", 0).out.count("of the largest value") == 1


def test_distill_then_compile_then_run(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    done = cli("distill", tuned, "-o", tmp_path / "best.jsonl")
    assert (done.code, done.out) == (0, f"{tmp_path / 'best.jsonl'}\n")
    assert len(read_log(tmp_path / "best.jsonl").records) == 2
    done = cli("compile", "--log", tmp_path / "best.jsonl", "-o", tmp_path / "m.atn")
    assert done.code == 0, done.err
    assert "default" not in done.err
    assert "outputs agree with ONNX Runtime" in done.err
    x = np.arange(32, dtype=np.float32).reshape(4, 8) / 10
    np.save(tmp_path / "x.npy", x)
    for given in (f"x={tmp_path / 'x.npy'}", tmp_path / "x.npy"):
        done = cli("run", tmp_path / "m.atn", "--input", given, "-o", tmp_path / "y.npz")
        assert done.code == 0, done.err
    y = np.load(tmp_path / "y.npz")["y"]
    np.testing.assert_array_equal(y, autotune.load(tmp_path / "m.atn").run({"x": x})["y"])


def test_compile_without_a_log_takes_the_default(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli("compile", model, "--verify", cwd=tmp_path)
    assert (done.code, done.out) == (0, "mlp.atn\n"), done.err
    assert "2 of 2 tasks take the analytic default" in done.err
    done = cli("run", tmp_path / "mlp.atn")
    assert (done.code, done.out.split()[:2]) == (0, ["output", "shape"])


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("te", "output"),
        ("schedule", "parallel"),
        ("python", "def "),
        ("loopir", "input x"),
        ("loopir:nests", "input x"),
        ("llvm", "define "),
        ("asm", ".text"),
    ],
)
def test_explain_shows_every_stage(cli: Cli, tuned: Path, stage: str, expected: str) -> None:
    done = cli("explain", tuned, "--task", "0", "--stage", stage, "--verify")
    assert done.code == 0, done.err
    assert expected in done.out


@pytest.mark.parametrize("stage", ["fold", "loopir:fold", "llvm:peel", "loopir:"])
def test_explain_names_the_stages_and_passes_that_there_are(
    cli: Cli, tuned: Path, stage: str
) -> None:
    done = cli("explain", tuned, "--task", "0", "--stage", stage)
    assert (done.code, done.out) == (2, "")
    assert "prefetch-constants" in done.err or "loopir:PASS" in done.err


def test_explain_without_a_stage_gives_an_overview(cli: Cli, tuned: Path) -> None:
    key = read_log(tuned).header.tasks[1][0]
    done = cli("explain", tuned, "--task", key[:6])
    assert done.code == 0, done.err
    assert f"key       {key}" in done.out
    assert "# schedule" in done.out


def test_the_same_seed_proposes_the_same_candidates(
    model: Path, tuned: Path, tmp_path: Path
) -> None:
    """Also in a process whose hashes have another seed."""
    again = tmp_path / "again.jsonl"
    command = ("tune", model, "--log", again, "--trials", 16, "--threads", 1, "--preset", "ci")
    done = in_process(*command, PYTHONHASHSEED="1")
    assert done.code == 0, done.err
    first, second = (
        [(r.workload, r.steps_json) for r in read_log(path).records if not r.final]
        for path in (tuned, again)
    )
    assert first == second


def test_warm_start_measures_the_best_of_an_earlier_log_first(
    cli: Cli, model: Path, tuned: Path, tmp_path: Path
) -> None:
    old, log = tmp_path / "old.jsonl", tmp_path / "log.jsonl"
    old.write_bytes(tuned.read_bytes())
    before = read_log(old)
    common = ("--threads", 1, "--preset", "ci")
    done = cli("tune", model, "--log", log, "--trials", 8, *common, "--warm-start", old)
    assert done.code == 0, done.err
    assert "warm start: 16 measurements of 2 tasks, 2 of these tasks in this model" in done.err
    after = read_log(log)
    assert after.header.config["warm_start"] == [str(old)]
    best = ranked_records(before.records)
    for (key, _, _), ranked in best.items():
        ours = [r.steps_json for r in after.records if r.workload == key and not r.final]
        assert not ours or ours[0] == default_text(after, key)
        again = [r.steps_json for r in ranked if r.steps_json != ours[0]][:3] if ours else []
        assert ours[1 : 1 + len(again)] == again
    old.unlink()
    done = cli("resume", log, "--trials", 2, "--warm-start", tuned)
    assert done.code == 0, done.err
    assert f"note: no warm start: there is no file {old}" in done.err
    assert read_log(log).headers[-1].config["warm_start"] == [str(old), str(tuned)]


def test_a_missing_log_to_start_from_leaves_no_new_one(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    done = cli("tune", model, "--log", tmp_path / "log.jsonl", "--warm-start", tmp_path / "none")
    assert done.code == 2
    assert "there is no file" in done.err
    assert not (tmp_path / "log.jsonl").exists()


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        start_new_session=True,
    )


def group_is_gone(group: int) -> bool:
    """Whether no process of a session is left (zombies of others do not count)."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_interrupt_keeps_the_batch_and_names_the_next_command(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    command = ("tune", model, "--log", log, "--preset", "ci", "--trials", 999, "--events", "jsonl")
    with start(*command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "batch_measured" not in process.stdout.readline():
            pass
        os.killpg(process.pid, signal.SIGINT)  # what the terminal does
        rest, told = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130, told
    assert f"autotune resume {log}" in told
    last = json.loads(rest.splitlines()[-1])
    assert (last["event"], last["reason"]) == ("session_finished", "interrupted")
    assert last["totals"]["n_compared"] == last["totals"]["n_known"]
    assert last["totals"]["tuned_s"] <= last["totals"]["untuned_s"]
    assert read_log(log).ends[-1].reason == "interrupted"
    assert group_is_gone(process.pid)


@pytest.mark.sampled(0)
def test_sigkill_loses_nothing_and_leaves_no_process(cli: Cli, model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    command = ("tune", model, "--log", log, "--preset", "ci", "--trials", 999, "--events", "jsonl")
    with start(*command) as process:
        assert process.stdout is not None
        seen = 0
        while seen < 2:
            line = process.stdout.readline()
            if "batch_measured" in line:
                seen, last = seen + 1, json.loads(line)
        process.kill()
        process.communicate()
    assert group_is_gone(process.pid)
    before = read_log(log)
    assert len(before.records) >= last["session_trials"]
    done = cli("resume", log, "--trials", 4)
    assert done.code == 0, done.err
    after = read_log(log)
    assert after.records[: len(before.records)] == before.records
    trials = [(r.workload, r.steps_json) for r in after.records if not r.final]
    assert len(set(trials)) == len(trials) == len(before.records) + 4


def test_a_task_without_a_valid_schedule(cli: Cli, tmp_path: Path) -> None:
    """No candidate of large products runs in a millisecond: they are given up, and why is said."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1024, 1024] x) => (float[1024, 512] y) { a = MatMul(x, w) y = MatMul(a, v) }
    """)
    for name, shape in {"w": (1024, 1024), "v": (1024, 512)}.items():
        weights = rng.standard_normal(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    onnx.save(model, tmp_path / "large.onnx")
    preset = tmp_path / "strict.toml"
    preset.write_text('[budget]\ntrials = 2\n[search]\nbatch = 1\n[measure]\nrun_timeout = "1ms"\n')
    log = tmp_path / "log.jsonl"
    command = ("tune", tmp_path / "large.onnx", "--log", log, "--preset", preset)
    done = cli(*command, "--threads", 1)
    assert done.code == 3, done.err
    assert "error: no candidate of task 0, 1 was valid (2 run_timeout)" in done.err
    assert f"hint: see why: autotune explain {log} --task 0" in done.err
    assert "run_timeout" in cli("explain", log, "--task", 0).out


def test_wrong_numbers_write_nothing(
    tuned: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*_: object, **__: object) -> float:
        raise WrongNumbers("output 'y' differs", "a bug")

    monkeypatch.setattr("autotune.api.compile.compiling.check_any", wrong)
    path = tmp_path / "m.atn"
    assert run(["compile", "--log", str(tuned), "-o", str(path)]) == 5
    assert "error: output 'y' differs" in capsys.readouterr().err
    assert not path.exists()
    assert run(["compile", "--log", str(tuned), "-o", str(path), "--no-check"]) == 0


def test_without_onnxruntime_the_reference_is_the_oracle(
    tuned: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # importing it fails
    assert run(["compile", "--log", str(tuned), "-o", str(tmp_path / "m.atn")]) == 0
    assert "outputs agree with onnx.reference" in capsys.readouterr().err


def test_where_onnxruntime_fails_numpy_is_the_oracle(cli: Cli, tmp_path: Path) -> None:
    """It refuses an index that is outside of its table; here that takes the last row."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[3] i) => (float[3, 2] y)
        <int64[1] far = {1000}, float[4, 2] table = {1, 2, 3, 4, 5, 6, 7, 8}>
        { k = Add(i, far) y = Gather(table, k) }
    """)
    onnx.save(model, tmp_path / "far.onnx")
    done = cli("compile", tmp_path / "far.onnx", "-o", tmp_path / "far.atn")
    assert done.code == 0, done.err
    assert "note: ONNX Runtime cannot run the model: " in done.err
    assert "outputs agree with NumPy" in done.err
    done = cli("bench", tmp_path / "far.atn", "--against", "onnxruntime")
    assert done.code == 1
    assert "error: onnxruntime cannot run the model: " in done.err
    assert "hint: leave out --against onnxruntime" in done.err
