"""① Lengths whose numbers operators write: of NonZero as many as there are.

    n = NonZero(x).shape[1]       y = NonZero(x)[:, :n]      n ≤ most, a value of the network

While a model is read such an operator is rewritten into its results for the most, the number of
those that count, and `Front` of the former, whose length has the name of the operator's result. A
Slice or TopK that takes at most so many of a length makes another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

FRONT = "Front"
"""Front(x, n): the first n elements of x along `axis`, from `start` on; `length` names n."""


@dataclass
class WrittenLengths:
    """The lengths that operators of a model write, while it is read.

    `number`: of a length by its name and the most that it can be. `shortened`: nodes, by their
    first result, that take some of a length. `tensors`: the number of each length, int64 of one
    element. `mosts`: by name.
    """

    number: Callable[[str, int], int]
    shortened: Mapping[str, int] = field(default_factory=dict)
    fixed: Collection[str] = ()
    """Lengths that are chosen of a fixed number of elements."""
    long: Collection[str] = ()
    """Nodes, by their first result, that take some of so many that all are not looked at."""
    tensors: dict[str, str] = field(default_factory=dict)
    mosts: dict[str, int] = field(default_factory=dict)
    known: dict[object, str] = field(default_factory=dict)
    """Results that others ask for as well, by what they are."""
    asked: dict[str, int] = field(default_factory=dict)
    """Of how many elements lengths are chosen."""
    looks: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """Of nodes that may shorten a length: the axis, and the shapes of operand and result."""

    def length(self, name: str, most: int, tensor: str) -> int:
        """Declare a length; the number of it that this model is read for."""
        self.tensors[name], self.mosts[name] = tensor, most
        return self.number(name, most)
