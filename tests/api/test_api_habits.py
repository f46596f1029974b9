"""What Python programs expect of a library: calls that do what they say, short representations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune import te
from autotune.tuner import Event, NetworkTimed, SessionFinished, SessionStarted

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
W = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
HEAD = '<ir_version: 9, opset_import: ["" : 17]> g (float[4, 8] x) => (float[4, 8] y)'
MODEL = onnx.parser.parse_model(f"{HEAD} {{ z = MatMul (x, w) y = Relu (z) }}")
MODEL.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
MOST_SHOWN = 300


@dataclass(frozen=True)
class Tuned:
    path: Path
    log: Path
    found: autotune.TuneResult
    shown: list[Event]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A model of which `tune` has measured two candidates."""
    folder, shown = tmp_path_factory.mktemp("tuned"), list[Event]()
    path, log = folder / "m.onnx", folder / "m.jsonl"
    onnx.save(MODEL, path)
    found = autotune.tune(path, log, trials=2, threads=1, show=shown.append)
    return Tuned(path, log, found, shown)


@pytest.fixture
def path(tuned: Tuned) -> Path:
    return tuned.path


def doubled(n: int) -> te.Tensor:
    x = te.placeholder((n, n), "x")
    return te.compute((n, n), lambda i, j: x[i, j] + x[i, j], "y")


# --- searches -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_tune_searches_and_says_what_it_found(tuned: Tuned) -> None:
    found = tuned.found
    assert (found.log, found.trials) == (tuned.log, 2)
    assert found.before is not None
    assert found.after is not None
    assert 0 < found.before < 1
    assert 0 < found.after < 1
    assert autotune.read_log(found.log).records


@pytest.mark.slow
def test_tune_ends_with_both_networks_in_turns(tuned: Tuned) -> None:
    """As the command does: the log keeps it, and the result and a report show it."""
    last, found = tuned.shown[-1], tuned.found.in_turns
    assert isinstance(last, NetworkTimed)
    assert found is not None
    log = autotune.read_log(tuned.log)
    assert last.in_turns == found == log.in_turns(log.header.target.key, 1)
    assert "measured in turns: " in repr(tuned.found)
    page = autotune.report(tuned.log)
    assert page.figures.in_turns == found
    assert "Compiled and timed in turns: " in page.markdown()


@pytest.mark.slow
def test_tuning_yields_the_events_that_tune_shows(tuned: Tuned, tmp_path: Path) -> None:
    log = tmp_path / "m.jsonl"
    yielded = list(autotune.tuning(MODEL, log, trials=2, threads=1))
    for events in (yielded, tuned.shown[:-1]):
        assert isinstance(events[0], SessionStarted)
        assert isinstance(events[-1], SessionFinished)
    *_, last = autotune.resuming(log, trials=1)
    assert isinstance(last, SessionFinished)
    assert (
        last.n_trials,
        autotune.resume(log, trials=1, show="nothing", compare=False).trials,
    ) == (3, 4)


