"""⑩ A tuned network: compile it, keep it in one file, run it."""

from __future__ import annotations

from autotune.network.loading import load as load

__all__ = ["load"]
