"""Floor 0: settings as messages name them: arguments of Python, which `cli` turns into options.

    f"give {arguments(dims={'n': 4})}"   ─►  give `dims={'n': 4}`       (see `cli.wording`)

A message has settings between backquotes: `split`, `fallback=False`, or a call of a function that
is a command as well, `autotune.compile(MODEL, log=LOG)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, repr=False)
class Word:
    """A value that a reader puts in: VALUE."""

    text: str

    def __repr__(self) -> str:
        return self.text


VALUE = Word("VALUE")


def arguments(**given: Any) -> str:
    """Settings with their values, as a message names them."""
    return f"`{', '.join(f'{name}={value!r}' for name, value in given.items())}`"
