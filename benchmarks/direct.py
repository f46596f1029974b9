"""The same without Winograd's algorithm: what it saves in time, and what it costs in accuracy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.graph.reader.onnx_reader import prepare_model
from autotune.network.check.check import check_onnxruntime
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.records import best_for, read_log
from autotune.schedule.steps import Steps, Winograd
from autotune.search.defaults import default_steps
from autotune.search.policy import SketchPolicy
from autotune.search.sketch import generate_sketches
from benchmarks.models import lacks_weights, read


def uses_winograd(steps: Steps) -> bool:
    """Whether a schedule, or a sketch, computes a convolution by Winograd's algorithm."""
    return any(isinstance(step, Winograd) for step in steps)


def restrict(policy: SketchPolicy) -> SketchPolicy:
    """Take every structure with a Winograd step out of the search."""
    kept = {name: s for name, s in policy.sketches.items() if not uses_winograd(s.steps)}
    policy.sketches = kept
    return policy


def direct_error(model: Path, log_path: Path) -> float | None:
    """Largest error against ONNX Runtime of the best direct programs that a log knows.

    A task without any takes its analytic default, direct as well. None for a network of which no
    task could use Winograd's algorithm. Raises WrongNumbers.
    """
    network, log = read(model), read_log(log_path)
    target, n_threads = log.header.target, log.header.n_threads
    sketches = (s for dag in network.tasks.values() for s in generate_sketches(dag, target))
    if not any(uses_winograd(s.steps) for s in sketches):
        return None
    direct = replace(log, records=tuple(r for r in log.records if not uses_winograd(r.steps)))
    any_direct = any(r.result.ok for r in direct.records)  # a short search has none
    best = best_for(direct, target.key, n_threads) if any_direct else {}
    steps = {
        key: best[key].steps
        if key in best
        else default_steps(dag, target, n_threads, max_error=0.0)
        for key, dag in network.tasks.items()
    }
    compiled = Model(compile_network(network, steps, target, n_threads))
    return check_onnxruntime(compiled, prepare_model(model, {}, lacks_weights(model)))
