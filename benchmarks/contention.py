"""Latencies on a machine that others use, of many callers and in quotas, beside other runtimes.

    python -m benchmarks.contention --machine Z [MODEL]… [--only neighbours]… [--time 90s]

MODEL: `mobilenet_v2`, `resnet50`, `bert` (the encoder of BERT-base, 128 tokens), `token` (of a
decoder), which are measured without any, or an ONNX file of static shapes. Every runtime is a
process of its own, untuned, at as many threads as there are cores, and all take turns. Sections:

neighbours  beside 0, 1, 2, 4 other processes that compute without end
quota       with half a CPU, one, one and a half: in a cgroup where one can be made, else imitated
            by SIGSTOP and SIGCONT, which is noted; of ours also every number of threads
callers     1, 2, 4, 8 threads that call one model at once
paced       ten requests a second: processor time beyond that of the work, as a share of one CPU
memory      proportional set size of one process and of four, which run the same file

Rows are added to `docs/results/contention.csv`. `--time`: of all measurements of a model; to
compile it and to start the processes takes about as long again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

from autotune.cli.option_types import DURATION
from autotune.machine import usable_cpus
from autotune.network.bench.bench import percentile
from benchmarks import memory, models, sparse
from benchmarks.contention_sides import PACE_S, Process, Side, cgroup_of, neighbours, stopped
from benchmarks.decoder import token
from benchmarks.results import FOLDER, append_row

SECTIONS = ("neighbours", "quota", "callers", "paced", "memory")
NAMES = ("mobilenet_v2", "resnet50", "bert", "token")
RUNTIMES = ("autotune", "onnxruntime", "openvino")
FIELDS = (
    "machine", "model", "section", "level", "runtime", "runs", "mean_ms", "p50_ms", "p99_ms",
    "per_s", "share_pct", "one_mb", "four_mb", "note",
)  # fmt: skip
NEIGHBOURS, QUOTAS, CALLERS = (0, 1, 2, 4), (0.5, 1.0, 1.5), (1, 2, 4, 8)
ROUNDS = 3
MOST_COPIES_BYTES = 4 << 30
"""For sessions of their own of all callers, each with its copy of the weights."""

Row = dict[str, str]


@dataclass(frozen=True)
class Plan:
    """A folder with `model.onnx`, `model.atn` and `inputs.npz`; seconds for each row of a table."""

    folder: Path
    cell_s: float

    def in_turns(
        self, sides: Sequence[Side], kind: str = "calls", cgroup: str = "", quota: float = 0.0
    ) -> list[Row]:
        """Rows of sides that take turns."""
        with ExitStack() as stack:
            processes = []
            for side in sides:
                processes.append(Process(side, self.folder, cgroup))
                stack.callback(processes[-1].end)
                if quota:
                    stack.enter_context(stopped(processes[-1].pid, quota))
            return self.asked(processes, kind)

    def asked(self, processes: Sequence[Process], kind: str) -> list[Row]:
        """Rows of processes that take turns."""
        found: list[list[dict[str, Any]]] = [[] for _ in processes]
        for _ in range(ROUNDS if kind == "calls" else 1):
            for answers, process in zip(found, processes, strict=True):
                seconds = self.cell_s / ROUNDS if kind == "calls" else self.cell_s
                answers.append(process.ask(f"{kind} {seconds}"))
        return [
            {"runtime": process.side.name, **_cells(answers)}
            for answers, process in zip(found, processes, strict=True)
        ]

    def neighbours(self) -> Iterator[Row]:
        """Beside processes that compute without end."""
        with ExitStack() as stack:
            processes = [Process(Side(name), self.folder) for name in RUNTIMES]
            for process in processes:
                stack.callback(process.end)
            for n in NEIGHBOURS:
                with neighbours(n):
                    yield from ({"level": str(n)} | row for row in self.asked(processes, "calls"))

    def quota(self) -> Iterator[Row]:
        """With less than all CPUs: ours as it chooses its threads, and with any number of them."""
        sides = [Side(name) for name in RUNTIMES]
        sides += [Side("autotune", n) for n in range(1, len(usable_cpus()) + 1)]
        for cpus in QUOTAS:
            with cgroup_of(cpus) as (cgroup, note):
                rows = self.in_turns(sides, "calls", cgroup, 0.0 if cgroup else cpus)
                yield from ({"level": f"{cpus:g}", "note": note} | row for row in rows)

    def callers(self) -> Iterator[Row]:
        """Threads that call one model at once."""
        n_bytes = 2 * (self.folder / "model.onnx").stat().st_size  # it keeps them in its order too
        for n in CALLERS:
            names = [*RUNTIMES]
            if n * n_bytes <= MOST_COPIES_BYTES:
                names.insert(2, "onnxruntime:per-caller")
            sides = [Side(name, callers=n) for name in names]
            yield from ({"level": str(n)} | row for row in self.in_turns(sides))

    def paced(self) -> Iterator[Row]:
        """Ten requests a second."""
        rows = self.in_turns([Side(name) for name in RUNTIMES], "paced")
        yield from ({"level": f"{1 / PACE_S:g} per second"} | row for row in rows)

    def memory(self) -> Iterator[Row]:
        """One process, and four of the same file."""
        for name, program in PROGRAMS.items():
            path = self.folder / ("model.atn" if name == "autotune" else "model.onnx")
            one_mb, four_mb = (held_mb(program, path, n) for n in (1, 4))
            cells = {"one_mb": f"{one_mb:.0f}", "four_mb": f"{four_mb:.0f}"}
            yield {"level": "4 processes", "runtime": name} | cells


N_CELLS = {
    "neighbours": len(NEIGHBOURS) * len(RUNTIMES),
    "quota": len(QUOTAS) * (len(RUNTIMES) + len(usable_cpus())),
    "callers": len(CALLERS) * (len(RUNTIMES) + 1),
    "paced": len(RUNTIMES),
    "memory": 0,
}
"""Rows of every section that are measured for a time."""


def _cells(answers: Sequence[Mapping[str, Any]]) -> Row:
    times_s = [t for answer in answers for t in answer["times_s"]]
    mean_s = float(np.mean(times_s))
    times = {
        "mean_ms": mean_s,
        "p50_ms": percentile(times_s, 50),
        "p99_ms": percentile(times_s, 99),
    }
    seconds = sum(answer["seconds"] for answer in answers)
    found = {"runs": str(len(times_s))} | {k: f"{1e3 * v:.3f}" for k, v in times.items()}
    found["per_s"] = f"{sum(answer['n_done'] for answer in answers) / seconds:.1f}"
    if "beyond_s" in answers[0]:
        beyond_s = sum(answer["beyond_s"] for answer in answers)
        found["share_pct"] = f"{100 * beyond_s / seconds:.2f}"
    return found


_OPENVINO = """
import sys
import numpy as np
sys.modules["openvino_telemetry"] = None
import openvino
settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
settings["INFERENCE_NUM_THREADS"] = int(sys.argv[2])
model = openvino.Core().compile_model(sys.argv[1], "CPU", settings)
inputs = [np.zeros(port.shape, port.element_type.to_dtype()) for port in model.inputs]
for _ in range(10):
    model(inputs)
