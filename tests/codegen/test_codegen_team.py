"""The protocol of the team, step by step: whatever the order of steps, results are right."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from autotune.codegen.team import team_code as code
from tests.codegen.interleaving import Machine, Steps, as_steps

N = 12
TEAM, SETTINGS, SEATS, JOBS, LISTS, TABLES = (k << 32 for k in range(1, 7))
SPAN = 1 << 20


class Callers:
    """Callers of one team, each with a network of `n_kernels` that reverse and add 1.

    Kernel k reads what kernel k - 1 wrote, in another order, so it is wrong if it begins too early
    or if a part is computed twice, late, or not at all.
    """

    def __init__(self, seed: int, change: tuple[str, str] = ("", "")) -> None:
        draw = random.Random(seed)
        self.functions = as_steps(code, change)
        self.machine = Machine(seed, self.kernel)
        self.n_callers = draw.choice([1, 1, 2, 3])
        self.n_shares = draw.choice([2, 2, 3, 4])
        self.n_inferences = draw.choice([2, 3, 6])
        self.extents = [draw.choice([1, 2, N, N]) for _ in range(draw.choice([1, 3, 5]))]
        self.n_parts = draw.choice([1, 3, 6])
        self.capacity = draw.choice([self.n_shares, self.n_callers, 8])
        self.is_timed = draw.random() < 0.2
        self.data: dict[int, list[int]] = {}
        self.wrong: list[str] = []
        self.pending: dict[tuple[int, int], dict[int, int]] = {}
        self.spans: dict[tuple[int, int], tuple[int, int]] = {}
        write = self.machine.memory.__setitem__
        write(SETTINGS + code.SET_CAPACITY, self.capacity)
        write(SETTINGS + code.SET_PATIENCE, draw.choice([20, 20, 600]))
        write(SETTINGS + code.SET_PART, 1)
        self.machine.memory[SETTINGS + code.SET_ASSIST] = self.functions["assist"]
        for caller in range(self.n_callers):
            self._lay_out(caller)
            self.machine.start(f"caller {caller}", self.calls(caller))

    def _lay_out(self, caller: int) -> None:
        job, kernels = JOBS + caller * SPAN, LISTS + caller * SPAN
        words = {
            code.TEAM: TEAM,
            code.SEAT: SEATS + caller * code.SEAT_BYTES,
            code.TABLE: caller,
            code.SHARES: self.n_shares,
            code.N_KERNELS: len(self.extents),
            code.WANTED: self.n_shares - 1,
            code.SETTINGS: SETTINGS,
        }
        self.machine.memory |= {job + at: value for at, value in words.items()}
        for k, extent in enumerate(self.extents):
            at = kernels + k * code.KERNEL_BYTES
            nanoseconds = self.n_parts * self.n_shares
            row = {code.CODE: k, code.EXTENT: extent, code.NANOSECONDS: nanoseconds, code.AFTER: k}
            self.machine.memory |= {at + place: value for place, value in row.items()}

    def calls(self, caller: int) -> Steps:
        """What a caller's thread does."""
        job = JOBS + caller * SPAN
        yield from self.functions["prepare"](job, LISTS + caller * SPAN)
        for turn in range(self.n_inferences):
            values = [1000 * turn + 100 * caller + i for i in range(N)]
            self.data[caller] = list(values)
            self.spans = {key: at for key, at in self.spans.items() if key[0] != caller}
            if self.is_timed:
                places = range(TABLES + caller * SPAN, TABLES + (caller + 1) * SPAN)
                for at in [at for at in self.machine.memory if at in places]:
                    self.machine.memory[at] = 0
                yield from self.functions["profile"](job, TABLES + caller * SPAN)
                self._look_at_times(caller)
            else:
                yield from self.functions["run"](job)
            for extent in self.extents:
                values = [values[N - 1 - i] + 1 for i in range(extent)] + values[extent:]
            if self.data[caller] != values:
                self.wrong.append(f"caller {caller}: {self.data[caller]}, not {values}")
            self.data[caller] = []
        yield from self.functions["leave"](job)
        self.machine.freed.append(range(job, job + SPAN))
        return 0

    def _look_at_times(self, caller: int) -> None:
        """The end of each kernel is behind its last part, and before the next one's first."""
        at = TABLES + caller * SPAN
        times = [self.machine.memory.get(at + 8 * k, 0) for k in range(len(self.extents) + 1)]
        for k in range(len(self.extents)):
            first, last = self.spans[caller, k]
            if not times[k] <= first <= last <= times[k + 1]:
                self.wrong.append(f"kernel {k}: {times}, but its parts ran {first} to {last}")

    def kernel(self, number: int, caller: int, begin: int, end: int) -> Steps:
        """Reads at its first step, writes at its last; results of all parts appear together."""
        extent = self.extents[number]
        if not self.data.get(caller):
            self.wrong.append(f"kernel {number} of caller {caller} runs outside of an inference")
            return 0
        found = [self.data[caller][N - 1 - i] + 1 for i in range(begin, end)]
        begun = self.machine.time
        yield ("nothing",)
        yield ("nothing",)
        first, last = self.spans.get((caller, number), (begun, begun))
        self.spans[caller, number] = first, max(last, self.machine.time)
        rows = self.pending.setdefault((caller, number), {})
        if not rows.keys().isdisjoint(range(begin, end)):
            self.wrong.append(f"kernel {number} of caller {caller}: {begin} to {end} again")
        rows |= {begin + n: value for n, value in enumerate(found)}
        if len(rows) == extent:  # as if kernels had two arrays that take turns
            before = self.data[caller]
            self.data[caller] = [rows[i] for i in range(extent)] + before[extent:]
            del self.pending[caller, number]
        return 0

    def problem(self) -> str:
        """What goes wrong in one order of steps; "" where nothing does."""
        names = {f"caller {n}" for n in range(self.n_callers)}
        said = self.machine.run(names, 60_000)
        return said or "; ".join([*self.machine.wrong, *self.wrong])


