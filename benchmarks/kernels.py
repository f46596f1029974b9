"""The best kernels that the search finds, beside the FMA peak measured in the same run.

    python -m benchmarks.kernels [--model vgg19]… [--target x86-64-v3] [--direct] [--weights l3]

Tunes GEMM 1024³ and every compute-bound GEMM and convolution of the models, one after the other,
with the product's own policy and measurer: weights cold, activations warm, output compared with the
oracle. The finalists of each task are measured again in turns before the best is printed, and after
each repeat the FMA peak: clock rates follow temperature, load and neighbours from one moment to the
next, so a share is formed within a repeat, and the median of the shares counts. Every second
multiply-add of that peak loads an operand from L1 (`MultiplyAddPeak`). Repeats that disagree tell
of a neighbour: then all finalists are measured once more, a few times at most, and the calmest
measurement counts, whatever it says. Where a network leaves its weights in memory, the finalists
take turns once more with weights in L3: the difference is what a kernel waits for memory. With
`--weights l3` they are there from the first candidate on: what the search finds when memory has no
say.

Compute-bound is what the roofline says (`autotune.tuner.bound`): arithmetic at the peak takes
longer than moving every byte once, weights from where they lie cold and the rest from L2, at rates
measured first. What that leaves out is named. A task that several models share is tuned once.

GFLOPS count the definition's operations. Winograd's algorithm does fewer, so its share may exceed
100 %; `--direct` keeps it out of the search.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from autotune.cli.option_types import COUNT
from autotune.graph.network import Network
from autotune.measure.build import build_program
from autotune.measure.local import local_measurer
from autotune.measure.measurer import Measurer
from autotune.measure.options import MeasureOptions
from autotune.measure.timing.peak import Peaks, measure_peaks, stay_cached
from autotune.network.compile.aliasing import overwritable
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.search.cost.ranker import Ranker
from autotune.search.policy import Candidate, SketchPolicy
from autotune.target import Target, parse_target
from autotune.te.dag import Compute, ComputeDAG, compute, placeholder, shape_text
from autotune.te.expr import Axis, Binary, Reduce, loads, mul
from autotune.tuner import bound_s
from benchmarks.direct import restrict, uses_winograd
from benchmarks.models import NAMES, model_file, read
from benchmarks.tables import counted, geometric_mean, markdown

BATCH = 16
FINALISTS = 4
ROUNDS = 75
CALM, MOST_TIMES = 1.02, 5
"""Median over fastest tenth of the repeats of an undisturbed program; most measurements else."""
GOOD = 0.95
"""A share of the peak that leaves little to find."""
FORMS = ("text", "markdown", "json")
PLACES = ("network", "l3")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: medians over repeats, after each of which the peak was measured.

    `share`: reached over peak, formed within each repeat. `fastest_share`: the fastest repeat over
    the highest peak. `l3_share`: the highest share of a finalist with weights in L3; None where the
    network leaves them there.
    """

    model: str
    task: str
    gflops: float
    peak_gflops: float
    median_us: float
    fastest_us: float
    trials: int
    seconds: float
    sketch: str
    winograd: bool
    share: float
    fastest_share: float
    l3_share: float | None = None


