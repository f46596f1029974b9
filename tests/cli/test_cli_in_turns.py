"""The last line of a session: the compiled network, timed in turns with the untuned one."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import validate

from autotune.api.request import Source
from autotune.api.tune.comparable import NotComparable, require_comparable
from autotune.api.tune.session import create, prepare
from autotune.cli.schemas import output_schema
from autotune.cli.wording import as_options
from autotune.codec import to_json
from autotune.config import resolve
from autotune.display.lines import in_turns_text
from autotune.printable import folded
from autotune.records import End, InTurns, Journal, read_log
from autotune.target import parse_target
from tests.forking import Cli

SLOWER = InTurns(1e-6, 1.2e-6, 1.2, 1.1, 1.3, 9)
FASTER = InTurns(1e-6, 0.8e-6, 0.8, 0.7, 1.02, 9)


def timed(log: Path, found: InTurns, place: Path) -> Path:
    """A copy of a log whose last run found this."""
    copy = place / "timed.jsonl"
    shutil.copy(log, copy)
    with Journal.open(copy) as journal:
        last = journal.log.ends[-1]
        journal.append([End(last.run_id, last.reason, last.n_trials, 9.0, in_turns=found)])
    return copy


def test_a_session_ends_with_both_networks_in_turns(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    """`resume` with nothing left says what to add, and times what there is."""
    log = tmp_path / "again.jsonl"
    shutil.copy(tuned, log)
    done = cli("resume", log, "--compare", "--format", "json")
    assert done.code == 0, done.err
    assert (
        f"left of the budget, 16 trials or 5m00s; add some: autotune resume {log} --trials 16"
        in done.err
    )
    assert done.err.splitlines()[-1].startswith("measured in turns: ")
    found = read_log(log)
    kept = found.in_turns(found.header.target.key, 1)
    assert kept is not None
    output = json.loads(done.out)
    validate(output, output_schema("session", is_closed=True))
    assert output["in_turns"] == to_json(kept)
    assert kept.n_rounds >= 3
    assert kept.low <= kept.ratio <= kept.high
    assert found.ends[-1].elapsed_s > found.ends[-2].elapsed_s  # it counts as time of the session


def test_events_end_with_the_comparison(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    log = tmp_path / "again.jsonl"
    shutil.copy(tuned, log)
    done = cli("resume", log, "--compare", "--events", "jsonl")
    *_, finished, last = map(json.loads, done.out.splitlines())
    assert (finished["event"], last["event"]) == ("session_finished", "network_timed")
    validate(last, output_schema("events", is_closed=True))
    assert last["in_turns"]["tuned_s"] > 0


@pytest.mark.parametrize(("found", "n_tuned"), [(SLOWER, 0), (FASTER, 2)])
@pytest.mark.parametrize("distilled", [False, True])
def test_compile_takes_the_faster_network(
    cli: Cli, tuned: Path, tmp_path: Path, found: InTurns, n_tuned: int, distilled: bool
) -> None:
    log = timed(tuned, found, tmp_path)
    if distilled:
        assert cli("distill", log, "-o", tmp_path / "best.jsonl").code == 0
        log = tmp_path / "best.jsonl"
    given = ("--log", log, "-o", tmp_path / "m.atn", "--no-check", "--format", "json")
    done = cli("compile", *given)
    assert done.code == 0, done.err
    assert json.loads(done.out)["tuned"] == n_tuned
    assert ("so the untuned programs are taken" in done.err) == (n_tuned == 0)


def test_trials_after_a_comparison_make_it_void(tuned: Path, tmp_path: Path) -> None:
    log = read_log(timed(tuned, SLOWER, tmp_path))
    key = log.header.target.key
    assert log.in_turns(key, 1) == SLOWER
    later = replace(log, headers=(*log.headers, replace(log.header, run_id="later")))
    assert later.in_turns(key, 1) is None
    assert log.in_turns(key, 2) is None


def test_networks_of_other_machines_are_not_timed_here(tuned: Path) -> None:
    log = read_log(tuned)
    require_comparable(log)
    foreign = replace(log.header, target=parse_target("neoverse-v1"))
    with pytest.raises(NotComparable, match="runs elsewhere"):
        require_comparable(replace(log, headers=(foreign,)))
    in_memory = replace(log.header, model_path="")
    with pytest.raises(NotComparable, match="no file"):
        require_comparable(replace(log, headers=(in_memory,)))


def test_a_note_says_that_the_set_up_took_all_of_the_time(model: Path, tmp_path: Path) -> None:
    """In the words of the command, with a time in which something is measured."""
    log = tmp_path / "late.jsonl"
    prepared = prepare(Source(model), resolve(None, {"time_s": 5.0, "threads": 1}).config, log)
    with create(prepared, log) as session:
        assert not list(session.notes_of_set_up())
        (text,) = replace(session, begun_s=session.begun_s - 12).notes_of_set_up()
    assert "the set-up took 12s, all of the time: nothing is measured" in text
    assert re.search(rf"autotune resume {re.escape(str(log))} --time 12\ds", as_options(text))


def test_a_summary_is_folded_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = in_turns_text(SLOWER)
    assert folded(line, is_screen=False) == line
    lines = folded(line, is_screen=True).splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(text.strip() for text in lines) == line
