"""① The state of a model: what stays from one call to the next, among its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Annotated

from autotune.codec import LEFT_OUT

PROMPT = "prompt"
"""The length of a prefill: its new places."""
MOST_PROMPT = 512
"""Places of one prefill; a longer prompt is several."""
MOST_VERIFIED = 16
"""Places of one step that verifies a draft, with outputs for each."""
CACHE_TYPES: Mapping[str, str] = {"f32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Types of the elements of growing states, and their dtypes."""
SCORES = ("last", "all")
"""Places of which steps give outputs: the last new one alone, or every one."""
NO_ROWS = -1
"""In place of a dimension: what a port has follows the new places, but is no row for each."""


@dataclass(frozen=True, slots=True)
class StateInfo:
    """The state of a model among its ports.

    `buffers`: inputs with `capacity` places along dimension `axes`, each with the output that is
    rows of it behind the filled ones: it lies in the memory of the buffer. `filled`: the input that
    is the number of filled places; "" where calls are no steps of places. `replaced`: inputs that
    an output of the same shape replaces in the next call. `sessions`: that a call
    advances; ports of each have names of its own (`of_session`), and `filled` is a number for each.
    `held`: inputs of steps that stay for a sequence, which the variant that begins one returns.
    `steps`: buffers of integers, each with the buffer of the units of its
    rows. `places`: of other ports that follow the new places, the dimension that has a row for each
    of them, or `NO_ROWS`; None in files of before. `joins`: whether several steps are one of all
    their places. `last_rows`: outputs that have the row of the last new place alone, along this
    dimension. `verifies`: whether it is that of the step for drafts, which has them for every new
    place.
    """

    capacity: int = 0
    filled: str = ""
    buffers: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    sessions: int = 1
    held: Annotated[tuple[str, ...], LEFT_OUT] = ()
    steps: Annotated[Mapping[str, str], LEFT_OUT] = field(default_factory=dict)
    places: Annotated[Mapping[str, int] | None, LEFT_OUT] = None
    joins: Annotated[bool, LEFT_OUT] = True
    last_rows: Annotated[Mapping[str, int], LEFT_OUT] = field(default_factory=dict)
    verifies: Annotated[bool, LEFT_OUT] = False

    @property
    def begins(self) -> bool:
        """Whether it is that of the variant that begins a sequence, and of no step."""
        return bool(self.held) and not self.filled

    @property
    def ports(self) -> frozenset[str]:
        """Inputs and outputs that are no arrays of the caller's."""
        pairs = (*self.buffers.items(), *self.replaced.items())
        return frozenset((self.filled, *self.held, *(name for pair in pairs for name in pair)))


def of_session(name: str, n: int) -> str:
    """The name of a tensor as it is for session `n` of several."""
    return f"{name}@{n}"


def rows_axes(
    shapes: Mapping[str, Sequence[int]], n: int, others: Mapping[str, Sequence[int]], m: int
) -> dict[str, int]:
    """The `places` of ports (`StateInfo`), by their shapes for `n` and for `m` new places."""
    found = {}
    for name, shape in shapes.items():
        other = others.get(name, ())
        moved = [d for d, pair in enumerate(zip_longest(shape, other)) if pair[0] != pair[1]]
        if moved:
            axis = moved[0]
            is_rows = len(moved) == 1 and (shape[axis], other[axis]) == (n, m)
            found[name] = axis if is_rows else NO_ROWS
    return found


def assumed_axes(shapes: Mapping[str, Sequence[int]], n: int) -> dict[str, int]:
    """`rows_axes` where no other number of new places is known.

    The only dimension behind the first that has as many elements; `NO_ROWS` where there are more.
    """
    found = {}
    for name, shape in shapes.items():
        able = [d for d, extent in enumerate(shape) if d and extent == n]
        if able:
            found[name] = able[0] if len(able) == 1 else NO_ROWS
    return found


def of_last_place(state: StateInfo, outputs: Iterable[str]) -> StateInfo:
    """A state whose outputs with a row for each new place have that of the last one alone."""
    places = dict(state.places or {})
    lasts = {name: places.pop(name) for name in outputs if places.get(name, NO_ROWS) != NO_ROWS}
    return replace(state, places=places, last_rows=lasts)


def buffer_of(state: str) -> str:
    """The buffer of a growing state, which is an input of steps; `state`: the model's input."""
    return f"{state}.buffer"
