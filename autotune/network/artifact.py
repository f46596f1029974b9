"""⑩ The compiled network as one file: a manifest, relocatable objects, and the constants.

The file is an uncompressed zip. `constants.bin` starts at a multiple of 64 bytes in it, so it can
be mapped; nothing in the file depends on the time, the machine or the order of compilation, so
equal inputs give equal bytes. The manifest is checked on loading: a foreign, damaged or newer file,
or one for a CPU that this is not, is refused with the reason.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import ALIGNMENT, aligned
from autotune.errors import ArtifactError, MissingDependency, UsageError
from autotune.files import open_input, replacing
from autotune.target import Target, missing_features

FORMAT = "autotune-artifact"
VERSION = 1

_MANIFEST, _CONSTANTS = "manifest.json", "constants.bin"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PADDING_ID = 0xD935  # the zip extra field that Android's zipalign uses for padding
_LOCAL_HEADER = 30
_EXTRA_HEADER = struct.Struct("<HH")
_ZIP32_BYTES = 1 << 30  # beyond this, sizes are written as 64 bits, in a further extra field of:
_ZIP64_EXTRA = 20
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model input or output as the user sees it, and where its elements are.

    Bound (`window` is None): the array itself is what slot `base` of the table points to. Else the
    elements are copied to or from byte `offset` after that address, where they lie as a window:
    an array of some shape with strides in elements. `limit`: see `graph.network.Port`. `dtype` is
    that of the user's array; the elements that kernels read and write are `stored`, which is
    float32 for half precision (float16, bfloat16).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    base: int
    offset: int = 0
    window: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    limit: int = 2

    @property
    def stored(self) -> str:
        """Dtype of the elements in memory."""
        return stored_dtype(self.dtype)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Dtype of the user's array. Raises MissingDependency for bfloat16 without ml_dtypes."""
        return numpy_dtype(self.dtype)


def stored_dtype(dtype: str) -> str:
    """Dtype of the elements of a port in memory: all code here computes halves in float32."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name. Raises MissingDependency for bfloat16 without ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependency(
            "bfloat16 needs the package ml_dtypes", "pip install ml_dtypes"
        ) from error
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel launch: the task it is part of (key), the call's label, its symbol and range."""

    task: str
    label: str
    symbol: str
    extent: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning measured of a task alone: seconds per call, on how many threads."""

    latency_s: float
    n_threads: int


@dataclass(frozen=True)
class Artifact:
    """Everything needed to run a network on `target`.

    `n_threads`: what the schedules were chosen for; any number can run it. `n_bases`: slots of the
    address table before the barrier's. `constants`: bytes, 64-byte aligned. `max_error`: what the
    numeric check found, None if it was not run. `model_path`: the file it was compiled from.
    `tuned`: the records that schedules were taken from, by task; tasks without one are left out.
    `tasks`: keys of all tasks of the model, also those that others replace: their ids in order.
    `random_weights`: the weights are not the model's; None in files that do not say.
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
    objects: tuple[bytes, ...]
    constants: NDArray[np.uint8]
    autotune_version: str = ""
    max_error: float | None = None
    model_path: str = ""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    random_weights: bool | None = False

    def manifest(self) -> dict[str, Any]:
        """All but the objects and constants, as JSON values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "autotune_version": self.autotune_version,
            "name": self.name,
            "model_hash": self.model_hash,
            "target": self.target.to_json(),
            "n_threads": self.n_threads,
            "inputs": [asdict(x) for x in self.inputs],
            "outputs": [asdict(x) for x in self.outputs],
            "kernels": [asdict(x) for x in self.kernels],
            "arena_bytes": self.arena_bytes,
            "constant_bytes": int(self.constants.nbytes),
            "n_bases": self.n_bases,
            "n_objects": len(self.objects),
            "max_error": self.max_error,
            "model_path": self.model_path,
            "tuned": {key: asdict(x) for key, x in self.tuned.items()},
            "tasks": list(self.tasks),
            "random_weights": self.random_weights,
        }

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all. Raises as `files.replacing` does."""
        with replacing(Path(path)) as file:
            self._write(file)

    def _write(self, out: BinaryIO) -> None:
        manifest = json.dumps(self.manifest(), indent=1, sort_keys=True).encode()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
            file.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), manifest)
            for n, data in enumerate(self.objects):
                file.writestr(zipfile.ZipInfo(_object_name(n), _EPOCH), data)
            is_wide = self.constants.nbytes > _ZIP32_BYTES
            info = _aligned_entry(file, is_wide)
            with file.open(info, "w", force_zip64=is_wide) as entry:
                for start in range(0, self.constants.nbytes, _CHUNK):
                    entry.write(self.constants[start : start + _CHUNK].data)

    @staticmethod
    def load(path: str | Path) -> Artifact:
        """Read a file written by `save`.

        Raises UsageError for a missing file and ArtifactError for one that cannot be used here.
        """
        source = Path(path)
        try:
            with open_input(source) as file:
                head = file.read(4)
                with zipfile.ZipFile(file) as archive:
                    return _read(archive, source)
        except zipfile.BadZipFile as error:
            raise _damaged(source) if head == b"PK\x03\x04" else _foreign(source) from error
        except OSError as error:
            raise UsageError(
                f"cannot read '{source}': {error.strerror}", "give a file written by compile"
            ) from error


