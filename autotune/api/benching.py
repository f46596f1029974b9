"""⑪ Latency of a compiled model, beside other runtimes on the same weights where asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.api.choosing import tuned_latencies
from autotune.errors import LogMismatch, UsageError
from autotune.graph.reader.onnx_reader import model_hash, prepare_model
from autotune.graph.reader.random_weights import needs_weights
from autotune.measure.noise import read_usage
from autotune.network import bench as network_bench
from autotune.network.artifact import Tuned
from autotune.network.baselines import Runner, baseline, wide_inputs
from autotune.network.bench import BenchResult
from autotune.network.oracles import Original
from autotune.network.runtime import Model, load
from autotune.records import best_for, read_log


def bench(
    compiled: Model | str | Path,
    against: Sequence[str] = (),
    model: str | Path | None = None,
    time_s: float = 2.0,
) -> BenchResult:
    """Time `compiled`, a loaded model or the path of an artifact; at least `time_s` per side.

    `against`: names of `network.baselines.BASELINES`, which run the ONNX file that was compiled, or
    `model`, with as many threads, in turns. Raises MissingDependency where one is not installed.
    """
    ours = compiled if isinstance(compiled, Model) else load(compiled)
    source, fixed = _onnx_model(ours, Path(model) if model else None) if against else (None, {})
    baselines = {n: _with(fixed, baseline(n, source, ours.n_threads)) for n in against}
    wide = wide_inputs(source)
    return network_bench.bench(ours, baselines, min_s=time_s, usage=read_usage, wide=wide)


def _with(fixed: Mapping[str, Any], run: Runner) -> Runner:
    """A runner that gives its runtime the inputs that were bound when ours was compiled."""
    return (lambda inputs: run({**inputs, **fixed})) if fixed else run


def _onnx_model(compiled: Model, path: Path | None) -> tuple[Any, Mapping[str, Any]]:
    """The ONNX model with the very weights that were compiled, and what its other inputs are.

    With constant inputs it is the file itself: where they decide branches, those that are never
    taken may have no meaning at the shapes that were bound.
    """
    artifact = compiled.artifact
    source = path or Path(artifact.model_path)
    if not source.is_file():
        raise UsageError(f"there is no model file '{source}'", "name it with --model")
    if model_hash(source) != artifact.model_hash:
        raise LogMismatch(
            f"{source} is not the model that was compiled", "name the right one with --model"
        )
    is_random = artifact.random_weights
    if is_random is None:  # an artifact from before they had to be asked for
        is_random = needs_weights(source)
    shapes = {end.name: end.shape for end in artifact.inputs}
    if artifact.constant_inputs:
        original = Original(source, shapes, is_random, artifact.constant_inputs)
        return original.source, original.fed
    return prepare_model(source, shapes, is_random), {}


def tuned_alone(compiled: Model, log_path: Path | None = None) -> dict[str, Tuned]:
    """Latencies of tasks alone: those of a log, else those in the artifact."""
    artifact = compiled.artifact
    if log_path is None:
        return dict(artifact.tuned)
    log = read_log(log_path)
    best = best_for(log.within(log.max_error), artifact.target.key, compiled.n_threads)
    tasks = {kernel.task for kernel in artifact.kernels}
    found = {key: record for key, record in best.items() if key in tasks}
    if not found:
        raise LogMismatch(
            f"{log_path} has no record for any task of {artifact.name}", "name the log of the model"
        )
    return tuned_latencies(found)
