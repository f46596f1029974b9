"""① The operators whose results have lengths that data decide: their rewrites, by name."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.graph.operators import suppression, top_k, unique, written_lengths
from autotune.graph.rewriter import Rewrite

WRITTEN: Mapping[str, Rewrite] = {
    **written_lengths.RULES,
    **top_k.RULES,
    **suppression.RULES,
    **unique.RULES,
}
"""Where lengths that data decide are followed."""
WRITERS = WRITTEN.keys() - {"Slice"}
"""Those whose results may have such a length whatever their operands are."""
