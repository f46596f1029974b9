"""⑪ `export`: a compiled network as a library of C, or a module of WebAssembly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.calls import checked
from autotune.codegen.image.relocations import WASM32
from autotune.errors import UsageError
from autotune.file_kinds import require_folder
from autotune.files import open_input
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact
from autotune.network.export.library import Exported, require_whole, write_library, write_parts
from autotune.network.export.module import write_module
from autotune.network.export.naming import library_name, require_library_name
from autotune.network.provider.context import copied_model, require_context, write_context
from autotune.network.provider.library import FILE, write_provider
from autotune.network.provider.parts import parts_of, require_parts, write_parts_context
from autotune.network.runtime.loading import read_artifact
from autotune.toolchain import toolchain

WEIGHTS = ("embedded", "separate")


@checked
def export(
    artifact: Artifact | str | Path,
    folder: str | Path | None = None,
    name: str | None = None,
    weights: str = "embedded",
    cc: str | None = None,
    force: bool = False,
    onnx: bool = False,
    original: str | Path | None = None,
) -> Exported:
    """Write `artifact`, or that of a file, as a library of C that needs libc alone.

    One for `wasm32` becomes a module of WebAssembly, with a script for browsers and Node.

    `name`: of the library, which its functions begin with (None: that of the file). `folder`: where
    libNAME.so, libNAME.a, NAME.h and their companions go, or NAME.wasm and NAME.mjs; NAME by
    default. A folder that holds other files is refused unless `force`; those that have no name of
    the library's stay.
    `weights`: "embedded", or "separate" in a file that processes map and share. `cc`: a compiler of
    C as a command (None: `cc`, else that of the package ziglang).
    `onnx`: write NAME_ctx.onnx as well, a model whose one node is the library, and the provider by
    which ONNX Runtime runs it; of a network of which ONNX Runtime computes a part, there are
    several such nodes with its own between them, and no headers. `original`: a model that is copied
    beside it, which ONNX Runtime runs where the library does not fit and its session may.

    Raises ArtifactError for a network of which ONNX Runtime computes a part, MissingDependency
    without a compiler, OutputError where something cannot be compiled or written, UsageError for a
    name that C has not, and a folder that holds other files.
    """
    if weights not in WEIGHTS:
        raise UsageError(f"weights cannot be '{weights}'", f"use one of {', '.join(WEIGHTS)}")
    if isinstance(artifact, Artifact):
        found, stem = artifact, artifact.name
    else:
        found, stem = read_artifact(artifact), Path(artifact).stem
    name = name or library_name(stem)
    require_library_name(name)
    if isinstance(found, HybridArtifact) and onnx:
        require_parts(found)
        if original is not None:
            raise UsageError("no model can run in the place of a part", "leave out `original`")
    else:
        require_whole(found)
    if onnx:
        require_context(found)
        if original is not None:
            open_input(Path(original)).close()
    elif original is not None:
        raise UsageError("a model beside the library is for ONNX Runtime alone", "add `onnx=True`")
    place = Path(folder or name)
    if not force:
        require_folder(place)
    if found.image.machine == WASM32.name:
        return write_module(found, name, place, weights == "separate")
    tools = toolchain(cc, found.image.machine)
    is_separate = weights == "separate"
    if isinstance(found, HybridArtifact):
        done = write_parts(parts_of(found), name, place, tools, is_separate)
        context = write_parts_context(found, name, place)
    else:
        done = write_library(found, name, place, tools, is_separate)
        if not onnx:
            return done
        model = None if original is None else copied_model(Path(original), place)
        context = write_context(found, name, place, model or "")
    write_provider(place / FILE, found.image.machine, cc)
    made = [place / FILE, context, *place.glob(f"{name}.digest")]
    return replace(done, sizes={**done.sizes, **{file.name: file.stat().st_size for file in made}})
