"""`autotune bench`: golden tables from made-up times, and the real command on a real artifact."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from autotune.cli.bench_request import BASELINES, GENAI
from autotune.cli.bench_text import callers_text, profile_text, result_text
from autotune.cli.main import run
from autotune.errors import ExitCode
from autotune.network.bench.bench import BenchResult, Timing
from autotune.network.bench.callers import CallersResult, CallersTiming
from autotune.network.bench.profile import NetworkProfile, TaskTime
from autotune.network.runtime import baselines
from autotune.network.runtime.loading import read_artifact
from autotune.network.runtime.token_loops import TOKEN_LOOPS
from autotune.records import best_for, read_log

Cli = Callable[..., Any]
Golden = Callable[[str, str], None]

TIMES = {
    *("min_s", "median_s", "mean_s", "p95_s", "p99_s", "max_s", "std_s"),
    *("inferences_per_s", "runs", "threads"),
}
ABOUT = ["provenance", "memory"]
OF_CALLERS = {
    *("inferences_per_s", "mean_s", "p50_s", "p95_s", "p99_s", "max_s"),
    *("runs", "threads"),
}
INSTALLED = all(map(importlib.util.find_spec, ("onnxruntime", "openvino")))


def test_the_names_are_those_of_the_runners() -> None:
    assert list(BASELINES) == list(baselines.BASELINES)
    assert {*BASELINES, GENAI} == {*baselines.BASELINES, *TOKEN_LOOPS}


# --- text ---------------------------------------------------------------------------------------


def test_table_of_one(golden: Golden) -> None:
    golden("cli/bench_alone.txt", result_text(BenchResult(Timing((1e-3, 2e-3, 6e-3), 1))) + "\n")


def test_table_of_several(golden: Golden) -> None:
    ours = Timing((9e-3, 10e-3, 11e-3), 2)
    others = {
        "onnxruntime": Timing((18e-3, 20e-3, 22e-3), 2, 1.25e-6),
        "openvino": Timing((7.5e-3, 8e-3, 9.5e-3), 2, 4e-7),
    }
    golden("cli/bench_several.txt", result_text(BenchResult(ours, others, 2.7e-7)) + "\n")
    one = {"onnxruntime": others["onnxruntime"]}
    golden("cli/bench_one_other.txt", result_text(BenchResult(ours, one)) + "\n")


def test_table_of_callers(golden: Golden) -> None:
    ours = CallersTiming((9e-3, 10e-3, 11e-3), 3.0, 0.01, 4, 2)
    others = {
        "onnxruntime": CallersTiming((18e-3, 20e-3), 1.5, 0.01, 4, 2, 1.25e-6),
        "openvino": CallersTiming((8e-3,), 1.0, 0.01, 4, 2, 0.0),
    }
    golden("cli/bench_callers.txt", callers_text(CallersResult(ours, others)) + "\n")
    golden("cli/bench_callers_alone.txt", callers_text(CallersResult(ours)) + "\n")


def test_table_of_tasks(golden: Golden) -> None:
    tasks = (
        TaskTime(0, "0f" * 8, "Pad+Conv+Relu", 1, 1.5e-3, 1.4e-3),
        TaskTime(1, "1e" * 8, "Conv+Add+Relu", 12, 6e-3, 4.8e-3),
        TaskTime(2, "2d" * 8, "MaxPool", 1, 0.5e-3, 0.6e-3),
    )
    golden("cli/bench_tasks.txt", profile_text(NetworkProfile(tasks, 8.25e-3, 25, 1)) + "\n")
    unknown = (tasks[0], replace(tasks[1], alone_s=None))
    text = profile_text(NetworkProfile(unknown, 7.25e-3, 25, 2))
    golden("cli/bench_tasks_unknown.txt", text + "\n")


# --- the real command ---------------------------------------------------------------------------


def bench(cli: Cli, artifact: Path, *options: object) -> dict[str, Any]:
    done = cli("bench", artifact, "--time", "20ms", "--format", "json", *options)
    assert done.code == 0, done.err
    data: dict[str, Any] = json.loads(done.out)
    return data


def test_alone(cli: Cli, artifact: Path) -> None:
    data = bench(cli, artifact)
    assert set(data["autotune"]) == TIMES
    assert (data["onnxruntime"], data["ratio"]) == (None, None)
    text = cli("bench", artifact, "--time", "20ms")
    assert (text.code, len(text.out.splitlines())) == (0, 2)


@pytest.mark.skipif(not INSTALLED, reason="a baseline is not installed")
@pytest.mark.parametrize(
    "against",
    [("--against", "onnxruntime", "--against", "openvino"), ("--against", "onnxruntime,openvino")],
    ids=["options", "list"],
)
def test_beside_several(cli: Cli, artifact: Path, against: tuple[str, ...]) -> None:
    data = bench(cli, artifact, *against)
    assert list(data) == ["autotune", "onnxruntime", "openvino", "ratio", "ratios", "noise", *ABOUT]
    for name in ("onnxruntime", "openvino"):
        assert set(data[name]) == TIMES | {"max_error"}
        assert data[name]["max_error"] < 1e-5
        ratio = data["autotune"]["median_s"] / data[name]["median_s"]
        assert data["ratios"][name] == pytest.approx(ratio)
    assert data["ratio"] == max(data["ratios"].values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BASELINES)
def test_beside_one_on_two_threads(cli: Cli, artifact: Path, name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    data = bench(cli, artifact, "--against", name, "--threads", 2)
    assert set(data) == {"autotune", "onnxruntime", name, "ratio", "round_trip_s", "noise", *ABOUT}
    assert data[name]["threads"] == 2
    assert data["ratio"] == pytest.approx(data["autotune"]["median_s"] / data[name]["median_s"])
    assert 1e-9 < data["round_trip_s"] < 1
    done = cli("bench", artifact, "--against", name, "--threads", 2, "--time", "20ms")
    assert done.code == 0, done.err
    *rows, ratio, trip = done.out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["autotune", name]
    assert ratio.startswith("ratio of medians: ")
    assert trip.startswith("round trip of a cache line between two threads: ")


def test_callers_alone(cli: Cli, artifact: Path) -> None:
    alone = bench(cli, artifact, "--callers", 3)
    assert list(alone) == ["callers", "autotune", "onnxruntime", "ratio", "noise", *ABOUT]
    assert (alone["callers"], alone["onnxruntime"], alone["ratio"]) == (3, None, None)
    ours = alone["autotune"]
    assert set(ours) == OF_CALLERS
    assert ours["p50_s"] <= ours["p95_s"] <= ours["p99_s"] <= ours["max_s"]
    text = cli("bench", artifact, "--time", "20ms", "--callers", 3)
    assert [line.split()[0] for line in text.out.splitlines()] == ["per", "autotune", "callers:"]


@pytest.mark.skipif(not INSTALLED, reason="a baseline is not installed")
def test_callers_beside_others(cli: Cli, artifact: Path) -> None:
    names = ["onnxruntime", "onnxruntime:per-caller", "openvino"]
    data = bench(cli, artifact, "--callers", 2, "--threads", 2, "--against", "onnxruntime,openvino")
    assert list(data) == ["callers", "autotune", *names, "ratio", "ratios", "noise", *ABOUT]
    assert list(data["ratios"]) == names
    for name in names:
        assert set(data[name]) == OF_CALLERS | {"max_error"}
        assert data[name]["max_error"] < 1e-5
        rate = data[name]["inferences_per_s"] / data["autotune"]["inferences_per_s"]
        assert data["ratios"][name] == pytest.approx(rate)
    assert data["ratio"] == max(data["ratios"].values())


def test_per_task_beside_the_records_it_was_compiled_from(
    cli: Cli, artifact: Path, tuned: Path
) -> None:
    log = read_log(tuned)
    best = best_for(log, log.header.target.key, 1)
    data = bench(cli, artifact, "--per-task")
    assert {t["key"] for t in data["tasks"]} == {key for key, _ in log.header.tasks}
    for task in data["tasks"]:
        assert task["calls"] == 1
        assert log.header.tasks[task["id"]][0] == task["key"]
        assert task["subgraph"] == log.workloads[task["key"]].label
        assert task["alone_s"] == best[task["key"]].result.latency_s
        assert task["ratio"] == pytest.approx(task["time_s"] / task["alone_s"])
        assert task["slow"] == (task["ratio"] > 1.15)
        assert task["limit_share"] == pytest.approx(task["limit_s"] / task["time_s"])
    assert data["tasks_s"] == pytest.approx(sum(t["time_s"] for t in data["tasks"]))
    assert sum(t["share"] for t in data["tasks"]) == pytest.approx(1)
    assert data["between_s"] == pytest.approx(data["inference_s"] - data["tasks_s"])
    done = cli("bench", artifact, "--per-task", "--time", "20ms")
    notes = [line for line in done.err.splitlines() if "certain" not in line]  # of co-tenants
    lines = done.out.splitlines()
    if notes:
        assert (done.code, len(notes), len(lines)) == (0, 1, 1)
        assert "no table of tasks, for they add up to" in notes[0]
    else:
        assert [line.split()[0] for line in lines[:5]][0::3] == ["id", "Σ"]
    assert lines[-2 if "*:" in lines[-1] else -1].startswith("inference: ")


def test_per_task_on_other_threads_than_tuned(cli: Cli, artifact: Path) -> None:
    done = cli("bench", artifact, "--per-task", "--threads", 2, "--time", "20ms")
    assert done.code == 0, done.err
    assert "note: latencies alone are left out" in done.err
    assert "another number of threads (1)" in done.err
    assert "threads: 2" in done.out


def test_per_task_beside_a_log(cli: Cli, artifact: Path, tuned: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.atn"
    replace(read_artifact(artifact), tuned={}).save(old)
    done = cli("bench", old, "--per-task", "--time", "20ms")
    assert (done.code, "note: no task was compiled from a record" in done.err) == (0, True)
    assert all(task["alone_s"] is None for task in bench(cli, old, "--per-task")["tasks"])
    with_log = bench(cli, old, "--per-task", "--log", tuned)
    expected = {key: x.latency_s for key, x in read_artifact(artifact).tuned.items()}
    assert {t["key"]: t["alone_s"] for t in with_log["tasks"]} == expected


def test_a_model_compiled_without_a_log_knows_no_latencies(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.atn"
    assert run(["compile", str(model), "-o", str(path), "--no-check"]) == 0
    assert read_artifact(path).tuned == {}


def test_a_log_of_another_model(
    artifact: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = read_artifact(artifact)
    kernels = tuple(replace(kernel, task="0" * 16) for kernel in loaded.kernels)
    replace(loaded, kernels=kernels).save(tmp_path / "m.atn")
    assert run(["bench", str(tmp_path / "m.atn"), "--per-task", "--log", str(tuned)]) == 4
    assert "has no record for any task of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--against", "tvm"], "there is no 'tvm' here\nhint: known: onnxruntime, openvino"),
        (["--against", "onnxruntime,"], "there is no '' here"),
        (["--against", "openvino", "--per-task"], "cannot look into others"),
        (["--callers", "0"], "cannot measure 0 callers\nhint: give from 1 to 1024"),
        (["--callers", "1025"], "cannot measure 1025 callers"),
        (["--callers", "some"], "not a valid integer"),
        (["--callers", "2", "--per-task"], "single inferences\nhint: leave --callers out"),
        (["--log", "x.jsonl"], "--log is for --per-task"),
        (["--log", "none.jsonl", "--per-task"], "there is no file none.jsonl"),
        (["--fail-above", "1.1"], "--fail-above is for --compare"),
        (["--compare", "x.json", "--against", "openvino"], "an earlier artifact alone"),
        (["--compare", "none.json"], "there is no file none.json"),
        (["--dim", "n=4"], "its dims cannot change"),
        (["--save", "/dev/null"], "/dev/null"),
    ],
)
def test_options_that_do_not_fit(
    artifact: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    code = run(["bench", str(artifact), *options])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert text in told.err
    assert "hint: " in told.err


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BASELINES)
def test_a_missing_baseline_is_one_line(
    cli: Cli, artifact: Path, tmp_path: Path, name: str
) -> None:
    package = name.partition(":")[0]
    (tmp_path / f"{package}.py").write_text("raise ImportError('broken')\n")
    path = f"{tmp_path}:{Path(__file__).parent.parent.parent}"
    done = cli("bench", artifact, "--against", name, PYTHONPATH=path)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        f"error: {package} is not installed",
        f"hint: pip install {package} (the extra 'bench' has all of them), or leave it out",
    ]


# --- a gate -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_pauses() -> Iterator[None]:
    """Rounds of gates follow one another: nothing here depends on how quiet the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.network.bench.gate.BLOCK_S", 1e-3)
        yield


