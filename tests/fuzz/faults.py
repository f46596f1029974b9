"""The n-th call of the system fails, for every n, over the main path of each command.

    python -m tests.fuzz.faults [--most 5] [--call malloc] [COMMAND…]

A library that is preloaded (`faults.c`) counts the calls of one function on files of the folder of
a command, requests of memory (from 32 KiB on), and threads and processes that are begun. Then the
command runs once for every number, and that call fails: a full disk, a disk's error, no handles, no
memory. Whatever is hit: an exit code that is documented and one line, no file of before is lost or
changed, what is written is whole, and nothing else is left. `--most`: so many numbers of each call,
evenly spread. `--places`: one of the calls from each place, which is the function, the kind of
file, and the innermost four lines of Python of autotune: `tune` has 1,250 requests of memory.

`library` and `session` are programs that call what `export` wrote, of whose calls alone each fails:
the program goes on, is told by a status, and computes the same bits when it tries once more.
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
import numpy as np

import autotune
from autotune.errors import AutotuneError
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.library import write_library
from autotune.toolchain import toolchain
from tests.compatibility.make import decoder
from tests.forking import environment

CALLS = ("write", "fsync", "open", "read", "mmap", "rename", "link", "malloc", "clone")
CODES = (0, 1, 2, 3, 4)
TIMEOUT_S = 300
LEAST_BYTES = 32 << 10
PACKAGE = Path(autotune.__file__).parent
COMMANDS: dict[str, tuple[str, ...]] = {
    "distill": ("distill", "log.jsonl", "-o", "out.jsonl"),
    "store": ("distill", "log.jsonl", "--store", "store"),
    "run": ("run", "model.atn", "-o", "out.npz"),
    "compile": ("compile", "model.onnx", "--no-check", "--no-cache", "-o", "out.atn"),
    "cached": ("compile", "model.onnx", "--no-check", "-o", "out.atn"),
    "tune": ("tune", "model.onnx", "--trials", "2", "--no-compare", "--log", "out.jsonl"),
    "resume": ("resume", "log.jsonl", "--trials", "1", "--no-compare"),
    "export": ("export", "model.atn", "-o", "out"),
    "report": ("report", "log.jsonl", "--format", "md", "-o", "out.md"),
}
_LIBRARY = """
import numpy as np, autotune
from autotune.errors import ArtifactError
expected = np.load("expected.npz")
for _ in range(2):
    try:
        models = [autotune.ExportedModel("library/libmodel.so", n) for n in (2, None)]
        found = [model.run({"x": expected["x"]})["y"] for model in models]
    except ArtifactError as error:
        assert "no memory" in str(error) or "file of weights" in str(error), error
        continue
    assert all(np.array_equal(y, expected["y"]) for y in found)
    break
else:
    raise SystemExit("it does not recover")
"""
PROGRAMS: dict[str, tuple[str, ...]] = {
    "library": (sys.executable, "-c", _LIBRARY),
    "session": ("./session",),
}
"""Programs that call a library, `libmodel.so`, whose calls fail alone."""
_SESSION = """
#include "model.h"
#include <stdio.h>
#include <string.h>

static int steps(float *y) {
  model_options options = {.threads = 2};
  model_model *model;
  model_session *session = NULL;
  int64_t ids[3] = {3, 1, 2};
  model_inputs in = {0};
  model_outputs out = {0};
  int status = model_create(&options, &model);
  in.input_ids = ids;
  out.logits = y;
  if (!status) status = model_open(model, &session);
  if (!status) status = model_step(session, 3, &in, &out);
  model_close(session);
  model_destroy(model);
  return status;
}

