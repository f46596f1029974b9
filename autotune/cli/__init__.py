"""⑪ cli: the only place with a console, an environment, signals and a clock."""

from __future__ import annotations

from autotune.cli.start import main

__all__ = ["main"]
