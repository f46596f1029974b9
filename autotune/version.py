"""Floor 0: the version of this package; `pyproject.toml` has the same."""

from __future__ import annotations

__version__ = "0.3.0"
