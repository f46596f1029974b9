"""⑩ A tuned network: compile it, keep it in one file, run it."""

from __future__ import annotations

from autotune.network.runtime.loading import load as load

__all__ = ["load"]
