"""⑪ The names of `onnxruntime` as autotune has them, for `import onnxruntime` after `install`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, new_class
from typing import Any

_OWN = {"install": "autotune.ort.stand_in", "uninstall": "autotune.ort.stand_in"}
_OVER = {
    "IOBinding": ("autotune.ort.bound", "bound"),
    "InferenceSession": ("autotune.ort.accelerated", "accelerated"),
    "SessionOptions": ("autotune.ort.noted_options", "noted_options"),
}
"""Names of classes over onnxruntime's own, and the functions that make them."""
SUBMODULES = ("capi", "transformers")
"""Of onnxruntime, which are there without it: see the folder `submodules`."""


OverAny: Any = object
"""Base of methods that `class_over` puts in front of a class of onnxruntime's."""


@cache
def class_over(own: type, package: Any, name: str) -> type:
    """onnxruntime's class of that name behind methods of `own`, which know the `package`."""
    found = {"__module__": "autotune.ort", "__doc__": own.__doc__, "package": package}
    return new_class(name, (own, getattr(package, name)), exec_body=lambda new: new.update(found))


def installed() -> ModuleType | None:
    """The package onnxruntime, if there is one, without its telemetry."""
    from autotune.network.runtime.onnxruntime_package import onnxruntime_package

    return _if_there(onnxruntime_package)


def users_own() -> ModuleType | None:
    """The same for a program that imports onnxruntime: its telemetry is the program's choice."""
    from autotune.network.runtime.onnxruntime_package import users_onnxruntime

    return _if_there(users_onnxruntime)


def _if_there(load: Callable[[], ModuleType]) -> ModuleType | None:
    try:
        return load()
    except ImportError:
        return None


def listed() -> list[str]:
    """Names that `from onnxruntime import *` gives."""
    package = installed()
    if package is None:
        return dir(import_module("autotune.ort.alone"))
    own: list[str] | None = getattr(package, "__all__", None)
    return own or [name for name in vars(package) if not name.startswith("_")]


def attribute(name: str, asked: str = "onnxruntime") -> Any:
    """Value of `onnxruntime.name`. Raises AttributeError.

    `asked`: the package of which it is an attribute; modules of its own are none of onnxruntime's.
    """
    if name == "__all__":
        return listed()
    if name in _OWN:
        return getattr(import_module(_OWN[name]), name)
    if asked != "onnxruntime" and name not in SUBMODULES and find_spec(f"{asked}.{name}"):
        raise AttributeError(f"module '{asked}' has no attribute '{name}'")
    package = installed()
    if package is None:
        if name in SUBMODULES:
            return import_module(f"autotune.{name}")
        return getattr(import_module("autotune.ort.alone"), name)
    if name in _OVER:
        module, make = _OVER[name]
        return getattr(import_module(module), make)(package)
    return getattr(package, name)
