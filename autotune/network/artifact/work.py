"""⑩ What the calls of a task do at least, from which a profile finds how near its limit each is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, TypeAlias

from autotune.codec import Holds

_Amount: TypeAlias = Annotated[float, Holds(lambda amount: amount >= 0, "0 or more")]


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of one call by the name of the multiply-add that does it, and bytes.

    `at`: the value of the model's length, 0 of a task that follows none. `constant_bytes`: of
    weights; `all_bytes`: of these, inputs and outputs.
    """

    at: int
    operations: Mapping[str, _Amount]
    constant_bytes: _Amount
    all_bytes: _Amount

    def seconds(self, per_s: Mapping[str, float], cold: float, warm: float, cached: float) -> float:
        """Least seconds of the call: of its arithmetic at these rates, of its weights from memory,
        of the rest from L2 as far as it is more than is `cached`."""
        arithmetic_s = sum(n / per_s[name] for name, n in self.operations.items())
        moved_s = max(0.0, self.all_bytes - self.constant_bytes - cached) / warm
        return max(arithmetic_s, self.constant_bytes / cold, moved_s)


def work_at(found: Iterable[Work], number: int) -> Work:
    """The work at a value of the length, by the parabola through three that are known.

    Work is a product of extents, of which two follow the length at most in attention.
    """
    known = {work.at: work for work in found}
    if len(known) == 1:
        return next(iter(known.values()))
    shares = {at: prod((number - x) / (at - x) for x in known if x != at) for at in known}

    def total(amounts: Mapping[int, float]) -> float:
        return max(0.0, sum(shares[at] * amount for at, amount in amounts.items()))

    names = {name for work in known.values() for name in work.operations}
    return Work(
        number,
        {n: total({at: w.operations.get(n, 0.0) for at, w in known.items()}) for n in names},
        total({at: w.constant_bytes for at, w in known.items()}),
        total({at: w.all_bytes for at, w in known.items()}),
    )
