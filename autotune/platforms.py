"""Floor 0: where this package runs: Linux on x86-64."""

from __future__ import annotations

import platform
import sys

from autotune.errors import UnsupportedPlatform

_SYSTEMS = {"win32": "Windows", "darwin": "macOS"}
_MACHINES = ("x86_64", "amd64")
_HINTS = {"win32": "it runs in WSL 2, the Linux of Windows", "darwin": "it runs in a Linux machine"}


def require_linux() -> None:
    """Raise UnsupportedPlatform on another system: nothing here can be imported there."""
    if sys.platform != "linux":
        system = _SYSTEMS.get(sys.platform, sys.platform)
        hint = _HINTS.get(sys.platform, "")
        raise UnsupportedPlatform(f"autotune needs Linux on x86-64; this is {system}", hint)


def require_x86() -> None:
    """Raise UnsupportedPlatform on a CPU that cannot run what is compiled and measured here."""
    if platform.machine().lower() not in _MACHINES:
        raise UnsupportedPlatform(
            f"autotune needs Linux on x86-64; this is Linux on {platform.machine()}",
            "libraries that `autotune.export` writes for it run here: autotune.ExportedModel",
        )
