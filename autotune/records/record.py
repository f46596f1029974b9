"""⑧ The four kinds of lines of a log, and their JSON form: one object with named fields per line.

    header     one per run: model, target, settings, tasks and weights
    workload   one per task: the ComputeDAG, so that the log can be read without the model
    measure    one per measured candidate
    end        the last line of a run that was not killed

Readers ignore fields that they do not know; `docs/log-format.md` documents those that they do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias

import orjson

from autotune.brief import brief
from autotune.codec import (
    BAD,
    LEFT_OUT,
    REQUIRED,
    Apart,
    Coded,
    Holds,
    fields_of,
    from_json,
    to_json,
    within,
)
from autotune.config import MOST_THREADS, TuneConfig
from autotune.errors import LogMismatch
from autotune.extent import Length
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps, steps_from_json
from autotune.target import Target
from autotune.te.codec import dag_from_json, dag_to_json
from autotune.te.dag import ComputeDAG
from autotune.te.validate import require_valid

FORMAT = "autotune-log"
VERSION = 1

_KEY = re.compile("[0-9a-f]{16}")
_Key: TypeAlias = Annotated[
    str, Holds(lambda key: _KEY.fullmatch(key) is not None, "16 hexadecimal digits")
]
"""The key of a task, as `ComputeDAG.key` gives it; stores have files of that name."""

_Calls: TypeAlias = tuple[tuple[str, Annotated[int, within(1)]], ...]
"""Keys of tasks, with the number of calls of each."""


def _valid_dag(data: dict[str, Any]) -> ComputeDAG:
    dag = dag_from_json(data)
    require_valid(dag)
    return dag


@brief
@dataclass(frozen=True, slots=True)
class HeaderVariant:
    """One combination of shapes of a model that is tuned for several, as `Header` says them.

    `share`: of all inferences; those of a header add up to 1. `lengths`: see `Header`.
    """

    shapes: dict[str, tuple[int, ...]]
    share: Annotated[float, Holds(lambda share: share > 0, "above zero")]
    tasks: _Calls
    lengths: Annotated[dict[str, Length], LEFT_OUT] = field(default_factory=dict)


@brief
@dataclass(frozen=True, slots=True)
class HeaderNetwork:
    """One of the networks that a model may become, in one precision, as `Header` says them.

    `tasks`: (workload key, calls per inference); `parts`: of its chains alone.
    """

    tasks: tuple[tuple[str, float], ...]
    parts: dict[str, tuple[str, ...]]


@brief
@dataclass(frozen=True, slots=True)
class Header:
    """Header of a run. `tasks`: (workload key, occurrences in the model), in model order.

    `parts`: tasks that can replace others, each with the keys of those that it replaces.
    `overwritten`: inputs of tasks in whose place the result may lie, by key.
    `dense`: inputs and outputs of tasks whose long rows lie without padding, by key.
    `random_weights`: the model's were replaced by random ones; None in logs that do not say.
    `constant_inputs`: inputs of the model that have the same value in every inference, as JSON.
    `variants`: of a model that is tuned for several shapes; `shapes` are then those of the first,
    and `tasks` counts the calls of all. `networks`: of a model that is tuned in several precisions,
    one each, the first in float32; `tasks` are those of all. `created` is ISO 8601 with time zone;
    `model_path` is empty where a model was not a file. `state`: of a model with a state, what a
    request says of it: `capacity`, `sessions`, `cache_type`, `dims` and `state`.
    `lengths`: dimensions of which every extent up to a most is computed, by name; `shapes` are then
    the longest. `ragged`: the network is over the tokens of rows. `nodes`: of the file, in its
    order, those that tasks compute; () where a log does not say.
    """

    run_id: str
    created: str
    model_path: str
    model_hash: str
    shapes: dict[str, tuple[int, ...]]
    target: Target
    n_threads: Annotated[int, within(1, MOST_THREADS)]
    seed: int
    config: Annotated[dict[str, Any], Holds(TuneConfig.from_json, "settings")]
    versions: dict[str, str]
    tasks: _Calls
    version: Annotated[int, REQUIRED] = VERSION
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    overwritten: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dense: dict[str, tuple[str, ...]] = field(default_factory=dict)
    random_weights: bool | None = None
    constant_inputs: dict[str, Any] = field(default_factory=dict)
    variants: tuple[HeaderVariant, ...] = ()
    networks: tuple[HeaderNetwork, ...] = ()
    state: Annotated[dict[str, Any], LEFT_OUT] = field(default_factory=dict)
    lengths: Annotated[dict[str, Length], LEFT_OUT] = field(default_factory=dict)
    ragged: Annotated[bool, LEFT_OUT] = False
    nodes: Annotated[tuple[tuple[str, str, tuple[str, ...]], ...], LEFT_OUT] = ()

    @property
    def weights(self) -> dict[str, float]:
        """Calls of each task per inference, by key: on average over the variants."""
        if not self.variants:
            return {key: float(n) for key, n in self.tasks}
        found = dict.fromkeys((key for key, _ in self.tasks), 0.0)
        for variant in self.variants:
            for key, n in variant.tasks:
                found[key] += variant.share * n
        return found


@brief
@dataclass(frozen=True, slots=True)
class Workload:
    """A task's computation under its structural key; `label` is for people."""

    key: _Key
    dag: Annotated[ComputeDAG, Coded(dag_to_json, _valid_dag)]
    label: str = ""


