"""⑩ The compiled network as one file: a manifest, machine code, and the constants.

The file is an uncompressed zip (`container`). The code is linked (`codegen.link`), so loading
needs no compiler. `constants.bin` starts at a multiple of 64 bytes in the file and is mapped
from it; nothing in the file depends on the time, the machine or the order of compilation, so equal
inputs give equal bytes. `loading` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Annotated, Any, BinaryIO, TypeAlias

import numpy as np

from autotune.brief import brief
from autotune.codec import LEFT_OUT, REQUIRED, Apart, Coded, Holds, from_json, to_json, within
from autotune.codegen.image.link import Image
from autotune.codegen.memory import ALIGNMENT, aligned
from autotune.config import MOST_THREADS, PRECISION_NAMES
from autotune.dtypes import PORT_TYPES, numpy_dtype, stored_dtype
from autotune.errors import ArtifactError
from autotune.extent import Extent, Length, at
from autotune.files import replacing
from autotune.graph.constant_values import ConstantsField
from autotune.graph.ragged import Ragged
from autotune.graph.state import StateInfo
from autotune.graph.texts import NO_TEXTS, Texts
from autotune.network.artifact import container
from autotune.network.artifact.container import (
    CONSTANTS,
    IMAGE,
    Bytes,
    Container,
    Json,
    bytes_of,
    model_name,
    require,
)
from autotune.network.artifact.digests import described, digest
from autotune.network.artifact.table import FIRST_BOUND
from autotune.network.artifact.work import Work
from autotune.strides import dense
from autotune.target import Target, missing_features
from autotune.target.isa import HOST
from autotune.target.tiles import FEATURE, Permission, denial

FORMAT = "autotune-artifact"
VERSION = 8
"""Of what is written. Fields tell a file with one shape from one with several (`variants`) and from
one with parts for ONNX Runtime (`networks`: see `hybrid`)."""
CPUS, OF_SEVERAL_CPUS = "cpus", 9
"""The field of a file for several CPUs, and its version, which versions of before refuse."""

MOST = 1 << 48
"""Bytes, elements, iterations: more than any memory."""
MOST_PARTS = 1 << 20
_MOST_DIMENSIONS = 64
_RAW_BYTES = frozenset(map(chr, range(0xDC80, 0xDD00)))


def is_text(value: str) -> bool:
    """Whether a string can be written, which half a surrogate pair cannot."""
    return not any("\ud800" <= c <= "\udfff" for c in value)


def _is_path(value: str) -> bool:
    """Whether it can come from a path, whose bytes need not be UTF-8: see `os.fsdecode`."""
    return is_text("".join(c for c in value if c not in _RAW_BYTES))


def _is_window(value: tuple[Sequence[int], Sequence[int]] | None) -> bool:
    return value is None or len(value[0]) == len(value[1])


def _extent_to(extent: Extent) -> Any:
    return to_json(extent) if isinstance(extent, Length) else extent


def _extent_from(data: Any) -> Extent:
    return from_json(Length, data) if isinstance(data, dict) else data


def _target_from(data: dict[str, Any]) -> Target:
    return Target.from_json({"n_cores": None} | data)


Text: TypeAlias = Annotated[str, Holds(is_text, "valid Unicode")]
_PathText: TypeAlias = Annotated[str, Holds(_is_path, "a path")]
_NAMED = Holds(lambda values: all(map(is_text, values)), "constants by name")
Size: TypeAlias = Annotated[int, within(0, MOST)]
Positive: TypeAlias = Annotated[int, within(1, MOST)]
Error: TypeAlias = Annotated[float | None, Holds(lambda error: (error or 0) >= 0, "an error")]
Threads: TypeAlias = Annotated[int, within(1, MOST_THREADS)]
_Shape: TypeAlias = Annotated[
    tuple[Annotated[int, within(-1, MOST)], ...],
    Holds(lambda shape: len(shape) <= _MOST_DIMENSIONS, "a shape"),
]
_Extent: TypeAlias = Annotated[Extent, Coded(_extent_to, _extent_from)]

_HERE = "compile the model on this machine"
_BOUND = ("target", "inputs", "outputs", "arena_bytes", "n_bases", "constant_bytes", "entry")
"""Fields of the manifest that the machine code relies on; and `lengths` where there are some."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model input or output as the user sees it, and where its elements are.

    Bound (`window` is None): slot `base` of the table points to the array itself. Else the
    elements are copied to or from byte `offset` after that address, where they lie as a window:
    an array of some shape with strides in elements. `limit` and `below`: see `graph.network.Port`.
    `dtype` is that of the user's array; the elements that kernels read and write are `stored`,
    which is float32 for half precision (float16, bfloat16) and for float8, and a byte for integers
    of less, unless kernels take it as it `is_native`. `extents`: of one with lengths; `shape` and
    `window` are those of the longest. `written`: of an output some of whose lengths the network
    writes; then its first elements count. `words`: some that an input of strings may have.
    """

    name: Text
    shape: _Shape
    dtype: str
    base: Size
    offset: Annotated[Size, REQUIRED] = 0
    window: Annotated[tuple[_Shape, _Shape] | None, Holds(_is_window, "a window"), REQUIRED] = None
    limit: Annotated[int, within(1, MOST), REQUIRED] = 2
    is_native: Annotated[bool, Holds(bool, "true"), LEFT_OUT] = False
    extents: Annotated[tuple[_Extent, ...], LEFT_OUT] = ()
    written: Annotated[tuple[_Extent, ...], LEFT_OUT] = ()
    words: Annotated[tuple[Text, ...], LEFT_OUT] = ()
    below: Annotated[tuple[_Extent, ...], LEFT_OUT] = ()

    def at(self, numbers: Mapping[str, int]) -> Endpoint:
        """The port for these numbers: a window of the memory of the longest."""
        port = self
        if self.below:
            port = replace(self, limit=max(1, *at(self.below, numbers)), below=())
        if not self.extents:
            return port
        shape = at(self.extents, numbers)
        strides = self.window[1] if self.window else dense(self.shape)
        written = tuple(
            w if isinstance(e, int) else n
            for w, e, n in zip(self.written, self.extents, shape, strict=False)
        )
        return replace(port, shape=shape, window=(shape, strides), extents=(), written=written)

    @property
    def stored(self) -> str:
        """Dtype of the elements in memory."""
        return self.dtype if self.is_native else stored_dtype(self.dtype)

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

    task: Text
    label: Text
    symbol: Text
    extent: Size


@dataclass(frozen=True, slots=True)
class Tuned:
    """Measured latency of a task alone, in seconds per call, and its number of threads."""

    latency_s: Annotated[float, Holds(lambda time_s: time_s > 0, "above zero")]
    n_threads: Threads


@brief
@dataclass(frozen=True)
class Artifact:
    """Everything needed to run a network on `target`.

    `n_threads`: what the schedules were chosen for; any number can run it. `n_bases`: slots of the
    address table before the team's. `image`: the linked code of all shapes and segments; `entry`:
    which of its entries is this network's. `constants`: bytes, 64-byte aligned. `max_error`: what
    the numeric check found, None if it was not run. `model_path`: the file it was compiled from; of
    it a manifest has the name alone, so that equal models give equal files.
    `tuned`: the records that schedules were taken from, by task; tasks without one are left out.
    `tasks`: keys of all tasks of the model, also those that others replace: their ids in order.
    `stored`: keys of tasks whose records are those of a store, not of the log.
    `random_weights`: the weights are not the model's; None in files that do not say.
    `precision`: of the factors of products, one of `config.PRECISION_NAMES`.
    `constant_inputs`: inputs of the model that were bound to these values. `others`: the same model
    for other shapes of its inputs, over the same `constants` (the same array). `constant_kinds`:
    bytes of constants by `layout.KINDS`, known only where it was compiled. `state`: of a model that
    has some; its variants take different numbers of new places. `lengths`: see `Network`; the
    inputs that hold numbers are none of the model's own, nor are outputs that hold `written` ones.
    `works`: what tasks of all variants do at least, by key. `ragged`: of one over the tokens of
    rows. `texts`: of strings, which are numbers of ports. `cpus`: the same model for other CPUs,
    over the same image and constants: see `cpus`.
    """

    name: _PathText
    model_hash: Text
    target: Annotated[Target, Coded(to_json, _target_from)]
    n_threads: Threads
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    kernels: tuple[KernelInfo, ...]
    arena_bytes: Size
    n_bases: Annotated[int, within(FIRST_BOUND, MOST_PARTS)]
    image: Image
    constants: Annotated[Bytes, Apart(None)]
    autotune_version: Text = ""
    max_error: Error = None
    model_path: _PathText = ""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    tasks: tuple[Text, ...] = ()
    random_weights: bool | None = False
    constant_inputs: Annotated[ConstantsField, _NAMED, LEFT_OUT] = field(default_factory=dict)
    precision: Annotated[str, Holds(PRECISION_NAMES.__contains__, "a precision"), LEFT_OUT] = "f32"
    others: Annotated[tuple[Artifact, ...], Apart(None)] = ()
    cpus: Annotated[tuple[Artifact, ...], Apart(None)] = ()
    constant_kinds: Annotated[Mapping[str, int], Apart(None)] = field(
        default_factory=dict, compare=False
    )
    entry: Annotated[int, within(0, MOST_PARTS)] = 0
    stored: Annotated[tuple[Text, ...], LEFT_OUT] = ()
    state: Annotated[StateInfo | None, LEFT_OUT] = None
    lengths: Annotated[Mapping[Text, Text], LEFT_OUT] = field(default_factory=dict)
    works: Annotated[Mapping[Text, tuple[Work, ...]], LEFT_OUT] = field(default_factory=dict)
    written: Annotated[Mapping[Text, Text], LEFT_OUT] = field(default_factory=dict)
    ragged: Annotated[Ragged | None, LEFT_OUT] = None
    texts: Annotated[Texts, LEFT_OUT] = NO_TEXTS

    @property
    def own_inputs(self) -> tuple[Endpoint, ...]:
        """The inputs that a caller gives."""
        hidden = set(self.lengths.values())
        return tuple(end for end in self.inputs if end.name not in hidden)

    @property
    def own_outputs(self) -> tuple[Endpoint, ...]:
        """The outputs that a caller gets."""
        hidden = set(self.written.values())
        return tuple(end for end in self.outputs if end.name not in hidden)

    def at(self, numbers: Mapping[str, int]) -> Artifact:
        """The artifact as one for these numbers, whose ports are `own_inputs` alone."""
        inputs, outputs = (
            tuple(end.at(numbers) for end in ends) for ends in (self.own_inputs, self.outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs, lengths={}, others=(), cpus=())

    @property
    def possible(self) -> dict[str, range]:
        """The numbers that each length may have."""
        extents = (extent for end in (*self.inputs, *self.outputs) for extent in end.extents)
        return {e.name: range(e.least, e.most + 1) for e in extents if isinstance(e, Length)}

    @property
    def mosts(self) -> dict[str, int]:
        """The largest number of each length."""
        return {name: numbers[-1] for name, numbers in self.possible.items()}

    @property
    def variants(self) -> tuple[Artifact, ...]:
        """The model at each of its shapes: this artifact, without `others`, and these."""
        return (replace(self, others=(), cpus=()), *self.others)

    @property
    def by_cpu(self) -> tuple[Artifact, ...]:
        """The model for each CPU: this artifact, without `cpus`, and these."""
        return (replace(self, cpus=()), *self.cpus)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore from a pickle; one that holds the constants has lost their alignment."""
        self.__dict__.update(state)
        if self.constants.ctypes.data % ALIGNMENT == 0:
            return
        constants: Bytes = aligned((self.constants.nbytes,), "uint8")
        constants[:] = self.constants
        for one in self.over_the_constants():
            one.__dict__["constants"] = constants

    def over_the_constants(self) -> Iterator[Artifact]:
        """All artifacts that share `constants`, this one included."""
        for one in (self, *self.cpus):
            yield from (one, *one.others)

    def manifest(self) -> dict[str, Any]:
        """All but the objects and constants, as JSON values."""
        head = {"format": FORMAT, "version": VERSION, "constant_bytes": int(self.constants.nbytes)}
        return head | to_json(self) | {"model_path": PurePath(self.model_path).name}

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all. Raises as `files.replacing` does."""
        with replacing(Path(path)) as file:
            self.write(file)

    def write(self, out: BinaryIO) -> None:
        """Write the artifact to an open file. Raises OSError."""
        several = self.by_cpu
        models = tuple(dict.fromkeys(data for one in several for data in one.onnx_files()))
        manifest = manifests_by_cpu([one.whole_manifest(models) for one in several])
        networks = [network for one in several for network in one.networks()]
        write_file(out, manifest, networks, self.image, self.constants, models)

    def whole_manifest(self, models: tuple[bytes, ...]) -> dict[str, Any]:
        """The manifest of all shapes. `models`: the ONNX files that segments may name."""
        several = [one.manifest() for one in self.variants]
        return joined(several) if self.others else several[0]

    def networks(self) -> Sequence[Artifact]:
        """All compiled networks, in the order of the manifest."""
        return self.variants

    def onnx_files(self) -> Iterable[bytes]:
        """What ONNX Runtime runs."""
        return ()

    def facts(self) -> dict[str, Any]:
        """Facts that the machine code of a network relies on: addresses, sizes, kernels, entry."""
        manifest = self.manifest()
        kernels = [(kernel.symbol, kernel.extent) for kernel in self.kernels]
        found = {
            name: manifest[name] for name in (*_BOUND, "lengths", "written") if name in manifest
        }
        return found | {"kernels": kernels}


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
        "image": to_json(image),
        "parts": {name: parts[name] for name in (IMAGE, CONSTANTS)},
    }
    return digest(bytes_of(json.dumps(facts, sort_keys=True).encode()))


def joined_variants(networks: Sequence[Artifact]) -> Artifact:
    """One artifact of the same model at several shapes."""
    first, *others = networks
    return replace(first, others=tuple(others))


def read_parts(
    parts: Container, manifest: Json, own: Set[str], is_shared: bool
) -> tuple[dict[str, bytes], Bytes]:
    """All parts that the manifest describes by name, without the constants; and these.

    `own`: the parts that a file has to have.
    """
    known = manifest["parts"]
    require(parts.names() == own, "it has parts that are not its own")
    constants = (parts.mapped if is_shared else parts.part)(CONSTANTS, known[CONSTANTS])
    names = (name for name in known if name != CONSTANTS)
    return {name: parts.part(name, known[name]).tobytes() for name in names}, constants


def require_features(target: Target, what: str) -> None:
    """Raise ArtifactError where this CPU cannot run `what`: code compiled for `target`."""
    missing = missing_features(target)
    if not missing:
        return
    if target.architecture is not HOST:
        raise ArtifactError(
            f"{what} is compiled for {target.cpu}, whose architecture is {target.arch}; "
            f"this CPU is of {HOST.name}",
            "`autotune export` makes a library of it that runs there",
        )
    if FEATURE in missing and denial():
        raise ArtifactError(f"{what} needs {FEATURE}: {Permission.DENIED.value}", _HERE)
    lacks = ", ".join(missing)
    raise ArtifactError(
        f"{what} is compiled for {target.cpu}; this CPU lacks {lacks}",
        f"{_HERE}, or with `target` for this CPU",
    )


OF_VARIANT = ("inputs", "outputs", "kernels", "arena_bytes", "n_bases", "max_error", "entry")
"""Fields of a manifest that are others for every shape; all else is the same."""
OWN = ("state", "lengths", "written")
"""Fields that variants may have as well, where they have others than the first one."""


def joined(manifests: Sequence[Json]) -> dict[str, Any]:
    """One manifest of several shapes.

    [{name, inputs, …}, {name, inputs, …}]  ->  {name, variants: [{inputs, …}, {inputs, …}]}

    A variant has fields of `OWN` where they are others than the first one's.
    """
    shared = {name: value for name, value in manifests[0].items() if name not in OF_VARIANT}
    variants = [{name: manifest[name] for name in OF_VARIANT} for manifest in manifests]
    for variant, manifest in zip(variants, manifests, strict=True):
        for name in OWN:
            if manifest.get(name) != shared.get(name):
                variant[name] = manifest.get(name, None if name == "state" else {})
    return shared | {"variants": variants}


def manifests_by_cpu(several: Sequence[Json]) -> dict[str, Any]:
    """One manifest: what they have in common, and the rest of each."""
    first, *others = several
    if not others:
        return dict(first)
    shared = {
        name: value for name, value in first.items() if all(x.get(name) == value for x in others)
    }
    own = [{n: value for n, value in one.items() if n not in shared} for one in several]
    return {**shared, "version": OF_SEVERAL_CPUS, CPUS: own}
