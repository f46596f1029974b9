"""⑩ `export`: an artifact as a library of C, with what programs need to use it.

libNAME.so  libNAME.a  NAME.h  NAME.pc  NAMEConfig.cmake  example.c  README.md  [NAME.weights]
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.codegen.team import ports_code
from autotune.codegen.team.team import SYMBOLS
from autotune.errors import ArtifactError
from autotune.files import cannot_write, make_folder, replacing
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact, leaves, operators_text
from autotune.network.export.assembly import CONSTANTS_FILE, IMAGE_FILE, assembly
from autotune.network.export.header import header
from autotune.network.export.interface import LibraryInterface, interface_of
from autotune.network.export.packaging import companions, linked_with
from autotune.network.export.source import WEIGHTS_HEADER, source, symbols
from autotune.network.export.texts import filled
from autotune.toolchain import Toolchain
from autotune.work_folders import work_folder


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: sizes of the files in `folder`, by name."""

    name: str
    cpu: str
    folder: Path
    sizes: Mapping[str, int]
    weights_bytes: int
    code_bytes: int
    """Of the shared library without the weights."""


def write_library(
    artifact: Artifact, name: str, folder: Path, tools: Toolchain, is_separate: bool
) -> Exported:
    """Write the library `name` of `artifact` to `folder`; other files there stay.

    `is_separate`: the constants become a file that processes map, and share.
    Raises ArtifactError for a network that runs only in Python, OutputError where something cannot
    be compiled or written.
    """
    require_whole(artifact)
    _require_team(artifact)
    interface = interface_of(artifact, name)
    make_folder(folder)
    try:
        with work_folder(folder, ".export-") as work:
            files = _built(interface, work, tools, is_separate)
            _take_places(files, folder)
            sizes = {file.name: file.stat().st_size for file in files}
    except OSError as error:
        raise cannot_write(folder, error) from error
    weights = artifact.constants.nbytes
    code = sizes[f"lib{name}.so"] - (0 if is_separate else weights)
    return Exported(name, interface.cpu, folder, sizes, weights, code)


def _take_places(files: Sequence[Path], folder: Path) -> None:
    """Put files into a folder: all are on the disk before the first takes the place of another."""
    with ExitStack() as stack:
        for file in files:
            out = stack.enter_context(replacing(folder / file.name))
            with open(file, "rb") as made:
                shutil.copyfileobj(made, out)
            out.flush()
            os.fsync(out.fileno())


def write_parts(
    networks: Sequence[Artifact], name: str, folder: Path, tools: Toolchain, is_separate: bool
) -> Exported:
    """Write one library of several networks over one image: its functions begin with NAME_0, ….

    Raises as `write_library`.
    """
    interfaces = [
        replace(interface_of(one, f"{name}_{n}"), family=name) for n, one in enumerate(networks)
    ]
    for one in networks:
        _require_team(one)
    make_folder(folder)
    try:
        with work_folder(folder, ".export-") as work:
            readme = work / "README.md"
            cpu = interfaces[0].cpu
            known = {"model": " ".join(networks[0].name.split()), "cpu": cpu, "name": name}
            text = filled("parts.md", **known, version=networks[0].autotune_version)
            readme.write_text(text, encoding="utf-8")
            files = [*_linked(interfaces, work, tools, is_separate), readme]
            _take_places(files, folder)
            sizes = {file.name: file.stat().st_size for file in files}
    except OSError as error:
        raise cannot_write(folder, error) from error
    weights = networks[0].constants.nbytes
    code = sizes[f"lib{name}.so"] - (0 if is_separate else weights)
    return Exported(name, cpu, folder, sizes, weights, code)


def _linked(
    interfaces: Sequence[LibraryInterface], work: Path, tools: Toolchain, is_separate: bool
) -> list[Path]:
    """The shared library of networks that share an image, and their weights where separate."""
    first = interfaces[0]
    artifact, name = first.artifact, first.image
    constants = artifact.constants.data
    digest = hashlib.sha256(constants).digest()
    (work / IMAGE_FILE).write_bytes(artifact.image.data)
    weights = work / f"{name}.weights"
    if is_separate:
        with open(weights, "wb") as out:
            out.write(digest.ljust(WEIGHTS_HEADER, b"\0"))
            out.write(constants)
    else:
        (work / CONSTANTS_FILE).write_bytes(constants)
    known = {old: new for one in interfaces for old, new in symbols(one).items()}
    embedded = "" if is_separate else f"{name}_constants"
    texts = {f"{name}_image.s": assembly(artifact.image, work, known, embedded)}
    for one in interfaces:
        texts[f"{one.name}.c"] = source(one, digest, is_separate)
        texts[f"{one.name}.h"] = header(one, is_separate)
    for file, text in texts.items():
        (work / file).write_text(text, encoding="utf-8")
    objects = _objects(interfaces, work)
    for made in objects:
        tools.object(made.with_suffix(".s" if made.stem == f"{name}_image" else ".c"), made)
    library = work / f"lib{name}.so"
    tools.shared(objects, library, linked_with(first))
    return [library, *([weights] if is_separate else [])]


def _objects(interfaces: Sequence[LibraryInterface], work: Path) -> list[Path]:
    own = [work / f"{one.name}.o" for one in interfaces]
    return [*own, work / f"{interfaces[0].image}_image.o"]


def _built(
    interface: LibraryInterface, work: Path, tools: Toolchain, is_separate: bool
) -> list[Path]:
    """All files of the library, in `work`."""
    name = interface.name
    shared, *weights = _linked([interface], work, tools, is_separate)
    texts = companions(interface, is_separate)
    for file, text in texts.items():
        (work / file).write_text(text, encoding="utf-8")
    archive = work / f"lib{name}.a"
    tools.archive(_objects([interface], work), archive)
    shown = [work / file for file in (f"{name}.h", *texts)]
    return [shared, archive, *shown, *weights]


def require_whole(artifact: Artifact) -> None:
    """Raise ArtifactError for a network of which ONNX Runtime computes a part."""
    if isinstance(artifact, HybridArtifact):
        parts = [s for s in leaves(artifact.segments) if s.network is None]
        counted: Counter[str] = Counter()
        for part in parts:
            counted.update(part.operators)
        operators = operators_text(counted)
        raise ArtifactError(
            f"ONNX Runtime computes a part of '{artifact.name}', which no library has: {operators}",
            "export the models of the parts around it, or replace these operators",
        )


def _require_team(artifact: Artifact) -> None:
    needed = f"{SYMBOLS}prepare", f"{ports_code.SYMBOLS}narrow"
    has_all = all(symbol in artifact.image.symbols for symbol in needed)
    if not has_all or not artifact.image.crossings:
        raise ArtifactError(
            f"'{artifact.name}' was compiled by an earlier version", "compile the model again"
        )
