"""① Channels of zeros behind those of a product, so that one instruction adds up whole groups.

    Conv(x, w)  3 channels, 4 products an instruction  ->  Conv(Pad(x), w')  4 channels

The zeros of the weights make the others irrelevant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autotune.graph.ir import Array, Editor, Node
from autotune.graph.operators.movement import emit_zeros_behind


@dataclass(slots=True)
class WholeTerms:
    """Pads data and weights to multiples of `n_terms` channels; data that several products read are
    padded once."""

    editor: Editor
    n_terms: int
    padded: dict[tuple[str, int], str] = field(default_factory=dict)

    def of(self, node: Node, name: str, weights: Array) -> tuple[str, Array]:
        """Data `name` and `weights` of product `node`, padded where that is needed."""
        axis = 1 if node.op == "Conv" or node.attrs.get("trans_b", 0) else weights.ndim - 2
        missing = -weights.shape[axis] % self.n_terms
        if not missing:
            return name, weights
        zeros = [missing if n == axis else extent for n, extent in enumerate(weights.shape)]
        weights = np.concatenate([weights, np.zeros(zeros, weights.dtype)], axis)
        at = 1 if node.op == "Conv" else len(self.editor.types[name].shape) - 1
        if (name, at) not in self.padded:
            self.padded[name, at] = emit_zeros_behind(self.editor, node, name, at, missing)
        return self.padded[name, at], weights
