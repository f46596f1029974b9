"""① Masks that a caller prepares: what their numbers mean follows from what reads them.

    Softmax(scores + mask)              0 where a place is seen, else the lowest number
    Where(mask, scores, lowest)         true where a place is seen
    Attention(query, key, value, mask)  either, by the type of the mask

A mask has a row for each new place, of all places. In a decoder, whose rows of a place never
change, each place sees itself and those in front of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from autotune.graph.ir import Array

_VIEWS = frozenset(("Squeeze", "Unsqueeze", "Expand", "Slice", "Identity", "Reshape", "Cast"))
_TO_SOFTMAX = _VIEWS | {"Add", "Where", "Max", "Dropout"}
_ADDED_INPUT = {"MultiHeadAttention": 5, "GroupQueryAttention": 10}
"""Where operators of ONNX Runtime's domain take what is added to scores."""
LOWEST = -65504.0
"""Added to scores of places that are not seen: every type of floats has it."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The numbers of a mask where a place is seen, and where it is not; of `shape`, -1: open."""

    seen: float
    unseen: float
    shape: tuple[int, ...]

    def at(self, length: int, n_new: int) -> Array:
        """The mask of so many new places behind `length`."""
        own, every = np.arange(length, length + n_new)[:, None], np.arange(length + n_new)
        numbers = np.where(every <= own, self.seen, self.unseen)
        rows = [max(1, extent) for extent in self.shape[:-2]]
        return np.broadcast_to(numbers, (*rows, *numbers.shape))


def meaning_of(model: ModelProto, name: str) -> Meaning | None:
    """What the numbers of input `name` mean; None where its readers do not tell, or disagree."""
    (value,) = (v for v in model.graph.input if v.name == name)
    kind = value.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
    is_flag = kind.elem_type == TensorProto.BOOL
    if len(dims) < 3 or kind.elem_type in (TensorProto.INT64, TensorProto.INT32):
        return None
    found = set(_Readers(model).meanings(name, is_flag))
    if len(found) != 1:
        return None
    ((seen, unseen),) = found
    return None if np.isnan(seen) else Meaning(seen, unseen, dims)


_UNKNOWN = float("nan"), float("nan")


class _Readers:
    """The nodes that read each tensor of a model, and what is constant."""

    def __init__(self, model: ModelProto) -> None:
        self._nodes: dict[str, list[NodeProto]] = {}
        self._known = {t.name: t for t in model.graph.initializer}
        for node in model.graph.node:
            for name in filter(None, node.input):
                self._nodes.setdefault(name, []).append(node)
            for attr in node.attribute if node.op_type == "Constant" else ():
                if attr.name == "value":
                    self._known[node.output[0]] = attr.t

    def meanings(self, name: str, is_flag: bool) -> Iterator[tuple[float, float]]:
        """What each reader takes a mask, or a view of it, for: where seen, where unseen."""
        for node in self._nodes.get(name, ()):
            op, at = node.op_type, [*node.input].index(name)
            if op == "Shape":
                continue
            if at == 0 and op in _VIEWS and (op != "Cast" or _is_flag(node) == is_flag):
                yield from self.meanings(node.output[0], is_flag)
            elif op == "Not":
                yield from ((b, a) for a, b in self.meanings(node.output[0], is_flag))
            elif op == "Where" and at == 0:
                yield self._chosen(node)
            elif not node.domain and op == "Attention" and at == 3:
                yield (1.0, 0.0) if is_flag else (0.0, LOWEST)
            elif not is_flag and self._is_added(node, at):
                yield 0.0, LOWEST
            else:
                yield _UNKNOWN

    def _is_added(self, node: NodeProto, at: int) -> bool:
        """Whether a node adds its operand `at` to scores."""
        own = _ADDED_INPUT.get(node.op_type) if node.domain == "com.microsoft" else None
        return own == at or (node.op_type == "Add" and self._are_scores(node.output[0]))

    def _are_scores(self, name: str) -> bool:
        """Whether a tensor becomes shares, and nothing else."""
        readers = self._nodes.get(name, [])
        return bool(readers) and all(
            node.op_type == "Softmax"
            or (node.op_type in _TO_SOFTMAX and self._are_scores(node.output[0]))
            for node in readers
        )

    def _chosen(self, node: NodeProto) -> tuple[float, float]:
        """Where(mask, scores, lowest), or Where(mask, lowest, scores)."""
        is_low = [self._is_low(name) for name in node.input[1:]]
        if is_low[0] == is_low[1]:
            return _UNKNOWN
        return (1.0, 0.0) if is_low[1] else (0.0, 1.0)

    def _is_low(self, name: str) -> bool:
        """Whether a tensor is one constant that leaves nothing of a share."""
        tensor = self._known.get(name)
        if tensor is None or any(n != 1 for n in tensor.dims) or tensor.external_data:
            return False
        return bool(numpy_helper.to_array(tensor).reshape(-1)[0] <= -1e4)


def _is_flag(node: NodeProto) -> bool:
    """Whether a Cast gives flags."""
    return any(a.name == "to" and a.i == TensorProto.BOOL for a in node.attribute)