def test_what_is_missing_is_an_error_of_the_call_not_of_the_first_event(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    task = autotune.Task(doubled, (8,), threads=1)
    for call in (
        lambda: autotune.tuning(tmp_path / "no.onnx", log, trials=1),
        lambda: autotune.tune(tmp_path / "no.onnx", log, trials=1, show="nothing"),
        lambda: autotune.resuming(log),
        lambda: autotune.resume(log, show="nothing"),
        lambda: task.tuning(trials=1, sead=3),
    ):
        with pytest.raises(autotune.UsageError):
            call()
    assert not log.exists()


# --- models and names that are given in another way ---------------------------------------------


@pytest.mark.parametrize("form", [bytes, bytearray, onnx.ModelProto, str, Path])
def test_a_model_is_a_path_or_bytes_or_a_proto(form: type, tuned: Tuned) -> None:
    path = tuned.path
    forms: dict[type, Any] = {str: str(path), Path: path, onnx.ModelProto: MODEL}
    model = forms[form] if form in forms else form(path.read_bytes())
    compiled = autotune.compile(model, tuned.log)
    (y,) = autotune.Model(compiled.artifact).run({"x": X}).values()
    assert np.allclose(y, np.maximum(X @ W, 0), atol=1e-5)
    assert autotune.build_network(model).model_hash == autotune.build_network(path).model_hash
    timed = autotune.bench(autotune.Model(compiled.artifact), "onnxruntime", model, time_s=0.01)
    assert timed.baselines.keys() == {"onnxruntime"}


@pytest.mark.slow
def test_a_model_in_memory_is_asked_for_again_where_a_file_would_be_read(tmp_path: Path) -> None:
    log = tmp_path / "m.jsonl"
    autotune.tune(MODEL, log, trials=1, threads=1, show="nothing")
    with pytest.raises(autotune.UsageError, match="a model in memory"):
        autotune.compile(log=log)
    compiled = autotune.Model(autotune.compile(MODEL, threads=1).artifact)
    with pytest.raises(autotune.UsageError, match="came from no file"):
        autotune.bench(compiled, "onnxruntime")
    with pytest.raises(autotune.UsageError, match="a value of type float is no model"):
        autotune.compile(3.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", ["onnxruntime", "onnxruntime, onnxruntime", ["onnxruntime"]])
def test_bench_takes_one_name_or_several(names: Any, path: Path) -> None:
    compiled = autotune.compile(path, threads=1)
    assert list(autotune.bench(compiled, names, time_s=0.01).baselines) == ["onnxruntime"]
    with pytest.raises(autotune.UsageError, match="there is no 'onnxrumtime'"):
        autotune.bench(compiled, "onnxrumtime")


def test_one_file_is_not_a_sequence_of_letters(tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("OPERATORS = {}\n")
    (tmp_path / "rules.py").write_text("RULES = ()\n")
    one: dict[str, Any] = {
        "operators": str(tmp_path / "ops.py"),
        "rules": str(tmp_path / "rules.py"),
    }
    autotune.tuning(tuned.path, tmp_path / "n.jsonl", warm_start=str(tuned.log), **one)
    autotune.compile(tuned.path, operators=one["operators"], threads=1)
    with pytest.raises(autotune.UsageError, match=r"nothing\.py"):
        autotune.compile(tuned.path, operators="nothing.py")


# --- what is shown ------------------------------------------------------------------------------


def test_dir_lists_what_is_public() -> None:
    assert set(autotune.__all__) <= set(dir(autotune))
    assert "annotations" not in dir(autotune)


def everything_public(tuned: Tuned) -> Iterator[Any]:
    """What the functions of the package return, and what they yield."""
    task = autotune.Task(doubled, (64,), threads=1, name="t" * 400)
    yield from (task, task.tune(trials=1, show="nothing"), task.build(), task.schedule())
    yield from (task.schedule()["y"], task.schedule().lower(), task.time(task.build(), 0.01))
    yield from (tuned.found, *tuned.shown)
    compiled = autotune.compile(tuned.path, tuned.log)
    model = autotune.Model(compiled.artifact)
    yield from (compiled, model, autotune.bench(model, "onnxruntime", time_s=0.1))
    log = autotune.read_log(tuned.log)
    yield from (log, *log.headers, *log.records, *log.workloads.values(), *log.ends)
    yield from (autotune.build_network(MODEL), autotune.host_target())


@pytest.mark.slow
def test_nothing_public_fills_the_screen(tuned: Tuned) -> None:
    for value in everything_public(tuned):
        parts = [getattr(value, name) for name in dir(type(value)) if not name.startswith("_")]
        for one in (value, *parts):
            if type(one).__module__.startswith("autotune"):
                assert len(repr(one)) <= MOST_SHOWN, f"{type(value)}: {type(one)}"


def test_a_short_repr_still_names_what_it_is_of(path: Path) -> None:
    compiled = autotune.compile(path, threads=1)
    assert repr(compiled).startswith("Compiled(artifact=Artifact(name='m'")
    timed = repr(autotune.bench(autotune.Model(compiled.artifact), time_s=0.01))
    assert timed.startswith("BenchResult(autotune ")
    assert timed.endswith("s)")


# --- imports ------------------------------------------------------------------------------------


def test_a_compiled_model_runs_without_onnx(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.atn"
    autotune.compile(path, threads=1).artifact.save(out)
    script = f"""
import sys, numpy as np, autotune
model = autotune.load({str(out)!r})
model.run({{"x": np.zeros((4, 8), np.float32)}})
found = {{"onnx", "google.protobuf", "onnxruntime", "lightgbm"}} & set(sys.modules)
sys.exit(" ".join(found) or 0)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
