"""autotune: tune an ONNX model for this CPU and compile it from what was found.

import autotune
net = autotune.load("model.atn")
outputs = net.run({"input": array})

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.network import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

_LAZY = {"load": "autotune.network"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'autotune' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
