"""⑪ `autotune bench`: latency of a compiled model, alone, beside others, or task by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.arrays import Arrays, largest_inputs, read_inputs
from autotune.cli.bench_text import (
    callers_text,
    parted_text,
    profile_text,
    result_text,
    tokens_text,
    verdict_text,
)
from autotune.cli.console import (
    common_options,
    counting,
    put,
    put_json,
    say,
    say_late_note,
    say_note,
    stage,
)
from autotune.cli.models import is_onnx, say_random_weights
from autotune.cli.options import (
    DURATION,
    FILE,
    THREADS,
    Names,
    Parsed,
    force_option,
    format_option,
    input_option,
    precision_option,
    source_options,
    state_options,
)
from autotune.codec import to_json
from autotune.config import AUTO
from autotune.errors import TooSlow, UsageError
from autotune.file_kinds import BENCH
from autotune.files import require_place
from autotune.units import format_duration, format_shapes

if TYPE_CHECKING:
    from autotune.network.bench.bench import BenchResult
    from autotune.network.bench.callers import CallersResult
    from autotune.network.bench.profile import NetworkProfile
    from autotune.network.runtime.runtime import Model

BASELINES = ("onnxruntime", "openvino", "openvino:default")
GENAI = "onnxruntime-genai"


def _tokens(text: str) -> tuple[int, int]:
    """`128+64`: tokens of a prompt, and single ones."""
    prompt, found, tokens = text.partition("+")
    if not (found and prompt.isdecimal() and tokens.isdecimal() and int(prompt) and int(tokens)):
        raise UsageError(f"'{text}' is no number of tokens", "write a prompt and more: 128+64")
    return int(prompt), int(tokens)


def _lengths(text: str) -> list[int]:
    """Lengths of rows: see `network.bench.rows`."""
    from autotune.network.bench.rows import lengths_in

    return lengths_in(text)


@click.command("bench")
@click.argument("source", metavar="OUT", type=FILE)
@click.option(
    "--against",
    type=Names((*BASELINES, GENAI)),
    multiple=True,
    help="Measure these as well, in turns: onnxruntime, openvino, openvino:default; with --tokens "
    "onnxruntime, onnxruntime-genai. Repeatable.",
)
@click.option(
    "--tokens",
    type=Parsed("n+m", _tokens),
    help="Time prompts of n tokens and m single ones behind each, of a decoder: 128+64.",
)
@click.option("--callers", type=int, help="Inferences per second of so many threads that call it.")
@click.option(
    "--rows",
    type=Parsed("lengths", _lengths),
    help="Time a batch of rows of these lengths, of a model over tokens: 12,7,30; 32~12, as many "
    "around a median of 12; or a file with one a line.",
)
@click.option("--per-task", is_flag=True, help="Show where the time goes, task by task.")
@click.option("--save", type=FILE, help="Keep the figures in this file, for --compare.")
@force_option
@click.option(
    "--compare", type=FILE, help="By how much it is slower than a file of --save, or an artifact."
)
@click.option(
    "--fail-above",
    type=click.FloatRange(min=0, min_open=True),
    help="Exit with code 6 where it takes so many times as long as that of --compare: 1.05.",
)
@click.option(
    "--log",
    "log_path",
    type=FILE,
    help="Log with the latencies of tasks, or to compile MODEL from.  [as compiled]",
)
@click.option("--threads", type=THREADS, help="Threads to run on.  [as compiled]")
@click.option("--model", type=FILE, help="ONNX file for --against.  [the one compiled]")
@click.option("--time", "time_s", type=DURATION, default="2s", help="Time per side.  [2s]")
@input_option
@source_options
@state_options
@precision_option
@format_option
@common_options
def command(
    source: Path,
    against: tuple[tuple[str, ...], ...],
    tokens: tuple[int, int] | None,
    callers: int | None,
    rows: list[int] | None,
    per_task: bool,
    save: Path | None,
    force: bool,
    compare: Path | None,
    fail_above: float | None,
    log_path: Path | None,
    threads: int | None,
    model: Path | None,
    time_s: float,
    files: tuple[tuple[str, Path], ...],
    style: str,
    **options: Any,
) -> None:
    """Measure the latency of OUT, a file that `autotune compile` wrote, or an ONNX model, which is
    compiled first.

    With --against, all run the same weights on the same random inputs with the same number of
    threads, in float32, and take turns, so that what disturbs the machine disturbs all.

    With --callers, so many Python threads call one model at once, and others in the way that they
    compute the most: OpenVINO in streams, ONNX Runtime with one session for all callers and with a
    session of one thread for each.

    With --per-task, every kernel of the running network is timed, and each task is put beside the
    latency that tuning measured of it alone.

    With --compare, it takes turns with an earlier artifact, and the ratio of their latencies comes
    with an interval; with --fail-above, the exit code says whether it is too slow.

    With --tokens, a session of a model with a state takes prompts and single tokens; ONNX Runtime
    feeds its outputs back, and onnxruntime-genai runs the folder that the model is in; with
    --per-task, the tasks of a prompt and of a token are shown.

    A model that was compiled for several shapes is measured at each of them, one with lengths at
    its most, or as --dim, --like or --input say, one over tokens also with --rows of any lengths.
    """
    from autotune.api.compile.benching import bench, number_of_variant, origin_of
    from autotune.api.compile.gating import provenance, save_bench

    names = tuple(dict.fromkeys(name for part in against for name in part))
    _require_together(names, callers, per_task, compare, fail_above)
    beside = (callers, save, compare, files or None, rows)
    if rows is not None and (files or per_task or compare or save):
        raise UsageError(
            "--rows times a batch of random tokens",
            "leave --input, --per-task, --save and --compare out",
        )
    if tokens is not None and any(value is not None for value in beside):
        raise UsageError(
            "--tokens times sequences of a session",
            "leave --callers, --input, --rows, --save and --compare out",
        )
    if tokens is None and GENAI in names:
        raise UsageError(f"{GENAI} generates tokens alone", "add --tokens 128+64, or leave it out")
    is_model = is_onnx(source)
    if log_path and not per_task and not is_model:
        raise UsageError("--log is for --per-task", "add --per-task, or leave --log out")
    if save is not None:
        require_place(save, inputs=[source], kind=None if force else BENCH)
    if tokens is not None and is_model and options["capacity"] is None:
        options["capacity"] = sum(tokens)
    compiled = _model(source, is_model, log_path, threads, options)
    if names and model is None:
        model = origin_of(compiled, source)
    if compiled.artifact.random_weights:
        say_random_weights(compiled.artifact.name)
    if names and compiled.artifact.precision != "f32":
        others = "others compute in float32"
        if "openvino:default" in names:
            others += ", openvino:default in what it chooses"
        say_note(f"{_products_text(compiled.artifact.precision)} here; {others}")
    if tokens is not None and per_task:
        _profile_tokens(compiled, tokens[0], None if is_model else log_path, time_s, style)
        return
    if tokens is not None:
        _bench_tokens(compiled, tokens, names, model, time_s, style)
        return
    inputs = read_inputs(largest_inputs(compiled), files) if files else None
    if rows is not None:
        from autotune.network.bench.rows import batch_of

        inputs = batch_of(compiled, rows)
    whole, compiled = compiled, _of_one_size(compiled, inputs, {} if is_model else options)
    variants = compiled.variants
    if inputs is not None:
        variants = (compiled.variants[number_of_variant(compiled, inputs)],)
    if compare is not None:
        _compare(compiled, compare, fail_above, time_s, inputs, style)
        return
    results: list[BenchResult | CallersResult | NetworkProfile] = []
    for variant in variants:
        if (len(compiled.variants) > 1 or compiled is not whole) and style == "text":
            put(f"{format_shapes({end.name: end.shape for end in variant.input_info})}:")
        with stage(f"measuring for {format_duration(time_s)} a side"):
            if per_task:
                results.append(_profile(variant, None if is_model else log_path, time_s))
            elif callers is not None:
                results.append(bench(variant, names, model, time_s, callers=callers, inputs=inputs))
            else:
                results.append(bench(variant, names, model, time_s, inputs=inputs))
        _put_text(results[-1], style)
    if save is not None:
        say(f"measuring again in rounds, for {save}: some seconds for each variant")
        save_bench(save, compiled, None if is_model else source, inputs)
    if style == "json":
        found = [result.to_json() for result in results]
        several = [
            {"inputs": {end.name: list(end.shape) for end in v.input_info}} | data
            for v, data in zip(variants, found, strict=True)
        ]
        data = found[0] if len(found) == 1 else {"variants": several}
        about = {"provenance": to_json(provenance(compiled)), "memory": _memory(compiled)}
        put_json(data | about)
    if save is not None:
        say(f"saved in {save}")


def _bench_tokens(
    compiled: Model,
    tokens: tuple[int, int],
    names: tuple[str, ...],
    model: Path | None,
    time_s: float,
    style: str,
) -> None:
    """Print the times of prompts and tokens."""
    from autotune.api.compile.benching import bench_tokens
    from autotune.api.compile.gating import provenance

    with stage(f"measuring for {format_duration(time_s)} a side"):
        found = bench_tokens(compiled, *tokens, names, model, time_s)
    if found.noise is not None:
        say_late_note(str(found.noise))
    if style == "json":
        about = {"provenance": to_json(provenance(compiled)), "memory": _memory(compiled)}
        put_json(found.to_json() | about)
    else:
        put(tokens_text(found))


def _profile_tokens(
    compiled: Model, prompt: int, log_path: Path | None, time_s: float, style: str
) -> None:
    """Print where the time of a prompt and of a single token behind it goes."""
    from autotune.api.compile.benching import profile_tokens, tuned_alone

    tuned = tuned_alone(compiled, log_path)
    with stage(f"measuring for {format_duration(time_s)} a side"):
        found = profile_tokens(compiled, prompt, tuned, time_s)
    for name, profile in found.items():
        if style == "text":
            put(f"{name}:")
        _put_text(profile, style)
    if style == "json":
        put_json({name: profile.to_json() for name, profile in found.items()})


def _require_together(
    names: tuple[str, ...],
    callers: int | None,
    per_task: bool,
    compare: Path | None,
    fail_above: float | None,
) -> None:
    """Raise UsageError for options that do not go together."""
    if per_task and names:
        raise UsageError("--per-task cannot look into others", "leave --against out")
    if per_task and callers is not None:
        raise UsageError("--per-task looks into single inferences", "leave --callers out")
    if compare is not None and (names or per_task or callers is not None):
        raise UsageError(
            "--compare is with an earlier artifact alone",
            "leave --against, --callers and --per-task out",
        )
    if fail_above is not None and compare is None:
        raise UsageError("--fail-above is for --compare", "name what it was: --compare base.json")


def _model(
    source: Path, is_model: bool, log: Path | None, threads: int | None, options: dict[str, Any]
) -> Model:
    """The compiled model: loaded, or compiled now."""
    from autotune.api.request import CompileRequest

    if not is_model:
        from autotune.network.runtime.loading import load

        model = load(source, threads)
        usual = {field.name: field.default for field in fields(CompileRequest)}
        open_ = ("dims", "like") if model.lengths else ()
        given = [n for n, value in options.items() if value and value != usual.get(n)]
        if fixed := [name for name in given if name not in open_]:
            raise UsageError(
                f"{source} is compiled: its {fixed[0]} cannot change", "give the ONNX model instead"
            )
        return model
    from autotune.api.compile.compiling import compile_plan, plan
    from autotune.network.runtime.loading import proved_model

    request = CompileRequest(source, log, threads=threads, note=say_note, **options)
    done = compile_plan(replace(plan(request), progress=counting))
    if done.report is not None:
        say(str(done.report))
    return proved_model(done.artifact, threads)


def _of_one_size(compiled: Model, inputs: Arrays | None, options: dict[str, Any]) -> Model:
    """A model with lengths at the size that is asked for; others as they are."""
    from autotune.api.compile.benching import of_one_size

    if not compiled.lengths:
        return compiled
    dims, like = options.get("dims") or {}, options.get("like") or {}
    if like and (dims or inputs is not None):
        raise UsageError("--like gives all sizes", "leave --dim and --input out")
    if like:
        ports = compiled.input_info
        arrays = {name or ports[0].name: array for name, array in like.items()}
        return compiled.at({name: array.shape for name, array in arrays.items()})
    return of_one_size(compiled, inputs, {name: _one(name, given) for name, given in dims.items()})


def _one(name: str, extents: Any) -> int:
    """The single extent of a dimension."""
    if not isinstance(extents, Mapping) or len(extents) != 1:
        raise UsageError(f"--dim {name} is one size here", f"write it like --dim {name}=17")
    return int(next(iter(extents)))


def _compare(
    compiled: Model,
    base: Path,
    limit: float | None,
    time_s: float,
    inputs: Arrays | None,
    style: str,
) -> None:
    """Print how `compiled` compares with `base`. Raises TooSlow above the limit."""
    from autotune.api.compile.gating import compare_bench, provenance

    with stage("measuring in turns"):
        found = compare_bench(compiled, base, limit, time_s, inputs)
    if not all(v.in_turns for v in found.values()):
        say_note(
            f"the artifact of {base} is gone: its figures are compared, relative to the clock; "
            "keep the artifact beside it for sharper ones"
        )
    worst = max(found.values(), key=lambda v: (v.fails, v.outcome == "undecided", v.ratio))
    if style == "json":
        verdicts = [to_json(v) | {"outcome": v.outcome, "fails": v.fails} for v in found.values()]
        about = {"variants": verdicts, "provenance": to_json(provenance(compiled))}
        put_json({"ratio": worst.ratio, "outcome": worst.outcome} | about)
    else:
        for n, one in found.items():
            ports = compiled.variants[n].input_info
            shapes = format_shapes({end.name: end.shape for end in ports})
            head = f"{shapes}: " if len(compiled.variants) > 1 else ""
            put(head + verdict_text(one, base.name))
    if limit is not None and worst.outcome == "undecided":
        say_late_note(
            f"undecided: {limit:g} is within the interval, so it passes; to decide, "
            "give more --time, or a machine that does less besides"
        )
    if worst.fails:
        raise TooSlow(
            f"{compiled.artifact.name} takes {worst} times as long as {base}, "
            f"at most {limit:g} is permitted",
            "see where the time goes: autotune bench OUT --per-task",
        )


def _memory(compiled: Model) -> dict[str, int]:
    """Bytes: of the model with its weights and working memory, and the most of this process."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"model_bytes": compiled.n_bytes, "process_peak_bytes": peak}


