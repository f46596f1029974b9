"""⑪ The JSON that commands write, as types, from which `autotune schema` follows.

A field of seconds ends in `_s`, one of bytes in `bytes`; a share is from 0 to 1. Readers must
expect further fields.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, Union, get_args

from autotune.api.compile.gating import Provenance
from autotune.api.info import ArtifactInfo, MachineInfo
from autotune.json_schema import Schema, schema_of
from autotune.measure.timing.noise import Noise
from autotune.network.bench.gate import Outcome
from autotune.network.quantise.likeness import Likeness
from autotune.records import InTurns
from autotune.reporting.figures import SearchComparison, SearchFigures
from autotune.result import MeasureResult
from autotune.target import Target
from autotune.tuner import Event, OfTarget, Outlook
from autotune.tuner.events import TaskProgress, event_name


class BenchMemory(TypedDict):
    """Memory of the model with its weights, and the most of the process."""

    model_bytes: int
    process_peak_bytes: int


class BenchAbout(TypedDict):
    """Fields of the outermost object of `bench`."""

    provenance: NotRequired[Provenance]
    memory: NotRequired[BenchMemory]
    inputs: NotRequired[dict[str, list[int]]]


class SideOutput(TypedDict):
    """One side of `bench`: its latencies and its error against ours."""

    min_s: float
    median_s: float
    mean_s: float
    p95_s: float
    p99_s: float
    max_s: float
    std_s: float
    inferences_per_s: float
    runs: int
    threads: int
    max_error: NotRequired[float | None]


class CalledSideOutput(TypedDict):
    """One side of `bench --callers`."""

    inferences_per_s: float
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    runs: int
    threads: int
    max_error: NotRequired[float | None]


class NoiseOutput(TypedDict):
    """What disturbed a measurement."""

    n_cores: int
    other_cpus: float
    steal: float
    sessions: list[int]
    round_trip_ratio: float | None


class TimesOutput(BenchAbout):
    """Latencies beside those of baselines, which are entries of their names."""

    autotune: SideOutput
    onnxruntime: SideOutput | None
    openvino: NotRequired[SideOutput]
    ratio: float | None
    ratios: NotRequired[dict[str, float]]
    noise: NoiseOutput | None
    round_trip_s: NotRequired[float]


class CallersOutput(BenchAbout):
    """Throughput beside that of baselines, which are entries of their names."""

    callers: int
    autotune: CalledSideOutput
    onnxruntime: CalledSideOutput | None
    ratio: float | None
    ratios: NotRequired[dict[str, float]]
    noise: NoiseOutput | None


class TokensSideOutput(TypedDict):
    """One side of `bench --tokens`."""

    prompt_s: float
    token_s: float
    prompt_tokens: int
    prompt_tokens_per_s: float
    tokens_per_s: float
    rounds: int
    threads: int


TokensOutput = TypedDict(
    "TokensOutput",
    {
        "autotune": TokensSideOutput,
        "onnxruntime": TokensSideOutput | None,
        "onnxruntime-genai": NotRequired[TokensSideOutput],
        "ratio": float | None,
        "ratios": NotRequired[dict[str, float]],
        "prompt_ratio": float | None,
        "noise": NoiseOutput | None,
        "provenance": Provenance,
        "memory": BenchMemory,
    },
)
"""Prompts and single tokens beside those of baselines, which are entries of their names."""


class TaskTimeOutput(TypedDict):
    """A task of `bench --per-task`."""

    id: int
    key: str
    subgraph: str
    calls: int
    time_s: float
    share: float
    alone_s: float | None
    ratio: float | None
    limit_s: float | None
    limit_share: float | None
    slow: bool


class ProfileOutput(BenchAbout):
    """Where the time of an inference goes."""

    tasks: list[TaskTimeOutput]
    tasks_s: float
    alone_s: float | None
    inference_s: float
    between_s: float
    runs: int
    threads: int
    adds_up: bool
    noise: NoiseOutput | None


class VariantsOutput(BenchAbout):
    """A model of several variants, each with the shapes of its inputs."""

    variants: list[TimesOutput | CallersOutput | ProfileOutput]


class VerdictOutput(TypedDict):
    """A variant of `bench --compare`: seconds now over seconds before, and the interval."""

    ratio: float
    low: float
    high: float
    n_rounds: int
    in_turns: bool
    limit: float | None
    outcome: Outcome
    fails: bool


class ComparedOutput(TypedDict):
    """`bench --compare`: the worst ratio, and what it says."""

    ratio: float
    outcome: Outcome
    variants: list[VerdictOutput]
    provenance: Provenance


class OutputAccuracyOutput(TypedDict):
    """One output against the oracle."""

    name: str
    error: float | None
    rms: float | None
    allowed: float | None
    n_rows: int
    n_agreeing: int
    step: float
    n_steps: int
    is_decided: bool


class CheckOutput(TypedDict):
    """A check that was passed."""

    oracles: list[str]
    kinds: list[str]
    error: float | None
    allowed: float | None
    notes: list[str]
    outputs: list[OutputAccuracyOutput]
    n_given: int


class ArtifactOutput(TypedDict):
    """The file that `compile` wrote of a model."""

    artifact: str
    bytes: int
    bytes_by_kind: dict[str, int]
    precision: str
    tuned: int
    stored: list[str]
    check: CheckOutput | None


class QuantisedOutput(TypedDict):
    """The model that `quantise` wrote: `speed` over float32, and the ends of its interval.

    `integers`, `floats`: names of its products.
    """

    model: str
    bytes: int
    float_s: float
    integer_s: float
    speed: float
    slowest: float
    fastest: float
    rounds: int
    likeness: Likeness
    integers: list[str]
    floats: list[str]


class TaskErrorOutput(TypedDict):
    """The largest error against NumPy over the largest value."""

    error: float


class TaskArtifactOutput(TypedDict):
    """The file that `compile` wrote of a computation of `autotune.te`."""

    artifact: str
    bytes: int
    check: TaskErrorOutput | None


class LibraryOutput(TypedDict):
    """The folder that `export` wrote."""

    name: str
    folder: str
    files: dict[str, int]
    code_bytes: int
    weights_bytes: int


class ZerosOutput(TypedDict):
    """Zeros in the weights of a task, as shares."""

    least: float
    most: float
    block: list[int] | None
    blocks_left: float


class CallOutput(TypedDict):
    """A call of a task: the tensors that its inputs and outputs are, by their names in it."""

    inputs: dict[str, str]
    outputs: dict[str, str]


class TaskOutput(TypedDict):
    """A task of `tasks`; `shapes` and `share` where there are several variants."""

    id: int
    weight: int
    subgraph: str
    precision: str
    replaces: list[int]
    inputs: list[list[int]]
    constants: list[list[int]]
    outputs: list[list[int]]
    calls: list[CallOutput]
    zeros: ZerosOutput | None
    flops: int
    bytes: int
    key: str
    dag: NotRequired[str]
    shapes: NotRequired[dict[str, list[int]]]
    share: NotRequired[float]


SettingOutput = TypedDict("SettingOutput", {"name": str, "value": Any, "from": str})
"""A setting, its value, and its source: a preset, an option or an environment variable."""


class PlanOutput(TypedDict):
    """`tune --dry-run`."""

    tasks: list[TaskOutput]
    settings: list[SettingOutput]


class SessionOutput(TypedDict):
    """A session that has ended: the last event of each of its runs, and the network in turns."""

    log: str
    runs: list[Any]
    in_turns: InTurns | None


class DistilledOutput(TypedDict):
    """What `distill` wrote: a log, entries of a store, or both."""

    log: str | None
    store: str | None
    records: int
    tasks: int


class TensorOutput(TypedDict):
    """An output of `run`; of strings and of empty arrays without numbers, not finite ones null."""

    name: str
    shape: list[int]
    dtype: str
    min: NotRequired[float | None]
    mean: NotRequired[float | None]
    max: NotRequired[float | None]


class RunOutput(TypedDict):
    """The outputs of `run`, and the file that has them."""

    outputs: list[TensorOutput]
    file: str | None


class BestOutput(TypedDict):
    """The best program of a task."""

    latency_s: float | None
    gflops: float | None
    max_error: float | None
    target: str
    threads: int
    sketch: str
    record: int


class ExplainOutput(TypedDict):
    """The best program of a task, its stages as text by name."""

    key: str
    subgraph: str
    flops: int
    measured: int
    valid: int
    best: BestOutput | None
    stages: dict[str, str]


class MeasuredOutput(TypedDict):
    """One side of `measure`."""

    latency_s: float | None


class TargetNameOutput(TypedDict):
    """A CPU of `target --list`; `is` names the one that it stands for."""

    name: str
    cpu: str
    vector_bits: int
    l2_bytes: int
    l3_bytes: int
    forms: list[str]


class StoredTaskOutput(TypedDict):
    """A task of `store list`."""

    target: str
    threads: int
    task: str
    entries: int
    records: int
    best_s: float | None
    model: str
    label: str


class MergedOutput(TypedDict):
    """What `store merge` did."""

    store: str
    taken: int
    fewer: int


class PrunedOutput(TypedDict):
    """Entries that `store prune` removed, or would remove."""

    store: str
    entries: list[str]
    removed: bool


class DamagedOutput(TypedDict):
    """A damaged entry."""

    path: str
    reason: str


class VerifiedOutput(TypedDict):
    """What `store verify` found."""

    store: str
    entries: int
    tasks: int
    records: int
    damaged: list[DamagedOutput]
    foreign: list[str]


class ReportOutput(TypedDict):
    """`report`: figures of the search, of the networks of an artifact, of another log."""

    search: SearchFigures
    networks: NotRequired[dict[str, ProfileOutput]]
    comparison: NotRequired[SearchComparison]
    before: NotRequired[SearchFigures]


class EventTask(TypedDict):
    """A task as the first event of a session has it."""

    key: str
    weight: float
    label: str
    flops: int
    bound_s: float | None
    n_trials: int
    untuned_s: float | None
    best_s: float | None
    stop: str | None


class EventResult(TypedDict):
    """A measured candidate of an event."""

    status: str
    latency_s: float | None
    error: str | None
    device: NotRequired[str]


class EventOutlook(TypedDict):
    """What tuning can bring at most."""

    untuned_s: float
    bound_s: float
    left: float


OUTPUTS: dict[str, Any] = {
    "bench": TimesOutput | CallersOutput | ProfileOutput | TokensOutput | VariantsOutput,
    "compare": ComparedOutput,
    "compile": ArtifactOutput | TaskArtifactOutput,
    "distill": DistilledOutput,
    "dry-run": PlanOutput,
    "events": Event,
    "explain": ExplainOutput,
    "export": LibraryOutput,
    "info": MachineInfo | ArtifactInfo,
    "measure": dict[str, MeasuredOutput],
    "quantise": QuantisedOutput,
    "report": ReportOutput,
    "run": RunOutput,
    "session": SessionOutput,
    "store-list": list[StoredTaskOutput],
    "store-merge": MergedOutput,
    "store-prune": PrunedOutput,
    "store-verify": VerifiedOutput,
    "target": Target,
    "target-list": list[TargetNameOutput],
    "tasks": list[TaskOutput],
}
"""By name, what commands write: `compare` of `bench`, `dry-run`, `session` and `events` (a line) of
`tune` and `resume`, others of the command of that name."""
_INSTEAD = {
    TaskProgress: EventTask,
    MeasureResult: EventResult,
    Outlook: EventOutlook,
    Noise: NoiseOutput,
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
