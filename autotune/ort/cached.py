"""⑪ Artifacts of models in the user's cache folder: compiled once, by whoever needs one first.

    cached_artifact(Request(model, threads=2), store) ─► Artifact

The key of an artifact is a digest of all that it depends on: the contents of model, log and files
of operators, shapes, constants, precision, limit of errors, threads, this CPU, and this package.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from autotune.api.bindings import Dims, Values
from autotune.api.compiling import compile as compile_model
from autotune.api.operators import GROUP
from autotune.api.warm import Note
from autotune.cache import Store, cache_folder, key_of, package_key
from autotune.errors import AutotuneError, ModelError
from autotune.files import open_input
from autotune.graph.reader.constant_inputs import constants_to_json
from autotune.graph.reader.onnx_reader import model_hash
from autotune.network.artifact import Artifact
from autotune.target import host_target

MOST_BYTES = 8 << 30
"""Of the artifacts of all models together; the least recently used go first."""


def artifact_store(max_bytes: int = MOST_BYTES) -> Store:
    """Where artifacts of this user are kept."""
    return Store(cache_folder() / "artifacts", max_bytes)


@dataclass(frozen=True, slots=True)
class Request:
    """What to compile for this CPU; the fields are those of `compile`.

    `model`: a file, or the bytes of one. `name`: how messages call it. `example`: inputs that the
    outputs are checked on, beside random ones.
    """

    model: Path | bytes
    name: str
    threads: int
    log: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Dims = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None
    max_error: float | None = None
    operators: Sequence[Path] = ()
    fallback: bool = True
    example: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> str:
        """A digest of all that the artifact depends on. Raises UsageError for missing files."""
        settings = {
            "shapes": sorted((name, list(shape)) for name, shape in self.shapes.items()),
            "dims": _dims_json(self.dims),
            "constants": constants_to_json(self.constants),
            "precision": self.precision,
            "max_error": self.max_error,
            "fallback": self.fallback,
            "threads": self.threads,
            "log": _file_hash(self.log) if self.log else None,
            "operators": [_file_hash(path) for path in self.operators],
            "installed": sorted((e.name, e.value) for e in entry_points(group=GROUP)),
        }
        return key_of(
            hash_of(self.model),
            host_target().key,
            package_key(),
            json.dumps(settings, sort_keys=True),
        )

    def compiled(self, note: Note, cache: bool) -> Artifact:
        """Compile and check it; where no oracle can run it on anything, it stays unchecked.

        `cache`: keep its programs. Raises as `compiling.compile`.
        """
        with file_of(self.model, self.name) as path:
            try:
                return self._compiled(path, True, note, cache)
            except ModelError as error:  # of the model, then it comes again
                artifact = self._compiled(path, False, note, cache)
                note(f"not checked: {error.message}")
                return artifact

    def _compiled(self, path: Path, check: bool, note: Note, cache: bool) -> Artifact:
        return compile_model(
            path,
            self.log,
            check=check,
            check_inputs=dict(self.example) or None,
            threads=self.threads,
            shapes=dict(self.shapes) or None,
            dims=self.dims or None,
            constants=self.constants,
            precision=self.precision,
            max_error=self.max_error,
            operators=self.operators,
            fallback=self.fallback,
            cache=cache,
            note=note,
        ).artifact


def cached_artifact(request: Request, store: Store | None, note: Note) -> Artifact:
    """The artifact of `request`: from `store`, or compiled now, once for all threads and processes
    that ask for it at the same time. Raises as `compiling.compile`.
    """
    if store is None:
        return request.compiled(note, cache=False)
    key = request.key()
    found = _kept(store, key)
    if found is not None:
        return found
    with store.locked(key):
        found = _kept(store, key)  # by another, while this one waited
        if found is None:
            found = request.compiled(note, cache=True)
            with suppress(OSError), store.writing(key) as file:  # else it is compiled again
                found.write(file)
        return found


def _kept(store: Store, key: str) -> Artifact | None:
    path = store.find(key)
    if path is None:
        return None
    try:
        return Artifact.load(path)
    except AutotuneError:  # damaged, or removed just now
        store.remove(key)
        return None


@contextmanager
def file_of(model: Path | bytes, name: str) -> Iterator[Path]:
    """A model as a file, which is temporary where it was given as bytes."""
    if isinstance(model, Path):
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model)
        yield path


def hash_of(model: Path | bytes) -> str:
    """SHA-256 of a model, as logs and artifacts have it. Raises UsageError for a missing file."""
    return model_hash(model) if isinstance(model, Path) else sha256(model).hexdigest()


def _dims_json(dims: Dims) -> list[Any]:
    """Dimensions in their order, which is that of the variants."""
    return [[name, _values_json(values)] for name, values in dims.items()]


def _values_json(values: Values) -> Any:
    if isinstance(values, Mapping):
        return [list(pair) for pair in values.items()]
    return values if isinstance(values, int) else list(values)


def _file_hash(path: Path) -> str:
    with open_input(path) as file:
        return sha256(file.read()).hexdigest()
