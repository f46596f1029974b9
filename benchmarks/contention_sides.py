"""The sides of `benchmarks.contention`, each a process, and what makes their lives hard.

Side ─► Process ─► ask("calls 2.5")          neighbours · cgroup_of · stopped
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from autotune.machine import usable_cpus

PACE_S, PERIOD_S = 0.1, 0.1
"""Between requests that are paced, and of a quota."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Side:
    """A runtime, with `threads` (None: as it chooses) and for so many callers (None: for one)."""

    runtime: str
    threads: int | None = None
    callers: int | None = None

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.runtime} on {self.threads}" if self.threads else self.runtime


class Process:
    """A side that has loaded the model of a folder and waits for commands."""

    def __init__(self, side: Side, folder: Path, cgroup: str = "") -> None:
        command = [sys.executable, "-m", "benchmarks.contention_sides", json.dumps(asdict(side))]
        command += [str(folder), cgroup]
        self.side = side
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self._answer()

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to a command."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException(f"{self.side.name} has ended: see above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Kill it."""
        with self._process:
            self._process.kill()


@contextmanager
def neighbours(n: int) -> Iterator[None]:
    """Other processes at normal priority that compute without end."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        time.sleep(0.2 if busy else 0.0)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def cgroup_of(cpus: float) -> Iterator[tuple[str, str]]:
    """A control group with a quota, and a note what it is; no path where none can be made."""
    period = int(PERIOD_S * 1e6)
    quota = str(int(cpus * period))
    kinds = (("", "cpu.max", f"{quota} {period}"), ("cpu", "cpu.cfs_quota_us", quota))
    for version, (parent, file, text) in enumerate(kinds):
        folder = Path("/sys/fs/cgroup", parent, f"autotune-{os.getpid()}")
        with suppress(OSError):
            folder.mkdir()
            if not (folder / file).exists():
                folder.rmdir()
                continue
            (folder / file).write_text(text)
            try:
                yield str(folder), f"cgroup v{2 - version}"
            finally:
                folder.rmdir()
            return
    yield "", "imitated by SIGSTOP and SIGCONT"


@contextmanager
def stopped(pid: int, cpus: float) -> Iterator[None]:
    """Stop a process for the rest of every period in which it has used up its share of CPUs."""
    end = threading.Event()

    def watch() -> None:
        with suppress(OSError):  # it has ended
            while not end.is_set():
                end_s, used_s = time.monotonic() + PERIOD_S, cpu_s(pid)
                while time.monotonic() < end_s and cpu_s(pid) - used_s < cpus * PERIOD_S:
                    time.sleep(1e-3)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(max(0.0, end_s - time.monotonic()))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def cpu_s(pid: int) -> float:
    """Processor time of all threads that a process has now."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns * 1e-9


# --- in the process ----------------------------------------------------------------------------


def main() -> None:
    """Answer commands, one a line: `calls SECONDS` or `paced SECONDS`."""
    side, folder, cgroup = Side(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
    if cgroup:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    calls = _calls(side, folder)
    for call in calls:
        call()
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        kind, seconds = line.split()
        work = _paced if kind == "paced" else _called
        print(json.dumps(work(calls, float(seconds))), flush=True)


def _calls(side: Side, folder: Path) -> list[Call]:
    """A function for every caller."""
    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    if side.runtime == "autotune":
        from autotune.network.runtime.loading import load

        model = load(folder / "model.atn", side.threads)
        return [partial(model.run, inputs)] * (side.callers or 1)
    from autotune.network.runtime.baselines import baseline, baselines_of_callers

    path, threads = folder / "model.onnx", side.threads or len(usable_cpus())
    if side.callers is None:
        return [partial(baseline(side.runtime, path, threads), inputs)]
    name = side.runtime.partition(":")[0]
    runners = baselines_of_callers(name, path, threads, side.callers)
    return [partial(run, inputs) for run in runners[side.runtime]]


def _called(calls: Sequence[Call], seconds: float) -> dict[str, Any]:
    """Latencies of callers that call again and again."""
    from autotune.network.bench.callers import called

    [(times_s, n_done, measured_s)] = called([calls], seconds)
    return {"times_s": times_s, "n_done": n_done, "seconds": measured_s}


def _paced(calls: Sequence[Call], seconds: float) -> dict[str, Any]:
    """Latencies of requests that come every `PACE_S`, and processor time beyond the work's own."""
    [call] = calls
    work_s: list[float] = []
    end_s = time.perf_counter() + min(seconds / 4, 1.0)
    while len(work_s) < 2 or time.perf_counter() < end_s:
        before_s = time.process_time()
        call()
        work_s.append(time.process_time() - before_s)
    own_s = float(np.mean(work_s))
    time.sleep(PACE_S)
    times_s: list[float] = []
    start_s, used_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - start_s < seconds:
        before_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - before_s)
        time.sleep(max(0.0, start_s + len(times_s) * PACE_S - time.perf_counter()))
    measured_s = time.perf_counter() - start_s
    beyond_s = time.process_time() - used_s - own_s * len(times_s)
    done = {"times_s": times_s, "n_done": len(times_s), "seconds": measured_s}
    return done | {"beyond_s": beyond_s}


if __name__ == "__main__":
    main()
