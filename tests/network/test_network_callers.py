from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.bench.callers import CallersResult, CallersTiming, bench_callers, called
from autotune.network.runtime.runtime import Model
from tests.network.hand_made import reversing

Arrays = Mapping[str, NDArray[Any]]


def test_every_caller_is_a_thread_that_calls_its_own_function() -> None:
    seen: Counter[tuple[str, int]] = Counter()
    threads: set[int] = set()

    def caller(side: str, number: int) -> None:
        seen[side, number] += 1
        threads.add(threading.get_ident())
        time.sleep(1e-3)

    def side(name: str) -> list[Any]:
        return [lambda k=k: caller(name, k) for k in range(5)]

    found = called([side("a"), side("b")], min_s=0.05)
    assert set(seen) == {(name, k) for name in "ab" for k in range(5)}
    assert len(threads) == 5
    for (times_s, _, seconds), name in zip(found, "ab", strict=True):
        calls = sum(n for (s, _), n in seen.items() if s == name)
        assert calls == len(times_s) + 5, "first runs do not count"
        assert seconds == 0.05


def test_an_inference_that_the_end_cuts_counts_in_part() -> None:
    ticks = iter(range(100))
    [(times_s, n_done, seconds)] = called(
        [[lambda: None]], min_s=2.5, clock=lambda: 0.4 * next(ticks), sleep=lambda s: None
    )
    assert times_s == pytest.approx([0.4] * 10)  # five blocks of half a second
    assert (n_done, seconds) == (pytest.approx(5 * 0.5 / 0.4), 2.5)


def test_rates_of_all_callers_are_compared() -> None:
    ours = CallersTiming((1.0, 3.0), 10.0, 2.0, 4, 2)
    others = {name: CallersTiming((1.0,), n, 2.0, 4, 2, 0.0) for name, n in (("a", 5.0), ("b", 20))}
    result = CallersResult(ours, others)
    assert (result.best, result.ratios) == ("b", {"a": 0.5, "b": 2.0})
    assert "callers: autotune 5.0/s, a 2.5/s, b 10.0/s" in repr(result)


def test_baselines_get_our_inputs_and_their_outputs_are_compared() -> None:
    model = Model(reversing(3))

    def twice(inputs: Arrays) -> dict[str, NDArray[Any]]:
        return {"y": 2 * model.run(inputs)["y"]}

    result = bench_callers(model, 2, {"twice": [twice, twice]}, min_s=0.01)
    assert result.baselines["twice"].max_error == 0.5
    assert result.autotune.n_callers == 2


def test_a_call_that_fails_ends_all_callers_with_its_error() -> None:
    n_calls = 0

    def fails() -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise ValueError("of the third call")

    for first in (fails, lambda: None):
        with pytest.raises(ValueError, match="of the third call"):
            called([[first, fails, lambda: time.sleep(1e-3)]], min_s=0.05)
        n_calls = 0

    def at_once() -> None:
        raise ValueError("of the first call")

    with pytest.raises(ValueError, match="of the first call"):
        called([[lambda: None, lambda: None, at_once]], min_s=0.05)


def test_threads_that_the_system_refuses_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def some(thread: threading.Thread) -> None:
        if thread.name == "caller_2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", some)
    with pytest.raises(UsageError, match="cannot start 4 callers: can't start") as caught:
        called([[lambda: None] * 4], min_s=0.05)
    assert "ulimit -u" in caught.value.hint
    assert not [t for t in threading.enumerate() if t.name.startswith("caller")]


@pytest.mark.parametrize("n_callers", [-1, 0, 1025])
def test_a_number_of_callers_that_makes_no_sense(n_callers: int) -> None:
    with pytest.raises(UsageError, match=f"cannot measure {n_callers} callers"):
        bench_callers(Model(reversing(1)), n_callers)


def test_callers_get_what_one_gets() -> None:
    model = Model(reversing(25))
    xs = [np.full((2, 48), k, np.float32) for k in range(4)]
    wants = [model.run([x])["y"].copy() for x in xs]

    def call(k: int) -> None:
        assert np.array_equal(model.run([xs[k]])["y"], wants[k])

    called([[lambda k=k: call(k) for k in range(4)]], min_s=0.1)
