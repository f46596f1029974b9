"""① Batches of rows of different lengths, as one axis of all their tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ragged:
    """Of a network over tokens: what it reads of rows, and what they cost.

    `mask`: the input of a batch and a sequence that says which places count. `tokens`, `slots`: the
    inputs that say where tokens are, and the token of each place. `number`: the length that is how
    many tokens there are. `work`: operations of a token, of a place, and of a pair of places of one
    row. `is_anywhere`: what is before a row may be left out as well as what is behind it.
    """

    mask: str
    tokens: str
    slots: str
    number: str
    work: tuple[int, int, int] = (1, 0, 0)
    is_anywhere: bool = False

    @classmethod
    def beside(cls, mask: str, taken: Collection[str]) -> Ragged:
        """With names that are not `taken`."""
        names = (f"{mask}.tokens", f"{mask}.slots", "tokens")
        tokens, slots, number = (_unused(name, taken) for name in names)
        return cls(mask, tokens, slots, number)

    @property
    def hidden(self) -> tuple[str, str]:
        """The inputs that are none of the file."""
        return self.tokens, self.slots


def _unused(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "'"
    return name
