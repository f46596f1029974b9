"""Many callers for a while: threads come and go, forks, signals, models that are deleted.

    python -m tests.fuzz.callers --time 10m

Every result is compared bit for bit. Exit code 1 where one is wrong, a call or a child hangs, a
thread is left, or the memory grows.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import random
import signal
import statistics
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from autotune.api.compile.compiling import compile as compile_model
from autotune.cli.option_types import DURATION
from autotune.network.artifact.artifact import Artifact
from autotune.network.runtime.runtime import Model, random_inputs
from examples.network import network
from tests.network.hand_made import N, reversing

ROUND_S = 0.5
HANG_S = 60.0
"""After which a call or a child is taken to hang; what all threads do is printed then."""
MOST_GROWTH = 16 << 20
"""Bytes between the first rounds, in which everything is used once, and the last ones."""
N_INPUTS, MOST_CALLS, N_STARTERS = 4, 60, 4
LIBC = ctypes.CDLL(None)

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """An artifact, and what comes out for what goes in."""

    artifact: Artifact
    inputs: tuple[dict[str, Array], ...]
    wants: tuple[bytes, ...]

    @property
    def output(self) -> Any:
        return self.artifact.outputs[0]

    def check(self, model: Model, draw: random.Random) -> None:
        """One call, into an array of its own or of ours."""
        k = draw.randrange(N_INPUTS)
        out = np.empty(self.output.shape, self.output.dtype) if draw.random() < 0.5 else None
        found = model.run(self.inputs[k], None if out is None else [out])[self.output.name]
        assert out is None or found is out
        assert found.tobytes() == self.wants[k], f"{self.artifact.name}: wrong bits"


def reversing_case(n_kernels: int, bump: bool = False) -> Case:
    made = reversing(n_kernels, bump=bump)
    xs = [np.arange(N, dtype=np.float32) * (k + 1) for k in range(N_INPUTS)]
    wants = [(x[::-1] if n_kernels % 2 else x) + np.float32(n_kernels) for x in xs]
    for want in wants:
        want[0] += bump
    inputs = tuple({"x": x.reshape(2, N // 2)} for x in xs)
    return Case(made, inputs, tuple(want.tobytes() for want in wants))


def compiled_case(threads: int) -> Case:
    """A residual network; what one thread computes is what all have to compute."""
    made = compile_model(network(1, 32), threads=threads, check=False, cache=False).artifact
    inputs = tuple(random_inputs(made.inputs, seed) for seed in range(N_INPUTS))
    alone, name = Model(made, 1), made.outputs[0].name
    return Case(made, inputs, tuple(alone.run(x)[name].tobytes() for x in inputs))


@dataclass
class Soak:
    """Cases, a model of each for every number of threads, and what has happened so far."""

    cases: Sequence[Case]
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    held_bytes: list[int] = field(default_factory=list)
    slowest_s: float = 0.0

    def __post_init__(self) -> None:
        numbers = range(1, len(os.sched_getaffinity(0)) + 2)  # one more than there are cores
        self.models = [(case, Model(case.artifact, n)) for case in self.cases for n in numbers]

    def run(self, seconds: float) -> None:
        """Rounds of everything at once, after each of which no caller is left."""
        end_s = time.monotonic() + seconds
        while not self.failures and (time.monotonic() < end_s or len(self.held_bytes) < 4):
            faulthandler.dump_traceback_later(ROUND_S + HANG_S, exit=True)
            self._round(self.seed + len(self.held_bytes))
            self.held_bytes.append(resident_bytes())
        faulthandler.cancel_dump_traceback_later()
        self.models.clear()

    def _round(self, seed: int) -> None:
        end_s = time.monotonic() + ROUND_S
        works: list[Callable[[random.Random], None]] = [self._come_and_go] * N_STARTERS
        works += [self._fork, self._delete, self._interrupt]

        def repeat(work: Callable[[random.Random], None], draw: random.Random) -> None:
            while time.monotonic() < end_s and not self.failures:
                self._tried(partial(work, draw))

        threads = [
            threading.Thread(target=repeat, args=(work, random.Random(seed * 100 + k)))
            for k, work in enumerate(works)
        ]
        together(threads)

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            self.failures.append(traceback.format_exc())

    def _calls(self, case: Case, model: Model, n: int, seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(n):
            start_s = time.monotonic()
            case.check(model, draw)
            self.slowest_s = max(self.slowest_s, time.monotonic() - start_s)
        self.counts["calls"] += n

    def _come_and_go(self, draw: random.Random) -> None:
        """One to three callers that start and end, of one model or of several."""
        models = draw.choices(self.models, k=draw.randint(1, 3))
        works = [
            partial(self._calls, *pair, draw.randint(1, MOST_CALLS), draw.getrandbits(32))
            for pair in models
        ]
        threads = [threading.Thread(target=self._tried, args=(work,)) for work in works]
        together(threads)
        self.counts["threads"] += len(threads)

    def _fork(self, draw: random.Random) -> None:
        """A child that computes with what its parent has, while the parent's callers go on."""
        child = os.fork()
        if not child:
            try:
                for _ in range(3):
                    self._come_and_go(draw)
                for failure in self.failures:
                    print(failure, file=sys.stderr)
                os._exit(1 if self.failures else 0)
            finally:
                os._exit(2)
        end_s = time.monotonic() + HANG_S - 10
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end_s:
                os.kill(child, signal.SIGUSR2)  # it says what its threads do
                time.sleep(1)
                os.kill(child, signal.SIGKILL)
            time.sleep(2e-3)
        assert ended[1] == 0, f"a child ended with {os.waitstatus_to_exitcode(ended[1])}"
        self.counts["forks"] += 1
        time.sleep(draw.random() * 0.02)

    def _delete(self, draw: random.Random) -> None:
        """A model whose last reference is that of a call, or goes while others run."""
        case = draw.choice(self.cases)
        given = case, Model(case.artifact, draw.choice([1, 2])), 5
        works = [partial(self._calls, *given, draw.getrandbits(32)) for _ in range(2)]
        del given
        threads = [threading.Thread(target=self._tried, args=(work,)) for work in works]
        del works
        together(threads)
        self.counts["models"] += 1

    def _interrupt(self, draw: random.Random) -> None:
        """A signal for one thread, of Python or of the runtime, which may have ended since."""
        thread = int(draw.choice(os.listdir("/proc/self/task")))
        LIBC.tgkill(os.getpid(), thread, signal.SIGUSR1)
        time.sleep(1e-3)

    def complaints(self, n_threads: int, wait_s: float = 10.0) -> list[str]:
        """What is wrong after the end; `n_threads`: of the process in the beginning."""
        found = list(self.failures)
        left = threads_left(n_threads, wait_s)
        if left > 0:
            found.append(f"{left} threads are left")
        quarter = len(self.held_bytes) // 4
        first, last = (
            statistics.median(part)
            for part in (self.held_bytes[quarter : 2 * quarter], self.held_bytes[-quarter:])
        )
        if last - first > MOST_GROWTH:
            found.append(f"memory grew from {first / 1e6:.1f} to {last / 1e6:.1f} MB")
        return found

    def __str__(self) -> str:
        parts = ", ".join(f"{n} {what}" for what, n in sorted(self.counts.items()))
        held = f"{min(self.held_bytes) / 1e6:.0f} to {max(self.held_bytes) / 1e6:.0f} MB"
        return f"{parts}; slowest call {self.slowest_s:.3f} s; {held}"


