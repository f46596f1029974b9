"""⑩ The state of an exported network: where each port of a step lies in the memory of a session."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.dtypes import dtype_bytes
from autotune.errors import ArtifactError
from autotune.graph.state import NO_ROWS
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.steps import (
    axes_of_places,
    begin_of,
    sizes_of,
    state_of,
    steps_of,
)
from autotune.pages import CACHE_LINE

KINDS = ("GIVEN", "CACHE", "LENGTH", "HELD", "ROWS", "OLD", "NEW")


@dataclass(frozen=True, slots=True)
class StatePart:
    """A port of a step: of the caller's arrays (GIVEN), or at byte `at` of a session's memory.

    `size`: bytes of a place of what has a row for each, and all of what a call replaces.
    """

    kind: str
    at: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The memory of a session. `steps`: variants with the least and the most of their places, the
    largest first.

    Parts are in the order of the ports of a step, and of what begins a sequence. `joins`: whether
    several steps are one of all their places.
    """

    capacity: int
    n_bytes: int
    steps: tuple[tuple[int, int, int], ...]
    step_inputs: tuple[StatePart, ...]
    step_outputs: tuple[StatePart, ...]
    begin_outputs: tuple[StatePart, ...]
    joins: bool = True


def state_layout(artifact: Artifact) -> StateLayout | None:
    """The layout of an artifact's state; None where it has none.

    Raises ArtifactError where places of an array of the caller's are no neighbours.
    """
    state = artifact.state
    if state is None:
        return None
    steps = steps_of(artifact)
    _require_one_shape(steps)
    begin, last = begin_of(artifact), min(steps, key=_most)
    axes = axes_of_places([*steps])
    ends = {end.name: end for end in (*last.inputs, *last.outputs)}
    places, n_bytes = _places(ends, {*state.buffers, *state.held}, {*state.replaced})
    inputs = {state.filled: StatePart("LENGTH")}
    inputs |= {name: StatePart("CACHE", places[name]) for name in state.buffers}
    inputs |= {name: StatePart("HELD", places[name]) for name in state.held}
    inputs |= {
        name: StatePart("OLD", places[name], _n_bytes(ends[name])) for name in state.replaced
    }
    outputs = {
        rows: StatePart("ROWS", places[name], _inner(ends[name], state.axes[name]))
        for name, rows in state.buffers.items()
    }
    outputs |= {
        output: StatePart("NEW", places[name], _n_bytes(ends[name]))
        for name, output in state.replaced.items()
    }
    return StateLayout(
        state.capacity,
        n_bytes,
        tuple(sorted((_step(k, one) for k, one in enumerate(steps)), key=_largest)),
        tuple(inputs.get(end.name) or _given(end, axes) for end in last.own_inputs),
        tuple(outputs.get(end.name) or _given(end, axes) for end in last.outputs),
        tuple(inputs[end.name] for end in begin.outputs) if begin is not None else (),
        state.joins,
    )


def _require_one_shape(steps: Sequence[Artifact]) -> None:
    """Raise ArtifactError where steps are of states of several shapes."""
    replaced = state_of(steps[0]).replaced
    shapes = [{end.name: end.shape for end in one.inputs if end.name in replaced} for one in steps]
    if any(other != shapes[0] for other in shapes):
        raise ArtifactError(
            "its variants have states of other shapes", "compile it for one shape of its state"
        )


def of_state(artifact: Artifact) -> frozenset[str]:
    """Names of the ports that are no arrays of the caller's, but those of a session."""
    return artifact.state.ports if artifact.state is not None else frozenset()


def state_tables(layout: StateLayout | None) -> Iterator[str]:
    """The layout in C; for a network without a state that it has none."""
    yield f"#define HAS_STATE {int(layout is not None)}"
    if layout is None:
        return
    yield f"enum {{ {', '.join(KINDS)} }};"
    yield f"#define CAPACITY ((int64_t){layout.capacity})"
    yield f"#define STATE_BYTES ((size_t){layout.n_bytes})"
    yield f"#define BY_SHAPE {int(not layout.capacity)}"
    yield f"#define JOINS {int(layout.joins)}"
    yield f"#define HAS_BEGIN {int(bool(layout.begin_outputs))}"
    yield "typedef struct {\n  int kind;\n  int64_t at, size;\n} Part;"
    yield "typedef struct {\n  int variant;\n  int64_t least, most;\n} Step;"
    rows = ", ".join(f"{{{variant}, {least}, {most}}}" for variant, least, most in layout.steps)
    yield f"static const Step steps[] = {{{rows}}};"
    yield f"#define N_STEPS {len(layout.steps)}"
    tables = {
        "step_inputs": layout.step_inputs,
        "step_outputs": layout.step_outputs,
        "begin_outputs": layout.begin_outputs,
    }
    for name, parts in tables.items():
        values = ", ".join(f"{{{part.kind}, {part.at}, {part.size}}}" for part in parts)
        if parts:
            yield f"static const Part {name}[] = {{{values}}};"
    yield f"#define N_STEP_INPUTS {len(layout.step_inputs)}"
    yield f"#define N_STEP_OUTPUTS {len(layout.step_outputs)}"


def _places(
    ends: Mapping[str, Endpoint], once: set[str], twice: set[str]
) -> tuple[dict[str, int], int]:
    """Where each array of a state begins, and bytes of all."""
    found, at = {}, 0
    for name, end in ends.items():
        if name in once | twice:
            found[name] = at
            n_bytes = _n_bytes(end) * (2 if name in twice else 1)
            at += -(-n_bytes // CACHE_LINE) * CACHE_LINE
    return found, max(at, CACHE_LINE)


def _given(end: Endpoint, axes: Mapping[str, int]) -> StatePart:
    axis = axes.get(end.name)
    if axis is None:
        return StatePart("GIVEN")
    if axis == NO_ROWS or math.prod(end.shape[:axis]) != 1:
        raise ArtifactError(
            f"'{end.name}' {list(end.shape)} has no place behind another one",
            "call the model from Python: `autotune.load(FILE).session()`",
        )
    return StatePart("GIVEN", 0, math.prod(end.shape[axis + 1 :]) * dtype_bytes(end.dtype))


def _inner(end: Endpoint, axis: int) -> int:
    return math.prod(end.shape[axis + 1 :]) * dtype_bytes(end.stored)


def _n_bytes(end: Endpoint) -> int:
    return math.prod(end.shape) * dtype_bytes(end.stored)


def _step(number: int, variant: Artifact) -> tuple[int, int, int]:
    sizes = sizes_of(variant)
    return number, sizes[0] or 1, sizes[-1] or 1


def _most(step: Artifact) -> int:
    return sizes_of(step)[-1]


def _largest(step: tuple[int, int, int]) -> int:
    return -step[2]