def _object_name(n: int) -> str:
    return f"objects/{n:03d}.o"


def _aligned_entry(file: zipfile.ZipFile, is_wide: bool) -> zipfile.ZipInfo:
    """The header of the constants, padded so that the data after it is aligned."""
    info = zipfile.ZipInfo(_CONSTANTS, _EPOCH)
    header = _LOCAL_HEADER + len(_CONSTANTS) + _EXTRA_HEADER.size
    end = file.start_dir + header + (_ZIP64_EXTRA if is_wide else 0)
    padding = -end % ALIGNMENT
    info.extra = _EXTRA_HEADER.pack(_PADDING_ID, padding) + bytes(padding)
    return info


def _read(archive: zipfile.ZipFile, source: Path) -> Artifact:
    manifest = _read_manifest(archive, source)
    try:
        _require_features(Target.from_json(manifest["target"]), source)
        return _artifact(archive, manifest)
    except (KeyError, TypeError, AttributeError, EOFError) as error:
        raise _damaged(source) from error


def _require_features(target: Target, source: Path) -> None:
    missing = missing_features(target)
    if missing:
        raise ArtifactError(
            f"'{source}' is compiled for {target.cpu}; this CPU lacks {', '.join(missing)}",
            "compile the model on this machine, or with --target for this CPU",
        )


def _artifact(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> Artifact:
    plain = ("name", "model_hash", "n_threads", "arena_bytes", "n_bases", "max_error")
    return Artifact(
        **{field: manifest[field] for field in plain},
        target=Target.from_json(manifest["target"]),
        inputs=tuple(map(_endpoint, manifest["inputs"])),
        outputs=tuple(map(_endpoint, manifest["outputs"])),
        kernels=tuple(KernelInfo(**x) for x in manifest["kernels"]),
        objects=tuple(archive.read(_object_name(n)) for n in range(manifest["n_objects"])),
        constants=_read_constants(archive, manifest["constant_bytes"]),
        autotune_version=manifest["autotune_version"],
        model_path=manifest.get("model_path", ""),
        tuned={key: Tuned(**x) for key, x in manifest.get("tuned", {}).items()},
        tasks=tuple(manifest.get("tasks", ())),
        random_weights=manifest.get("random_weights"),
    )


def _read_manifest(archive: zipfile.ZipFile, source: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(archive.read(_MANIFEST))
    except (KeyError, ValueError) as error:
        raise _foreign(source) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _foreign(source)
    version, writer = manifest.get("version"), manifest.get("autotune_version")
    if version != VERSION:
        raise ArtifactError(
            f"'{source}' has format version {version}, this autotune reads {VERSION}",
            f"compile it anew, or use autotune {writer}, which wrote it",
        )
    return manifest


def _read_constants(archive: zipfile.ZipFile, n_bytes: int) -> NDArray[np.uint8]:
    """The constants in memory of their own: large pages where the system gives them, no faults."""
    constants = aligned((n_bytes,), "uint8")
    done = 0
    with archive.open(_CONSTANTS) as data:
        while chunk := data.read(_CHUNK):
            constants[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
    if done != n_bytes:
        raise EOFError
    return constants


def _endpoint(data: Mapping[str, Any]) -> Endpoint:
    window = data["window"]
    parts = (tuple(window[0]), tuple(window[1])) if window else None
    return Endpoint(**{**data, "shape": tuple(data["shape"]), "window": parts})


def _foreign(source: Path) -> ArtifactError:
    return ArtifactError(
        f"'{source}' is not a network compiled by autotune", "give a file written by compile"
    )


def _damaged(source: Path) -> ArtifactError:
    return ArtifactError(
        f"'{source}' is damaged or truncated", "copy it again, or compile the model anew"
    )
