"""Record unbiased spaces: candidates of every task of a network, drawn uniformly and measured.

A log of `autotune tune` holds what its policy found promising. Here a structure is drawn uniformly
among those of the task, then a valid row of it, and everything drawn is measured, by the product's
own session and measurer; so the result is an ordinary log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np

from autotune.api.bindings import Variant
from autotune.api.tune.headers import network_workloads, new_header
from autotune.api.tune.machines import local_target
from autotune.api.tune.tuning import measure_options
from autotune.config import TuneConfig
from autotune.measure.build import build_program
from autotune.measure.local import local_measurer
from autotune.records import Header, Journal, Log
from autotune.result import MeasureResult
from autotune.search.cost.analysis import analyse
from autotune.search.policy import Candidate, MeasuredSchedule
from autotune.search.sketch import generate_sketches
from autotune.search.space import Sketch
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.tuner import BatchMeasured, Budget, CandidateMeasurer, Run, Session, Sink, TuningTask
from benchmarks.models import read
from benchmarks.search_policies import BATCH, InTurns

_DRAWS = 1024
"""Rows drawn at a time, of which 3 % may be valid; a structure that gives nothing new is done."""


class Uniform:
    """Candidates without preference, each program once; nothing is learnt."""

    def __init__(
        self, dag: ComputeDAG, target: Target, n_trials: int, rng: np.random.Generator
    ) -> None:
        self._dag, self._target, self._rng = dag, target, rng
        self._left = n_trials
        self._sketches = generate_sketches(dag, target)
        self._known: dict[str, set[bytes]] = {s.name: set() for s in self._sketches}
        self._drawn: dict[str, list[Candidate]] = {s.name: [] for s in self._sketches}

    def propose(self, n: int) -> list[Candidate]:
        """Up to `n` candidates, until all trials are spent."""
        found: list[Candidate] = []
        while self._sketches and len(found) < min(n, self._left):
            sketch = self._sketches[int(self._rng.integers(len(self._sketches)))]
            drawn = self._drawn[sketch.name] or self._draw(sketch)
            if drawn:
                found.append(drawn.pop())
            else:
                self._sketches.remove(sketch)
        self._left -= len(found)
        return found

    def observe(self, results: Sequence[tuple[MeasuredSchedule, MeasureResult]]) -> None:
        """Learn nothing."""

    def _draw(self, sketch: Sketch) -> list[Candidate]:
        """Programs of a structure that were not drawn before; what is taken from it is gone."""
        rows = sketch.sample(_DRAWS, self._rng)
        found = analyse(self._dag, sketch, rows, self._target)
        drawn, known = self._drawn[sketch.name], self._known[sketch.name]
        for i in np.flatnonzero(found.valid):
            if (program := found.identity[i].tobytes()) not in known:
                known.add(program)
                drawn.append(Candidate(sketch.bind(rows[i]), sketch.name))
        return drawn


def uniform_session(
    header: Header,
    tasks: Sequence[TuningTask],
    n_trials: int,
    measurer: CandidateMeasurer,
    sink: Sink,
    clock: Callable[[], float],
) -> Session:
    """A session that measures `n_trials` candidates of every task, in turns."""

    def policy_of(task: TuningTask) -> Uniform:
        rng = np.random.default_rng([header.seed, int(task.key, 16)])
        return Uniform(task.dag, header.target, n_trials, rng)

    return Session(
        run=Run(header.run_id, header.target.key, header.n_threads),
        tasks=tasks,
        policy_of=policy_of,
        measurer=measurer,
        sink=sink,
        budget=Budget(),
        scheduler=InTurns(tasks, BATCH, patience=1),
        clock=clock,
        batch=BATCH,
        finals=False,
    )


def record(model: Path, path: Path, n_trials: int, config: TuneConfig) -> None:
    """Measure `n_trials` candidates of every task of a model; the log must not exist."""
    network = read(model)
    workloads = network_workloads([network])
    target, variant = local_target(config.target), Variant({})
    header = new_header([network], str(model.resolve()), [variant], target, config)
    log = Log(headers=(header,), workloads={w.key: w for w in workloads})
    tasks = [TuningTask(w.key, w.dag, network.weights[w.key], w.label) for w in workloads]
    labels = {task.key: task.label for task in tasks}
    options = measure_options(log, config)
    build = partial(build_program, overwritten=header.overwritten)
    with (
        Journal.create(path, header, workloads) as journal,
        local_measurer(header.target, header.n_threads, options, build) as measurer,
    ):
        session = uniform_session(header, tasks, n_trials, measurer, journal, time.monotonic)
        for event in session.events():
            if isinstance(event, BatchMeasured):
                done = f"{event.session_trials} of {n_trials * len(tasks)}"
                say = f"{done}, {event.elapsed_s:.0f} s: {labels[event.task]} {event.task[:6]}"
                click.echo(say, err=True)
