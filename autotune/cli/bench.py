"""⑪ `autotune bench`: latency of a compiled model, alone, beside others, or task by task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.arrays import Arrays
from autotune.cli.bench_request import BASELINES, GENAI, BenchRequest
from autotune.cli.bench_text import (
    callers_text,
    parted_text,
    profile_text,
    result_text,
    tokens_text,
    verdict_text,
)
from autotune.cli.console import common_options, put, put_json, say, say_late_note, say_note, stage
from autotune.cli.models import say_random_weights
from autotune.cli.option_types import DURATION, FILE, THREADS, Names, Parsed
from autotune.cli.options import (
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
from autotune.units import format_duration, format_shapes

if TYPE_CHECKING:
    from autotune.network.bench.bench import BenchResult
    from autotune.network.bench.callers import CallersResult
    from autotune.network.bench.profile import NetworkProfile
    from autotune.network.runtime.runtime import Model


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
@click.option(
    "--timeline", type=FILE, help="With --per-task: its kernels one by one, for ui.perfetto.dev."
)
@click.option(
    "--append", type=FILE, help="Add a line to this file, and show the curve over its commits."
)
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
def command(against: tuple[tuple[str, ...], ...], **given: Any) -> None:
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
    from autotune.api.compile.benching import origin_of

    asked = BenchRequest.of(against, given)
    compiled = asked.compiled()
    if asked.against and asked.model is None:
        asked = replace(asked, model=origin_of(compiled, asked.source))
    if compiled.artifact.random_weights:
        say_random_weights(compiled.artifact.name)
    if asked.against and compiled.artifact.precision != "f32":
        others = "others compute in float32"
        if "openvino:default" in asked.against:
            others += ", openvino:default in what it chooses"
        say_note(f"{_products_text(compiled.artifact.precision)} here; {others}")
    if asked.tokens is not None:
        (_profile_tokens if asked.per_task else _bench_tokens)(asked, asked.tokens, compiled)
        return
    inputs = asked.inputs(compiled)
    whole, compiled = compiled, asked.of_one_size(compiled, inputs)
    if asked.compare is not None:
        _compare(asked, asked.compare, compiled, inputs)
    else:
        _bench(asked, compiled, inputs, is_named=compiled is not whole)


def _bench(asked: BenchRequest, compiled: Model, inputs: Arrays | None, is_named: bool) -> None:
    """Print the times of every variant, or of that which `inputs` fit, and keep them."""
    from autotune.api.compile.benching import number_of_variant
    from autotune.api.compile.gating import save_bench
    from autotune.network.bench.profile import NetworkProfile

    variants = compiled.variants
    if inputs is not None:
        variants = (compiled.variants[number_of_variant(compiled, inputs)],)
    found: list[dict[str, Any]] = []
    profiled: dict[str, NetworkProfile] = {}
    for variant in variants:
        if (len(compiled.variants) > 1 or is_named) and asked.style == "text":
            put(f"{_sizes(variant)}:")
        with _measuring(asked):
            result = _result(asked, variant, inputs)
        _put_text(result, asked.style)
        found.append(result.to_json())
        if isinstance(result, NetworkProfile):
            profiled[_sizes(variant) if len(variants) > 1 else ""] = result
        if asked.append is not None:
            _append(asked, asked.append, variant, found[-1])
    _put_timeline(asked, compiled, profiled)
    if asked.save is not None:
        say(f"measuring again in rounds, for {asked.save}: some seconds for each variant")
        save_bench(asked.save, compiled, None if asked.is_model else asked.source, inputs)
    if asked.style == "json":
        several = [
            {"inputs": {end.name: list(end.shape) for end in v.input_info}} | data
            for v, data in zip(variants, found, strict=True)
        ]
        put_json((found[0] if len(found) == 1 else {"variants": several}) | _about(compiled))
    if asked.save is not None:
        say(f"saved in {asked.save}")


def _sizes(variant: Model) -> str:
    return format_shapes({end.name: end.shape for end in variant.input_info})


def _append(asked: BenchRequest, path: Path, variant: Model, found: dict[str, Any]) -> None:
    """Add a measurement to the file of `--append`, and show its curve."""
    from autotune.api.compile.gating import provenance
    from autotune.cli.bench_history import appended, commit_of, curve_text, line_of

    about = to_json(provenance(variant))
    shapes = {end.name: end.shape for end in variant.input_info}
    commit = commit_of(asked.source.parent)
    lines = appended(path, line_of(found, about, shapes, commit))
    if asked.style == "text":
        put(curve_text(lines))


def _put_timeline(
    asked: BenchRequest, compiled: Model, profiles: Mapping[str, NetworkProfile]
) -> None:
    """Write the file of `--timeline`."""
    if asked.timeline is None:
        return
    from autotune.files import replacing
    from autotune.network.bench.timeline import trace_of

    text = json.dumps(trace_of(compiled.artifact.name, profiles))
    with replacing(asked.timeline) as file:
        file.write(text.encode())
    say(f"saved in {asked.timeline}: ui.perfetto.dev shows it")


def _result(
    asked: BenchRequest, variant: Model, inputs: Arrays | None
) -> BenchResult | CallersResult | NetworkProfile:
    from autotune.api.compile.benching import bench

    if asked.per_task:
        return _profile(variant, asked.latencies, asked.time_s)
    names, model, time_s = asked.against, asked.model, asked.time_s
    if asked.callers is not None:
        return bench(variant, names, model, time_s, callers=asked.callers, inputs=inputs)
    return bench(variant, names, model, time_s, inputs=inputs)


def _measuring(asked: BenchRequest) -> AbstractContextManager[Any]:
    return stage(f"measuring for {format_duration(asked.time_s)} a side")


def _bench_tokens(asked: BenchRequest, tokens: tuple[int, int], compiled: Model) -> None:
    """Print the times of prompts and tokens."""
    from autotune.api.compile.benching import bench_tokens

    with _measuring(asked):
        found = bench_tokens(compiled, *tokens, asked.against, asked.model, asked.time_s)
    if found.noise is not None:
        say_late_note(str(found.noise))
    if asked.style == "json":
        put_json(found.to_json() | _about(compiled))
    else:
        put(tokens_text(found))


def _profile_tokens(asked: BenchRequest, tokens: tuple[int, int], compiled: Model) -> None:
    """Print where the time of a prompt and of a single token behind it goes."""
    from autotune.api.compile.benching import profile_tokens, tuned_alone

    tuned = tuned_alone(compiled, asked.latencies)
    with _measuring(asked):
        found = profile_tokens(compiled, tokens[0], tuned, asked.time_s)
    _put_timeline(asked, compiled, found)
    for name, profile in found.items():
        if asked.style == "text":
            put(f"{name}:")
        _put_text(profile, asked.style)
    if asked.style == "json":
        put_json({name: profile.to_json() for name, profile in found.items()})


def _compare(asked: BenchRequest, base: Path, compiled: Model, inputs: Arrays | None) -> None:
    """Print how `compiled` compares with `base`. Raises TooSlow above the limit."""
    from autotune.api.compile.gating import compare_bench, provenance

    limit = asked.fail_above
    with stage("measuring in turns"):
        found = compare_bench(compiled, base, limit, asked.time_s, inputs)
    if not all(v.in_turns for v in found.values()):
        say_note(
            f"the artifact of {base} is gone: its figures are compared, relative to the clock; "
            "keep the artifact beside it for sharper ones"
        )
    worst = max(found.values(), key=lambda v: (v.fails, v.outcome == "undecided", v.ratio))
    if asked.style == "json":
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


def _about(compiled: Model) -> dict[str, Any]:
    """Of what it is, and the memory that it takes."""
    from autotune.api.compile.gating import provenance

    return {"provenance": to_json(provenance(compiled)), "memory": _memory(compiled)}


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
