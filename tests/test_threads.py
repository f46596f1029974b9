"""How many threads whoever gives no number gets, on imitated machines and in containers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.machine import require_threads, told_threads, usable_cpus
from autotune.measure.threads import default_threads
from autotune.measure.timing import siblings
from autotune.measure.timing.siblings import are_faster, measured_once, rates
from autotune.threads import Threads, usable_threads

N_CPUS = len(usable_cpus())


def machine(root: Path, n_cores: int, n_siblings: int, quotas: tuple[float, ...] = ()) -> Path:
    """CPU n is on core n modulo `n_cores`; quotas are of groups in one another."""
    files = {"sys/devices/system/cpu/online": f"0-{n_cores * n_siblings - 1}"}
    for core in range(n_cores):
        cpus = ",".join(str(core + k * n_cores) for k in range(n_siblings))
        for k in range(n_siblings):
            name = f"sys/devices/system/cpu/cpu{core + k * n_cores}/topology/core_cpus_list"
            files[name] = cpus
    path = ""
    for quota in quotas:
        path += "/group"
        files[f"sys/fs/cgroup{path}/cpu.max"] = f"{int(quota * 100_000)} 100000"
    files["proc/self/cgroup"] = f"0::{path or '/'}\n"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def chosen(
    root: Path,
    cpus: range | set[int],
    most: int | None = None,
    told: str = "",
    siblings_help: Callable[[frozenset[int]], bool] | None = None,
) -> Threads:
    return usable_threads(
        most,
        siblings_help or never_asked,
        environment={"AUTOTUNE_THREADS": told},
        cpus=frozenset(cpus),
        root=root,
    )


def never_asked(core: frozenset[int]) -> bool:
    raise AssertionError(f"measured on {core} without need")


@pytest.mark.parametrize(
    ("quotas", "n"),
    [
        ((), 8),
        ((0.5,), 1),
        ((1.0,), 1),
        ((1.5,), 1),  # a second thread would stop both for a quarter of every period
        ((2.0,), 2),
        ((7.99,), 7),
        ((64.0,), 8),
        ((4.0, 2.0, 16.0), 2),
        ((16.0, 0.25), 1),
    ],
)
def test_a_quota_pays_for_whole_cpus(tmp_path: Path, quotas: tuple[float, ...], n: int) -> None:
    found = chosen(machine(tmp_path, 8, 1, quotas), range(8))
    assert found.n == n
    assert ("a quota of " in str(found)) == (n < 8)


def test_what_the_number_follows_from_is_said(tmp_path: Path) -> None:
    root = machine(tmp_path, 4, 2, (0.5,))
    assert str(chosen(root, range(8))) == "1 thread (a quota of 0.5 CPUs)"
    assert str(chosen(root, range(8), told="3")) == "3 threads (AUTOTUNE_THREADS)"
    machine(tmp_path, 4, 2)
    fewer = chosen(tmp_path, range(8), siblings_help=lambda core: False)
    assert str(fewer) == "4 threads (one per physical core)"
    assert str(chosen(tmp_path, range(8), siblings_help=lambda core: True)) == "8 threads"


@pytest.mark.parametrize(
    ("cpus", "with_help", "without"),
    [
        ({0}, 1, 1),
        ({0, 4}, 2, 1),  # both threads of one core
        ({0, 1}, 2, 2),  # one thread each of two
        ({0, 1, 4}, 3, 2),
        ({2, 3, 6, 7}, 4, 2),
        (set(range(8)), 8, 4),
        ({0, 99}, 2, 2),  # one that is not known
    ],
)
def test_hyper_threads_count_only_where_they_help(
    tmp_path: Path, cpus: set[int], with_help: int, without: int
) -> None:
    root = machine(tmp_path, 4, 2)
    assert chosen(root, cpus, siblings_help=lambda core: True).n == with_help
    assert chosen(root, cpus, siblings_help=lambda core: False).n == without


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("quota", [1.0, 3.0, 4.0])
def test_nothing_is_measured_that_does_not_decide(tmp_path: Path, most: int, quota: float) -> None:
    assert chosen(machine(tmp_path, 4, 2), range(8), most).n == most
    assert chosen(machine(tmp_path, 4, 2, (quota,)), range(8)).n == int(quota)
    assert chosen(machine(tmp_path, 8, 1), range(8)).n == 8


def test_the_measured_core_is_one_with_hyper_threads(tmp_path: Path) -> None:
    asked: list[frozenset[int]] = []

    def note(core: frozenset[int]) -> bool:
        asked.append(core)
        return False

    chosen(machine(tmp_path, 4, 2), {0, 1, 2, 6}, siblings_help=note)
    assert asked == [{2, 6}]


@pytest.mark.parametrize(("told", "n"), [("1", 1), (" 3 ", 3), ("007", 7), ("64", 8), ("", 2)])
def test_the_environment_says_another_number_than_the_machine(
    tmp_path: Path, told: str, n: int
) -> None:
    assert chosen(machine(tmp_path, 8, 1, (2.0,)), range(8), None, told).n == n


@pytest.mark.parametrize("told", ["x", "0", "-1", "1.5", "2 3", "١", "9" * 50, "1e3"])
def test_an_environment_that_says_no_number_is_refused(told: str) -> None:
    with pytest.raises(UsageError, match="AUTOTUNE_THREADS is '") as caught:
        told_threads({"AUTOTUNE_THREADS": told})
    assert "unset" in caught.value.hint
    assert "\n" not in caught.value.message


def test_threads_are_a_whole_number_and_need_cores() -> None:
    require_threads(None)
    require_threads(N_CPUS)
    require_threads(N_CPUS + 1, are_here=False)
    with pytest.raises(UsageError, match=f"on {N_CPUS + 1} threads: this process may use {N_CPUS}"):
        require_threads(N_CPUS + 1)
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(UsageError, match="cannot run on"):
            require_threads(wrong)


def test_the_default_is_a_number_that_runs_here() -> None:
    require_threads(default_threads())
    assert default_threads(1) == 1


# Hyper-threads


@pytest.mark.parametrize("gain", [0.95, 1.05, 1.15, 1.6, 2.0])
def test_a_busy_machine_gives_no_answer_or_the_right_one(gain: float) -> None:
    """Anything else that runs takes some of a rate or interrupts it, in any of the windows."""
    rng, expected = random.Random(0), gain > 1.25
    answers = []
    for _ in range(500):
        busy = rng.random()

        def seen(rate: float, busy: float = busy) -> float:
            found = rate * rng.uniform(0.98, 1.0)
            if rng.random() < busy:
                found *= rng.choice([0.0, 0.5, rng.random()])
            return found

        answers.append(are_faster([seen(1.0) for _ in range(10)], [seen(gain) for _ in range(5)]))
    wrong = answers.count(not expected)
    assert wrong <= 0.01 * len(answers), f"{wrong} wrong answers of {len(answers)}"
    assert answers.count(expected) > 0.25 * len(answers)


def test_two_cpus_take_turns_and_then_run_together() -> None:
    cpus = sorted(usable_cpus())[:2]
    alone, together = rates(cpus, lambda: sum(range(100)))
    assert len(alone) == len(cpus) * len(together) > 0
    assert all(rate >= 0.0 for rate in alone + together)


def test_a_thread_that_cannot_be_pinned_is_no_answer(tmp_path: Path) -> None:
    assert not measured_once(frozenset({100_000, 100_001}), tmp_path)
    assert not list(tmp_path.rglob("*.entry"))


def test_an_answer_is_kept_for_the_machine_and_doubt_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool | None] = [None, True]
    monkeypatch.setattr(siblings, "_measured", lambda core: answers.pop(0))
    root = machine(tmp_path / "root", 4, 2)
    core = frozenset({0, 4})
    assert not measured_once(core, tmp_path, root)  # it was too busy to tell
    assert measured_once(core, tmp_path, root)
    assert measured_once(core, tmp_path, root)  # measures no third time
    answers.append(False)
    assert not measured_once(core, tmp_path, machine(tmp_path / "other", 2, 4))
