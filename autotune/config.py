"""Floor 0: the settings of a session, resolved once: defaults < preset file < options.

Every value knows where it came from (`Resolved.sources`), so that a surprising one can be traced.
Nothing below `cli` reads an option, a file of settings or the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from autotune.codec import LEFT_OUT, from_json
from autotune.errors import UsageError
from autotune.files import open_input
from autotune.units import parse_duration

PRECISIONS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
"""Precisions, and the dtype of the factors of products."""
AUTO = "auto"
"""The precision beside `PRECISIONS`: of each product what is fastest."""
PRECISION_NAMES = (*PRECISIONS, AUTO)
AUTO_MAX_ERROR = 2e-2
"""The largest error of a network in precision `auto`, unless another is given."""
LEAST_AGREEMENT = 0.995
"""The least share of labels that a quantised network has in common with float32, likewise."""
PRESETS = ("quick", "full", "ci")
MOST_TRIALS = 1_000_000_000
MOST_THREADS = 1_000_000
MOST_SEED = (1 << 63) - 1

_PRESET_BYTES = 1 << 20


DEFAULT_MAX_ERROR = 5e-5


def plain_precision(precision: str) -> str:
    """One of `PRECISIONS`: with "auto" a network is read in float32 first."""
    return "f32" if precision == AUTO else precision


@dataclass(frozen=True, slots=True)
class TuneConfig:
    """Settings of a session: its budget, search and measurement.

    `trials` and `time_s` compose, the first reached wins; at least one is set. `threads` 0 stands
    for as many as are usable. `patience`: trials of one task without gain after which it gets few
    more, and none after four times as many. Time-outs are seconds per candidate. `warm_start`:
    absolute paths of earlier logs. `rules`, `operators`: of Python files with sketch rules and
    operators.

    `max_error`: a candidate whose largest error exceeds so much of its largest output is inaccurate
    and never chosen. 5e-5 admits direct sums (1e-6…4e-6), Winograd's F(2,3) (as good) and F(4,3)
    (7e-6…2e-5), not F(6,3) (1e-4 and more); whole networks then stay below 1e-4.

    `store`: the place of the store that the session learns from, the same in any folder; "": none.

    `runner`: a command that starts the measuring program on the machine to tune for, see
    `measure.program`; "": this process. `precision`: of the factors of products, one of
    `PRECISION_NAMES`; sums are in float32. With "auto", `max_error` is the limit of the whole
    network, and `task_error` that of candidates.
    """

    trials: int | None = None
    time_s: float | None = None
    threads: int = 0
    seed: int = 0
    target: str = "native"
    batch: int = 16
    patience: int = 96
    build_timeout_s: float = 15.0
    run_timeout_s: float = 10.0
    max_error: float = DEFAULT_MAX_ERROR
    warm_start: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    precision: str = "f32"
    runner: Annotated[str, LEFT_OUT] = ""
    store: Annotated[str, LEFT_OUT] = ""

    @property
    def task_error(self) -> float:
        """The largest error of a candidate over its largest output."""
        is_of_network = self.precision == AUTO
        return min(self.max_error, DEFAULT_MAX_ERROR) if is_of_network else self.max_error

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TuneConfig:
        """The settings in the header of a log, without those that this version does not know."""
        return from_json(TuneConfig, data, is_open=True)


DEFAULT_TIME_S = 600.0

# Where a setting stands in a preset file.
_FILE_KEYS = {
    ("budget", "trials"): "trials",
    ("budget", "time"): "time_s",
    ("search", "batch"): "batch",
    ("search", "patience"): "patience",
    ("search", "seed"): "seed",
    ("search", "precision"): "precision",
    ("measure", "threads"): "threads",
    ("measure", "target"): "target",
    ("measure", "runner"): "runner",
    ("measure", "build_timeout"): "build_timeout_s",
    ("measure", "run_timeout"): "run_timeout_s",
    ("measure", "max_error"): "max_error",
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings and, per field, the name of the source that set it."""

    config: TuneConfig
    sources: dict[str, str]


def resolve(preset: str | None, options: Mapping[str, Any]) -> Resolved:
    """Merge the sources. Options that are None were not given.

    The default budget of ten minutes applies only where no source sets a budget at all.
    Raises UsageError for an unknown preset, setting or value.
    """
    values: dict[str, Any] = {}
    sources = {f.name: "default" for f in fields(TuneConfig)}
    unknown = sorted(options.keys() - sources.keys())
    if unknown:
        raise UsageError(
            f"there is no setting '{unknown[0]}'", f"the settings are {', '.join(sources)}"
        )
    if preset is not None:
        for name, value in read_preset(preset).items():
            values[name], sources[name] = value, f"preset {preset}"
    for name, value in options.items():
        if value is not None:
            values[name], sources[name] = value, option_of(name)
    if "trials" not in values and "time_s" not in values:
        values["time_s"] = DEFAULT_TIME_S
    if values.get("precision") == AUTO and "max_error" not in values:
        values["max_error"], sources["max_error"] = AUTO_MAX_ERROR, "precision auto"
    _check(values, sources)
    return Resolved(TuneConfig(**values), sources)


def option_of(name: str) -> str:
    """The option that sets a field, as the source of its value."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def read_preset(preset: str) -> dict[str, Any]:
    """Settings of a preset by name, or of a TOML file by path."""
    import tomllib  # compiled networks run without it

    path = preset_path(preset)
    try:
        with open_input(path) as file:
            data = tomllib.loads(file.read(_PRESET_BYTES).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}", "write it like those in configs/"
        ) from error
    return _flatten(data, path)


def preset_path(preset: str) -> Path:
    """The file of a preset, or of a path."""
    if preset not in PRESETS:
        if Path(preset).exists():
            return Path(preset)
        raise UsageError(
            f"there is no preset '{preset}'", f"use {', '.join(PRESETS)} or the path of a TOML file"
        )
    return Path(__file__).parent / "presets" / f"{preset}.toml"


def _flatten(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for section, table in data.items():
        for key, value in table.items() if isinstance(table, dict) else [("", table)]:
            name = _FILE_KEYS.get((section, key))
            if name is None:
                known = ", ".join(f"{s}.{k}" for s, k in _FILE_KEYS)
                raise UsageError(f"{path}: unknown setting {section}.{key}", f"known: {known}")
            values[name] = parse_duration(str(value)) if name.endswith("_s") else value
    return values


def _check(values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    limits = {
        "trials": (1, MOST_TRIALS),
        "threads": (0, MOST_THREADS),
        "seed": (0, MOST_SEED),
        "batch": (1, MOST_TRIALS),
        "patience": (1, MOST_TRIALS),
    }
    for name, (low, high) in limits.items():
        value = values.get(name, low)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UsageError(
                f"{name} is {value!r} ({sources[name]})",
                f"it must be a whole number from {low} to {high}",
            )
    precision = values.get("precision", "f32")
    if precision not in PRECISION_NAMES:
        known = ", ".join(PRECISION_NAMES)
        raise UsageError(f"precision is {precision!r} ({sources['precision']})", f"use {known}")
    for name, what in (("target", "name"), ("runner", "command")):
        value = values.get(name, "")
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r} ({sources[name]})", f"it must be a {what}")
    error = values.get("max_error", 1.0)
    if not isinstance(error, int | float) or isinstance(error, bool) or not error > 0:
        raise UsageError(
            f"max_error is {error!r} ({sources['max_error']})", "it must be a positive number"
        )
