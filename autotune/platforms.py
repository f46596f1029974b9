"""Floor 0: where this package runs: Linux on x86-64 and AArch64."""

from __future__ import annotations

import platform
import sys

from autotune.errors import UnsupportedPlatform

_SYSTEMS = {"win32": "Windows", "darwin": "macOS"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_NEEDED = "autotune needs Linux on x86-64 or AArch64"
_HINTS = {"win32": "it runs in WSL 2, the Linux of Windows", "darwin": "it runs in a Linux machine"}


def require_linux() -> None:
    """Raise UnsupportedPlatform on another system: nothing here can be imported there."""
    if sys.platform != "linux":
        system = _SYSTEMS.get(sys.platform, sys.platform)
        hint = _HINTS.get(sys.platform, "")
        raise UnsupportedPlatform(f"{_NEEDED}; this is {system}", hint)


def host_architecture() -> str:
    """The name of the architecture of this process; "" where nothing is compiled and measured."""
    return _MACHINES.get(platform.machine().lower(), "")


def require_host() -> None:
    """Raise UnsupportedPlatform on a CPU that cannot run what is compiled and measured here."""
    if not host_architecture():
        raise UnsupportedPlatform(
            f"{_NEEDED}; this is Linux on {platform.machine()}",
            "libraries that `autotune.export` writes for it run here: autotune.ExportedModel",
        )
