"""⑩ The installed onnxruntime, also while a program finds autotune under that name.

    onnxruntime_package() ─► the package that pip has installed, never autotune

Scripts put autotune in the place of `sys.modules["onnxruntime"]`; references, baselines and the
segments that are not compiled still need the other one.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType

NAME = "onnxruntime"

ONNXRUNTIME = "ONNX Runtime"
"""Its name in messages."""

_LOCK = threading.RLock()


def onnxruntime_package() -> ModuleType:
    """The package. Raises ImportError where it is not installed.

    Nothing waits for itself: while it is loaded it is in `sys.modules`, where it is found.
    """
    with _LOCK:
        found = sys.modules.get(NAME)
        if found is None or _is_installed(found):
            return import_module(NAME)  # of None it raises
        return _loaded()


def _is_installed(module: ModuleType) -> bool:
    """Whether an import finds it, and not a stand-in of a program."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and spec.name == NAME and type(module) is ModuleType


@cache
def _loaded() -> ModuleType:
    """Import it beside its stand-in, which is there again afterwards."""
    if PathFinder.find_spec(NAME) is None:
        raise ImportError(f"{NAME} is not installed", name=NAME)
    replaced = _taken_out()
    try:
        return import_module(NAME)
    finally:
        _taken_out()
        sys.modules.update(replaced)


def _taken_out() -> dict[str, ModuleType]:
    """The package and its modules, which are removed from those that are imported."""
    names = [n for n in list(sys.modules) if n == NAME or n.startswith(f"{NAME}.")]
    return {name: sys.modules.pop(name) for name in names}