@pytest.mark.slow
def test_all_orders_of_steps_give_the_same_results() -> None:
    for seed in range(60):
        assert Callers(seed).problem() == "", seed


@pytest.mark.slow
def test_threads_of_the_team_take_part_and_sleep() -> None:
    n_helped = n_slept = 0
    for seed in range(20):
        callers = Callers(seed)
        assert callers.problem() == ""
        n_helped += len(callers.machine.threads) > callers.n_callers
        n_slept += callers.machine.n_sleeps > 0
    assert n_helped > 15
    assert n_slept > 15


CHANGES = {
    "the caller alone writes when a kernel ends": (
        "if time_at and total >= all_parts:\n            store(time_at, nanoseconds())",
        "if 0:\n            return 0",
    ),
    "a kernel begins before another is done": (
        "if not is_done(job, runs + met * RUN_BYTES, epoch):",
        "if rank < 0:",
    ),
    "parts of another inference are taken": (
        "if found > epoch:\n            return OTHER",
        "if 0:\n            return OTHER",
    ),
    "a part is taken by a store": (
        "before = compare_exchange(word, seen, (epoch << COUNT_BITS) + part + 1)",
        "store(word, (epoch << COUNT_BITS) + part + 1)\n        before = seen",
    ),
    "nobody wakes who waits for a kernel": ("wake(word, ALL)", "pass"),
    "a thread does not look again before it sleeps": (
        "if load_sequential(word) == seen:\n                sleep_while(word, seen)",
        "sleep_while(word, load(word))",
    ),
    "a caller goes while parts are in progress": (
        "            is_done(job, runs + met * RUN_BYTES, epoch)\n            met += 1",
        "            met += 1",
    ),
    "a job is freed while a thread looks at it": (
        "while load_sequential(load(job + SEAT) + VISITORS):",
        "while 0:",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CHANGES)
def test_a_fault_in_the_protocol_is_found(name: str) -> None:
    assert any(problems(CHANGES[name]))


def problems(change: tuple[str, str]) -> Iterator[str]:
    for seed in range(400):
        yield Callers(seed, change).problem()
