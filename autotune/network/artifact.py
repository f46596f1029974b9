"""⑩ The compiled network as one file: a manifest, machine code, and the constants.

The file is an uncompressed zip (`container`). The code is linked (`codegen.link`), so whoever loads
it needs no compiler. `constants.bin` starts at a multiple of 64 bytes in the file and is mapped
from it; nothing in the file depends on the time, the machine or the order of compilation, so equal
inputs give equal bytes. `loading` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autotune.brief import brief
from autotune.codegen.link import Image
from autotune.codegen.memory import aligned
from autotune.dtypes import PORT_TYPES, numpy_dtype, stored_dtype
from autotune.errors import ArtifactError
from autotune.files import replacing
from autotune.graph.constant_values import constants_from_json, constants_to_json
from autotune.network import container
from autotune.network.container import (
    CONSTANTS,
    IMAGE,
    Bytes,
    Container,
    bytes_of,
    described,
    digest,
    model_name,
    require,
)
from autotune.network.entry import PROFILE, RUN, entry_name
from autotune.network.manifest import Json, joined
from autotune.target import Target, missing_features
from autotune.target.tiles import FEATURE, Permission, denial

FORMAT = "autotune-artifact"
VERSION = 6
"""Of what is written. Fields tell a file with one shape from one with several (`variants`) and from
one with parts for ONNX Runtime (`networks`: see `hybrid`)."""

_HERE = "compile the model on this machine"
_BOUND = ("target", "inputs", "outputs", "arena_bytes", "n_bases", "constant_bytes", "entry")
"""What the code relies on, of the manifest."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model input or output as the user sees it, and where its elements are.

    Bound (`window` is None): the array itself is what slot `base` of the table points to. Else the
    elements are copied to or from byte `offset` after that address, where they lie as a window:
    an array of some shape with strides in elements. `limit`: see `graph.network.Port`. `dtype` is
    that of the user's array; the elements that kernels read and write are `stored`, which is
    float32 for half precision (float16, bfloat16) and for float8, and a byte for integers of less,
    unless kernels take it as it `is_native`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    base: int
    offset: int = 0
    window: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    limit: int = 2
    is_native: bool = False

    @property
    def stored(self) -> str:
        """Dtype of the elements in memory."""
        return self.dtype if self.is_native else stored_dtype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Named fields for the manifest."""
        data = asdict(self)
        if not self.is_native:
            del data["is_native"]
        return data

    @property
    def is_float(self) -> bool:
        """Whether elements have fractions."""
        known = PORT_TYPES.get(self.dtype)
        return known is not None and known.is_float

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Dtype of the user's array; Python's objects for strings, sequences and maps."""
        if self.dtype in ("string", ""):
            return np.dtype(object)
        return numpy_dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel launch: the task it is part of (key), the call's label, its symbol and range."""

    task: str
    label: str
    symbol: str
    extent: int