@brief
@dataclass(frozen=True, slots=True)
class InNetwork:
    """How a program became the choice of its task: in the compiled network.

    `ratio`: seconds of the network with all that was chosen at that time over those without, with
    the ends of its interval (95 %) over `n_rounds`. `task_ratio`: of the kernels that differ.
    `known`: records with a lower `sequence` were known. `is_taken`: of a task that may replace
    others, whether it does.
    """

    ratio: float
    low: float
    high: float
    n_rounds: int
    task_ratio: float
    known: int
    is_taken: Annotated[bool | None, LEFT_OUT] = None


@brief
@dataclass(frozen=True, slots=True)
class MeasureRecord:
    """One measured candidate. `elapsed_s`: session time spent when it was written.

    `final`: not a trial of the search, but one more measurement of a finalist. `in_network`: of one
    that won in the compiled network, written once more with what was measured of it alone.
    `default_estimate_s`: only of the default program of its task, the one that an untuned network
    takes: the seconds that the analytical cost model expects.

    The steps stay text until they are asked for, so that a log of 100,000 records loads fast
    and two candidates are compared by comparing strings.
    """

    run_id: str
    sequence: int
    workload: _Key
    target_key: str
    n_threads: Annotated[int, within(1, MOST_THREADS)]
    steps_json: Annotated[str, Apart("")]
    result: MeasureResult
    sketch: str = ""
    elapsed_s: float = 0.0
    final: bool = False
    default_estimate_s: Annotated[float | None, LEFT_OUT] = None
    in_network: Annotated[InNetwork | None, LEFT_OUT] = None

    @property
    def is_alone(self) -> bool:
        """Whether its times are a measurement of its own, not those of another record again."""
        return self.in_network is None or not self.final

    @property
    def steps(self) -> Steps:
        """The schedule. Raises LogMismatch for a step that this version does not know."""
        return steps_from_json(json.loads(self.steps_json))

    @property
    def n_steps(self) -> int:
        """Number of steps of the schedule: a measure of its simplicity."""
        return self.steps_json.count('"step":')


@brief
@dataclass(frozen=True, slots=True)
class InTurns:
    """The compiled network, timed in turns with the untuned one.

    Seconds of an inference, on average over the variants. `ratio`: tuned over untuned, of the
    rounds, with the ends of its interval (95 %).
    """

    untuned_s: float
    tuned_s: float
    ratio: float
    low: float
    high: float
    n_rounds: int

    @property
    def is_slower(self) -> bool:
        """Whether the untuned network is faster, beyond doubt: `compile` then makes that."""
        return self.low > 1.0


@brief
@dataclass(frozen=True, slots=True)
class End:
    """A run stopped in an orderly way, for `reason`, with these totals of the whole log.

    `stops`: why tasks get no more trials; `bounds_s`: what they can come down to; both by key.
    `seconds`: where the time of this run went, by name. `noise`: how much others disturbed.
    `peaks`: the peak rates that the bounds come from, as `measure.peak.Peaks` writes them.
    `in_turns`: of a second end of the run, after the network was compiled and timed.
    """

    run_id: str
    reason: str
    n_trials: int
    elapsed_s: float
    stops: dict[str, str] = field(default_factory=dict)
    bounds_s: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    noise: dict[str, Any] = field(default_factory=dict)
    peaks: Annotated[dict[str, Any], LEFT_OUT] = field(default_factory=dict)
    in_turns: Annotated[InTurns | None, LEFT_OUT] = None


Entry: TypeAlias = Header | Workload | MeasureRecord | End