def _products_text(precision: str) -> str:
    if precision == AUTO:
        return "some products in float32, some in half precision"
    return f"products in {precision}"


def _put_text(result: BenchResult | CallersResult | NetworkProfile, style: str) -> None:
    """Say what disturbed the measurement, and print it unless JSON is wanted."""
    from autotune.network.bench.bench import BenchResult
    from autotune.network.bench.profile import NetworkProfile

    if result.noise is not None:
        say_late_note(str(result.noise))
    if isinstance(result, NetworkProfile):
        if not result.adds_up:
            say_late_note(f"{parted_text(result)}: give more --time, or a quieter machine")
        text = profile_text(result)
    else:
        text = result_text(result) if isinstance(result, BenchResult) else callers_text(result)
    if style == "text":
        put(text)


def _profile(compiled: Model, log_path: Path | None, time_s: float) -> NetworkProfile:
    from autotune.api.compile.benching import limits_of, tuned_alone
    from autotune.measure.timing.noise import read_usage
    from autotune.network.bench.profile import profile_tasks

    tuned = tuned_alone(compiled, log_path)
    limits_s = limits_of(compiled)
    profile = profile_tasks(compiled, tuned, min_s=time_s, usage=read_usage, limits_s=limits_s)
    if not tuned:
        say_note("no task was compiled from a record; --log names a log with latencies")
    elif not any(t.n_threads == compiled.n_threads for t in tuned.values()):
        counts = ", ".join(map(str, sorted({t.n_threads for t in tuned.values()})))
        say_note(f"latencies alone are left out: they are for another number of threads ({counts})")
    return profile
