"""Kill tuning sessions at random moments, and count what is lost or left behind.

    python tests/cli/kills.py 500 [SEED]

One log is carried through many kills: every round resumes what the round before has left. Most
kills aim at the milliseconds after a new record; some at the time before the first one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from autotune.records import Log, read_log

ROOT = Path(__file__).parent.parent.parent
KINDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ROUNDS_PER_LOG = 8
_EARLY_SHARE = 0.2
_LONGEST_S = 120.0
_SWEPT_S = 10.0
_POLL_S = 0.002


@dataclass(slots=True)
class Tally:
    """How many kills were tried, and after how many everything was right.

    `lost`: a whole line of the log is gone, or the log cannot be read or resumed. `left_behind`: a
    process or a temporary file. `problems`: a line for each that was not right, also where only
    the exit code was wrong or a traceback was shown.
    """

    tried: int = 0
    right: int = 0
    lost: int = 0
    left_behind: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"kills: {self.tried} tried, {self.right} right, {self.lost} lost, "
            f"{self.left_behind} left behind"
        )


def run_kills(count: int, seed: int = 0) -> Tally:
    """Kill `count` sessions, by several signals, at moments that `seed` decides."""
    rng = random.Random(seed)
    tally = Tally()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would turn it off for sessions as well
    while tally.tried < count:
        with tempfile.TemporaryDirectory() as name:
            place = _Place(Path(name))
            for _ in range(min(_ROUNDS_PER_LOG, count - tally.tried)):
                if not _round(place, rng, tally):
                    break
            _finish(place, tally)
    return tally


class _Place:
    """A folder with a model, its log, and a folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "work" / "model.onnx"
        self.log = folder / "work" / "log.jsonl"
        self.temporary = folder / "tmp"
        self.model.parent.mkdir()
        self.temporary.mkdir()
        onnx.save(_model(), self.model)

    def lines(self) -> bytes:
        """The whole lines of the log."""
        if not self.log.exists():
            return b""
        data = self.log.read_bytes()
        return data[: data.rfind(b"\n") + 1]

    def command(self, *more: str) -> list[str]:
        """To start the session, or to go on with it."""
        if self.log.exists():
            return ["resume", str(self.log), *more]
        options = ("--preset", "ci", "--threads", "1")
        return ["tune", str(self.model), "--log", str(self.log), *options, *more]

    def strays(self) -> list[str]:
        """Files that nobody has asked for."""
        known = {self.model, self.log}
        found = [*self.model.parent.iterdir(), *self.temporary.iterdir()]
        return [str(path) for path in found if path not in known]


def _model() -> onnx.ModelProto:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 24] x) => (float[4, 24] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }
    """)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (24, 40), "v": (40, 24)}.items():
        weights = rng.standard_normal(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@contextmanager
def _session(place: _Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AUTOTUNE")}
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT), "TMPDIR": str(place.temporary)},
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _round(place: _Place, rng: random.Random, tally: Tally) -> bool:
    """Start, kill, check; whether the log can be carried on."""
    kind, is_early = rng.choice(KINDS), rng.random() < _EARLY_SHARE
    before, is_new = place.lines(), not place.log.exists()
    with _session(place, *place.command("--time", "1h")) as process:
        _wait_for_moment(process, place, len(before), rng, is_early)
        seen = place.lines()
        ended_itself = process.poll() is not None
        process.send_signal(kind)
        _, told = process.communicate(timeout=_LONGEST_S)
    if process.returncode == 0 and _is_complete(place):  # nothing left to find: the next log
        return False
    tally.tried += 1
    moment = "early in" if is_early else "after a record of"
    how = f"{kind.name} {moment} {'tune' if is_new else 'resume'}"
    lost = _lost(place, seen)
    left = [*_processes_of(process.pid), *place.strays()]
    wrong = _wrong_end(kind, process.returncode, told) if not ended_itself else f"ended: {told}"
    tally.lost += bool(lost)
    tally.left_behind += bool(left)
    tally.right += not (lost or left or wrong)
    tally.problems += [f"{how}: {what}" for what in (lost, ", ".join(left), wrong) if what]
    return not lost


def _wait_for_moment(
    process: subprocess.Popen[str], place: _Place, n_bytes: int, rng: random.Random, is_early: bool
) -> None:
    """Until signals are handled and a random time has passed, or some records are new."""
    end_s = time.monotonic() + _LONGEST_S
    while not heeds_signals(process.pid) and process.poll() is None:
        time.sleep(_POLL_S)
    if is_early:
        time.sleep(rng.random() * 3.0)
        return
    n_lines = rng.randint(2, 12) + 3 * (n_bytes == 0)  # headers are lines, too
    while process.poll() is None and time.monotonic() < end_s:
        if place.lines()[n_bytes:].count(b"\n") >= n_lines:
            break
        time.sleep(_POLL_S)
    time.sleep(rng.choice((0.0, 0.001, 0.01, 0.1)) * rng.random())


def heeds_signals(pid: int) -> bool:
    """Whether the handlers are there: before that, it is Python that starts."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _lost(place: _Place, seen: bytes) -> str:
    """What has become of the lines that were there when the signal was sent."""
    if not place.log.exists():
        return "the log is gone" if seen else ""
    if not place.log.read_bytes().startswith(seen):
        return "lines of the log have changed"
    log = read_log(place.log)
    if log.n_skipped or not log.headers:
        return f"{log.n_skipped} lines are corrupt"
    return ""


def _is_complete(place: _Place) -> bool:
    """Whether the session has ended of itself, before the signal or at the same time."""
    return read_log(place.log).ends[-1].reason in ("converged", "exhausted")


def _wrong_end(kind: signal.Signals, code: int, told: str) -> str:
    if "Traceback" in told or "bug" in told:
        return f"said {told}"
    expected = -kind if kind is signal.SIGKILL else 128 + kind
    return f"exit code {code} for {kind.name}" if code != expected else ""


def _processes_of(session: int) -> list[str]:
    """Processes of a session that are still there after a while."""
    end_s = time.monotonic() + _SWEPT_S
    while (found := _running(session)) and time.monotonic() < end_s:
        time.sleep(0.02)
    return [f"process {pid}" for pid in found]


def _running(session: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if entry.isdecimal() and int(words[3]) == session and words[0] != "Z":
            found.append(int(entry))
    return found


def _finish(place: _Place, tally: Tally) -> None:
    """What is left of the log can be resumed to an end, and nothing was measured twice."""
    if not place.log.exists():
        return
    with _session(place, "resume", str(place.log), "--trials", "1") as process:
        _, told = process.communicate(timeout=_LONGEST_S)
    log = read_log(place.log)
    if process.returncode != 0 or _n_twice(log):
        tally.lost += 1
        tally.right -= 1
        tally.problems.append(f"resumed at last: {_n_twice(log)} measured twice; {told}")


def _n_twice(log: Log) -> int:
    trials = [(r.workload, r.steps_json) for r in log.records if not r.final]
    return len(trials) - len(set(trials))


if __name__ == "__main__":
    found = run_kills(*map(int, sys.argv[1:3]))
    print("\n".join([*found.problems, str(found)]))
    sys.exit(found.right < found.tried)
