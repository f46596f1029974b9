"""Finalists in the compiled network, at the end of a session; and what follows what won there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import validate

from autotune.api.tune.in_network import alternatives_of, in_network, is_faster
from autotune.cli.schemas import output_schema
from autotune.display.lines import status_lines
from autotune.display.renderers import Plain
from autotune.display.view import View
from autotune.network.bench.gate import LIKELY, GateVerdict, Rounds, median_interval, verdict
from autotune.records import InNetwork, Journal, MeasureRecord, best_records, read_log
from autotune.records.distill import ranked_records
from autotune.tuner import NetworkChosen, NetworkProgress, NetworkTried
from tests.forking import Cli


def changed(
    log: Path, place: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> Path:
    """A copy of a log, its lines changed; None leaves one out."""
    lines = [change(json.loads(line)) for line in log.read_text().splitlines()]
    copy = place / "changed.jsonl"
    copy.write_text("".join(f"{json.dumps(line)}\n" for line in lines if line is not None))
    return copy


@pytest.fixture
def cut_off(tuned: Path, tmp_path: Path) -> Path:
    """A log that was killed after its trials, when a minute had gone by."""

    def change(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["type"] == "measure":
            line["elapsed_s"] += 60.0
        return line if line["type"] != "end" else None

    return changed(tuned, tmp_path, change)


def test_a_session_ends_in_the_compiled_network(cli: Cli, cut_off: Path) -> None:
    """One that was killed there begins it anew; the trials of the budget are spent."""
    begun = [sys.executable, "-m", "autotune", "resume", str(cut_off), "--events", "jsonl"]
    with subprocess.Popen(begun, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "network_progress":
                os.kill(process.pid, signal.SIGKILL)
    n_before = len(read_log(cut_off).records)
    done = cli("resume", cut_off, "--events", "jsonl", "--compare")
    assert done.code == 0, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    for event in events:
        validate(event, output_schema("events", is_closed=True))
    names = [event["event"] for event in events]
    assert names.index("network_progress") < names.index("network_chosen")
    assert names.index("network_chosen") < names.index("session_finished")
    (chosen,) = (event for event in events if event["event"] == "network_chosen")
    assert chosen["n_tried"] > 0
    log = read_log(cut_off)
    told = {r.workload for r in log.records[n_before:] if r.in_network}
    assert told == set(chosen["changed"])
    again = cli("resume", cut_off, "--no-compare")  # it has ended: nothing is tried again
    assert "in the network" not in again.err


def test_displays_tell_of_the_network() -> None:
    lines: list[str] = []
    plain, view = Plain(lines.append), View()
    for event in (
        NetworkProgress("compiling", 1),
        NetworkTried(3, 0.98, 0.97, 0.99, True),
        NetworkChosen(50, ("a", "b"), 0.98),
    ):
        plain.show(event)
        view.apply(event)
        assert view.in_network in "\n".join(status_lines(view, 1.0))
    assert lines == [
        "finalists in the network: 3 changes, 1.020x (1.010x to 1.031x), kept",
        "finalists in the network: 2 tasks chosen otherwise than alone, 1.020x",
    ]


def test_without_a_comparison_nothing_is_compiled(cli: Cli, cut_off: Path) -> None:
    done = cli("resume", cut_off, "--no-compare", "--events", "jsonl")
    assert done.code == 0, done.err
    assert "network_" not in done.out


def test_a_stop_chooses_nothing(cut_off: Path) -> None:
    *_, last = in_network(cut_off, 5.0, stop=lambda: True)
    assert last.changed == ()
    assert list(in_network(cut_off, 0.1)) == []  # too short to compile anything


@pytest.fixture
def chosen(tuned: Path, tmp_path: Path) -> tuple[Path, MeasureRecord]:
    """A log in which the second of a task won in the network, and its record."""
    copy = tmp_path / "chosen.jsonl"
    shutil.copy(tuned, copy)
    with Journal.open(copy) as journal:
        records = journal.log.records
        ranked = max(ranked_records(records).values(), key=len)
        known = 1 + max(r.sequence for r in records)
        told = InNetwork(0.97, 0.95, 0.99, 12, 0.9, known)
        winner = replace(ranked[-1], sequence=known, final=True, in_network=told)
        journal.append([winner])
    return copy, winner


def steps_of(cli: Cli, log: Path, task: str) -> str:
    done = cli("explain", log, "--task", task, "--format", "json")
    return json.dumps(json.loads(done.out)["best"])


def test_what_won_in_the_network_is_the_best_of_its_task(
    cli: Cli, chosen: tuple[Path, MeasureRecord], tmp_path: Path
) -> None:
    log, winner = chosen
    group = winner.workload, winner.target_key, winner.n_threads
    found = read_log(log)
    best = best_records(found.records)[group]
    assert best.steps_json == winner.steps_json
    assert best.result.latency_s == ranked_records(found.records)[group][-1].result.latency_s
    assert cli("distill", log, "-o", tmp_path / "best.jsonl").code == 0
    assert best_records(read_log(tmp_path / "best.jsonl").records)[group] == best
    in_log, in_distilled = (
        steps_of(cli, path, winner.workload) for path in (log, tmp_path / "best.jsonl")
    )
    assert in_log == in_distilled
    artifact = tmp_path / "m.atn"
    assert cli("compile", "--log", log, "-o", artifact).code == 0


def test_a_later_program_that_is_faster_alone_than_all_is_the_best(
    chosen: tuple[Path, MeasureRecord],
) -> None:
    log, winner = chosen
    group = winner.workload, winner.target_key, winner.n_threads
    records = read_log(log).records
    fastest = ranked_records(records)[group][0]
    text = fastest.steps_json.replace("[{", '[{"new":0,', 1)
    for factor, wins in ((0.5, True), (1.05, False)):
        times = tuple(factor * t for t in fastest.result.times_s)
        result = replace(fastest.result, times_s=times)
        late = replace(fastest, sequence=winner.sequence + 1, steps_json=text, result=result)
        best = best_records([*records, replace(late, in_network=None)])[group]
        assert (best.steps_json == text) == wins


def test_a_store_forgets_what_won_in_a_network(
    cli: Cli, chosen: tuple[Path, MeasureRecord], tmp_path: Path
) -> None:
    log, winner = chosen
    assert cli("distill", log, "--store", tmp_path / "store").code == 0
    texts = [p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()]
    assert texts
    assert not any(b"in_network" in text for text in texts)
    assert winner.in_network is not None


def test_the_default_and_other_structures_are_alternatives(tuned: Path) -> None:
    for ranked in ranked_records(read_log(tuned).records).values():
        best = next(r for r in ranked if r.default_estimate_s is None)
        found = alternatives_of(best, ranked)
        assert best.steps_json not in {r.steps_json for r in found}
        assert len({r.steps_json for r in found}) == len(found)
        near = [r for r in ranked if r.default_estimate_s is not None]
        limit = 1.4 * (best.result.latency_s or 0.0)
        assert all(r in found for r in near if (r.result.latency_s or 0.0) <= limit)


@pytest.mark.parametrize(
    ("ratio", "high", "likely", "is_kept"),
    [
        (0.97, 0.99, 0.98, True),
        (0.992, 1.02, 0.999, True),  # enough of what the kernels promise
        (0.992, 1.02, 1.001, False),  # which may be chance
        (0.995, 1.02, 0.999, False),
        (1.01, 1.02, 1.01, False),
    ],
)
def test_changes_are_kept_where_the_network_is_faster(
    ratio: float, high: float, likely: float, is_kept: bool
) -> None:
    assert is_faster(GateVerdict(ratio, 0.96, high, 12, True), likely, 0.98) == is_kept


def test_a_network_that_is_the_same_is_seldom_kept(rng: np.random.Generator) -> None:
    """In 12 rounds that differ by 1.5 %, where kernels that are the same promise little."""
    kept = 0
    for noise in rng.normal(0.0, 0.015, (1000, 12)):
        rounds = Rounds(tuple(np.exp(noise).tolist()), (1.0,) * 12, ())
        likely = median_interval(rounds.ratios, LIKELY)[2]
        kept += is_faster(verdict(rounds, None), likely, 0.998)
    assert kept <= 100
