"""⑩ The variants of a model with a state: steps of so many places, and what begins a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.extent import Length
from autotune.graph.state import MOST_PROMPT, NO_ROWS, StateInfo, assumed_axes, rows_axes
from autotune.network.artifact.artifact import Artifact


def steps_of(artifact: Artifact) -> tuple[Artifact, ...]:
    """The variants that advance the state of one session, without that for drafts; all where it has
    none."""
    return tuple(one for one in artifact.variants if one.state is None or is_step(one.state))


def is_step(state: StateInfo) -> bool:
    """Whether a variant with this state is a step of one session, and not for drafts alone."""
    return not (state.begins or state.verifies or state.sessions > 1)


def without_drafts(artifact: Artifact) -> Artifact:
    """An artifact without the step for drafts, where nobody verifies any."""
    others = tuple(o for o in artifact.others if o.state is None or not o.state.verifies)
    cpus = tuple(map(without_drafts, artifact.cpus))
    return replace(artifact, others=others, cpus=cpus)


def begin_of(artifact: Artifact) -> Artifact | None:
    """The variant that begins a sequence; None where nothing stays for one."""
    found = (one for one in artifact.variants if one.state is not None and one.state.begins)
    return next(found, None)


def sizes_of(step: Artifact) -> range:
    """Numbers of new places that a step may have; 0 where places are not counted."""
    state = state_of(step)
    axes = {rows: state.axes[buffer] for buffer, rows in state.buffers.items()}
    if state.filled:  # with fixed states alone, as of Mamba, by what has a row for each place
        axes |= {n: axis for n, axis in (state.places or {}).items() if axis != NO_ROWS}
    ends = {end.name: end for end in (*step.inputs, *step.outputs)}
    for name, axis in axes.items():
        extent = ends[name].extents[axis] if ends[name].extents else ends[name].shape[axis]
        if isinstance(extent, Length):
            return range(extent.least, extent.most + 1)
        return range(extent, extent + 1)
    return range(1)


def axes_of_places(steps: Sequence[Artifact]) -> Mapping[str, int]:
    """The `places` of the ports of steps, see `StateInfo`.

    Files of before do not tell: there it is the dimension in which two steps differ, of a single
    one the only dimension behind the first that has as many elements.
    """
    known = state_of(steps[0]).places
    sizes = {sizes_of(one)[-1]: one for one in steps}
    if known is not None or sizes.keys() == {0}:
        return known or {}
    (n, first), *others = sizes.items()
    if not others:
        return assumed_axes(_shapes(first), n)
    return rows_axes(_shapes(first), n, _shapes(others[-1][1]), others[-1][0])


def parts_of(n: int, sizes: Iterable[range], most: int = MOST_PROMPT) -> list[int]:
    """The steps that `n` places are computed by, the largest first; less where a rest is left.

    `most`: places of one step that may have several numbers of them.
    """
    found: list[int] = []
    for size in sorted(sizes, key=lambda size: -size[-1]):
        while 0 < size[0] <= (left := n - sum(found)):
            found.append(min(left, size[-1], max(most, size[0])))
    return found


def state_of(one: Artifact) -> StateInfo:
    """The state of a model that has some."""
    assert one.state is not None
    return one.state


def _shapes(step: Artifact) -> dict[str, tuple[int, ...]]:
    ends, own = (*step.inputs, *step.outputs), state_of(step).ports
    return {end.name: end.shape for end in ends if end.name not in own}
