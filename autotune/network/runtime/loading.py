"""⑩ An artifact's file to an artifact, and to a model that runs.

    model = load("resnet50.atn")        # model_of(read_artifact("resnet50.atn"))

The digest of every part is compared with the manifest's and the manifest's with its
seal; then what the manifest says (`manifest`); then whether the code was compiled for just this
manifest (`code_seal`). A foreign, damaged or newer file, or one for a CPU that this is not, is
refused with the reason. None of it makes code of others trustworthy: an
artifact is native code. Files of former versions have objects in place of linked code: `former`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from autotune.calls import checked
from autotune.codegen.image.link import Image
from autotune.codegen.memory import aligned
from autotune.errors import ArtifactError, AutotuneError, UsageError
from autotune.files import open_input
from autotune.former_names import renamed
from autotune.machine import read_limits, require_threads
from autotune.measure.memory_plan import private_bytes
from autotune.network.artifact import container
from autotune.network.artifact.artifact import (
    FORMAT,
    OF_SEVERAL_CPUS,
    Artifact,
    code_seal,
    joined_variants,
    read_parts,
)
from autotune.network.artifact.container import (
    CONSTANTS,
    IMAGE,
    IMAGE_SEAL,
    MANIFEST,
    SEAL,
    Bytes,
    Container,
    Damaged,
    Json,
    require,
)
from autotune.network.artifact.cpus import (
    for_this_cpu,
    joined_cpus,
    separated_cpus,
)
from autotune.network.artifact.manifest import artifact_of, read, require_manifest, separated
from autotune.network.runtime.runtime import Array, Model, random_inputs
from autotune.pages import SHARED, require_memory

_FIRST_VERSION, _IMAGE_VERSION = 2, 6
_COPIES = 3
"""Of constants that there is to be room for: two, and as much again for all else."""
_ZIP_MAGIC = b"PK\x03\x04"


@renamed("0.3", n_threads="threads")
@checked
def load(path: str | Path, threads: int | None = None, memory: str = SHARED) -> Model:
    """Load a compiled network; `threads` as in `Model`, but no more than there are cores.

    `memory`: of the constants. "shared": they are mapped from the file, so that all processes that
    load it have them once; replace the file (a rename, as `compile` and `save` do it), but do not
    shorten it or write into it while it is loaded. "private": they are copied to large pages.

    An artifact is native code that runs with the rights of this process: load only what you trust.
    Damage is refused (`read_artifact`), a forged file is not.

    Raises as `read_artifact` does, ArtifactError for one that is compiled for another CPU, and
    UsageError for a number of threads that is out of range.
    """
    require_threads(threads)
    return model_of(for_this_cpu(read_artifact(path, memory), f"'{path}'"), threads)


def model_of(artifact: Artifact, n_threads: int | None = None, is_apart: bool = False) -> Model:
    """The model of an artifact, ready to run: see `Model`. `is_apart`: see `HybridModel`.

    Raises MissingDependency for one of which a part runs in ONNX Runtime, where that is missing.
    """
    artifact = for_this_cpu(artifact, artifact.name)
    if type(artifact) is Artifact:
        return Model(artifact, n_threads)
    from autotune.network.artifact.hybrid import HybridArtifact  # imports `onnx`
    from autotune.network.runtime.hybrid_runtime import HybridModel

    assert isinstance(artifact, HybridArtifact)
    return HybridModel(artifact, n_threads, is_apart=is_apart)


def proved_model(artifact: Artifact, n_threads: int | None = None) -> Model:
    """`model_of`, of which ONNX Runtime's part has computed one inference apart.

    Raises ModelError where it dies of it, and as `model_of`.
    """
    if type(artifact) is not Artifact:
        from autotune.network.runtime.apart import Failed, apart
        from autotune.network.runtime.baselines import blamed
        from autotune.network.runtime.onnxruntime_package import ONNXRUNTIME

        with blamed(ONNXRUNTIME, "run", ""), suppress(Failed):
            apart().call(_run_once, artifact, n_threads)
    return model_of(artifact, n_threads)


def _run_once(artifact: Artifact, n_threads: int | None) -> None:
    with suppress(AutotuneError):  # of random inputs that do not suit
        for model in model_of(artifact, n_threads).variants:
            model.run(random_inputs(model.input_info))


def loaded_anew(model: Model) -> Model:
    """The same network once more: constants, code and working memory at addresses of their own.

    What it takes of the caches and of the TLB depends on where they lie. Constants are copied to
    large pages, for how those of a file lie in the page cache is no property of the model: a file
    and its copy may differ by a twentieth. Where memory is short, they stay where they are.
    """
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(model, protocol=5, buffer_callback=buffers.append)
    n_bytes = sum(buffer.raw().nbytes for buffer in buffers)
    if private_bytes() + _COPIES * n_bytes > read_limits().memory_bytes:
        again: Model = pickle.loads(rest, buffers=buffers)
        return again
    found: Model = pickle.loads(rest, buffers=map(_copied, buffers))
    return found


def _copied(buffer: pickle.PickleBuffer) -> Array:
    """A copy of the bytes of a buffer, aligned, in large pages where it is large."""
    with buffer.raw() as raw:
        copy = aligned((raw.nbytes,), "uint8")
        copy[:] = np.frombuffer(raw, np.uint8)
    return copy


def read_artifact(path: str | Path, memory: str = SHARED) -> Artifact:
    """Read a file written by `Artifact.save`; `memory`: where its constants are, see `load`.

    An artifact is native code that `run` executes with the rights of this process: load only
    what you trust. Digests tell damage, not malice.

    Raises UsageError for a missing file and ArtifactError for one that cannot be read.
    """
    source = Path(path)
    require_memory(memory)
    try:
        with open_input(source) as file:
            is_zip = file.read(4) == _ZIP_MAGIC
            return _read(_opened(file, source, is_zip), source, memory == SHARED)
    except Damaged as error:
        raise _damaged(source, str(error)) from error
    except OSError as error:
        raise UsageError(
            f"cannot read '{source}': {error.strerror}", "give a file written by compile"
        ) from error
    except MemoryError as error:
        raise ArtifactError(
            f"there is no room for '{source}' in memory", "free some memory"
        ) from error


def _opened(file: BinaryIO, source: Path, is_zip: bool) -> Container:
    try:
        return Container(file)
    except container.ZIP_ERRORS as error:
        raise _damaged(source, "") if is_zip else _foreign(source) from error


def _read(parts: Container, source: Path, is_shared: bool) -> Artifact:
    manifest = _read_manifest(parts, source)
    if manifest["version"] < _IMAGE_VERSION:
        from autotune.network.artifact.former import read_former

        return read_former(manifest, parts, source, is_shared)
    several = separated_cpus(manifest)
    for one in several:
        _require_whole(one)
    others = {name for name in manifest["parts"] if name not in (IMAGE, CONSTANTS)}
    own = {IMAGE, IMAGE_SEAL, CONSTANTS, MANIFEST, SEAL, *others}
    data, constants = read_parts(parts, manifest, own, is_shared)
    image = replace(read("image", manifest["image"], ""), data=data.pop(IMAGE))
    found = [_of_one_cpu(one, data, image, constants) for one in several]
    networks = [network for one in found for network in one.networks()]
    sealed = code_seal(networks, image, manifest["parts"])
    require(sealed == parts.image_seal(), "its code was compiled for another manifest")
    return joined_cpus(found)


def _require_whole(manifest: Json) -> None:
    """Raise Damaged where a field of one CPU's manifest is missing or impossible."""
    if "networks" in manifest:
        from autotune.network.artifact.hybrid_manifest import require_hybrid

        require_hybrid(manifest)
        return
    for one in _by_shape(manifest):
        require_manifest(one)