@dataclass(frozen=True, slots=True)
class Split:
    """A dimension that may have any extent, as its samples are computed apart: see `blocks`.

    `axes`: of each input and output with samples, the axis of them, and how many of its indices
    are one sample.
    """

    dimension: str
    axes: Mapping[str, tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it."""
        axes = {name: list(pair) for name, pair in self.axes.items()}
        return {"dimension": self.dimension, "axes": axes}


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning measured of a task alone: seconds per call, on how many threads."""

    latency_s: float
    n_threads: int


@brief
@dataclass(frozen=True)
class Artifact:
    """Everything needed to run a network on `target`.

    `n_threads`: what the schedules were chosen for; any number can run it. `n_bases`: slots of the
    address table before the team's. `image`: the linked code of all shapes and segments; `entry`:
    which of its entries is this network's. `constants`: bytes, 64-byte aligned. `max_error`: what
    the numeric check found, None if it was not run. `model_path`: the file it was compiled from.
    `tuned`: the records that schedules were taken from, by task; tasks without one are left out.
    `tasks`: keys of all tasks of the model, also those that others replace: their ids in order.
    `random_weights`: the weights are not the model's; None in files that do not say.
    `precision`: of the factors of products, one of `config.PRECISION_NAMES`.
    `constant_inputs`: inputs of the model that were bound to these values. `others`: the same model
    for other shapes of its inputs, over the same `constants` (the same array). `constant_kinds`:
    bytes of constants by `layout.KINDS`, known only where it was compiled. `split`: a dimension
    of which any extent is computed, by the variants that there are.
    """

    name: str
    model_hash: str
    target: Target
    n_threads: int
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    kernels: tuple[KernelInfo, ...]
    arena_bytes: int
    n_bases: int
    image: Image
    constants: Bytes
    autotune_version: str = ""
    max_error: float | None = None
    model_path: str = ""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    random_weights: bool | None = False
    constant_inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    precision: str = "f32"
    others: tuple[Artifact, ...] = ()
    constant_kinds: Mapping[str, int] = field(default_factory=dict, compare=False)
    split: Split | None = None
    entry: int = 0

    @property
    def variants(self) -> tuple[Artifact, ...]:
        """The model at each of its shapes: this artifact, without `others`, and these."""
        return (replace(self, others=(), split=None), *self.others)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore from a pickle, which loses the alignment of the constants."""
        self.__dict__.update(state)
        constants: Bytes = aligned((self.constants.nbytes,), "uint8")
        constants[:] = self.constants
        for one in self.over_the_constants():
            one.__dict__["constants"] = constants

    def over_the_constants(self) -> Iterator[Artifact]:
        """All artifacts that share `constants`, this one included."""
        yield from (self, *self.others)

    def manifest(self) -> dict[str, Any]:
        """All but the objects and constants, as JSON values."""
        bound = constants_to_json(self.constant_inputs)
        more: dict[str, Any] = {"constant_inputs": bound} if bound else {}
        more |= {"precision": self.precision} if self.precision != "f32" else {}
        more |= {"split": self.split.to_json()} if self.split else {}
        return more | {
            "format": FORMAT,
            "version": VERSION,
            "autotune_version": self.autotune_version,
            "name": self.name,
            "model_hash": self.model_hash,
            "target": self.target.to_json(),
            "n_threads": self.n_threads,
            "inputs": [x.to_json() for x in self.inputs],
            "outputs": [x.to_json() for x in self.outputs],
            "kernels": [asdict(x) for x in self.kernels],
            "arena_bytes": self.arena_bytes,
            "constant_bytes": int(self.constants.nbytes),
            "n_bases": self.n_bases,
            "entry": self.entry,
            "image": self.image.to_json(),
            "max_error": self.max_error,
            "model_path": self.model_path,
            "tuned": {key: asdict(x) for key, x in self.tuned.items()},
            "tasks": list(self.tasks),
            "random_weights": self.random_weights,
        }

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all. Raises as `files.replacing` does."""
        with replacing(Path(path)) as file:
            self.write(file)

    def write(self, out: BinaryIO) -> None:
        """Write what `load` reads to an open file. Raises OSError."""
        manifest = self.manifest()
        if self.others:
            manifest = joined([manifest, *(other.manifest() for other in self.others)])
        write_file(out, manifest, self.variants, self.image, self.constants)

    def facts(self) -> dict[str, Any]:
        """What the code relies on, of one network: addresses, sizes, kernels, which entry."""
        manifest = self.manifest()
        kernels = [(kernel.symbol, kernel.extent) for kernel in self.kernels]
        return {name: manifest[name] for name in _BOUND} | {"kernels": kernels}


def write_file(
    out: BinaryIO,
    manifest: Json,
    networks: Sequence[Artifact],
    image: Image,
    constants: Bytes,
    models: tuple[bytes, ...] = (),
) -> None:
    """Write the parts of an artifact, with their digests. `networks`: that the code is for."""
    parts: dict[str, Json] = {
        IMAGE: described(bytes_of(image.data)),
        CONSTANTS: described(constants),
        **{model_name(n): described(bytes_of(data)) for n, data in enumerate(models)},
    }
    text = json.dumps({**manifest, "parts": parts}, indent=1, sort_keys=True).encode()
    seal = code_seal(networks, image, parts)
    container.write(out, text, image.data, seal, constants, models)


def code_seal(networks: Sequence[Artifact], image: Image, parts: Json) -> str:
    """A digest of everything that the code relies on, and of the code.

    `parts`: sizes and digests of the image's bytes and of the constants.
    """
    facts = {
        "networks": [network.facts() for network in networks],
        "image": image.to_json(),
        "parts": {name: parts[name] for name in (IMAGE, CONSTANTS)},
    }
    return digest(bytes_of(json.dumps(facts, sort_keys=True).encode()))


def joined_variants(networks: Sequence[Artifact]) -> Artifact:
    """One artifact of the same model at several shapes."""
    first, *others = networks
    return replace(first, others=tuple(replace(other, split=None) for other in others))


def read_parts(
    parts: Container, manifest: Json, own: Set[str], source: Path, is_shared: bool
) -> tuple[dict[str, bytes], Bytes]:
    """All parts that the manifest describes by name, without the constants; and these.

    `own`: the parts that a file has to have.
    """
    require_features(Target.from_json(manifest["target"]), f"'{source}'")
    known = manifest["parts"]
    require(parts.names() == own, "it has parts that are not its own")
    constants = (parts.mapped if is_shared else parts.part)(CONSTANTS, known[CONSTANTS])
    names = (name for name in known if name != CONSTANTS)
    return {name: parts.part(name, known[name]).tobytes() for name in names}, constants


def require_features(target: Target, what: str) -> None:
    """Raise ArtifactError where this CPU cannot run `what`, which was compiled for `target`."""
    missing = missing_features(target)
    if not missing:
        return
    if FEATURE in missing and denial():
        raise ArtifactError(f"{what} needs {FEATURE}: {Permission.DENIED.value}", _HERE)
    lacks = ", ".join(missing)
    raise ArtifactError(
        f"{what} is compiled for {target.cpu}; this CPU lacks {lacks}",
        f"{_HERE}, or with `target` for this CPU",
    )


def artifact_of(manifest: Json, image: Image, constants: Bytes) -> Artifact:
    """The artifact of one network, which is as `require_network` says.

    Raises Damaged where the image has no code for it.
    """
    names = {entry_name(symbol, manifest["entry"]) for symbol in (RUN, PROFILE)}
    require(names <= image.symbols.keys(), "its code has no entry for a network")
    own = ("arena_bytes", "n_bases", "max_error", "entry")
    return Artifact(
        **common_fields(manifest),
        **{field: manifest[field] for field in own},
        inputs=tuple(map(_endpoint, manifest["inputs"])),
        outputs=tuple(map(_endpoint, manifest["outputs"])),
        kernels=tuple(KernelInfo(**x) for x in manifest["kernels"]),
        image=image,
        constants=constants,
    )


def common_fields(manifest: Json) -> dict[str, Any]:
    """Fields of an artifact that are the same for all networks of a file."""
    plain = ("name", "model_hash", "n_threads", "autotune_version", "model_path", "random_weights")
    return {field: manifest[field] for field in plain} | {
        "target": Target.from_json(manifest["target"]),
        "tuned": {key: Tuned(**x) for key, x in manifest["tuned"].items()},
        "tasks": tuple(manifest["tasks"]),
        "constant_inputs": constants_from_json(manifest.get("constant_inputs", {})),
        "precision": manifest.get("precision", "f32"),
        "split": _split(manifest.get("split")),
    }


def _split(data: Json | None) -> Split | None:
    if data is None:
        return None
    axes = {name: (axis, inner) for name, (axis, inner) in data["axes"].items()}
    return Split(data["dimension"], axes)


def _endpoint(data: Mapping[str, Any]) -> Endpoint:
    window = data["window"]
    parts = (tuple(window[0]), tuple(window[1])) if window else None
    return Endpoint(**{**data, "shape": tuple(data["shape"]), "window": parts})
