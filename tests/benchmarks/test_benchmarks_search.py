"""The command that compares policies, its tables, and recording without preference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from autotune.config import TuneConfig
from autotune.records import End, Entry, Log, MeasureRecord, Workload, read_log, write_log
from autotune.search.cost.analysis import analyse
from autotune.search.recognise import Recogniser
from autotune.search.sketch import generate_sketches
from autotune.te.dag import ComputeDAG
from autotune.tuner import ReplayMeasurer, TuningTask
from benchmarks.search import (
    Ordered,
    Searched,
    _finite,
    main,
    policies_table,
    rankers_table,
    seconds_table,
)
from benchmarks.search_metrics import Curve, Quality
from benchmarks.search_record import Uniform, record, uniform_session
from benchmarks.search_spaces import Seconds
from tests.benchmarks.search_small import DAG, TARGET, recorded
from tests.benchmarks.test_benchmarks_search_spaces import HEADER


@dataclass
class Kept:
    """A sink that one can look into."""

    entries: list[Entry]

    def append(self, entries: Sequence[Entry]) -> None:
        self.entries += entries

    def sync(self) -> None:
        pass


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    path = tmp_path / "net.jsonl"
    workloads = {DAG.key: Workload(DAG.key, DAG, "Gemm+Relu")}
    write_log(path, Log((HEADER,), workloads, tuple(recorded()), (End("r0", "time", 40, 20.0),)))
    return path


def test_the_same_tables_for_the_same_logs(log_path: Path) -> None:
    call = [str(log_path), "--seeds", "1", "--tasks", "gemm"]
    first, second = (CliRunner().invoke(main, call) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.output == second.output
    assert "| full |" in first.output
    assert "1 task of 1 log, 1 seed" in first.output
    assert "| net | 42 | 20 | 2.1 | – | – | 4.2 | 8.4 |" in first.output


def test_everything_as_json(log_path: Path) -> None:
    done = CliRunner().invoke(main, [str(log_path), "--pool", "--seeds", "1", "--format", "json"])
    data = json.loads(done.output)
    assert {s["policy"] for s in data["searched"]} >= {"random", "full"}
    assert {s["n"] for s in data["searched"]} == {42}
    assert {o["ranker"] for o in data["ordered"]} >= {"cost model only", "cost model + LambdaRank"}
    assert data["seconds"][0]["trials"] == 42


def test_a_log_without_large_spaces_still_shows_its_time(log_path: Path) -> None:
    done = CliRunner().invoke(main, [str(log_path), "--least", "1000"])
    assert done.exit_code == 0
    assert "policy" not in done.output
    assert "trials per s" in done.output


@pytest.mark.parametrize("call", [[], ["--record", "resnet50"]])
def test_something_has_to_be_asked_for(call: list[str]) -> None:
    done = CliRunner().invoke(main, call)
    assert done.exit_code == 2
    assert "--record MODEL --log LOG" in done.output


def test_json_has_no_infinity() -> None:
    assert _finite({"a": [math.inf, 1.0, {"b": math.nan}]}) == {"a": [None, 1.0, {"b": None}]}


def test_the_tables(golden: Callable[[str, str], None]) -> None:
    curves = [Curve(1.5, {8: 1.5, 16: 1.2, 32: 1.0}), Curve(3.0, {8: 3.0, 16: 1.0})]
    searched = [
        Searched(policy, "net", f"task{k}", "Conv", (40, 20)[k], seed, curve)
        for policy in ("random", "full")
        for seed in range(2)
        for k, curve in enumerate(curves)
    ]
    known = {"others": Quality(0.75, 0.25), "halves": Quality(math.nan, 0.5)}
    ordered = [Ordered("cost model only", "net", "task0", "Conv", 40, 0, known)]
    times = [
        Seconds("net", 700, 90.0, 97.9, 15.3, None, None),
        Seconds("other", 100, 0.0, 9.0, 1.0, 2.0, 0.5),
    ]
    tables = [policies_table(searched), rankers_table(ordered), seconds_table(times)]
    golden("benchmarks/search.md", "\n\n".join(tables) + "\n")


# --- recording --------------------------------------------------------------------------------


def test_uniform_candidates_are_valid_and_each_is_another_program() -> None:
    policy = Uniform(DAG, TARGET, 40, np.random.default_rng(0))
    drawn = [c for _ in range(5) for c in policy.propose(16)]
    assert len(drawn) == 40
    sketches = {s.name: s for s in generate_sketches(DAG, TARGET)}
    programs = set()
    for c in drawn:
        row = Recogniser(sketches[c.sketch]).row(c.steps_json)
        assert row is not None
        found = analyse(DAG, sketches[c.sketch], row[None, :], TARGET)
        assert found.valid.all()
        programs.add((c.sketch, found.identity.tobytes()))
    assert len(programs) == 40
    assert {name for name, _ in programs} == set(sketches)


def test_a_space_without_anything_new_ends(matmul_of: Callable[[int], ComputeDAG]) -> None:
    policy = Uniform(matmul_of(2), TARGET, 10**6, np.random.default_rng(0))
    n = len(policy.propose(10**6))
    assert 0 < n < 10**4
    assert policy.propose(16) == []


def test_every_task_is_recorded_as_often(matmul_of: Callable[[int], ComputeDAG]) -> None:
    dags = [matmul_of(32), matmul_of(48)]
    tasks = [TuningTask(d.key, d, 1) for d in dags]
    kept = Kept([])
    session = uniform_session(HEADER, tasks, 20, ReplayMeasurer([]), kept, lambda: 0.0)
    list(session.events())
    keys = [e.workload for e in kept.entries if isinstance(e, MeasureRecord)]
    assert [keys.count(d.key) for d in dags] == [20, 20]
    assert isinstance(kept.entries[-1], End)


@pytest.mark.slow
def test_a_recorded_log_is_a_log(tmp_path: Path) -> None:
    import onnx

    from tests.cli.conftest import mlp

    onnx.save(mlp(), tmp_path / "mlp.onnx")
    record(tmp_path / "mlp.onnx", tmp_path / "u.jsonl", 2, TuneConfig(threads=1))
    log = read_log(tmp_path / "u.jsonl")
    assert len(log.records) == 2 * len(log.workloads)
    assert {r.result.status for r in log.records} == {"ok"}
    assert log.ends[-1].reason == "exhausted"
