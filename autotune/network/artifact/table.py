"""⑩ The interface of an artifact's image: its functions, and the table of addresses they take."""

from __future__ import annotations

ARENA, CONSTANTS, FIRST_BOUND = 0, 1, 2
"""Slots of the table: the arena, the constants, and the first bound input or output."""

RUN, PROFILE, KERNELS = "autotune_run", "autotune_profile", "autotune_kernels"
"""One inference, the same with times, and the list of kernels that a team divides."""


def entry_name(symbol: str, number: int) -> str:
    """The name of `symbol` of entry `number` in an image that has several."""
    return f"{symbol}.{number}"
