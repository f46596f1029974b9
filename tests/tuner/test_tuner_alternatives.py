"""A task and the parts that it replaces: what counts, who gets trials, and when one is given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune import te
from autotune.records import Header, HeaderNetwork
from autotune.records.record import decode, encode
from autotune.result import MeasureResult, MeasureStatus
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.tuner import Scheduler, TaskStop, TaskTimes, TuningTask, fastest, totals

BATCH = 4


def ok(seconds: float) -> MeasureResult:
    return MeasureResult(MeasureStatus.OK, (seconds,) * 3)


@pytest.fixture
def tasks(matmul_of: Callable[[int], ComputeDAG]) -> list[TuningTask]:
    """a (called twice) and b, of which one a and b may be replaced by ab."""
    a, b, ab = (matmul_of(n) for n in (8, 16, 24))
    return [
        TuningTask("a", a, 2, bound_s=1e-9),
        TuningTask("b", b, 1, bound_s=1e-9),
        TuningTask("ab", ab, 1, bound_s=1e-9, parts=("a", "b")),
    ]


def scheduler(tasks: list[TuningTask], a: float, b: float, ab: float, batches: int) -> Scheduler:
    """Everything was measured so often, each time a little faster, down to these seconds."""
    found = Scheduler(tasks, BATCH, patience=1000)
    for key, best in (("a", a), ("b", b), ("ab", ab)):
        n = batches * BATCH
        found.observe(key, [ok(best * (1 + 0.1 * (n - 1 - k))) for k in range(n)])
    return found


def test_the_faster_alternative_counts(tasks: list[TuningTask]) -> None:
    def total_s(a: float, b: float | None, ab: float) -> float:
        best = {"a": a, "b": b, "ab": ab}
        return totals(tasks, {key: TaskTimes(tuned_s=s) for key, s in best.items()}).total_s

    assert total_s(3.0, 4.0, 5.0) == 3.0 + 5.0
    assert total_s(3.0, 4.0, 9.0) == 2 * 3.0 + 4.0
    assert total_s(3.0, None, 5.0) == 3.0  # compile has no measurement to choose by


def test_of_several_networks_the_fastest_counts_once_all_of_it_is_known(
    tasks: list[TuningTask],
) -> None:
    """Chains in two precisions are two networks, and no sum of both."""
    narrow = [replace(tasks[2], key="ab16", parts=("a16", "b16")), replace(tasks[0], key="a16")]
    narrow.append(replace(tasks[1], key="b16"))
    seconds = {"a": 3.0, "b": 4.0, "ab": 5.0, "a16": 1.0, "b16": 2.0}

    def total_s() -> float:
        times = {key: TaskTimes(tuned_s=s) for key, s in seconds.items()}
        return fastest((tasks, narrow), times).total_s

    assert total_s() == 3.0 + 5.0  # nobody knows whether compile takes ab16
    seconds["ab16"] = 9.0
    assert total_s() == 2 * 1.0 + 2.0
    seconds["a16"] = 90.0
    assert total_s() == 3.0 + 5.0


def test_a_chain_is_compared_with_the_alternative_of_an_untuned_network(
    tasks: list[TuningTask],
) -> None:
    """Untuned, estimates choose the whole, which is the slower one; tuned, measurements do."""
    times = {
        "a": TaskTimes(untuned_s=4.0, tuned_s=3.0, estimate_s=2.0),
        "b": TaskTimes(untuned_s=5.0, tuned_s=4.0, estimate_s=2.0),
        "ab": TaskTimes(untuned_s=30.0, tuned_s=20.0, estimate_s=1.0),
    }
    found = totals(tasks, times)
    assert (found.untuned_s, found.tuned_s) == (30.0 + 4.0, 3.0 + 4.0 + 3.0)
    assert found.is_complete
    assert found.total_s == found.tuned_s


def test_what_was_not_measured_on_both_sides_is_not_compared(tasks: list[TuningTask]) -> None:
    nothing = totals(tasks, {})
    assert (nothing.ratio, nothing.share, nothing.n_known) == (None, 0.0, 0)
    one = totals(tasks, {"a": TaskTimes(4.0, 2.0, 1.0)})
    assert (one.untuned_s, one.tuned_s, one.ratio) == (4.0, 2.0, 2.0)  # the call outside of ab
    flops = {task.key: task.flops for task in tasks}
    assert one.share == flops["a"] / (2 * flops["a"] + flops["b"])
    old = totals(tasks, {key: TaskTimes(tuned_s=1.0) for key in ("a", "b", "ab")})
    assert (old.ratio, old.total_s, old.n_compared) == (None, 2.0, 0)
    some = totals(tasks[:2], {"a": TaskTimes(tuned_s=1.0), "b": TaskTimes(9.0, 3.0, 9.0)})
    assert (some.total_s, some.untuned_s, some.tuned_s) == (2 * 1.0 + 3.0, 9.0, 3.0)


def test_who_is_behind_gains_less(tasks: list[TuningTask]) -> None:
    def gains(ab: float) -> dict[str, float]:
        s = scheduler(tasks, 1e-3, 1e-3, ab, 1)
        return {key: s.gain_s(state) for key, state in s.states.items()}

    alone = scheduler([*tasks[:2], replace(tasks[2], parts=())], 1e-3, 1e-3, 4e-3, 1)
    level, slow, fast = gains(2e-3), gains(4e-3), gains(1e-3)
    assert slow["ab"] == pytest.approx(alone.gain_s(alone.states["ab"]) / 2, rel=1e-3)
    assert slow["b"] == level["b"] == alone.gain_s(alone.states["b"])
    assert fast["b"] == pytest.approx(level["b"] / 2, rel=1e-3)
    assert fast["a"] == pytest.approx(level["a"] * 3 / 4, rel=1e-3)  # its other call stays


def test_who_cannot_catch_up_gains_nothing(tasks: list[TuningTask]) -> None:
    tasks[2] = replace(tasks[2], bound_s=3e-3)
    s = scheduler(tasks, 1e-3, 1e-3, 4e-3, 1)
    assert s.gain_s(s.states["ab"]) == 0.0


def test_a_clearly_slower_alternative_is_given_up(tasks: list[TuningTask]) -> None:
    assert scheduler(tasks, 1e-3, 1e-3, 2.3e-3, 2).stops() == {}
    assert scheduler(tasks, 1e-3, 1e-3, 2.3e-3, 3).stops() == {"ab": TaskStop.BEATEN}
    assert scheduler(tasks, 1e-3, 1e-3, 2.1e-3, 3).stops() == {}
    assert scheduler(tasks, 1e-3, 1e-3, 1.5e-3, 3).stops() == {"b": TaskStop.BEATEN}


def test_alternatives_in_two_precisions_are_two_and_no_sum(tasks: list[TuningTask]) -> None:
    """One that is clearly faster is enough, whatever the other takes."""
    a = tasks[0]
    narrow = TuningTask("b16", _narrow(8), 2, bound_s=1e-9, parts=("a",))
    found = [a, replace(tasks[1], weight=2, parts=("a",)), narrow]

    def stops(b: float, b16: float) -> set[str]:
        s = Scheduler(found, BATCH, patience=1000)
        for key, best in (("a", 2e-3), ("b", b), ("b16", b16)):
            s.observe(key, [ok(best * (1 + 0.1 * (11 - k))) for k in range(12)])
        return set(s.stops())

    assert stops(1e-3, 1e-3) == {"a"}
    assert stops(9e-3, 1e-3) == {"a", "b"}
    assert stops(2e-3, 2e-3) == set()


def _narrow(n: int) -> ComputeDAG:
    x, w = te.placeholder((n, n), "x", "bfloat16"), te.placeholder((n, n), "w", "bfloat16")
    k = te.reduce_axis(n, "k")

    def product(i: te.Expression, j: te.Expression) -> te.Expression:
        return te.sum(x[i, k].astype("float32") * w[k, j].astype("float32"), k)

    return te.dag_of(te.compute((n, n), product))


def test_parts_are_in_the_log(any_target: Target) -> None:
    header = Header("r", "2026", "m", "h", {}, any_target, 1, 0, {}, {}, (("a", 1), ("ab", 1)))
    one = HeaderNetwork((("a", 1.0), ("ab", 0.5)), {"ab": ("a", "a")})
    joined = replace(header, parts={"ab": ("a", "a")}, networks=(one,))
    assert decode(encode(joined)) == joined
    older = encode(header).replace(',"parts":{}', "").replace(',"networks":[]', "")
    assert decode(older) == header
    assert decode(encode(replace(joined, networks=(replace(one, parts={"c": ("a",)}),)))) is None
