"""The n-th call of the system fails, for every n, over the main path of each command.

    python -m tests.fuzz.faults [--most 5] [COMMAND…]

A library that is preloaded (`faults.c`) counts the calls of one function on files of the folder of
a command. Then the command runs once for every number, and that call fails: a full disk, a disk's
error, no handles, no memory. Whatever is hit: an exit code that is documented and one line, no file
of before is lost or changed, what is written is whole, and nothing else is left. `--most`: so many
numbers of each call, evenly spread.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import autotune
from autotune.errors import AutotuneError
from tests.forking import environment

CALLS = ("write", "fsync", "open", "read", "mmap", "rename", "link")
CODES = (0, 1, 2, 4)
TIMEOUT_S = 300
COMMANDS: dict[str, tuple[str, ...]] = {
    "distill": ("distill", "log.jsonl", "-o", "out.jsonl"),
    "store": ("distill", "log.jsonl", "--store", "store"),
    "run": ("run", "model.atn", "-o", "out.npz"),
    "compile": ("compile", "model.onnx", "--no-check", "--no-cache", "-o", "out.atn"),
    "tune": ("tune", "model.onnx", "--trials", "2", "--no-compare", "--log", "out.jsonl"),
    "resume": ("resume", "log.jsonl", "--trials", "1", "--no-compare"),
    "export": ("export", "model.atn", "-o", "out"),
    "report": ("report", "log.jsonl", "--format", "md", "-o", "out.md"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One call of one command that fails; number 0: none does."""

    command: str
    call: str
    number: int


class Faults:
    """Commands on copies of a folder, with faults. `folder`: as `prepare` fills it."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        self.library = work / "faults.so"
        source = Path(__file__).with_suffix(".c")
        flags = ("-shared", "-fPIC", "-O1", "-w")
        subprocess.run(["cc", *flags, "-o", self.library, source, "-ldl"], check=True)

    def run(self, point: Point) -> tuple[int, list[str]]:
        """How many calls there were, and what is wrong."""
        here = self.work / "here"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.folder, here)
        counter = self.work / "count"
        counter.write_bytes(bytes(8))
        env = environment() | {
            "LD_PRELOAD": str(self.library),
            "FAULT_FOLDER": f"{here}/",
            "FAULT_CALL": point.call,
            "FAULT_NUMBER": str(point.number),
            "FAULT_COUNT": str(counter),
        }
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *COMMANDS[point.command]],
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        count: int = struct.unpack("q", counter.read_bytes())[0]
        return count, [*_said(done), *self._left(here, point.command, done.returncode)]

    def _left(self, here: Path, command: str, code: int) -> Iterator[str]:
        """What is lost, changed, half or left over."""
        log = "log.jsonl"
        for path in self.folder.iterdir():
            now = here / path.name
            if not now.exists():
                yield f"{path.name} is gone"
            elif path.is_file() and now.read_bytes() != path.read_bytes():
                if command != "resume" or path.name != log:
                    yield f"{path.name} has changed"
                elif not now.read_bytes().startswith(path.read_bytes()):
                    yield f"{path.name} has lost records"
        new = {p.name for p in here.iterdir()} - {p.name for p in self.folder.iterdir()}
        known = {word for word in COMMANDS[command] if word.startswith(("out", "store"))}
        saved = {name for name in new if name.endswith("-saved.jsonl")}
        if new - known - saved:
            yield f"left over: {sorted(new - known - saved)}"
        yield from (reason for name in sorted(new & known) for reason in _half(here / name))
        if code == 0 and not known <= new:
            yield f"exit code 0 without {sorted(known - new)}"


def _said(done: subprocess.CompletedProcess[str]) -> Iterator[str]:
    if done.returncode not in CODES:
        yield f"exit code {done.returncode}: {done.stderr[-300:]}"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    if "Traceback" in done.stderr or "this is a bug" in done.stderr:
        yield f"a traceback: {done.stderr[-600:]}"
    if len(errors) != (done.returncode != 0):
        yield f"exit code {done.returncode} with {len(errors)} lines of error"


def _half(path: Path) -> Iterator[str]:
    """A reason where a file cannot be read."""
    try:
        if path.suffix == ".atn":
            autotune.load(path)
        elif path.suffix == ".jsonl":
            autotune.read_log(path)
        elif path.is_dir():
            yield from (
                f"{p.name} is a file of a moment" for p in path.rglob("*") if p.name.startswith(".")
            )
        elif not path.stat().st_size:
            yield f"{path.name} is empty"
    except (AutotuneError, OSError) as error:
        yield f"{path.name} is half: {error}"


def numbers(count: int, most: int) -> list[int]:
    """From 1 to `count`, or so many of them, evenly spread."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + (count - 1) * i // max(most - 1, 1) for i in range(most)})


def prepare(folder: Path) -> None:
    """A small model, its artifact and its log."""
    import onnx

    from tests.cli.conftest import mlp

    model, log = folder / "model.onnx", folder / "log.jsonl"
    onnx.save(mlp(), model)
    autotune.tune(model, log, trials=2, show="nothing", compare=False)
    autotune.compile(model, check=False).save(folder / "model.atn")


def campaign(
    commands: Sequence[str], most: int, work: Path, calls: Sequence[str] = CALLS
) -> Iterator[tuple[Point, list[str]]]:
    """Every point, and what is wrong of it."""
    folder = work / "before"
    folder.mkdir()
    prepare(folder)
    faults = Faults(folder, work)
    for command in commands:
        for call in calls:
            count, wrong = faults.run(Point(command, call, 0))
            if wrong:
                raise RuntimeError(f"{command} without a fault: {wrong}")
            for number in numbers(count, most):
                point = Point(command, call, number)
                yield point, faults.run(point)[1]


@click.command()
@click.argument("commands", nargs=-1, type=click.Choice([*COMMANDS]))
@click.option("--most", default=10_000, help="Numbers of each call.")
def main(commands: tuple[str, ...], most: int) -> None:
    """Print what is wrong, and the number of points."""
    n_points = n_wrong = 0
    with tempfile.TemporaryDirectory() as work:
        for point, wrong in campaign(commands or [*COMMANDS], most, Path(work).resolve()):
            n_points += 1
            n_wrong += bool(wrong)
            for reason in wrong:
                print(f"{point.command}, {point.call} number {point.number}: {reason}", flush=True)
    print(f"{n_points} points of failure, {n_wrong} wrong")
    sys.exit(bool(n_wrong))


if __name__ == "__main__":
    assert os.environ.get("LD_PRELOAD") is None
    main()
