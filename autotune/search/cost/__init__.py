"""⑥ What a candidate is expected to cost: facts of its loops, an analytic model, the ranker."""

from __future__ import annotations
