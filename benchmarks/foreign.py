"""CPUs of other architectures, emulated: official cases of ONNX and small networks, judged as here.

    python -m benchmarks.foreign                          # all, writes docs/results/foreign.csv
    python -m benchmarks.foreign --target neoverse-v1 --every 10

What is compiled here runs in the measuring program, under qemu's emulation of a user's process.
Right numbers are shown, no speed. Exit code 1 where something is wrong; what qemu 7.2 ends at
(`vfcvt.rtz`) is lost. Random schedules: `random_schedules --target NAME --runner …`.
"""

from __future__ import annotations

import csv
import shutil
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.cache import program_store
from autotune.codegen.team.team_code import JOB_BYTES, TABLE, TEAM, TEAM_BYTES
from autotune.dtypes import DTYPES
from autotune.measure.far.program import (
    Connection,
    FarCode,
    ProgramEnded,
    connect,
    measuring_program,
)
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.table import ARENA, CONSTANTS, RUN, entry_name
from autotune.network.runtime.arguments import require_input, require_names
from autotune.network.runtime.network_call import rounded
from autotune.target import Target, parse_target
from benchmarks.conformance import official, read
from benchmarks.isolation import outcomes
from benchmarks.outcomes import Case, Compiler, Kind, Outcome, Tell, judge

FILE = Path(__file__).parents[1] / "docs" / "results" / "foreign.csv"
HEAD = ("target", "what", "every", "runner", *map(str, Kind))
NETWORKS = ("simple", "pytorch-converted", "pytorch-operator", "real")
"""Sets of official cases that are networks, or layers as PyTorch exports them."""
TIMEOUT_S = 300.0
_RUNNERS = {
    "cortex-a72": "qemu-aarch64-static -cpu cortex-a72",
    "neoverse-n1": "qemu-aarch64-static -cpu max,sve=off",
    "neoverse-v2": "qemu-aarch64-static -cpu max,sve-default-vector-length=16",
    "neoverse-v1": "qemu-aarch64-static -cpu max,sve-default-vector-length=32",
    "armv8-a-sve512": "qemu-aarch64-static -cpu max,sve-default-vector-length=64",
    "wasm32": "node",
    "rv64gcv": "qemu-riscv64-static -cpu rv64,v=true,vlen=128,elen=64",
    "rv64gcv-zvl256b": "qemu-riscv64-static -cpu rv64,v=true,vlen=256,elen=64",
}
"""The command that emulates a CPU for a target, by its name."""

Array = NDArray[Any]


def runner(name: str) -> str:
    """The emulator of a target. Raises LookupError where it is not installed."""
    command = _RUNNERS[name]
    if shutil.which(command.split()[0]) is None:
        raise LookupError(f"{command.split()[0]} is not installed")
    return command


