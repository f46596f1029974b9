"""⑥ Sketch rules: each adds loop structures to a sketch; `search.sketch` applies them in order."""

from __future__ import annotations
