"""Floor 0: Extents: a number, or one that follows a number that each call brings.

    Length("sequence", 512)            n of at most 512
    Length("width", 20, 32)            32·n
    Length("sequence", 512, 2, -1)     2·n - 1

A tensor with such a dimension has the memory of the longest, and its elements at or behind `at(n)`
are nobody's: they are not read where it matters, and need not be computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from autotune.codec import LEFT_OUT, within

_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class Length:
    """`factor`·n + `offset` of the number `name` of a call, `least` ≤ n ≤ `most`."""

    name: str
    most: Annotated[int, within(1, _MOST)]
    factor: Annotated[int, within(1, _MOST)] = 1
    offset: Annotated[int, within(-_MOST, _MOST)] = 0
    least: Annotated[int, within(0, _MOST), LEFT_OUT] = 1

    def at(self, n: int) -> int:
        """The extent for a number; of fewer elements than are taken away, none are left."""
        return max(0, self.factor * n + self.offset)

    @property
    def longest(self) -> int:
        """The extent for the most."""
        return self.at(self.most)

    def number(self, extent: int) -> int | None:
        """The number that an extent is for; None for an extent that no number has."""
        n, rest = divmod(extent - self.offset, self.factor)
        return n if rest == 0 and self.least <= n <= self.most else None

    def __str__(self) -> str:
        product = self.name if self.factor == 1 else f"{self.factor}·{self.name}"
        return product if not self.offset else f"{product} {self.offset:+d}"


Extent: TypeAlias = int | Length
Extents: TypeAlias = tuple[Extent, ...]


def longest(extents: Sequence[Extent]) -> tuple[int, ...]:
    """The shape that memory has."""
    return tuple(e.longest if isinstance(e, Length) else e for e in extents)


def at(extents: Sequence[Extent], numbers: Mapping[str, int]) -> tuple[int, ...]:
    """The shape for these numbers. Raises KeyError for a name that has none."""
    return tuple(e.at(numbers[e.name]) if isinstance(e, Length) else e for e in extents)
