"""⑩ ONNX Runtime's plug-in execution provider: one library for all exported networks.

Released wheels bring it. Elsewhere it is compiled once, and kept in the cache folder under a digest
of its texts.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.resources import files
from pathlib import Path

import numpy as np

from autotune.cache import cache_folder
from autotune.codegen.image.relocations import X86_64
from autotune.files import make_folder, replacing
from autotune.network.artifact.digests import PAGE, SHIFT, factors, page_values
from autotune.network.export.texts import text_of
from autotune.toolchain import Toolchain, portable_toolchain, toolchain
from autotune.version import __version__
from autotune.work_folders import work_folder

NAME = "AutotuneExecutionProvider"
FILE = "libautotune_provider.so"
_TEXTS = ("abi.h", "nodes.c", "calls.c", "provider.c", "cached.c")

_INCLUDES = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
"""


def onnxruntime_provider(cc: str | None = None) -> Path:
    """The provider's library, for `onnxruntime.register_execution_provider_library`.

    `cc`: a compiler of C as a command, where it is not there yet (None: `cc`, else ziglang's).
    Raises MissingDependency without a compiler, OutputError where it cannot be compiled or written.
    """
    if cc is None and _brought().is_file():
        return _brought()
    text = provider_source()
    name = hashlib.sha256(f"{cc} {text}".encode()).hexdigest()[:16]
    place = cache_folder() / "provider" / name / FILE
    if not place.is_file():
        _compile(text, toolchain(cc, platform.machine()), place)
    return place


def write_provider(place: Path, machine: str, cc: str | None = None) -> None:
    """Write the provider for a machine, as ELF has its name.

    Raises MissingDependency without a compiler, OutputError.
    """
    if cc is None and machine == X86_64.name and _brought().is_file():
        make_folder(place.parent)
        with replacing(place) as out:
            out.write(_brought().read_bytes())
    else:
        _compile(provider_source(), toolchain(cc, machine), place)


def bring_provider() -> None:
    """Compile the provider into this package, for all that a wheel is for. Raises likewise."""
    _compile(provider_source(), portable_toolchain(X86_64.name), _brought())


def _brought() -> Path:
    """Where a wheel has the provider."""
    return Path(str(files(__package__).joinpath(FILE)))


def _compile(text: str, tools: Toolchain, place: Path) -> None:
    make_folder(place.parent)
    with work_folder() as folder:
        source, made = Path(folder, "provider.c"), Path(folder, "provider.o")
        source.write_text(text, encoding="utf-8")
        tools.object(source, made)
        library = Path(folder, FILE)
        tools.shared([made], library, ("-ldl",))
        with replacing(place) as out:
            out.write(library.read_bytes())


def provider_source() -> str:
    """The text of the provider."""
    own = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in _TEXTS)
    constants = ", ".join(f"{k:#x}ull" for k in factors().tolist())
    return "\n".join(
        [
            _INCLUDES,
            f'#define VERSION "{__version__}"',
            f"enum {{ PAGE = {PAGE}, SHIFT = {SHIFT} }};",
            text_of("library.h"),
            f"static const uint64_t factors[] = {{{constants}}};",
            *own,
        ]
    )


def digest_of(file: Path) -> str:
    """As the provider finds it: the bytes of a file, and what tells damage to them."""
    data = np.memmap(file, np.uint8, "r")
    value, factor = 0, int(factors()[0])
    for page in page_values(np.asarray(data)).tolist():
        value = (value * factor + page) & (1 << 64) - 1
    return f"{data.nbytes}:{value:016x}"
