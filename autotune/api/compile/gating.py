"""⑪ Latencies that are kept, and compared with later: `bench --save` and `bench --compare`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from autotune.api.compile.benching import number_of_variant
from autotune.api.info import machine_versions
from autotune.codec import Misfit, from_json, to_json, within
from autotune.conditions import Conditions, read_conditions
from autotune.errors import ArtifactError, LogMismatch, UsageError
from autotune.files import open_input, replacing
from autotune.network.bench.gate import (
    GateVerdict,
    Rounds,
    gate,
    loads_of,
    measure_rounds,
    multiply_adds,
)
from autotune.network.runtime.loading import load
from autotune.network.runtime.runtime import Array, Model, random_inputs

_VERSION = 1
_MOST_BYTES = 16 << 20
_N_ROUNDS = 30
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Of what model, machine and time figures are. `model_hash`: of its file; `precision`: of the
    factors of products; `target_key`: the CPU as the compiler sees it."""

    date: str
    model: str
    model_hash: str
    precision: str
    target_key: str
    n_threads: int
    conditions: Conditions
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SavedBench:
    """The file of `bench --save`: the rounds of each variant, and their artifact.

    `artifact`, `digest`: its path and the SHA-256 of its content, "" where it came from no file.
    """

    format: Literal["autotune-bench"]
    version: Annotated[int, within(1, _VERSION)]
    provenance: Provenance
    artifact: str
    digest: str
    inputs: tuple[Mapping[str, tuple[int, ...]], ...]
    variants: tuple[Rounds, ...]


def provenance(model: Model) -> Provenance:
    """Of what figures are that are measured now."""
    artifact = model.artifact
    return Provenance(
        datetime.now(UTC).isoformat(timespec="seconds"),
        artifact.name,
        artifact.model_hash,
        artifact.precision,
        artifact.target.key,
        model.n_threads,
        read_conditions(),
        machine_versions(),
    )


def save_bench(
    path: Path, model: Model, artifact: Path | None, given: Arrays | None = None
) -> SavedBench:
    """Measure each variant of `model` for the file `path`, to compare later models with.

    `artifact`: the file that it was loaded from. `given`: inputs, else random ones; of several
    variants that is measured which they fit. Raises UsageError or OutputError where `path`
    cannot be written.
    """
    reference = multiply_adds(model.artifact.target, model.n_threads)
    fed = list(_fed(model, given))
    found = SavedBench(
        "autotune-bench",
        _VERSION,
        provenance(model),
        str(artifact.resolve()) if artifact else "",
        _digest(artifact) if artifact else "",
        tuple(_shapes(variant) for _, variant, _ in fed),
        tuple(
            measure_rounds(
                loads_of(model, inputs, n), None, reference, lambda r: len(r.now_s) >= _N_ROUNDS
            )
            for n, _, inputs in fed
        ),
    )
    with replacing(path) as file:
        file.write(json.dumps(to_json(found), indent=1).encode())
    return found


def compare_bench(
    model: Model,
    base: Path,
    limit: float | None = None,
    time_s: float = 2.0,
    given: Arrays | None = None,
) -> dict[int, GateVerdict]:
    """Whether each variant of `model`, by its number, is slower than that of `base`, an artifact or
    a file of `save_bench`; of several variants, that which `given` inputs fit.

    The artifact that such a file is of runs in turns with `model` where it is still there, beside
    the file or where it was; else the figures in it are compared. Raises LogMismatch for figures of
    another machine, number of threads or shape, UsageError for a file of another kind.
    """
    saved = read_saved(base)
    before = _artifact_of(saved, base) if saved else base
    if saved is not None:
        _require_same_machine(saved, model, base)
    earlier = _as(load(before, model.n_threads), model) if before else None
    shapes = tuple(map(_shapes, earlier.variants)) if earlier else saved.inputs if saved else ()
    if shapes != tuple(map(_shapes, model.variants)):
        raise LogMismatch(
            f"{base} is of other inputs than {model.artifact.name}",
            "compare what was compiled for the same shapes",
        )
    reference = multiply_adds(model.artifact.target, model.n_threads)
    found = {}
    for n, _, inputs in _fed(model, given):
        other: Any = loads_of(earlier, inputs, n) if earlier else None
        if other is None and saved is not None:
            other = saved.variants[n]
        found[n] = gate(loads_of(model, inputs, n), other, reference, limit, time_s)
    return found


def read_saved(path: Path) -> SavedBench | None:
    """The content of a file of `save_bench`; None where it is an artifact.

    Raises UsageError without such a file, ArtifactError for a broken one.
    """
    with open_input(path) as file:
        text = file.read(_MOST_BYTES)
    if not text.lstrip().startswith(b"{"):
        return None
    try:
        return from_json(SavedBench, json.loads(text))
    except (Misfit, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path} is no file of bench, or one of another version: {error}", "save it again"
        ) from error


def _require_same_machine(saved: SavedBench, model: Model, path: Path) -> None:
    theirs = saved.provenance
    pairs = [
        ("processor", theirs.conditions.processor, read_conditions().processor),
        ("target", theirs.target_key, model.artifact.target.key),
        ("number of threads", theirs.n_threads, model.n_threads),
    ]
    for what, then, now in pairs:
        if then != now:
            raise LogMismatch(
                f"{path} was measured with another {what}: {then}, here it is {now}",
                "save one here, by the version to compare with",
            )


def _artifact_of(saved: SavedBench, path: Path) -> Path | None:
    """The very artifact that was measured, where it was or beside the file."""
    if not saved.artifact:
        return None
    known = Path(saved.artifact)
    places = (known, path.resolve().parent / known.name)
    return next((p for p in places if p.is_file() and _digest(p) == saved.digest), None)


def _fed(model: Model, given: Arrays | None) -> Iterator[tuple[int, Model, Arrays]]:
    """The number of each variant, itself and inputs for it; with given ones, of that they fit.

    Raises UsageError where they fit none.
    """
    numbers = range(len(model.variants)) if given is None else [number_of_variant(model, given)]
    for n in numbers:
        variant = model.variants[n]
        yield n, variant, random_inputs(variant.input_info, 0) if given is None else given


def _as(earlier: Model, model: Model) -> Model:
    """`earlier` at the size of `model`, where it has lengths and that is one of them."""
    if not earlier.lengths:
        return earlier
    with suppress(UsageError):
        return earlier.at(_shapes(model))
    return earlier


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    return {end.name: end.shape for end in model.input_info}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
