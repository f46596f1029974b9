"""⑩ ONNX Runtime's plug-in execution provider: one library for all exported networks.

A wheel brings it where it was built with one; else it is compiled once, and kept in the cache
folder under a digest of its texts.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.resources import files
from pathlib import Path

import numpy as np

from autotune.cache import cache_folder
from autotune.files import make_folder, replacing
from autotune.network.artifact.digests import PAGE, SHIFT, factors, page_values
from autotune.network.export.source import text_of
from autotune.toolchain import Toolchain, toolchain
from autotune.version import __version__
from autotune.work_folders import work_folder

NAME = "AutotuneExecutionProvider"
FILE = "libautotune_provider.so"
_TEXTS = ("abi.h", "provider.c", "cached.c")

_INCLUDES = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
    brought = Path(str(files(__package__).joinpath(FILE)))
    if brought.is_file():
        return brought
    text = provider_source()
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    place = cache_folder() / "provider" / name / FILE
    if not place.is_file():
        write_provider(place, toolchain(cc, platform.machine()), text)
    return place


def write_provider(place: Path, tools: Toolchain, text: str | None = None) -> None:
    """Compile the provider to a file. Raises OutputError."""
    make_folder(place.parent)
    with work_folder() as folder:
        source, made = Path(folder, "provider.c"), Path(folder, "provider.o")
        source.write_text(text or provider_source(), encoding="utf-8")
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
