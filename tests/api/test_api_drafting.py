"""Programs of tasks that nobody has measured: known structures come first, and never cost much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from autotune.api.compile import drafting
from autotune.api.compile.drafting import Drafts
from autotune.cache import FileStore
from autotune.loopir.lower import lower
from autotune.records import Log, MeasureRecord, Workload
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import steps_text
from autotune.search.alike import Known, adapted, carried, known_of
from autotune.search.cost.analytic import estimate_s
from autotune.search.defaults import (
    Choice,
    default_alternatives,
    default_candidate,
    default_choice,
)
from autotune.search.policy import Candidate
from autotune.target import parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Load, Reduce, Var, call, mul
from autotune.te.form import form_of

TARGET = parse_target("x86-64-v3")
LIMIT = float("inf")


def product(rows: int, terms: int = 64, columns: int = 96) -> ComputeDAG:
    """y = tanh(x·w)."""
    x, w = placeholder("x", (rows, terms)), placeholder("w", (terms, columns), constant=True)
    i, j, k = Axis("i", rows), Axis("j", columns), Axis("k", terms)
    read = mul(Load(x.tensor, (Var("i"), Var("k"))), Load(w.tensor, (Var("k"), Var("j"))))
    c = compute("c", (i, j), Reduce("sum", read, (k,)))
    y = compute("y", (i, j), call("tanh", Load(c.tensor, (Var("i"), Var("j")))))
    return ComputeDAG((x, w, c, y), ("y",))


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks for which all structures were looked at."""
    found: list[str] = []

    def counted(dag: ComputeDAG, *args: Any) -> Choice:
        *_, among = args
        if not among:
            found.append(dag.key)
        return default_choice(dag, *args)

    monkeypatch.setattr(drafting, "default_choice", counted)
    return found


def drafts(store: FileStore | None, log: Log | None = None) -> Drafts:
    return Drafts(TARGET, 2, LIMIT, store, log)


def quiet(n_done: int, n_all: int) -> None:
    pass


def test_forms_tell_names_and_kinds_apart_but_not_extents() -> None:
    assert form_of(product(32)).text == form_of(product(40, 128)).text
    assert form_of(product(32)).extents != form_of(product(40)).extents
    other = replace(product(32), outputs=("c",))
    assert form_of(other).text != form_of(product(32)).text
    distances = [form_of(product(64)).distance(form_of(product(n)).extents) for n in (64, 80, 512)]
    assert distances[0] == 0 < distances[1] < distances[2]


@pytest.mark.parametrize("before", [64, 100])
@pytest.mark.parametrize("after", [60, 80, 196, 256])
def test_a_known_structure_costs_hardly_more_than_the_best_of_all(before: int, after: int) -> None:
    first = product(before)
    known = known_of(first, default_candidate(first, TARGET, 2))
    found = adapted(product(after), known, TARGET, 2, LIMIT)
    if found is None:
        return  # then all are looked at
    best = default_candidate(product(after), TARGET, 2)
    assert found.sketch == known.candidate.sketch
    assert (found.predicted_s or 0) <= 1.25 * (best.predicted_s or 0)
    assert lower(product(after), found.steps).kernels


def test_another_extent_is_not_searched_and_again_nothing_is(
    tmp_path: Path, searched: list[str]
) -> None:
    store = FileStore(tmp_path, 1 << 24)
    (first,) = drafts(store).of([product(64)], quiet)
    assert len(searched) == 1
    (other,) = drafts(store).of([product(80)], quiet)
    assert len(searched) == 1, "all structures were looked at for another extent"
    assert other.sketch == first.sketch
    assert drafts(store).of([product(80), product(64)], quiet) == [other, first]
    assert len(searched) == 1


