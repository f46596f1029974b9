"""The best kernels that the search finds, beside the FMA peak measured in the same run.

    python benchmarks/kernels.py [--trials 128] [--threads 1] [--only gemm] [--format json]

Tunes GEMM 1024³ and every convolution of the light ResNet-50, one after the other, with the
product's own policy and measurer: weights cold, activations warm, output compared with the oracle.
The finalists of each task are measured again in turns before the best is printed: the median and,
since a busy host only ever makes a kernel slower, the fastest of all repeats.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import onnx

from autotune.graph.network import build_network
from autotune.measure.measurer import Measurer
from autotune.measure.options import MeasureOptions, flush_bytes
from autotune.measure.peak import fma_peak
from autotune.search.model import Ranker
from autotune.search.policy import Candidate, SketchPolicy
from autotune.target import Target, host_target, parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, mul

RESNET = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
BATCH = 16
FINALISTS = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `gflops` by the median, `peak_gflops` measured right after it."""

    task: str
    gflops: float
    peak_gflops: float
    median_us: float
    fastest_us: float
    trials: int
    seconds: float
    sketch: str

    @property
    def share(self) -> float:
        """Reached over peak, by the median."""
        return self.gflops / self.peak_gflops

    @property
    def fastest_share(self) -> float:
        """Reached over peak, by the fastest repeat."""
        return self.share * self.median_us / self.fastest_us


@click.command()
@click.option("--trials", default=128, show_default=True, help="Most candidates per task.")
@click.option("--threads", default=1, show_default=True)
@click.option("--only", default="", help="Tasks whose name contains this.")
@click.option("--seed", default=0, show_default=True)
@click.option("--target", "target_name", default="native", show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def main(trials: int, threads: int, only: str, seed: int, target_name: str, form: str) -> None:
    """Tune GEMM 1024³ and the convolutions of ResNet-50; print what was reached."""
    target = host_target() if target_name == "native" else parse_target(target_name)
    network = build_network(RESNET)
    options = MeasureOptions(flush_bytes=flush_bytes(target, network.n_constant_bytes, threads))
    tasks = {"gemm 1024x1024x1024": gemm(1024, 1024, 1024)}
    tasks |= {_name(d): d for d in network.tasks.values() if d.flops > 2e7}
    ranker = Ranker(seed, target.n_cores)
    rows = []
    with Measurer(target, threads, options) as measurer:
        for name, dag in tasks.items():
            if only in name:
                rows.append(_tune(name, dag, target, threads, measurer, ranker, trials, seed))
                if form == "text":
                    click.echo(_line(rows[-1]))
    if form == "json":
        click.echo(json.dumps([asdict(r) | {"share": r.share} for r in rows], indent=2))


def gemm(m: int, n: int, k: int) -> ComputeDAG:
    """c[m, n] = Σ a[m, k]·b[k, n] with constant b."""
    i, j, r = Axis("i", m), Axis("j", n), Axis("k", k)
    a, b = placeholder("a", (m, k)), placeholder("b", (k, n), constant=True)
    body = Reduce("sum", mul(a.tensor[i, r], b.tensor[r, j]), (r,))
    return ComputeDAG((a, b, compute("c", (i, j), body)), ("c",))


def _tune(
    name: str,
    dag: ComputeDAG,
    target: Target,
    threads: int,
    measurer: Measurer,
    ranker: Ranker,
    trials: int,
    seed: int,
) -> Row:
    start = time.perf_counter()
    rng = np.random.default_rng([seed, int(dag.key, 16)])
    policy = SketchPolicy(dag, target, threads, ranker, rng)
    timed: list[tuple[float, Candidate]] = []
    done = 0
    while done < trials:
        batch = policy.propose(min(BATCH, trials - done))
        if not batch:
            break
        best_s = min((t for t, _ in timed), default=None)
        results = measurer.measure(dag, [c.steps for c in batch], best_s)
        policy.observe(list(zip(batch, results, strict=True)))
        timed += [(r.latency_s, c) for c, r in zip(batch, results, strict=True) if r.latency_s]
        done += len(batch)
    finalists = [c for _, c in sorted(timed, key=lambda x: x[0])[:FINALISTS]]
    again = measurer.measure_interleaved(dag, [c.steps for c in finalists], 15)
    best, result, winner = min(
        ((r.latency_s or np.inf, r, c) for r, c in zip(again, finalists, strict=True)),
        key=lambda x: x[0],
    )
    return Row(
        task=name,
        gflops=dag.flops / best / 1e9,
        peak_gflops=fma_peak(target, threads),
        median_us=best * 1e6,
        fastest_us=min(result.times_s, default=best) * 1e6,
        trials=done,
        seconds=time.perf_counter() - start,
        sketch=winner.sketch,
    )


def _name(dag: ComputeDAG) -> str:
    inputs = " ".join("x".join(map(str, p.tensor.shape)) for p in dag.placeholders[:2])
    return f"{inputs} -> {'x'.join(map(str, dag[dag.outputs[0]].tensor.shape))} {dag.key[:6]}"


def _line(r: Row) -> str:
    return (
        f"{r.task:52} {r.gflops:7.1f} of {r.peak_gflops:5.1f} GFLOPS {100 * r.share:5.1f} % "
        f"(fastest {100 * r.fastest_share:5.1f} %) {r.median_us:8.1f} us  "
        f"{r.trials:4} trials {r.seconds:5.1f} s  {r.sketch}"
    )


if __name__ == "__main__":
    main()