"""
_WAITING = "\nprint(flush=True)\ninput()\n"
PROGRAMS = {"autotune": memory.AUTOTUNE, "onnxruntime": memory.ONNXRUNTIME, "openvino": _OPENVINO}


def held_mb(program: str, path: Path, n: int) -> float:
    """Proportional set size of `n` processes together, while all have the model of a file."""
    command = [sys.executable, "-c", program + _WAITING + memory.PSS]
    command += [str(path), str(len(usable_cpus()))]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(n)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    rollups = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
    for process in processes:
        process.communicate("\n")
    return sum(int(text.split("Pss:")[1].split()[0]) for text in rollups) * 1024e-6


def prepare(name: str, folder: Path) -> str:
    """Write the files of a `Plan`, and give the name of the model."""
    from autotune.api.compile.compiling import compile as compile_model
    from autotune.graph.reader.onnx_reader import prepare_model
    from autotune.network.runtime.runtime import random_inputs

    path = folder / "model.onnx"
    if name == "bert":
        onnx.save(sparse.encoder(sparse.DENSE, 12), path)
    elif name == "token":
        onnx.save(token(), path)
    else:
        source = models.model_file(name, folder) if name in NAMES else Path(name)
        onnx.save(prepare_model(source, random_weights=models.lacks_weights(source)), path)
    artifact = compile_model(path, threads=len(usable_cpus()), check=False).artifact
    artifact.save(folder / "model.atn")
    np.savez(folder / "inputs.npz", allow_pickle=False, **random_inputs(artifact.inputs))
    return Path(name).stem


@click.command()
@click.argument("names", nargs=-1)
@click.option("--machine", default="", help="What the rows call this machine.")
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Sections.  [all]")
@click.option("--time", "time_s", type=DURATION, default="90s", help="Per model.  [90s]")
@click.option("-o", "output", type=click.Path(path_type=Path), default=FOLDER / "contention.csv")
def main(
    names: tuple[str, ...],
    machine: str,
    only: tuple[str, ...],
    time_s: float,
    output: Path,
) -> None:
    """Measure models, and add rows to the table."""
    sections = only or SECTIONS
    cell_s = time_s / max(1, sum(N_CELLS[section] for section in sections))
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as place:
            model = prepare(name, Path(place))
            plan = Plan(Path(place), cell_s)
            for section in sections:
                for row in getattr(plan, section)():
                    row = {"machine": machine, "model": model, "section": section} | row
                    append_row(output, FIELDS, row)
                    click.echo(", ".join(f"{k} {row[k]}" for k in FIELDS if row.get(k)))


if __name__ == "__main__":
    main()
