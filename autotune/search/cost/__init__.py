"""⑥ Cost of a candidate: static analysis, the analytical cost model, the learned ranker."""

from __future__ import annotations
