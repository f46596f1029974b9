"""A fleet on this machine whose workers are killed: is a record lost, doubled, or a process left?

    python -m tests.fuzz.farm --time 10m --every 5s

Four workers serve devices of two kinds: this CPU, and one behind an emulator. Every few seconds one
of their processes is killed: the whole worker, which is then started anew, Dask's worker below its
nanny, or the process that measures. Sessions run one after the other, every second one is killed
itself and resumed.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from autotune.records import Log, read_log
from autotune.result import MeasureStatus
from autotune.units import parse_duration

ROOT = Path(__file__).parents[2]
MARK = "AUTOTUNE_TEST_FARM"
"""A variable of all processes of a farm: by it they are found."""
HERE = ("--threads", "1")
ARM = ("--runner", "qemu-aarch64-static -cpu neoverse-n1", "--target", "neoverse-n1", *HERE)
_UP_S, _GONE_S = 300.0, 20.0
_WORKLOAD = """
from autotune import te

def task(n, m, k):
    a, b = te.placeholder((n, k), "a"), te.placeholder((k, m), "b")
    r = te.reduce_axis(k, "r")
    return te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c")
"""


def emulator() -> str | None:
    """The path of the emulator, where it is installed."""
    return shutil.which(ARM[1].split()[0])


class Farm:
    """A scheduler and its workers, by name, in `folder`; `close` ends them all.

    `worker_ttl`: after how long the scheduler gives up a silent worker.
    """

    def __init__(self, folder: Path, worker_ttl: str = "") -> None:
        self.folder, self.mark = folder, secrets.token_hex(6)
        ttl = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": worker_ttl}
        self._scheduling = ttl if worker_ttl else {}
        self.port = _free_port()
        self.address = f"dask://127.0.0.1:{self.port}"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.options: dict[str, tuple[str, ...]] = {}
        self.workload = folder / "task.py"
        self.workload.write_text(_WORKLOAD)
        self.scheduler = self.start_scheduler()

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """A scheduler at the address of the farm; returns when it listens."""
        words = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
        words += ["--dashboard-address", "127.0.0.1:0"]  # without, it listens everywhere
        process = self.process(*words, "--port", str(self.port), to="scheduler")
        until(lambda: _listens(self.port), "the scheduler listens")
        return process

    def start(self, name: str, *options: str) -> None:
        """A worker; returns before it has joined."""
        self.options[name] = options
        self.workers[name] = self.process(
            "-m", "autotune", "worker", self.address, "--name", name, *options, to=name
        )

    def wait(self, n_times: int = 1) -> None:
        """Until every worker has joined so many times."""
        for name in self.workers:
            joined = self.folder / f"{name}.txt"
            what = f"{name} joins: {joined.read_text()}"
            until(lambda file=joined: file.read_text().count("serves") >= n_times, what)  # type: ignore[misc]

    def process(self, *words: str, to: str) -> subprocess.Popen[bytes]:
        """A Python process of the farm, whose output is appended to a file."""
        with (self.folder / f"{to}.txt").open("ab") as file:
            return subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def environment(self) -> dict[str, str]:
        """Of all processes of the farm."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE", "DASK"))}
        return kept | self._scheduling | {"PYTHONPATH": str(ROOT), MARK: self.mark}

    def tune(self, *words: str) -> subprocess.Popen[bytes]:
        """A session; its events are lines of `events.txt`, its messages those of `session.txt`."""
        places = [self.folder / name for name in ("events.txt", "session.txt")]
        with places[0].open("wb") as events, places[1].open("wb") as messages:
            return subprocess.Popen(
                [sys.executable, "-m", "autotune", *words, "--events", "jsonl"],
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=messages,
                env=self.environment,
            )

    def told(self) -> Counter[str]:
        """Results that the events of the last session have told, by target."""
        found: Counter[str] = Counter()
        *lines, _ = (self.folder / "events.txt").read_text().split("\n")
        for event in map(json.loads, lines):
            if event["event"] == "batch_measured":
                found[event.get("target", "")] += len(event["results"])
        return found

    def pids(self) -> dict[int, list[str]]:
        """Processes of the farm that live, with their command lines."""
        found = {}
        wanted = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            with suppress(OSError, IndexError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and wanted in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().decode(errors="replace")
                    found[int(folder.name)] = words.split("\0")
        return found

    def below(self, name: str) -> list[int]:
        """Processes of a worker, itself first."""
        parents: dict[int, list[int]] = {}
        for pid in self.pids():
            with suppress(OSError, IndexError):
                text = (Path("/proc") / str(pid) / "stat").read_text()
                parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(pid)
        found, waiting = [], [self.workers[name].pid]
        while waiting:
            found.append(pid := waiting.pop(0))
            waiting += parents.get(pid, [])
        return found

    def close(self) -> list[str]:
        """End all; what is then left, as command lines."""
        for process in (*self.workers.values(), self.scheduler):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in (*self.workers.values(), self.scheduler):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GONE_S)
        end_s = time.monotonic() + _GONE_S
        while self.pids() and time.monotonic() < end_s:
            time.sleep(0.1)
        left = [" ".join(words)[:200] for words in self.pids().values()]
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


