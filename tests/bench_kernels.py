"""`make bench`: best kernels found for GEMM 1024³ and ResNet-50 convolutions, beside the peak.

Every task is tuned alone with at most `--trials` candidates; the FMA peak is measured anew before
each, so that a noisy neighbour lowers both sides of the ratio. Weights are cold, as in a network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from autotune.cli.console import columns, put, say
from autotune.cli.models import model_path, read_network, shape_text
from autotune.measure.measurer import Measurer
from autotune.measure.options import MeasureOptions, flush_bytes
from autotune.measure.peak import fma_peak
from autotune.records import Entry
from autotune.search.model import Ranker
from autotune.search.policy import SketchPolicy
from autotune.target import Target, host_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, mul
from autotune.tuner import Budget, Run, Scheduler, Session, SessionFinished, TuningTask
from autotune.units import format_seconds, gflops

BATCH = 16
HEAD = ("task", "weight", "best", "GFLOPS", "peak", "% of peak", "trials", "seconds")


class Nowhere:
    """A benchmark keeps no log."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Forget."""

    def sync(self) -> None:
        """Nothing to wait for."""


@dataclass(frozen=True)
class Bench:
    """What all tasks share."""

    target: Target
    n_threads: int
    n_trials: int
    ranker: Ranker
    measurer: Measurer

    def best(self, task: TuningTask) -> SessionFinished:
        """Tune one task alone."""

        def policy_of(task: TuningTask) -> SketchPolicy:
            rng = np.random.default_rng([0, int(task.key, 16)])
            return SketchPolicy(task.dag, self.target, self.n_threads, self.ranker, rng)

        session = Session(
            run=Run("bench", self.target.key, self.n_threads),
            tasks=[task],
            policy_of=policy_of,
            measurer=self.measurer,
            sink=Nowhere(),
            budget=Budget(trials=self.n_trials),
            scheduler=Scheduler([task], BATCH, patience=self.n_trials),
            clock=time.monotonic,
            batch=BATCH,
        )
        *_, last = session.events()
        assert isinstance(last, SessionFinished)
        return last

    def row(self, name: str, weight: int, dag: ComputeDAG) -> tuple[str, ...]:
        """Tune one task and print a line of the table."""
        peak = fma_peak(self.target, self.n_threads)
        found = self.best(TuningTask(dag.key, dag, 1, name))
        rate = gflops(dag.flops, found.total_s or None) or 0.0
        cells = (
            f"{format_seconds(found.total_s or None)}",
            f"{rate:.1f}",
            f"{peak:.1f}",
            f"{100 * rate / peak:.1f}",
            str(found.n_trials),
            f"{found.elapsed_s:.0f}",
        )
        say(f"{name}: {rate:.1f} GFLOPS, {100 * rate / peak:.1f} % of {peak:.1f}")
        return name, str(weight), *cells


def gemm(n: int) -> ComputeDAG:
    """The product of an n x n activation and an n x n constant."""
    a, b = placeholder("a", (n, n)), placeholder("b", (n, n), constant=True)
    i, j, k = Axis("i", n), Axis("j", n), Axis("k", n)
    body = Reduce("sum", mul(a.tensor[i, k], b.tensor[k, j]), (k,))
    return ComputeDAG((a, b, compute("c", (i, j), body)), ("c",))


@click.command()
@click.option("--trials", default=128, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--only", default="", help="Only tasks with this text in their name.")
def main(trials: int, threads: int, only: str) -> None:
    """Tune every kernel alone and compare it with the FMA peak of the same moment."""
    target = host_target()
    network = read_network(model_path(None), {})
    tasks = {"GEMM 1024x1024x1024": (1, gemm(1024))} | {
        f"{network.labels[key]} {shape_text(network.tasks[key])}": (weight, network.tasks[key])
        for key, weight in network.weights.items()
        if "Conv" in network.labels[key]
    }
    flush = flush_bytes(target, network.n_constant_bytes, threads)
    with Measurer(target, threads, MeasureOptions(flush_bytes=flush)) as measurer:
        bench = Bench(target, threads, trials, Ranker(0, 1), measurer)
        rows = [
            bench.row(name, weight, dag) for name, (weight, dag) in tasks.items() if only in name
        ]
    put(columns(HEAD, rows, right=HEAD[1:]))
    put(f"{target.cpu}, {threads} thread(s), at most {trials} trials each, weights cold")


if __name__ == "__main__":
    main()
