"""⑪ What `autotune tune` and `resume` do, as iterators of events.

for event in autotune.tune("model.onnx", "model.jsonl", trials=200): …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.api.bindings import Dims, arrays_of, only, variants
from autotune.api.operators import operators_of
from autotune.api.tuning import (
    Tuning,
    network_workloads,
    new_header,
    next_header,
    require_same_machine,
    require_tasks,
)
from autotune.config import TuneConfig, resolve
from autotune.errors import UsageError
from autotune.graph.network import Network, build_network
from autotune.machine import read_limits
from autotune.measure.memory_plan import private_bytes, require_memory
from autotune.records import Journal, Log, require_new_log
from autotune.search.partial import Rule
from autotune.target import parse_target, require_cores, runs_here
from autotune.tuner import Budget, Event, spent

Shapes = dict[str, tuple[int, ...]]


def tune(
    model: str | Path,
    log: str | Path,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    threads: int | None = None,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    constants: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    preset: str | None = None,
    seed: int | None = None,
    target: str | None = None,
    max_error: float | None = None,
    warm_start: Sequence[str | Path] = (),
    rules: Sequence[str | Path] = (),
    operators: Sequence[str | Path] = (),
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[Event]:
    """Search for the fastest program of every part of `model`; yields events, see `tuner.events`.

    The words are those of the command line; `dims`: extents of dimensions by name, see `bindings`;
    `constants`: inputs that are the same in every inference, by name.
    Every measurement is in the new file `log` before its
    event comes; closing the iterator ends the session in an orderly way. `stop` is asked between
    measurements. Raises what the command reports: UsageError, ModelError, OutputError, …
    """
    path, log = Path(model), Path(log)
    options = {
        "trials": trials,
        "time_s": time_s,
        "threads": threads,
        "seed": seed,
        "target": target,
        "max_error": max_error,
        "warm_start": tuple(str(Path(p).resolve()) for p in warm_start) or None,
        "rules": tuple(str(Path(p).resolve()) for p in rules) or None,
        "operators": tuple(str(Path(p).resolve()) for p in operators) or None,
    }
    config = resolve(preset, options).config
    require_new_log(log)
    require_memory(read_limits(), private_bytes(), path.stat().st_size if path.is_file() else 0)
    fixed, known = arrays_of(constants), operators_of(config.operators)
    bound = only(variants(path, shapes, dims, fixed), "tuning")
    network = build_network(path, bound, random_weights, known, fixed)
    yield from tune_network(network, log, config, str(path.resolve()), bound, stop, note)


def tune_network(
    network: Network,
    log: Path,
    config: TuneConfig,
    model_path: str = "",
    shapes: Shapes | None = None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
    rules: Sequence[Rule] = (),
) -> Iterator[Event]:
    """`tune` for a network that is there already; `model_path`: what the header names."""
    require_cores(config.threads)
    target = parse_target(config.target)
    if not runs_here(target):
        raise UsageError(f"this CPU cannot run code for '{config.target}'", "leave the target out")
    header = new_header(network, model_path, shapes or {}, target, config)
    workloads = network_workloads(network)
    with Journal.create(log, header, workloads) as journal:
        seen = Log(headers=(header,), workloads={w.key: w for w in workloads})
        budget = Budget(config.trials, config.time_s)
        yield from Tuning(journal, seen, header, budget, stop, note, rules).events()


def resume(
    log: str | Path,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    max_error: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
    rules: Sequence[Rule] = (),
) -> Iterator[Event]:
    """Go on with the session of `log`: what is left of its budget, or `trials` or `time_s` more.

    Raises LogMismatch for a log of another CPU, LogBusy where somebody is writing it.
    """
    with Journal.open(Path(log)) as journal:
        seen = journal.log
        require_tasks(Path(log), seen)
        header = next_header(seen, {"max_error": max_error})
        config = TuneConfig.from_json(header.config)
        require_same_machine(seen.header, parse_target(config.target))
        require_cores(header.n_threads)
        budget = Budget(config.trials, config.time_s)
        if trials is not None or time_s is not None:
            budget = spent(seen).plus(trials, time_s)
        journal.append([header])
        yield from Tuning(journal, seen, header, budget, stop, note, rules).events()