@dataclass(frozen=True, slots=True)
class Tuner:
    """What the tasks of one model are tuned with.

    `measurer` finds weights where the network leaves them, `beside_l3` in L3.
    """

    model: str
    target: Target
    threads: int
    measurer: Measurer
    beside_l3: Measurer | None
    ranker: Ranker
    seed: int
    direct: bool

    def tune(self, name: str, dag: ComputeDAG, trials: int) -> Row:
        """The best program of `dag` among `trials` candidates, measured again in turns."""
        start = time.perf_counter()
        timed, done = self._search(dag, trials)
        finalists = [c for _, c in sorted(timed, key=lambda x: x[0])[:FINALISTS]]
        again = in_calm(self.measurer, dag, [c.steps for c in finalists])
        best, result, winner = min(
            ((r.latency_s or np.inf, r, c) for r, c in zip(again, finalists, strict=True)),
            key=lambda x: x[0],
        )
        share, fastest_share = shares(dag.flops, result)
        return Row(
            model=self.model,
            task=name,
            gflops=dag.flops / best * 1e-9,
            peak_gflops=statistics.median(result.peaks) * 1e-9,
            median_us=best * 1e6,
            fastest_us=min(result.times_s) * 1e6,
            trials=done,
            seconds=time.perf_counter() - start,
            sketch=winner.sketch,
            winograd=uses_winograd(winner.steps),
            share=share,
            fastest_share=fastest_share,
            l3_share=self._l3_share(dag, finalists),
        )

    def _l3_share(self, dag: ComputeDAG, finalists: Sequence[Candidate]) -> float | None:
        if self.beside_l3 is None:
            return None
        results = in_calm(self.beside_l3, dag, [c.steps for c in finalists])
        return max((shares(dag.flops, r)[0] for r in results if r.latency_s), default=None)

    def _search(self, dag: ComputeDAG, trials: int) -> tuple[list[tuple[float, Candidate]], int]:
        """Seconds and candidate of every success, and how many were tried."""
        rng = np.random.default_rng([self.seed, int(dag.key, 16)])
        policy = SketchPolicy(dag, self.target, self.threads, self.ranker, rng)
        if self.direct:
            restrict(policy)
        timed: list[tuple[float, Candidate]] = []
        done = 0
        while done < trials and (batch := policy.propose(min(BATCH, trials - done))):
            best_s = min((t for t, _ in timed), default=None)
            results = self.measurer.measure(dag, [c.steps for c in batch], best_s)
            policy.observe(list(zip(batch, results, strict=True)))
            timed += [(r.latency_s, c) for c, r in zip(batch, results, strict=True) if r.latency_s]
            done += len(batch)
        return timed, done


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(NAMES), default=("resnet50",))
@click.option("--trials", type=COUNT, default=128, show_default=True, help="Most per task.")
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--only", default="", help="Tasks whose name contains this.")
@click.option("--direct", is_flag=True, help="Without Winograd's algorithm.")
@click.option(
    "--weights",
    type=click.Choice(PLACES),
    default="network",
    show_default=True,
    help="Where weights are: where the network leaves them, or in L3.",
)
@click.option("--seed", default=0, show_default=True)
@click.option("--target", "target_name", default="native", show_default=True)
@click.option("--format", "form", type=click.Choice(FORMS), default="text", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("logs/networks/models"))
def main(
    models: tuple[str, ...],
    trials: int,
    threads: int,
    only: str,
    direct: bool,
    weights: str,
    seed: int,
    target_name: str,
    form: str,
    folder: Path,
) -> None:
    """Tune GEMM 1024³ and the compute-bound tasks of MODELS; print what was reached."""
    target = parse_target(target_name)
    ranker = Ranker(seed)
    seen: set[str] = set()
    rows: list[Row] = []
    for model in models:
        network = read(model_file(model, folder))
        n_bytes = network.n_constant_bytes
        evict = weights != "l3" and not stay_cached(target, 1, n_bytes, network.flops)
        peaks = measure_peaks(target, threads, evict)
        build = partial(build_program, overwritten=overwritable(network))
        found, near = (
            local_measurer(target, threads, MeasureOptions(evict=state, beside_peak=True), build)
            for state in (evict, False)
        )
        with found, near:
            beside_l3 = near if evict else None
            tuner = Tuner(model, target, threads, found, beside_l3, ranker, seed, direct)
            for name, dag in _tasks(model, network, peaks):
                if only.lower() in name.lower() and dag.key not in seen:
                    seen.add(dag.key)
                    rows.append(tuner.tune(name, dag, trials))
                    click.echo(_line(rows[-1]), err=form != "text")
    if form == "json":
        click.echo(json.dumps([asdict(r) for r in rows], indent=2))
    elif rows:
        click.echo(kernels_table(rows) if form == "markdown" else _summary(rows))


def _tasks(model: str, network: Network, peaks: Peaks) -> Iterator[tuple[str, ComputeDAG]]:
    """GEMM 1024³, then what the roofline calls compute-bound; says what it leaves out."""
    called = {call.task: network.tasks[call.task] for call in network.calls}
    products = {key: dag for key, dag in called.items() if is_product(dag)}
    names = {k: f"{network.labels[k]} {shape_text(d)} {k[:6]}" for k, d in products.items()}
    bound = {key: dag for key, dag in products.items() if is_compute_bound(dag, peaks)}
    click.echo(
        f"{model}: peak {peaks.flops_per_s / 1e9:.1f} GFLOPS, L2 {peaks.warm_bytes_per_s / 1e9:.1f}"
        f" GB/s, cold weights {peaks.cold_bytes_per_s / 1e9:.1f} GB/s; {len(bound)} of "
        f"{len(products)} GEMMs and convolutions are compute-bound",
        err=True,
    )
    for key in products:
        if key not in bound:
            click.echo(f"left out, bound by memory: {names[key]}", err=True)
    yield "GEMM 1024x1024x1024", gemm(1024, 1024, 1024)
    yield from ((names[key], dag) for key, dag in bound.items())


def is_compute_bound(dag: ComputeDAG, peaks: Peaks) -> bool:
    """Whether its arithmetic at the peak takes longer than moving its bytes once."""
    return bound_s(dag, peaks, sketches=()) <= dag.flops / peaks.flops_per_s