@pytest.fixture(scope="module")
def saved(artifact: Path, tmp_path_factory: pytest.TempPathFactory, without_pauses: None) -> Path:
    """A file of `bench --save`."""
    path = tmp_path_factory.mktemp("saved") / "base.json"
    assert run(["bench", str(artifact), "--time", "0.01", "--save", str(path)]) == 0
    return path


def test_a_gate_passes_itself_and_names_what_is_slower(
    artifact: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = ["bench", str(artifact), "--time", "0.01", "--compare"]
    for base in (saved, artifact):
        capsys.readouterr()
        assert run([*gate, str(base), "--fail-above", "9", "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        (one,) = found["variants"]
        assert one["low"] <= found["ratio"] <= one["high"]
        assert (one["in_turns"], one["fails"]) == (True, False)
        assert (one["outcome"], found["outcome"]) == ("passes", "passes")
        assert found["provenance"]["conditions"]["n_usable"] >= 1
    assert run([*gate, str(saved), "--fail-above", "0.01"]) == ExitCode.TOO_SLOW
    assert "at most 0.01 is permitted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"digest": "0"}, 0, "is gone"),
        ({"provenance": {"n_threads": 77}}, 4, "another number of threads: 77"),
        ({"provenance": {"conditions": {"processor": "Abacus"}}}, 4, "another processor: Abacus"),
        ({"inputs": [{"x": [1]}], "artifact": ""}, 4, "of other inputs"),
        ({"version": 2}, 4, "of another version"),
        ({"variants": 3}, 4, "variants"),
    ],
)
def test_figures_of_another_machine_or_kind_are_refused(
    change: dict[str, Any],
    code: int,
    message: str,
    artifact: Path,
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = tmp_path / "base.json"
    base.write_text(json.dumps(merged(json.loads(saved.read_text()), change)))
    capsys.readouterr()
    assert run(["bench", str(artifact), "--time", "0.01", "--compare", str(base)]) == code
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) <= 2


def merged(data: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`data` with the leaves of `change` in place of its own."""
    return data | {k: merged(data[k], v) if isinstance(v, dict) else v for k, v in change.items()}


@pytest.mark.usefixtures("without_pauses")
def test_inputs_choose_the_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"{head} f (float[n, 8] x) => (float[n, 8] y) {{ y = Relu(x) }}"
    onnx.save(onnx.parser.parse_model(text), tmp_path / "f.onnx")
    several = str(tmp_path / "f.atn")
    compile = ["compile", str(tmp_path / "f.onnx"), "--dim", "n=2,5", "--no-check", "-o", several]
    assert run(compile) == 0
    given = {n: f"x={tmp_path / f'{n}.npy'}" for n in (5, 3)}
    for n in given:
        np.save(tmp_path / f"{n}.npy", np.ones((n, 8), np.float32))
    more = ["--format", "json", "--time", "0.01", "--input"]
    for command in (["bench", several], ["bench", several, "--compare", several]):
        capsys.readouterr()
        assert run([*command, *more, given[5]]) == 0
        assert json.loads(capsys.readouterr().out)["provenance"]["model"] == "f"
        assert run([*command, *more, given[3]]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 2
    assert run(["bench", several, "--time", "0.01", "--compare", several, "--input", given[5]]) == 0
    assert capsys.readouterr().out.startswith("x 5x8: ")