@contextmanager
def farm(folder: Path, worker_ttl: str = "", **workers: tuple[str, ...]) -> Iterator[Farm]:
    """A farm whose workers have joined; at the end none of its processes may be left."""
    found = Farm(folder, worker_ttl)
    try:
        for name, options in workers.items():
            found.start(name, *options)
        found.wait()
        yield found
    finally:
        left = found.close()
    assert not left, left


def until(holds: object, what: str, seconds: float = _UP_S) -> None:
    """Wait until `holds()`."""
    assert callable(holds)
    end_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end_s, f"it takes too long until {what}"
        time.sleep(0.05)


def problems_of(log: Log, told: Counter[str]) -> list[str]:
    """What is wrong with the records of a log, of which a session has `told` so many by run."""
    found = []
    seen: Counter[tuple[object, ...]] = Counter()
    for record in log.records:
        if not record.final:
            seen[record.target_key, record.workload, record.steps_json] += 1
        if not record.result.device and record.result.status is MeasureStatus.OK:
            found.append(f"record {record.sequence} of {record.run_id} has no device")
    found += [f"measured {n} times: {what}" for what, n in seen.items() if n > 1]
    numbers = [r.sequence for r in log.records]
    if numbers != list(range(len(numbers))):
        found.append(f"records are {numbers}")
    kinds = {(r.result.device.partition("-")[0], r.target_key) for r in log.records}
    kinds = {kind for kind in kinds if kind[0]}
    if len({device for device, _ in kinds}) != len(kinds):
        found.append(f"devices mix: {kinds}")
    trials = Counter(r.target_key for r in log.records if not r.final)
    trials[""] = trials.total()
    found += [
        f"{told[k]} trials of {k} told, {trials[k]} kept" for k in told if told[k] > trials[k]
    ]
    return found


@dataclass(slots=True)
class FarmTally:
    """What became of the sessions of a farm."""

    sessions: int = 0
    killed_sessions: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    records: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{n} {what}" for what, n in sorted(self.kills.items()))
        statuses = ", ".join(f"{n} {what}" for what, n in self.statuses.most_common())
        return (
            f"farm: {self.sessions} sessions, {self.killed_sessions} of them killed and resumed; "
            f"killed: {kills}; {self.records} records ({statuses}); {len(self.problems)} problems"
        )


def run_farm(folder: Path, time_s: float, every_s: float, seed: int = 0) -> FarmTally:
    """Tune on a farm for so long, and kill one of its processes now and then."""
    rng, tally = random.Random(seed), FarmTally()
    found = Farm(folder)
    try:
        for name, options in {"here-1": HERE, "here-2": HERE, "arm-1": ARM, "arm-2": ARM}.items():
            found.start(name, *options)
        found.wait()
        end_s = time.monotonic() + time_s
        while time.monotonic() < end_s:
            _farm_session(found, rng, tally, every_s)
    finally:
        tally.problems += [f"left: {words}" for words in found.close()]
    return tally


