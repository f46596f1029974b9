"""② Forms of tasks: what tasks that differ in extents alone have in common.

form_of(dag) ─► Skeleton(text, extents)        equal texts: the same but for numbers
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from autotune.te.codec import dag_to_json, op_to_json
from autotune.te.dag import Compute, ComputeDAG


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A task with zeros for its numbers, as text, and these numbers in their order."""

    text: str
    extents: tuple[float, ...]

    def distance(self, extents: Sequence[float]) -> float:
        """Distance of the extents of another task of this form from these: Σ |log2 ratio|."""
        pairs = zip(self.extents, extents, strict=True)
        return sum(abs(log2((1 + abs(a)) / (1 + abs(b)))) for a, b in pairs)


def form_of(dag: ComputeDAG) -> Skeleton:
    """The form of a task: names count, numbers do not."""
    return _without_numbers(dag_to_json(dag))


def sums_of(dag: ComputeDAG) -> str:
    """A task without numbers up to its last reduction, as text; of one without any, all of it."""
    sums = [n for n, op in enumerate(dag.ops) if isinstance(op, Compute) and op.reduce_axes]
    ops = dag.ops[: sums[-1] + 1] if sums else dag.ops
    read = {x.tensor.name for op in ops if isinstance(op, Compute) for x in op.reads}
    kept = [op_to_json(op) for op in ops if isinstance(op, Compute) or op.name in read]
    return _without_numbers(kept).text


def _without_numbers(data: Any) -> Skeleton:
    extents: list[float] = []

    def without_numbers(data: Any) -> Any:
        match data:
            case bool() | str() | None:
                return data
            case int() | float():
                extents.append(data)
                return 0
            case list():
                return [without_numbers(item) for item in data]
            case _:
                return {name: without_numbers(data[name]) for name in sorted(data)}

    return Skeleton(json.dumps(without_numbers(data)), tuple(extents))