def in_calm(measurer: Measurer, dag: ComputeDAG, programs: Sequence[Steps]) -> list[MeasureResult]:
    """Programs timed in turns, and again while something disturbs them: the calmest results."""
    found: list[list[MeasureResult]] = []
    while len(found) < MOST_TIMES and (not found or unrest(found[-1]) > CALM):
        found.append(measurer.measure_interleaved(dag, programs, ROUNDS))
    return min(found, key=unrest)


def unrest(results: Sequence[MeasureResult]) -> float:
    """Of the best program, the median of the repeats over the fastest tenth of them."""
    timed = [r for r in results if r.latency_s]
    if not timed:
        return math.inf
    times_s = min(timed, key=lambda r: r.latency_s or math.inf).times_s
    return statistics.median(times_s) / statistics.quantiles(times_s, n=10)[0]


def shares(flops: float, result: MeasureResult) -> tuple[float, float]:
    """Reached over peak: the median over repeats, and the fastest repeat over the highest peak."""
    reached = [flops / t for t in result.times_s]
    pairs = zip(reached, result.peaks, strict=True)
    return statistics.median(r / p for r, p in pairs), max(reached) / max(result.peaks)


def gemm(m: int, n: int, k: int) -> ComputeDAG:
    """c[m, n] = Σ a[m, k]·b[k, n] with constant b."""
    i, j, r = Axis("i", m), Axis("j", n), Axis("k", k)
    a, b = placeholder("a", (m, k)), placeholder("b", (k, n), constant=True)
    body = Reduce("sum", mul(a.tensor[i, r], b.tensor[r, j]), (r,))
    return ComputeDAG((a, b, compute("c", (i, j), body)), ("c",))


def is_product(dag: ComputeDAG) -> bool:
    """Whether a task sums products of two tensors: a GEMM or a convolution."""
    return any(_sums_products(op) for op in dag.computes)


def _sums_products(op: Compute) -> bool:
    match op.body:
        case Reduce("sum", Binary("mul", a, b), _):
            factors = [{load.tensor.name for load in loads(x)} for x in (a, b)]
            return all(factors) and factors[0] != factors[1]
        case _:
            return False


def kernels_table(rows: Sequence[Row]) -> str:
    """A Markdown table and its summary."""
    head = (
        "task",
        "model",
        "GFLOPS",
        "peak",
        "share",
        "fastest",
        "in L3",
        "µs",
        "trials",
        "structure",
    )
    cells = [
        (
            r.task,
            r.model,
            f"{r.gflops:.1f}",
            f"{r.peak_gflops:.1f}",
            _percent(r.share),
            _percent(r.fastest_share),
            "–" if r.l3_share is None else _percent(r.l3_share),
            f"{r.median_us:.1f}",
            str(r.trials),
            r.sketch,
        )
        for r in rows
    ]
    return f"{markdown(head, cells)}\n\n{_summary(rows)}"


def _summary(rows: Sequence[Row]) -> str:
    """Shares of direct programs and of Winograd's apart: they do not count the same operations."""
    lines = []
    for winograd, what in ((False, "direct"), (True, "by Winograd's algorithm")):
        group = [r for r in rows if r.winograd is winograd]
        near = [replace(r, share=r.l3_share) for r in group if r.l3_share is not None]
        lines += [_spread(what, group)] if group else []
        lines += [_spread(f"{what}, weights in L3", near)] if near else []
    peaks = [r.peak_gflops for r in rows]
    lines.append(f"* peak from {min(peaks):.1f} to {max(peaks):.1f} GFLOPS in this run")
    return "\n".join(lines)


def _spread(what: str, rows: Sequence[Row]) -> str:
    worst = min(rows, key=lambda r: r.share)
    mean = geometric_mean(r.share for r in rows)
    good = sum(r.share >= GOOD for r in rows)
    return (
        f"* {counted(len(rows), 'task')} {what}: geometric mean {_percent(mean)}, "
        f"{good} at {100 * GOOD:.0f} % or more, lowest {_percent(worst.share)} ({worst.task})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _line(r: Row) -> str:
    near = "" if r.l3_share is None else f", weights in L3 {_percent(r.l3_share)}"
    return (
        f"{r.task:66} {r.gflops:7.1f} of {r.peak_gflops:5.1f} GFLOPS {_percent(r.share):>7} "
        f"(fastest {_percent(r.fastest_share)}{near}) {r.median_us:8.1f} us  "
        f"{r.trials:4} trials {r.seconds:5.1f} s  {r.sketch}"
    )


if __name__ == "__main__":
    main()