def together(threads: Sequence[threading.Thread]) -> None:
    """Start threads and wait for their ends."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident_bytes() -> int:
    """Memory of this process that is in use: what its allocator keeps for later is given back."""
    gc.collect()
    LIBC.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_threads_of_process() -> int:
    return len(os.listdir("/proc/self/task"))


def threads_left(n_before: int, wait_s: float) -> int:
    """How many threads there are more than before, once those that are ending have ended."""
    end_s = time.monotonic() + wait_s
    while n_threads_of_process() > n_before and time.monotonic() < end_s:
        time.sleep(0.01)
    return n_threads_of_process() - n_before


@click.command()
@click.option("--time", "time_s", type=DURATION, default="10m", help="[10m]")
@click.option("--seed", default=0)
def main(time_s: float, seed: int) -> None:
    """Call models in every way, and say what is wrong."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # fork beside threads is meant
    interrupts: Counter[int] = Counter()

    def interrupted(number: int, _: object) -> None:
        interrupts[number] += 1

    soak = Soak([reversing_case(25), reversing_case(4, bump=True), compiled_case(2)], seed)
    for case, model in soak.models:  # what lives as long as the process is there from now on
        case.check(model, random.Random(0))
    n_threads = n_threads_of_process()
    for number in (signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, interrupted)
    faulthandler.register(signal.SIGUSR2)
    sys.setswitchinterval(1e-4)
    signal.setitimer(signal.ITIMER_REAL, 5e-3, 5e-3)
    soak.run(time_s)
    signal.setitimer(signal.ITIMER_REAL, 0)
    soak.counts["signals"] = interrupts.total()
    complaints = soak.complaints(n_threads)
    for complaint in complaints:
        click.echo(complaint, err=True)
    click.echo(f"callers: {soak}")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
