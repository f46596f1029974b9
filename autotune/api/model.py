"""⑪ What `autotune tune` and `resume` do, as iterators of events.

for event in autotune.tune("model.onnx", "model.jsonl", trials=200): …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.api.bindings import Dims
from autotune.api.session import (
    create,
    logs_to_learn,
    prepare,
    prepare_network,
    reopen,
    rule_files,
)
from autotune.api.sources import random_weights_note
from autotune.config import TuneConfig, resolve
from autotune.graph.network import Network
from autotune.search.partial import Rule
from autotune.tuner import Event

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
    precision: str | None = None,
    warm_start: Sequence[str | Path] = (),
    rules: Sequence[str | Path] = (),
    operators: Sequence[str | Path] = (),
    fallback: bool = True,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[Event]:
    """Search for the fastest program of every part of `model`; yields events, see `tuner.events`.

    The words are those of the command line; `dims`: extents of dimensions by name, see `bindings`;
    `constants`: inputs that are the same in every inference, by name. `fallback`: what cannot be
    compiled is left to ONNX Runtime.
    Every measurement is in the new file `log` before its
    event comes; closing the iterator ends the session in an orderly way. `stop` is asked between
    measurements. Raises what the command reports: UsageError, ModelError, OutputError, …
    """
    options = {
        "trials": trials,
        "time_s": time_s,
        "threads": threads,
        "seed": seed,
        "target": target,
        "max_error": max_error,
        "precision": precision,
        "warm_start": logs_to_learn(map(Path, warm_start)),
        "rules": rule_files(map(Path, rules)),
        "operators": tuple(str(Path(p).resolve()) for p in operators) or None,
    }
    prepared = prepare(
        Path(model),
        resolve(preset, options).config,
        Path(log),
        shapes=shapes,
        dims=dims,
        constants=constants,
        random_weights=random_weights,
        fallback=fallback,
    )
    for text in prepared.notes:
        note(text)
    if random_weights:
        note(random_weights_note(Path(model).name))
    with create(prepared, Path(log)) as session:
        yield from session.start(stop, note).events()


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
    prepared = prepare_network(network, config, log, source=model_path, shapes=shapes)
    with create(prepared, log) as session:
        yield from session.start(stop, note, rules).events()


def resume(
    log: str | Path,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    max_error: float | None = None,
    warm_start: Sequence[str | Path] = (),
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
    rules: Sequence[Rule] = (),
) -> Iterator[Event]:
    """Go on with the session of `log`: what is left of its budget, or `trials` or `time_s` more.

    Raises LogMismatch for a log of another CPU, LogBusy where somebody is writing it.
    """
    with reopen(
        Path(log),
        trials=trials,
        time_s=time_s,
        max_error=max_error,
        warm_start=[Path(path) for path in warm_start],
    ) as session:
        for text in session.notes:
            note(text)
        yield from session.start(stop, note, rules).events()