def _farm_session(found: Farm, rng: random.Random, tally: FarmTally, every_s: float) -> None:
    """One session, with its resumption where it is killed, and its log."""
    number = tally.sessions
    log = found.folder / f"{number}.jsonl"
    size = ",".join(str(rng.choice((48, 64, 96))) for _ in range(3))
    words = ["tune", f"{found.workload}:task", "--args", size, "--runner", found.address]
    words += ["--log", str(log), "--seed", str(number), "--time", "40s"]
    is_killed = number % 2 == 1
    dies_s = rng.uniform(10, 35) if is_killed else None
    _watch(found, found.tune(*words), rng, tally, every_s, dies_s)
    told = found.told()
    if is_killed and log.exists():
        tally.killed_sessions += 1
        _watch(found, found.tune("resume", str(log), "--time", "20s"), rng, tally, every_s)
        told += found.told()
    tally.sessions += 1
    if log.exists():
        kept = read_log(log)
        tally.records += len(kept.records)
        tally.statuses.update(r.result.status.value for r in kept.records)
        tally.problems += [f"{log.name}: {text}" for text in problems_of(kept, told)]


def _watch(
    found: Farm,
    session: subprocess.Popen[bytes],
    rng: random.Random,
    tally: FarmTally,
    every_s: float,
    dies_s: float | None = None,
) -> None:
    """Kill processes of the farm until a session has ended, or kill it after `dies_s`."""
    begin_s, n_kills = time.monotonic(), 0
    while session.poll() is None:
        elapsed_s = time.monotonic() - begin_s
        if dies_s is not None and elapsed_s > dies_s:
            session.kill()
            session.wait()
            return
        if elapsed_s > (n_kills + 1) * every_s:
            n_kills += 1
            _kill_one(found, rng, tally)
        time.sleep(0.1)
    if session.returncode:
        text = (found.folder / "session.txt").read_text()[-2000:]
        tally.problems.append(f"exit code {session.returncode}: {text}")


def _kill_one(found: Farm, rng: random.Random, tally: FarmTally) -> None:
    name = rng.choice(sorted(found.workers))
    whole = found.below(name)
    what = rng.choice(("worker", "process of Dask", "measuring process"))
    commands = found.pids()
    if what == "worker":
        found.workers[name].kill()
        found.workers[name].wait()
        found.start(name, *found.options[name])
    else:
        word = "spawn_main" if what == "process of Dask" else "measure.supervisor"
        own = [pid for pid in whole[1:] if any(word in w for w in commands.get(pid, []))]
        if not own:
            return
        with suppress(ProcessLookupError):
            os.kill(rng.choice(own), signal.SIGKILL)
    tally.kills[what] += 1


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@click.command()
@click.option("--time", "time_text", default="10m")
@click.option("--every", "every_text", default="5s", help="One process is killed so often.")
@click.option("--seed", default=0)
@click.option("--keep", is_flag=True, help="Keep the logs.")
def main(time_text: str, every_text: str, seed: int, keep: bool) -> None:
    """Exit code 1 where a record is lost or doubled, or a process is left."""
    if emulator() is None:
        raise click.UsageError("qemu-aarch64-static is missing: apt-get install qemu-user-static")
    folder = Path(tempfile.mkdtemp(prefix="autotune-farm-"))
    tally = run_farm(folder, parse_duration(time_text), parse_duration(every_text), seed)
    for problem in tally.problems:
        click.echo(problem, err=True)
    click.echo(str(tally))
    if not keep:
        shutil.rmtree(folder)
    sys.exit(1 if tally.problems else 0)


if __name__ == "__main__":
    main()
