from __future__ import annotations

import os
from collections.abc import Iterator

import measure_fakes as fakes
import numpy as np
import pytest

from autotune.measure import worker
from autotune.measure.worker import Prepare, Prepared, Run, RunHandler


@pytest.fixture
def handler() -> Iterator[RunHandler]:
    cores = os.sched_getaffinity(0)
    yield RunHandler(fakes.TARGET, 1, fakes.QUICK)
    os.sched_setaffinity(0, cores)  # the handler pins the thread that made it


def test_runs_on_one_core(handler: RunHandler) -> None:
    assert len(os.sched_getaffinity(0)) == 1


def test_old_tasks_make_room(handler: RunHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = fakes.double_dag()
    for task in (1, 2):
        reply = handler(Prepare(task, dag, None))
        assert isinstance(reply, Prepared)
        assert reply.held == set(range(1, task + 1))
    monkeypatch.setattr(worker, "_CACHED_BYTES", 0)
    reply = handler(Prepare(3, dag, None))
    assert isinstance(reply, Prepared)
    assert reply.held == {3}


def test_oracle_that_is_known_is_used(handler: RunHandler) -> None:
    dag = fakes.double_dag()
    expected = {"y": np.zeros(fakes.N, np.float32)}
    assert handler(Prepare(1, dag, expected)) == Prepared(expected, frozenset({1}))
    result = handler(Run(1, fakes.build(dag, fakes.does("good"), fakes.TARGET), None))
    assert "expected 0" in str(result)
