"""⑪ The header of a log: of a first run over a model, and of one that goes on; its tasks."""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.api.bindings import Variant
from autotune.codec import to_json
from autotune.config import TuneConfig
from autotune.errors import LogMismatch
from autotune.graph.constant_values import constants_to_json
from autotune.graph.mixture import merged_weights, replaced
from autotune.graph.network import Network
from autotune.measure.threads import default_threads
from autotune.network.compile.aliasing import overwritable
from autotune.network.compile.row_strides import dense_operands
from autotune.records import Header, HeaderNetwork, HeaderVariant, Log, Workload
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.version import __version__

_LIBRARIES = ("llvmlite", "lightgbm", "numpy", "onnx")


def new_header(
    networks: Sequence[Network],
    model_path: str,
    variants: Sequence[Variant],
    target: Target,
    config: TuneConfig,
    others: Sequence[Sequence[Network]] = (),
) -> Header:
    """The header of the first run over a model; `model_path`: its origin, or "".

    `networks`: one for each of `variants`, see `compile.variants.unified`. `others`: the same in
    other precisions, whose tasks are alternatives, see `mixed_precision`.
    """
    first = networks[0]
    everything = [*networks, *(n for other in others for n in other)]
    counts = [
        merged_weights(network, [other[n] for other in others])
        for n, network in enumerate(networks)
    ]
    several = tuple(
        HeaderVariant(v.shapes, v.share, tuple(found.items()), dict(v.lengths))
        for v, found in zip(variants, counts, strict=True)
    )
    return Header(
        run_id=secrets.token_hex(6),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model_path=model_path,
        model_hash=first.model_hash,
        shapes=variants[0].shapes,
        target=target,
        n_threads=config.threads or default_threads(),
        seed=config.seed,
        config=to_json(config),
        versions=versions(),
        tasks=tuple(_counted(counts).items()),
        parts=_parts(networks, others),
        overwritten=_overwritten(everything),
        dense=dense_operands(everything),
        random_weights=first.random_weights,
        constant_inputs=constants_to_json(first.constant_inputs),
        variants=several if len(several) > 1 else (),
        networks=_by_precision([networks, *others], [v.share for v in variants]) if others else (),
        lengths=dict(variants[0].lengths),
        ragged=first.ragged is not None,
    )


def _by_precision(
    networks: Sequence[Sequence[Network]], shares: Sequence[float]
) -> tuple[HeaderNetwork, ...]:
    """The networks that the variants are in each precision, with the calls of one inference."""
    found = []
    for variants in networks:
        weights: dict[str, float] = {}
        for network, share in zip(variants, shares, strict=True):
            for key, n in network.weights.items():
                weights[key] = weights.get(key, 0.0) + share * n
        parts = {key: p for network in variants for key, p in network.parts.items()}
        found.append(HeaderNetwork(tuple(weights.items()), parts))
    return tuple(found)


def _counted(weights: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Calls of each task by all variants together, in order of first call."""
    counts: dict[str, int] = {}
    for found in weights:
        for key, n in found.items():
            counts[key] = counts.get(key, 0) + n
    return counts


def _parts(
    networks: Sequence[Network], others: Sequence[Sequence[Network]]
) -> dict[str, tuple[str, ...]]:
    """Tasks that each fused chain may replace, and each task of another precision."""
    parts: dict[str, tuple[str, ...]] = {}
    for other in others:
        for network, narrow in zip(networks, other, strict=True):
            parts |= narrow.parts | replaced(network, narrow)
    return parts | {key: found for network in networks for key, found in network.parts.items()}


def _overwritten(networks: Sequence[Network]) -> dict[str, tuple[str, ...]]:
    """Inputs of tasks that no network needs after any of the calls; see `overwritable`."""
    found: dict[str, tuple[str, ...]] = {}
    for network in networks:
        here = overwritable(network)
        for key in network.weights:
            names = here.get(key, ())
            found[key] = tuple(n for n in found.get(key, names) if n in names)
    return {key: names for key, names in found.items() if names}


def next_header(log: Log, options: Mapping[str, Any]) -> Header:
    """The header of a run that goes on with a log; options that are None leave its settings."""
    given = {name: value for name, value in options.items() if value is not None}
    return replace(
        log.header,
        run_id=secrets.token_hex(6),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=to_json(replace(TuneConfig.from_json(log.settings), **given)),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of everything that may change generated code or measurements."""
    found = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"autotune": __version__, "python": platform.python_version()} | found


def require_tasks(path: Path, log: Log) -> None:
    """Raise LogMismatch where lines are lost without which a session cannot go on."""
    tasks = dict(log.header.tasks)
    known = {key for key in tasks if key in log.workloads and _is_key(key)}
    parts = {part for parts in log.header.parts.values() for part in parts}
    n_lost = len(({*tasks, *log.header.parts} | parts) - known)
    if n_lost or not tasks:
        raise LogMismatch(
            f"{path} lacks the computation of {n_lost} of its tasks: lines of it are lost",
            "tune anew, with `warm_start` to learn from what was measured",
        )


def _is_key(text: str) -> bool:
    """Whether `text` can be the key of a task: hexadecimal digits, which also seed its search."""
    return bool(text) and all(c in "0123456789abcdef" for c in text)


def network_workloads(networks: Sequence[Network]) -> list[Workload]:
    """The tasks of networks as log entries, each once, in model order."""
    labels = {key: label for n in reversed(networks) for key, label in n.labels.items()}
    return [Workload(key, dag, labels[key]) for key, dag in _ordered_tasks(networks).items()]


def _ordered_tasks(networks: Sequence[Network]) -> dict[str, ComputeDAG]:
    ordered: dict[str, ComputeDAG] = {}
    for network in networks:
        for key in network.weights:
            ordered.setdefault(key, network.tasks[key])
    return ordered