@brief
@dataclass(frozen=True, slots=True)
class Log:
    """Everything a log file holds. `torn`: its last line was cut off by a kill."""

    headers: tuple[Header, ...] = ()
    workloads: dict[str, Workload] = field(default_factory=dict)
    records: tuple[MeasureRecord, ...] = ()
    ends: tuple[End, ...] = ()
    n_skipped: int = 0
    torn: bool = False

    @property
    def header(self) -> Header:
        """The first header: of the run that started the log."""
        return self.headers[0]

    @property
    def targets(self) -> dict[str, Target]:
        """The CPUs that it was measured on, by key: several where a fleet has several kinds."""
        return {header.target.key: header.target for header in self.headers}

    def header_of(self, target_key: str) -> Header:
        """The first header of a run over this CPU; that of the log where there is none."""
        return next((h for h in self.headers if h.target.key == target_key), self.header)

    @property
    def settings(self) -> dict[str, Any]:
        """The config of the last run over the tasks that the log was started for."""
        runs = [h for h in self.headers if h.tasks == self.header.tasks]
        return runs[-1].config if runs else {}

    @property
    def max_error(self) -> float | None:
        """The limit on errors of tasks in the last run; None in logs that know of none."""
        limit = self.settings.get("max_error") if self.headers else None
        is_known = isinstance(limit, int | float)
        return TuneConfig.from_json(self.settings).task_error if is_known else None

    def in_turns(self, target_key: str, n_threads: int) -> InTurns | None:
        """What the last run over this CPU and number of threads found; None where it did not."""
        machine = (target_key, n_threads)
        runs = [h.run_id for h in self.headers if (h.target.key, h.n_threads) == machine]
        found = [end.in_turns for end in self.ends if runs and end.run_id == runs[-1]]
        return found[-1] if found else None

    def by_machine(self) -> list[Log]:
        """The parts of the log that are of one kind of CPU and one number of threads each.

        Runs over other tasks than those that the log was started for are in none.
        """
        kinds: dict[tuple[str, int], list[Header]] = {}
        for header in self.headers:
            if header.tasks == self.header.tasks:
                kinds.setdefault((header.target.key, header.n_threads), []).append(header)
        return [self if len(kinds) == 1 else self._part(*kind) for kind in kinds.items()]

    def _part(self, machine: tuple[str, int], headers: list[Header]) -> Log:
        runs = {header.run_id for header in headers}
        records = (r for r in self.records if (r.target_key, r.n_threads) == machine)
        ends = (end for end in self.ends if end.run_id in runs)
        return replace(self, headers=tuple(headers), records=tuple(records), ends=tuple(ends))

    def within(self, max_error: float | None) -> Log:
        """The same log, its records judged by another limit on errors (None: as they were)."""
        if max_error is None:
            return self
        judged = tuple(replace(r, result=r.result.within(max_error)) for r in self.records)
        return replace(self, records=judged)


def encode(entry: Entry) -> str:
    """One line of a log, without its newline."""
    match entry:
        case Header():
            head = {"type": "header", "format": FORMAT, "version": entry.version}
            return _dumps(head | to_json(entry))
        case Workload(key=key, label=label):
            return _dumps({"type": "workload", "key": key, "label": label} | to_json(entry))
        case MeasureRecord():
            return _encode_record(entry)
        case End():
            return _dumps({"type": "end"} | to_json(entry))


def _encode_record(record: MeasureRecord) -> str:
    data = {"type": "measure"} | to_json(record)
    data["elapsed_s"] = round(record.elapsed_s, 3)
    result, error = data["result"], record.result.max_error
    result |= {name: round(result[name], 6) for name in ("build_s", "run_s")}
    result["max_error"] = error if error is not None and math.isfinite(error) else None
    result.pop("peaks", None)
    late = "result", "default_estimate_s", "in_network"
    last = {name: data.pop(name) for name in late if name in data}
    return f"{_dumps(data | last)[:-1]}{_STEPS}{record.steps_json}}}"


def decode(line: str) -> Entry | None:
    """The entry of a line, or None for a foreign or corrupt one.

    Raises LogMismatch for a header of a later format version.
    """
    try:
        data = _loads(line)
        return _decode(data, line) if isinstance(data, dict) else None
    except (*BAD, RecursionError):
        return None


def _decode(data: dict[str, Any], line: str) -> Entry | None:
    match data.get("type"):
        case "measure":
            return _decode_record(data, line)
        case "header":
            return _decode_header(data)
        case "workload":
            return from_json(Workload, data, is_open=True)
        case "end":
            return from_json(End, data, is_open=True)
        case _:
            return None


def _loads(line: str) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # it knows neither NaN nor numbers of more than 64 bits
        return json.loads(line)


_STEPS = ',"steps":'


def _decode_record(data: dict[str, Any], line: str) -> MeasureRecord:
    found = fields_of(MeasureRecord, is_open=True).read(data)
    found["steps_json"] = _steps_of(data, line)
    record = MeasureRecord(**found)
    if record.result.ok and not record.result.times_s:
        raise ValueError("no measurement")
    return record


def _steps_of(data: dict[str, Any], line: str) -> str:
    """Text of the steps: cut out of the line where it stands last, as `encode` writes it."""
    at = line.find(_STEPS)
    if not isinstance(data["steps"], list):
        raise TypeError("steps are a list")
    if at >= 0 and next(reversed(data)) == "steps":
        return line[at + len(_STEPS) : line.rindex("}")]
    return _dumps(data["steps"])


def _decode_header(data: dict[str, Any]) -> Header:
    if data.get("format") != FORMAT:
        raise ValueError("another format")
    if isinstance(data["version"], int) and data["version"] > VERSION:
        raise LogMismatch(
            f"the log has format version {data['version']}, this autotune reads up to {VERSION}",
            "upgrade autotune",
        )
    header = from_json(Header, data, is_open=True)
    keys = {key for key, _ in header.tasks}
    if any(not keys >= {key for key, _ in v.tasks} for v in header.variants):
        raise ValueError("a variant that no model has")
    if any(not keys >= {*dict(n.tasks), *_mentioned(n.parts)} for n in header.networks):
        raise ValueError("a network that no model has")
    return header


def _mentioned(parts: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {key for whole, replaced in parts.items() for key in (whole, *replaced)}


def _dumps(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a path that is no UTF-8: JSON has escapes for its bytes
        return json.dumps(data, separators=(",", ":"))
    return text
