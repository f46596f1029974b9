"""⑪ Latency of a compiled model, beside other runtimes on the same weights where asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from autotune.api.compile.compiling import Compiled
from autotune.api.compile.selection import tuned_latencies
from autotune.api.origins import origin
from autotune.calls import checked
from autotune.errors import LogMismatch, UsageError
from autotune.graph.bound_model import BoundModel
from autotune.graph.reader.model_files import ModelSource, model_file
from autotune.graph.reader.onnx_reader import model_hash, prepare_model
from autotune.graph.reader.random_weights import needs_weights
from autotune.measure.timing.noise import read_usage
from autotune.network.artifact.artifact import Tuned
from autotune.network.artifact.numbers import numbers_of_dims
from autotune.network.bench import bench as network_bench
from autotune.network.bench import tokens as network_tokens
from autotune.network.bench.bench import BenchResult
from autotune.network.bench.callers import CallersResult, bench_callers, require_callers
from autotune.network.bench.profile import NetworkProfile, profile_runs
from autotune.network.bench.rows import batch_of
from autotune.network.bench.tokens import TokensResult, random_prompt
from autotune.network.check.oracles import Original
from autotune.network.runtime import token_loops
from autotune.network.runtime.apart import apart
from autotune.network.runtime.arguments import require_inputs
from autotune.network.runtime.baselines import (
    BASELINES,
    Runner,
    baseline,
    baselines_of_callers,
    require_alive,
    wide_inputs,
)
from autotune.network.runtime.kernel_time import KernelTime
from autotune.network.runtime.loading import load, model_of
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.network.runtime.token_loops import TOKEN_LOOPS, Begin, Step, token_loop
from autotune.records import best_for, read_log


@overload
def bench(
    compiled: Model | Compiled | str | Path,
    against: str | Sequence[str] = (),
    model: ModelSource | None = None,
    time_s: float = 2.0,
    callers: None = None,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    rows: Sequence[int] | None = None,
) -> BenchResult: ...


@overload
def bench(
    compiled: Model | Compiled | str | Path,
    against: str | Sequence[str] = (),
    model: ModelSource | None = None,
    time_s: float = 2.0,
    *,
    callers: int,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    rows: Sequence[int] | None = None,
) -> CallersResult: ...


@checked
def bench(
    compiled: Model | Compiled | str | Path,
    against: str | Sequence[str] = (),
    model: ModelSource | None = None,
    time_s: float = 2.0,
    callers: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    rows: Sequence[int] | None = None,
) -> BenchResult | CallersResult:
    """Time `compiled`: of `load` or `compile`, or the path of an artifact; at least `time_s`
    seconds per side.

    `against`: names of `runtime.baselines.BASELINES` (a string has commas between them), which run
    the ONNX file that was compiled, or `model`, with as many threads, in turns. `callers`: as many
    Python threads call each side at once, and inferences per second are counted. `inputs`: arrays
    by name, else random ones. `dims`: of a model with lengths, extents by name, else its most or
    those of `inputs`. `rows`: of one over tokens, the lengths of the rows of a batch of random
    tokens. Raises UsageError for other names or numbers, MissingDependency where one is
    not installed.
    """
    ours = _model(compiled)
    inputs = inputs if rows is None else batch_of(ours, rows)
    ours = of_one_size(ours, inputs, dims)
    if inputs is not None and not ours.is_ragged:
        require_inputs(ours.input_info, inputs)
    names = _baseline_names(against)
    if callers is not None:
        require_callers(callers)
    if not names:
        return _timed(ours, {}, None, time_s, callers, inputs)
    file = origin_of(ours, _made(compiled)) if model is None else model
    if not file:
        raise UsageError("what was compiled came from no file", "give the ONNX model: `model`")
    with model_file(file) as path:
        source, fixed = _onnx_model(ours, path)
        sides: dict[str, Sequence[Runner]] = {}
        process, fed = apart(), {**(inputs or random_inputs(ours.input_info)), **fixed}
        process.start()
        for name in names:
            require_alive(name, source, ours.n_threads, fed)
            if callers is None:
                sides[name] = [baseline(name, source, ours.n_threads)]
            else:
                sides |= baselines_of_callers(name, source, ours.n_threads, callers)
        given = {name: [_with(fixed, run) for run in runs] for name, runs in sides.items()}
        return _timed(ours, given, source, time_s, callers, inputs)


def of_one_size(
    model: Model, inputs: Mapping[str, Any] | None = None, dims: Mapping[str, int] | None = None
) -> Model:
    """A model with lengths at those of `inputs`, else at `dims` and the most of others.

    Other models are as they are. Raises UsageError where there is no such size.
    """
    if not model.lengths:
        if dims:
            raise UsageError(f"'{model.artifact.name}' has no lengths", "leave `dims` out")
        return model
    if model.is_ragged and inputs is not None and not dims:
        return model  # which runs rows in parts
    if inputs is None:
        ports = model.input_info
        return model.sized(numbers_of_dims(ports, dims or {}, model.lengths))
    if dims:
        raise UsageError("inputs have a size of their own", "leave `dims` out")
    return model.variant(inputs)


@checked
def bench_tokens(
    compiled: Model | Compiled | str | Path,
    prompt: int = 128,
    tokens: int = 64,
    against: str | Sequence[str] = (),
    model: str | Path | None = None,
    time_s: float = 2.0,
) -> TokensResult:
    """Time prompts of `prompt` tokens, and `tokens` single ones behind each, of a model with a
    state; at least `time_s` seconds per side.

    `against`: names of `runtime.token_loops.TOKEN_LOOPS`, which run the ONNX file that was
    compiled, or `model`, with as many threads, in turns. Raises UsageError for other names, for a
    model without such a state and for more tokens than its capacity, MissingDependency where a
    runtime is not installed.
    """
    ours = _model(compiled)
    names = _baseline_names(against, TOKEN_LOOPS)
    total = prompt + tokens
    session = ours.session()
    capacity = session.capacity
    if min(prompt, tokens) < 1 or total > capacity:
        raise UsageError(
            f"{prompt} + {tokens} tokens are not within the capacity of {capacity}",
            "give one token or more of each, or compile with a larger `capacity`",
        )
    begun, process = random_inputs(session.begin_info), apart()
    sides: dict[str, Begin] = {"autotune": lambda: _sequence(ours, begun)}
    if names:
        file = Path(model or origin_of(ours, _made(compiled)) or "")
        _require_same_model(ours, file)
        process.start()
        for name in names:
            given = name, file, ours.n_threads, total, begun
            token_loops.require_alive(*given)
            sides[name] = token_loop(*given)
    words = random_prompt(prompt, session.input_info[0].limit)
    return network_tokens.bench_tokens(
        sides, words, tokens, ours.n_threads, time_s, usage=read_usage
    )


def limits_of(model: Model, number: int = 0) -> dict[str, float]:
    """Least seconds of a call of each task on this machine, which is measured; by key.

    `number`: of its length, that of the model by default. Empty for files of former versions.
    """
    from autotune.network.bench.limits import least_s, measure_limits

    limits = measure_limits(model.artifact, model.n_threads)
    number = number or next(iter(model.numbers.values()), 0)
    return {} if limits is None else least_s(model.artifact, limits, number)


def profile_tokens(
    model: Model, prompt: int, tuned: Mapping[str, Tuned] | None = None, time_s: float = 2.0
) -> dict[str, NetworkProfile]:
    """Profiles of the first step of `prompt` tokens and of one of a single token behind them.

    Raises UsageError for a model without such steps.
    """
    session = model.session()
    port = session.input_info[0]
    words = random_prompt(prompt, port.limit)
    found = {}
    for name, n_tokens, filled in (("prompt", prompt, 0), ("token", 1, prompt)):
        n, step = session.first_step(n_tokens)
        inputs = {port.name: words[:, :n]}
        assert isinstance(step, Model)

        def run(inputs: Mapping[str, Any] = inputs, filled: int = filled) -> None:
            session.assume(filled)
            session.run(inputs)

        def timed(inputs: Mapping[str, Any] = inputs, filled: int = filled) -> list[KernelTime]:
            session.assume(filled)
            return session.profile(inputs)

        found[name] = profile_runs(
            step, (run, timed), tuned, min_s=time_s, usage=read_usage, limits_s=limits_of(step, n)
        )
    return found


def _sequence(model: Model, begun: Mapping[str, Any]) -> Step:
    """A sequence in a session, whose first step takes what stays for it as well."""
    session = model.session()

    def step(tokens: Any) -> object:
        if begun and not session.length:
            session.begin(begun)
        return session.step(tokens)

    return step if begun else session.step


def number_of_variant(model: Model, given: Mapping[str, Any]) -> int:
    """The number of the variant of `model` whose shapes `given` inputs have.

    Raises UsageError where they are no inputs of any.
    """
    if model.is_ragged:
        return 0
    shapes = {name: array.shape for name, array in given.items()}
    for n, variant in enumerate(model.variants):
        if {end.name: end.shape for end in variant.input_info} == shapes:
            require_inputs(variant.input_info, given)
            return n
    require_inputs(model.input_info, given)
    return 0


def _model(compiled: Model | Compiled | str | Path) -> Model:
    match compiled:
        case Model():
            return compiled
        case Compiled():
            return model_of(compiled.artifact)
    return load(compiled)


def _made(compiled: Model | Compiled | str | Path) -> Path | None:
    return Path(compiled) if isinstance(compiled, str | Path) else None


def origin_of(compiled: Model, made: Path | None = None) -> Path | None:
    """The file that was compiled, where there is one; `made`: the artifact. See `origins`."""
    known = compiled.artifact
    return origin(known.model_path, known.model_hash, made) if known.model_path else None


def _baseline_names(
    given: str | Sequence[str], known: Collection[str] = BASELINES
) -> tuple[str, ...]:
    words = given.split(",") if isinstance(given, str) else given
    names = tuple(dict.fromkeys(word.strip() for word in words if word))
    for name in names:
        if name not in known:
            raise UsageError(f"there is no '{name}' here", f"known: {', '.join(known)}")
    return names


def _timed(
    ours: Model,
    sides: Mapping[str, Sequence[Runner]],
    source: Any,
    time_s: float,
    callers: int | None,
    inputs: Mapping[str, Any] | None,
) -> BenchResult | CallersResult:
    wide = wide_inputs(source)
    if callers is not None:
        return bench_callers(
            ours, callers, sides, time_s, usage=read_usage, wide=wide, given=inputs
        )
    alone = {name: run for name, (run,) in sides.items()}
    return network_bench.bench(ours, alone, min_s=time_s, usage=read_usage, wide=wide, given=inputs)


def _with(fixed: Mapping[str, Any], run: Runner) -> Runner:
    """A runner that gives its runtime the inputs that were bound when ours was compiled."""
    return (lambda inputs: run({**inputs, **fixed})) if fixed else run


def _onnx_model(compiled: Model, source: Path) -> tuple[Any, Mapping[str, Any]]:
    """The ONNX model with the very weights that were compiled, and its other inputs.

    With constant inputs it is the file itself: where they decide branches, those that are never
    taken may have no meaning at the shapes that were bound.
    """
    artifact = compiled.artifact
    _require_same_model(compiled, source)
    is_random = artifact.random_weights
    if is_random is None:  # an artifact from before they had to be asked for
        is_random = needs_weights(source)
    shapes = {end.name: end.shape for end in artifact.inputs}
    if artifact.constant_inputs:
        bound = BoundModel(source, is_random, constants=artifact.constant_inputs)
        original = Original(bound, shapes)
        return original.source, original.fed
    return prepare_model(source, shapes, is_random), {}


def _require_same_model(compiled: Model, source: Path) -> None:
    """Raise UsageError or LogMismatch unless `source` is the file that was compiled."""
    if not source.is_file():
        raise UsageError(f"there is no model file '{source}'", "name it with `model`")
    if model_hash(source) != compiled.artifact.model_hash:
        raise LogMismatch(
            f"{source} is not the model that was compiled", "name the right one with `model`"
        )


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
