"""⑪ Ranges of a dimension: any extent up to a most, which each call brings.

length_of("sequence", "..512")      Length("sequence", 512)
length_of("width", "..640/32")      Length("width", 20, 32): 32, 64, …, 640
"""

from __future__ import annotations

import re

from autotune.errors import UsageError
from autotune.extent import Length
from autotune.wording import arguments

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


def range_text(length: Length) -> str:
    """Inverse of `length_of`."""
    step = f"/{length.factor}" if length.factor > 1 else ""
    return f"..{length.longest}{step}"


def told(length: Length) -> str:
    """`sequence up to 512`, `width up to 640 in steps of 32`."""
    step = f" in steps of {length.factor}" if length.factor > 1 else ""
    return f"{length.name} up to {length.longest}{step}"
