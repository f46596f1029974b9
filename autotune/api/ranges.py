"""⑪ Ranges of a dimension: any extent up to a most, which each call brings.

length_of("sequence", "..512")      Length("sequence", 512)
length_of("width", "..640/32")      Length("width", 20, 32): 32, 64, …, 640

A text that is a name says that two dimensions are one: `{"mask_length": "length"}`.
"""

from __future__ import annotations

import re
from typing import TypeGuard

from autotune.errors import UsageError
from autotune.extent import Length
from autotune.wording import arguments

_LETTER = re.compile(r"[^\W\d]")
_RANGE = re.compile(r"\.\.(\d{1,9})(?:/(\d{1,9}))?")


def length_of(name: str, text: str) -> Length:
    """The extents of dimension `name` that a text tells. Raises UsageError for what tells none."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"dimension '{name}' cannot be '{text}'",
            f"write a most as {arguments(dims={name: '..512'})}, "
            f"in steps of 32 as {arguments(dims={name: '..640/32'})}",
        )
    most, step = int(found[1]), int(found[2] or 1)
    if most < 1 or step < 1:
        what = f"up to {most}" if most < 1 else "in steps of 0"
        raise UsageError(f"dimension '{name}' {what} has no extent", "give 1 or more")
    if most % step:
        near = max(most - most % step, step)
        raise UsageError(
            f"dimension '{name}' in steps of {step} is never {most}",
            f"give a multiple: {arguments(dims={name: f'..{near}/{step}'})}",
        )
    return Length(name, most // step, step)


def is_name(text: object) -> TypeGuard[str]:
    """Whether what is said of a dimension is the name of another, which it equals."""
    return isinstance(text, str) and not text.startswith("..") and bool(_LETTER.search(text))


def range_text(length: Length) -> str:
    """Inverse of `length_of`."""
    step = f"/{length.factor}" if length.factor > 1 else ""
    return f"..{length.longest}{step}"


def told(length: Length, least: int = 1) -> str:
    """`sequence up to 512`, `width up to 640 in steps of 32`; from the extent of a least number."""
    step = f" in steps of {length.factor}" if length.factor > 1 else ""
    first = f"from {length.at(least)} " if least > 1 else ""
    return f"{length.name} {first}up to {length.longest}{step}"
