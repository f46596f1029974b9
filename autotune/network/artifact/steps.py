"""⑩ The variants of a model with a state: steps of so many places, and what begins a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.network.artifact.artifact import Artifact


def steps_of(artifact: Artifact) -> tuple[Artifact, ...]:
    """The variants that advance the state of one session; all where it has none."""
    return tuple(one for one in artifact.variants if not _is_other(one))


def _is_other(one: Artifact) -> bool:
    return one.state is not None and (one.state.begins or one.state.sessions > 1)


def begin_of(artifact: Artifact) -> Artifact | None:
    """The variant that begins a sequence; None where nothing stays for one."""
    found = (one for one in artifact.variants if one.state is not None and one.state.begins)
    return next(found, None)


def n_places_of(step: Artifact) -> int:
    """New places of a step; 0 where no state grows."""
    state = step.state
    assert state is not None
    shapes = {end.name: end.shape for end in step.outputs}
    return next((shapes[rows][state.axes[name]] for name, rows in state.buffers.items()), 0)


def axes_of_places(steps: Sequence[Artifact]) -> dict[str, int]:
    """The dimension of new places of each port: that in which the steps differ.

    Of a single step it is the last one behind the first that has as many places.
    """
    if len(steps) == 1:
        return _axes_of_one(steps[0])
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for one in steps:
        for end in (*one.inputs, *one.outputs):
            shapes.setdefault(end.name, []).append(end.shape)
    found = {}
    for name, known in shapes.items():
        moved = [d for d, extents in enumerate(zip(*known, strict=True)) if len({*extents}) > 1]
        if len(moved) == 1:
            found[name] = moved[0]
    return found


def _axes_of_one(step: Artifact) -> dict[str, int]:
    n, state = n_places_of(step), step.state
    assert state is not None
    others = {*state.buffers, *state.buffers.values(), *state.replaced, *state.held, state.filled}
    found = {}
    for end in (*step.inputs, *step.outputs):
        places = [d for d, extent in enumerate(end.shape) if d and extent == n]
        if n and places and end.name not in others | {*state.replaced.values()}:
            found[end.name] = places[-1]
    return found
