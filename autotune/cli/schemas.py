"""⑪ The JSON that commands write, as records, from which `autotune schema` follows.

A field of seconds ends in `_s`, one of bytes in `bytes`; a share is from 0 to 1. Readers must
expect further fields. What is a record elsewhere stands here by itself; others are put together of
the names of their fields.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, NotRequired, TypedDict, Union, get_args

from autotune.api.compile.gating import Provenance
from autotune.api.info import ArtifactInfo, MachineInfo
from autotune.json_schema import Schema, schema_of
from autotune.measure.timing.noise import Noise
from autotune.network.bench.gate import Outcome
from autotune.network.quantise.likeness import Likeness
from autotune.records import InTurns
from autotune.reporting.comparison import SearchComparison
from autotune.reporting.figures import SearchFigures
from autotune.result import MeasureResult
from autotune.target import Target
from autotune.tuner import Event, OfTarget, Outlook
from autotune.tuner.events import TaskProgress, event_name

_KINDS: dict[str, Any] = {
    "numbers": float,
    "maybe": float | None,
    "wholes": int,
    "texts": str,
    "flags": bool,
    "lists": list[str],
}
"""Words for the types of fields that are named together; `maybe`: a number or null."""


def _record(name: str, **fields: Any) -> Any:
    """A record: names of fields by a word of `_KINDS`, and types by the names of others."""
    together = {n: kind for word, kind in _KINDS.items() for n in fields.pop(word, "").split()}
    return TypedDict(name, together | fields)  # type: ignore[operator]  # not known here


def _many(record: Any) -> Any:
    return GenericAlias(list, record)


def _by_name(record: Any) -> Any:
    return GenericAlias(dict, (str, record))


def _comparison(name: str, side: Any, **fields: Any) -> Any:
    """Sides of `bench`, further ones as entries of the names of their baselines."""
    shared = {"autotune": side, "onnxruntime": side | None, "noise": _NOISE | None}
    ratios = NotRequired[dict[str, float]]
    return _record(name, maybe="ratio", ratios=ratios, **(shared | fields))


_SECONDS_OF_ALL = "mean_s p95_s p99_s max_s inferences_per_s"
_MEMORY = _record("BenchMemory", wholes="model_bytes process_peak_bytes")
_ABOUT: dict[str, Any] = {
    "provenance": NotRequired[Provenance],
    "memory": NotRequired[_MEMORY],
    "inputs": NotRequired[dict[str, list[int]]],
}
"""Fields of the outermost object of `bench`."""
_NOISE = _record(
    "NoiseOutput",
    wholes="n_cores",
    numbers="other_cpus steal",
    maybe="round_trip_ratio",
    sessions=list[int],
)
_SIDE = _record(
    "SideOutput",
    numbers=f"{_SECONDS_OF_ALL} min_s median_s std_s",
    wholes="runs threads",
    max_error=NotRequired[float | None],
)
_TIMES = _comparison(
    "TimesOutput", _SIDE, openvino=NotRequired[_SIDE], round_trip_s=NotRequired[float], **_ABOUT
)
_CALLED_SIDE = _record(
    "CalledSideOutput",
    numbers=f"{_SECONDS_OF_ALL} p50_s",
    wholes="runs threads",
    max_error=NotRequired[float | None],
)
_CALLERS = _comparison("CallersOutput", _CALLED_SIDE, wholes="callers", **_ABOUT)
_TOKENS_SIDE = _record(
    "TokensSideOutput",
    numbers="prompt_s token_s prompt_tokens_per_s tokens_per_s",
    wholes="prompt_tokens rounds threads",
)
_TOKENS = _comparison(
    "TokensOutput",
    _TOKENS_SIDE,
    prompt_ratio=float | None,
    provenance=Provenance,
    memory=_MEMORY,
    **{"onnxruntime-genai": NotRequired[_TOKENS_SIDE]},
)
_TASK_TIME = _record(
    "TaskTimeOutput",
    wholes="id calls",
    texts="key subgraph",
    numbers="time_s share",
    maybe="alone_s ratio limit_s limit_share",
    flags="slow",
)
_PROFILE = _record(
    "ProfileOutput",
    tasks=_many(_TASK_TIME),
    numbers="tasks_s inference_s between_s",
    maybe="alone_s",
    wholes="runs threads",
    flags="adds_up",
    noise=_NOISE | None,
    **_ABOUT,
)
_VARIANTS = _record("VariantsOutput", variants=_many(_TIMES | _CALLERS | _PROFILE), **_ABOUT)
_VERDICT = _record(
    "VerdictOutput",
    numbers="ratio low high",
    wholes="n_rounds",
    maybe="limit",
    flags="in_turns fails",
    outcome=Outcome,
)
_COMPARED = _record(
    "ComparedOutput",
    numbers="ratio",
    outcome=Outcome,
    variants=_many(_VERDICT),
    provenance=Provenance,
)
_ACCURACY = _record(
    "OutputAccuracyOutput",
    texts="name",
    maybe="error rms allowed",
    wholes="n_rows n_agreeing n_steps",
    numbers="step",
    flags="is_decided",
)
_CHECK = _record(
    "CheckOutput",
    lists="oracles kinds notes",
    maybe="error allowed",
    outputs=_many(_ACCURACY),
    wholes="n_given",
)
_ARTIFACT = _record(
    "ArtifactOutput",
    texts="artifact precision",
    wholes="bytes tuned",
    bytes_by_kind=dict[str, int],
    lists="stored",
    check=_CHECK | None,
)
_TASK_ERROR = _record("TaskErrorOutput", numbers="error")
_TASK_ARTIFACT = _record(
    "TaskArtifactOutput", texts="artifact", wholes="bytes", check=_TASK_ERROR | None
)
_QUANTISED = _record(
    "QuantisedOutput",
    texts="model",
    wholes="bytes rounds",
    numbers="float_s integer_s speed slowest fastest",
    likeness=Likeness,
    lists="integers floats",
)
_LIBRARY = _record(
    "LibraryOutput", texts="name folder", files=dict[str, int], wholes="code_bytes weights_bytes"
)
_ZEROS = _record("ZerosOutput", numbers="least most blocks_left", block=list[int] | None)
_CALL = _record("CallOutput", inputs=dict[str, str], outputs=dict[str, str])
_TASK = _record(
    "TaskOutput",
    wholes="id weight flops bytes",
    texts="subgraph precision key",
    replaces=list[int],
    inputs=list[list[int]],
    constants=list[list[int]],
    outputs=list[list[int]],
    calls=_many(_CALL),
    zeros=_ZEROS | None,
    dag=NotRequired[str],
    shapes=NotRequired[dict[str, list[int]]],
    share=NotRequired[float],
)
_SETTING = _record("SettingOutput", value=Any, texts="name from")
_PLAN = _record("PlanOutput", tasks=_many(_TASK), settings=_many(_SETTING))
_SESSION = _record("SessionOutput", texts="log", runs=list[Any], in_turns=InTurns | None)
_DISTILLED = _record("DistilledOutput", log=str | None, store=str | None, wholes="records tasks")
_TENSOR = _record(
    "TensorOutput",
    texts="name dtype",
    shape=list[int],
    **dict.fromkeys(("min", "mean", "max"), NotRequired[float | None]),
)
_RUN = _record("RunOutput", outputs=_many(_TENSOR), file=str | None)
_BEST = _record(
    "BestOutput", maybe="latency_s gflops max_error", texts="target sketch", wholes="threads record"
)
_EXPLAIN = _record(
    "ExplainOutput",
    texts="key subgraph",
    wholes="flops measured valid",
    best=_BEST | None,
    stages=dict[str, str],
)
_MEASURED = _record("MeasuredOutput", maybe="latency_s")
_TARGET_NAME = _record(
    "TargetNameOutput", texts="name cpu", wholes="vector_bits l2_bytes l3_bytes", lists="forms"
)
_STORED_TASK = _record(
    "StoredTaskOutput",
    texts="target task model label",
    wholes="threads entries records",
    maybe="best_s",
)
_MERGED = _record("MergedOutput", texts="store", wholes="taken fewer")
_PRUNED = _record("PrunedOutput", texts="store", lists="entries", flags="removed")
_DAMAGED = _record("DamagedOutput", texts="path reason")
_VERIFIED = _record(
    "VerifiedOutput",
    texts="store",
    wholes="entries tasks records",
    damaged=_many(_DAMAGED),
    lists="foreign",
)
_REPORT = _record(
    "ReportOutput",
    search=SearchFigures,
    networks=NotRequired[_by_name(_PROFILE)],
    comparison=NotRequired[SearchComparison],
    before=NotRequired[SearchFigures],
)
_EVENT_TASK = _record(
    "EventTask",
    texts="key label",
    numbers="weight",
    wholes="flops n_trials",
    maybe="bound_s untuned_s best_s",
    stop=str | None,
)
_EVENT_RESULT = _record(
    "EventResult", texts="status", maybe="latency_s", error=str | None, device=NotRequired[str]
)
_EVENT_OUTLOOK = _record("EventOutlook", numbers="untuned_s bound_s left")

OUTPUTS: dict[str, Any] = {
    "bench": _TIMES | _CALLERS | _PROFILE | _TOKENS | _VARIANTS,
    "compare": _COMPARED,
    "compile": _ARTIFACT | _TASK_ARTIFACT,
    "distill": _DISTILLED,
    "dry-run": _PLAN,
    "events": Event,
    "explain": _EXPLAIN,
    "export": _LIBRARY,
    "info": MachineInfo | ArtifactInfo,
    "measure": _by_name(_MEASURED),
    "quantise": _QUANTISED,
    "report": _REPORT,
    "run": _RUN,
    "session": _SESSION,
    "store-list": _many(_STORED_TASK),
    "store-merge": _MERGED,
    "store-prune": _PRUNED,
    "store-verify": _VERIFIED,
    "target": Target,
    "target-list": _many(_TARGET_NAME),
    "tasks": _many(_TASK),
}
"""By name, what commands write: `compare` of `bench`, `dry-run`, `session` and `events` (a line) of
`tune` and `resume`, others of the command of that name."""
_INSTEAD = {
    TaskProgress: _EVENT_TASK,
    MeasureResult: _EVENT_RESULT,
    Outlook: _EVENT_OUTLOOK,
    Noise: _NOISE,
}
_EVENTS = [kind for kind in get_args(Event) if kind is not OfTarget]


def output_schema(name: str, is_closed: bool = False) -> Schema:
    """The schema of one of `OUTPUTS`; `is_closed`: as of `schema_of`."""
    if name != "events":
        return schema_of(OUTPUTS[name], is_closed=is_closed)
    schema = schema_of(Union[tuple(_EVENTS)], _INSTEAD, is_closed)  # noqa: UP007  # not known here
    for kind in _EVENTS:
        record = schema["$defs"][kind.__name__]
        record["properties"] |= {"event": {"const": event_name(kind)}, "target": {"type": "string"}}
        record["required"].append("event")
    return schema