class FarModel:
    """A network in the memory of a measuring program, with one thread."""

    def __init__(self, connection: Connection, artifact: Artifact) -> None:
        self._connection, self.artifact = connection, artifact
        self._code = FarCode(connection, artifact.image)
        self._held: list[tuple[int, int]] = []
        self._constants = self._place(artifact.constants)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs of one inference by name."""
        artifact, held = self.artifact, len(self._held)
        require_names(artifact.inputs, inputs)
        arena = np.zeros(artifact.arena_bytes + 64, np.uint8)
        bound: dict[int, Array] = {}
        for end in artifact.inputs:
            array = require_input(end, end.numpy_dtype, inputs[end.name])
            if end.window is None:
                bound[end.base] = array
            else:
                window = _window(arena, end)
                window[...] = array.reshape(window.shape)
        for end in artifact.outputs:
            if end.window is None:
                bound[end.base] = np.zeros(end.shape, DTYPES[end.stored].numpy)
        arena_at = self._place(arena)
        places = {slot: self._place(array) for slot, array in bound.items()}
        self._call({ARENA: arena_at, CONSTANTS: self._constants, **places})
        found = self._outputs(bound, places, arena_at, arena.nbytes)
        for place in self._held[held:]:
            self._connection.drop(*place)
        del self._held[held:]
        halves = {e.name: e.numpy_dtype for e in artifact.outputs if e.stored != e.dtype}
        return found | rounded(found, halves)

    def _call(self, slots: Mapping[int, int]) -> None:
        """Run the list of kernels, with as much of a team and a job as one thread reads."""
        artifact = self.artifact
        table, job = np.zeros(artifact.n_bases + 2, np.uint64), np.zeros(JOB_BYTES, np.uint8)
        for slot, address in slots.items():
            table[slot] = address
        words = job.view(np.uint64)
        words[TEAM // 8] = self._place(np.zeros(TEAM_BYTES, np.uint8))
        job_at = self._place(job)
        table[-2] = job_at
        table_at = self._place(table)
        self._connection.write(job_at + TABLE, np.array([table_at], np.uint64))
        self._connection.call(self._code.address(entry_name(RUN, artifact.entry)), table_at, 1)

    def _outputs(
        self, bound: Mapping[int, Array], places: Mapping[int, int], arena_at: int, n_bytes: int
    ) -> dict[str, Array]:
        arena = np.frombuffer(self._connection.read(arena_at, n_bytes), np.uint8)
        read = {
            slot: np.frombuffer(self._connection.read(places[slot], a.nbytes), a.dtype)
            for slot, a in bound.items()
        }
        out: dict[str, Array] = {}
        for end in self.artifact.outputs:
            if end.window is None:
                out[end.name] = read[end.base].reshape(end.shape)
            else:
                window = _window(read.get(end.base, arena), end)
                out[end.name] = window.reshape(end.shape).copy()
        return out

    def _place(self, array: Array) -> int:
        n_bytes = array.nbytes + 64
        address = self._connection.map(n_bytes)
        self._held.append((address, n_bytes))
        self._connection.write(address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return address


def _window(storage: Array, end: Endpoint) -> Array:
    assert end.window is not None
    shape, strides = end.window
    kind = DTYPES[end.stored].numpy
    first = storage.reshape(-1).view(np.uint8)[end.offset :][: kind.itemsize].view(kind)
    return as_strided(first, shape, [s * kind.itemsize for s in strides])


class FarCompiler(Compiler):
    """Compiles for a target that is emulated."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._program = measuring_program(target, program_store())
        self._connection: Connection | None = None

    def runnable(self, artifact: Artifact) -> FarModel:
        """The network in a program that has not ended."""
        if self._connection is None:
            self._connection = connect(runner(self.target.cpu), self._program)
        return FarModel(self._connection, artifact)

    def close(self) -> None:
        """End the program; the next model starts one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_compiler = cache(lambda name: FarCompiler(parse_target(name)))


def judged(item: tuple[str, Case], tell: Tell) -> Outcome:
    """The outcome of a case for a target."""
    name, case = item
    compiler = _compiler(name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = judge(case, compiler, tell)
    if ProgramEnded.__name__ in found.text:
        compiler.close()
        return Outcome(Kind.LOST, found.text)
    return found


@click.command()
@click.option("--target", "names", multiple=True, type=click.Choice([*_RUNNERS]))
@click.option("--every", default=1, help="One case of so many, by a digest of its name.")
@click.option("--only", default="", help="Cases whose name contains this; nothing is written.")
@click.option("--processes", default=2)
def main(names: tuple[str, ...], every: int, only: str, processes: int) -> None:
    """Judge official cases and networks on emulated CPUs."""
    rows, is_bad = [], False
    for name in names or _RUNNERS:
        try:
            runner(name)
        except LookupError as error:
            click.echo(f"{name} is left out: {error}", err=True)
            continue
        for what, cases in _parts(every, only):
            counts: Counter[Kind] = Counter()
            items = [(name, case) for case in cases]
            for index, found in outcomes(f"{__name__}:judged", items, processes, TIMEOUT_S):
                counts[found.kind] += 1
                is_bad |= found.kind in (Kind.WRONG, Kind.UNTYPED)
                if found.kind is not Kind.RIGHT:
                    click.echo(f"{name} {cases[index].name} {found.kind} {found.text}", err=True)
            tally = (str(counts[kind]) for kind in Kind)
            rows.append((name, what, str(every), _RUNNERS[name], *tally))
            click.echo(" ".join(f"{k} {v}" for k, v in zip(HEAD, rows[-1], strict=True)))
    if not only:
        _write(rows)
    sys.exit(1 if is_bad else 0)


def _parts(every: int, only: str) -> Iterator[tuple[str, list[Case]]]:
    """Cases that are right on x86-64 as they are given: the same are to be right elsewhere."""
    right = {r["case"] for r in read() if (r["outcome"], r["form"]) == (Kind.RIGHT, "as given")}
    listed = [
        (kind in NETWORKS, case)
        for kind, case in official()
        if case.name in right and only in case.name and zlib.crc32(case.name.encode()) % every == 0
    ]
    for what, is_network in (("operators", False), ("networks", True)):
        yield what, [case for of_network, case in listed if of_network is is_network]


def _write(rows: list[tuple[str, ...]]) -> None:
    """Rows of other targets stay."""
    known = {(row[0], row[1]): row for row in rows}
    if FILE.exists():
        with FILE.open(encoding="utf-8", newline="") as file:
            old = [tuple(row) for row in csv.reader(file)][1:]
        known = {(row[0], row[1]): row for row in old} | known
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([HEAD, *sorted(known.values())])


if __name__ == "__main__":
    main()
