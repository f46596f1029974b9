"""① The state of a model: what stays from one call to the next, among its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from autotune.codec import LEFT_OUT

CHUNKS = (128, 32, 8, 1)
"""New places of the variants of a model with a state, where nothing else is said."""
CACHE_TYPES: Mapping[str, str] = {"f32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Types of the elements of growing states, and their dtypes."""


@dataclass(frozen=True, slots=True)
class StateInfo:
    """The state of a model among its ports.

    `buffers`: inputs with `capacity` places along dimension `axes`, each with the output that is
    rows of it behind the filled ones: it lies in the memory of the buffer. `filled`: the input that
    is the number of filled places; "" where no state grows. `replaced`: inputs that an output of
    the same shape takes the place of in the next call. `sessions`: that a call advances; ports of
    each have names of its own (`of_session`), and `filled` is a number for each. `held`: inputs of
    steps that stay for a sequence, which the variant that begins one returns. `steps`: buffers of
    integers, each with the buffer of the numbers that its rows are multiples of.
    """

    capacity: int = 0
    filled: str = ""
    buffers: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    sessions: int = 1
    held: Annotated[tuple[str, ...], LEFT_OUT] = ()
    steps: Annotated[Mapping[str, str], LEFT_OUT] = field(default_factory=dict)

    @property
    def begins(self) -> bool:
        """Whether it is that of the variant that begins a sequence, and of no step."""
        return bool(self.held) and not self.buffers


def of_session(name: str, n: int) -> str:
    """The name of a tensor as it is for session `n` of several."""
    return f"{name}@{n}"


def buffer_of(state: str) -> str:
    """The buffer of a growing state, which is an input of steps; `state`: the model's input."""
    return f"{state}.buffer"