def test_tasks_of_one_form_are_searched_once_and_cost_hardly_more(
    tmp_path: Path, searched: list[str]
) -> None:
    """Without a store as with an empty one, and the same whenever it is asked again."""
    dags = [product(n) for n in (64, 80, 12, 100, 196, 48)]
    found = drafts(None).of(dags, quiet)
    assert len(searched) == 1, "all structures were looked at for several tasks of a form"
    for dag, one in zip(dags, found, strict=True):
        best = default_candidate(dag, TARGET, 2)
        assert (one.predicted_s or 0) <= 1.1 * (best.predicted_s or 0)
        assert lower(dag, one.steps).kernels
    store = FileStore(tmp_path, 1 << 24)
    assert drafts(store).of(dags, quiet) == found
    assert len(searched) == 2
    assert drafts(store).of(dags, quiet) == found
    assert [drafts(store).untuned(dag, dags) for dag in dags] == found
    assert len(searched) == 2
    assert [drafts(None).untuned(dag, dags) for dag in dags[:2]] == found[:2]


def test_what_a_store_knows_is_told_without_its_structures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags = [product(64), product(80), product(96)]
    found = drafts(FileStore(tmp_path, 1 << 24)).of(dags, quiet)
    refused = Mock(side_effect=AssertionError("structures are made again"))
    monkeypatch.setattr(drafting, "generate_sketches", refused)
    assert drafts(FileStore(tmp_path, 1 << 24)).of(dags, quiet) == found


def test_what_was_measured_at_another_extent_comes_first(searched: list[str]) -> None:
    dag = product(64)
    known = default_candidate(dag, TARGET, 2)
    result = MeasureResult(MeasureStatus.OK, times_s=(1e-5,) * 3)
    record = MeasureRecord(
        "run", 0, dag.key, TARGET.key, 2, steps_text(known.steps), result, known.sketch
    )
    log = Log((), {dag.key: Workload(dag.key, dag)}, (record,))
    (found,) = drafts(None, log).of([product(80)], quiet)
    assert not searched
    assert found.sketch == known.sketch


def test_a_damaged_list_of_schedules_is_no_error(tmp_path: Path, searched: list[str]) -> None:
    store = FileStore(tmp_path, 1 << 24)
    drafts(store).of([product(64)], quiet)
    for path in tmp_path.glob("??/*.entry"):
        key = path.stem
        store.put(key, b'[[1, 2], "x"]')
    drafts(store).of([product(80)], quiet)
    assert len(searched) == 2


def measured(rows: int, candidate: Candidate, misjudged: float) -> Known:
    """A schedule of `product(rows)`, which took so many times what the cost model expected."""
    expected_s = estimate_s(product(rows), candidate.steps, TARGET, 2)
    known = Candidate(candidate.steps, candidate.sketch, expected_s)
    return known_of(product(rows), known, misjudged * expected_s)


def other_structures(rows: int) -> list[Candidate]:
    """A good program of each of a few structures."""
    found = default_alternatives(product(rows), TARGET, 2, LIMIT, 64, factor=1.6)
    return list({c.sketch: c for c in found}.values())


def test_of_schedules_that_were_measured_at_two_lengths_the_nearer_tells_more() -> None:
    """Two programs: the cost model thinks too well of one where rows are few, of the other where
    they are many."""
    first, second, *_ = other_structures(64)
    known = [
        *(measured(32, c, bad) for c, bad in ((first, 1.0), (second, 4.0))),
        *(measured(512, c, bad) for c, bad in ((first, 4.0), (second, 1.0))),
    ]
    picked = {n: carried(product(n), known, TARGET, 2, LIMIT) for n in (36, 40, 420, 500)}
    sketches = {n: candidate.sketch for n, candidate in picked.items() if candidate}
    assert sketches == {36: first.sketch, 40: first.sketch, 420: second.sketch, 500: second.sketch}


def test_a_program_of_any_length_is_made_of_a_few_or_refused() -> None:
    known = [measured(n, default_candidate(product(n), TARGET, 2), 1.0) for n in (16, 64, 256)]
    n_found = 0
    for rows in (1, 2, 3, 17, 31, 63, 65, 96, 128, 200, 257, 384):
        found = carried(product(rows), known, TARGET, 2, LIMIT)
        n_found += found is not None
        assert found is None or lower(product(rows), found.steps, verify=True).kernels
    assert n_found >= 8
