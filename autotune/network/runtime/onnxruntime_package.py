"""⑩ The installed onnxruntime, also while a program finds autotune under that name.

    onnxruntime_package() ─► the package that pip has installed, never autotune
    users_onnxruntime()   ─► the same for a program that asks for it by its own name

Scripts put autotune in the place of `sys.modules["onnxruntime"]`; references, baselines and the
segments that are not compiled still need the other one. autotune's own import of it is without
telemetry; a program's is as it would be without autotune.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType

from autotune import telemetry

NAME = "onnxruntime"

ONNXRUNTIME = "ONNX Runtime"
"""Its name in messages."""

_LOCK = threading.RLock()
_IMPORTED: list[ModuleType] = []
"""The package that this process has imported: a second copy of it would have other classes."""


def onnxruntime_package() -> ModuleType:
    """The package, without telemetry where nothing imported it before: see `telemetry`.

    Raises ImportError where it is not installed.
    """
    return _package(telemetry.imported)


def users_onnxruntime() -> ModuleType:
    """The package as a program gets it that imports it. Raises ImportError."""
    return _package(import_module)


def _package(load: Callable[[str], ModuleType]) -> ModuleType:
    """Nothing waits for itself: while it is loaded it is in `sys.modules`, where it is found."""
    with _LOCK:
        found = sys.modules.get(NAME)
        if found is None or _is_the_package(found):
            _IMPORTED[:] = [load(NAME)]  # of None it raises
        elif not _IMPORTED:
            _IMPORTED.append(_loaded())
        return _IMPORTED[0]


def is_installed() -> bool:
    """Whether there is such a package, which is not imported to know it."""
    if sys.modules.get(NAME, sys) is None:
        return False  # an import raises
    return PathFinder.find_spec(NAME) is not None


def _is_the_package(module: ModuleType) -> bool:
    """Whether an import finds it, and not a stand-in of a program."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and spec.name == NAME and type(module) is ModuleType


def _loaded() -> ModuleType:
    """Import it beside its stand-in, which is there again afterwards."""
    if not is_installed():
        raise ImportError(f"{NAME} is not installed", name=NAME)
    replaced = _taken_out()
    is_known = len(replaced) > 1  # the program has imported it, with its modules
    try:
        return import_module(NAME) if is_known else telemetry.imported(NAME)
    finally:
        _taken_out()
        sys.modules.update(replaced)


def _taken_out() -> dict[str, ModuleType]:
    """The package and its modules, which are removed from those that are imported."""
    names = [n for n in list(sys.modules) if n == NAME or n.startswith(f"{NAME}.")]
    return {name: sys.modules.pop(name) for name in names}