def _by_shape(manifest: Json) -> list[Json]:
    return separated(manifest) if "variants" in manifest else [manifest]


def _of_one_cpu(
    manifest: Json, data: Mapping[str, bytes], image: Image, constants: Bytes
) -> Artifact:
    if "networks" in manifest:
        from autotune.network.artifact.hybrid import networks_in, read_hybrid

        networks = networks_in(manifest, image, constants)
        return read_hybrid(manifest, networks, data, image, constants)
    return joined_variants([artifact_of(x, image, constants) for x in _by_shape(manifest)])


def _read_manifest(parts: Container, source: Path) -> Json:
    if MANIFEST not in parts.names():
        raise _foreign(source)
    text = parts.manifest()
    is_sealed = SEAL in parts.names()
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        require(not is_sealed, "its manifest cannot be read")
        raise _foreign(source)
    version, writer = manifest.get("version"), manifest.get("autotune_version")
    if version not in range(_FIRST_VERSION, OF_SEVERAL_CPUS + 1) or type(version) is not int:
        raise ArtifactError(
            f"'{source}' has format version {version!r:.20}, this autotune reads "
            f"{_FIRST_VERSION} to {OF_SEVERAL_CPUS}",
            f"compile it anew, or use autotune {writer!s:.20}, which wrote it",
        )
    require(is_sealed, "its manifest has no seal")
    require(parts.is_sealed(text), "its manifest has another digest")
    return manifest


def _foreign(source: Path) -> ArtifactError:
    return ArtifactError(
        f"'{source}' is not a network compiled by autotune", "give a file written by compile"
    )


def _damaged(source: Path, reason: str) -> ArtifactError:
    what = f": {reason}" if reason else ""
    return ArtifactError(
        f"'{source}' is damaged or truncated{what}", "copy it again, or compile the model anew"
    )
