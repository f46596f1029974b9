"""① Strings of a model: they are numbers in the network, and strings again at its border.

    words ("no", "yes")      an output of strings [1, 0]  ─►  ["yes", "no"]

A string that is none of the words gets a number behind theirs, for the time of one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of the maps that rows of an output are: integers, or numbers of words."""

    numbers: tuple[int, ...]
    are_words: bool = False


@dataclass(frozen=True)
class Texts:
    """What stands for strings: `words` by number, `ports` whose elements are such numbers, and
    outputs that are a list of a map for each row, by name."""

    words: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    maps: Mapping[str, Keys] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ports or self.maps)

    def keys(self, name: str) -> tuple[str | int, ...]:
        """The keys of the maps of an output."""
        keys = self.maps[name]
        return tuple(self.words[n] for n in keys.numbers) if keys.are_words else keys.numbers


NO_TEXTS = Texts()