int main(void) {
  float y[2][24];
  int n_failed = 0, n = 0;
  while (n < 2) {
    int status = steps(y[n]);
    if (!status)
      n++;
    else if (n_failed++ || (status != MODEL_NO_MEMORY && status != MODEL_NO_WEIGHTS))
      return 101;
  }
  return memcmp(y[0], y[1], sizeof y[0]) ? 102 : 0;
}
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One call of one command that fails; number 0: none does. `place`: the first from there."""

    command: str
    call: str
    number: int
    place: str = ""


class Faults:
    """Commands on copies of a folder, with faults. `folder`: as `prepare` fills it."""

    def __init__(self, folder: Path, work: Path, is_by_place: bool = False) -> None:
        self.folder, self.work, self.is_by_place = folder, work, is_by_place
        self.library = work / "faults.so"
        source = Path(__file__).with_suffix(".c")
        flags = ("-shared", "-fPIC", "-O1", "-w")
        subprocess.run(["cc", *flags, "-o", self.library, source, "-ldl"], check=True)

    def run(self, point: Point) -> tuple[int, list[str]]:
        """How many calls there were, and what is wrong."""
        here = self.work / "here"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.folder, here, symlinks=True)
        counter = self.work / "count"
        counter.write_bytes(bytes(16))
        env = environment() | {
            "LD_PRELOAD": str(self.library),
            "FAULT_FOLDER": f"{here}/",
            "FAULT_CALL": point.call,
            "FAULT_NUMBER": str(point.number),
            "FAULT_COUNT": str(counter),
            "FAULT_LEAST": str(LEAST_BYTES),
            "FAULT_PACKAGE": f"{PACKAGE}/",
        }
        if point.place:
            env["FAULT_PLACE"] = point.place.split()[0]
        elif self.is_by_place:
            env["FAULT_PLACES"] = str(self.work / "places")
        words = (sys.executable, "-m", "autotune", *COMMANDS.get(point.command, ()))
        if point.command == "cached":
            env["XDG_CACHE_HOME"] = str(here / "out-cache")
        if point.command in PROGRAMS:
            words = PROGRAMS[point.command]
            env |= {"FAULT_CALLER": "libmodel.so", "FAULT_LEAST": "0"}
        try:
            done = subprocess.run(
                words, cwd=here, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return 0, ["it does not end"]
        count: int = struct.unpack_from("q", counter.read_bytes())[0]
        return count, [*_said(done), *self._left(here, point.command, done.returncode)]

    def points(self, command: str, call: str, most: int) -> list[Point]:
        """Those of a command, at most `most`. Raises RuntimeError where it fails without any."""
        (self.work / "places").unlink(missing_ok=True)
        count, wrong = self.run(Point(command, call, 0))
        if wrong:
            raise RuntimeError(f"{command} without a fault: {wrong}")
        if not self.is_by_place:
            return [Point(command, call, number) for number in numbers(count, most)]
        lines = (self.work / "places").read_text().splitlines() if count else []
        places = [*dict.fromkeys(lines)]
        return [Point(command, call, n, places[n - 1]) for n in numbers(len(places), most)]

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
        if "out-cache" in new:
            new.remove("out-cache")
            yield from _half(here / "out-cache")
        known = {word for word in COMMANDS.get(command, ()) if word.startswith(("out", "store"))}
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
    """A small model, its artifact and its log; libraries, with weights beside one, and programs."""
    import onnx

    from tests.cli.conftest import mlp

    model, log = folder / "model.onnx", folder / "log.jsonl"
    onnx.save(mlp(), model)
    autotune.tune(model, log, trials=2, show="nothing", compare=False)
    compiled = autotune.compile(model, check=False, threads=2)
    compiled.save(folder / "model.atn")
    x = np.linspace(-1, 1, 4 * 8, dtype=np.float32).reshape(4, 8)
    np.savez(folder / "expected.npz", x=x, y=compiled.run({"x": x})["y"])
    _export(compiled.artifact, folder / "library", is_separate=True)
    stateful = autotune.compile(decoder(), check=False, capacity=16, threads=2)
    _export(stateful.artifact, folder / "state", is_separate=False)
    source = folder / "session.c"
    source.write_text(_SESSION, encoding="utf-8")
    flags = ("-Istate", "-Lstate", "-lmodel", "-Wl,-rpath,$ORIGIN/state")
    subprocess.run(["cc", "-o", "session", source.name, *flags], cwd=folder, check=True)


def _export(artifact: Artifact, folder: Path, is_separate: bool) -> None:
    folder.mkdir()
    write_library(artifact, "model", folder, toolchain(None, "x86_64"), is_separate)


def campaign(
    commands: Sequence[str],
    most: int,
    work: Path,
    calls: Sequence[str] = CALLS,
    is_by_place: bool = False,
) -> Iterator[tuple[Point, list[str]]]:
    """Every point, and what is wrong of it."""
    folder = work / "before"
    folder.mkdir()
    prepare(folder)
    faults = Faults(folder, work, is_by_place)
    for command in commands:
        for call in calls:
            for point in faults.points(command, call, most):
                yield point, faults.run(point)[1]


@click.command()
@click.argument("commands", nargs=-1, type=click.Choice([*COMMANDS, *PROGRAMS]))
@click.option("--most", default=10_000, help="Numbers of each call.")
@click.option("--call", "calls", multiple=True, type=click.Choice(CALLS), default=CALLS)
@click.option("--places", is_flag=True, help="One number of each place that calls.")
def main(commands: tuple[str, ...], most: int, calls: tuple[str, ...], places: bool) -> None:
    """Print what is wrong, and the number of points."""
    of: dict[tuple[str, str], int] = {}
    n_wrong = 0
    chosen = commands or [*COMMANDS, *PROGRAMS]
    with tempfile.TemporaryDirectory() as work:
        for point, wrong in campaign(chosen, most, Path(work).resolve(), calls, places):
            kind = point.command, point.call
            of[kind] = of.get(kind, 0) + 1
            print(f"{kind[0]} {kind[1]} {point.number}", end="\r", file=sys.stderr, flush=True)
            n_wrong += bool(wrong)
            for reason in wrong:
                print(f"{point.command}, {point.call} number {point.number}: {reason}", flush=True)
                print(f"  {point.place}" * bool(point.place), flush=True)
    for (command, call), n in of.items():
        print(f"{command:8} {call:7}{n:6}")
    print(f"{sum(of.values())} points of failure, {n_wrong} wrong")
    sys.exit(bool(n_wrong))


if __name__ == "__main__":
    assert os.environ.get("LD_PRELOAD") is None
    main()
