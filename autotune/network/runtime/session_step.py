"""⑩ One step of sessions: a variant of the model, bound to their places in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import aligned
from autotune.dtypes import DTYPES
from autotune.errors import UsageError
from autotune.graph.state import NO_ROWS, of_session
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.steps import sizes_of, state_of
from autotune.network.runtime.arguments import require_input, require_names
from autotune.network.runtime.generation import COMPILED_FOR_ALL
from autotune.network.runtime.kernel_time import KernelTime
from autotune.network.runtime.shared_places import SharedPlaces

Array = NDArray[Any]


class Stateful(Protocol):
    """A model with a state, at each of its numbers of new places."""

    artifact: Artifact

    @property
    def variants(self) -> Sequence[Stateful]:
        """The model at each of them."""

    def sized(self, numbers: Mapping[str, int]) -> Stateful:
        """The model at these numbers of its lengths."""

    def run_bound(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array], places: Mapping[int, int]
    ) -> dict[str, Array]:
        """One inference on arrays as they are stored; those of `out` are written in place, and
        `places` are addresses of others, by their base."""

    def profile_bound(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array], places: Mapping[int, int]
    ) -> list[KernelTime]:
        """The time of every kernel of `run_bound`, in order."""


class SessionMemory:
    """The state of a session.

    `buffers`: of what grows; `filled`: their places that are; `pairs`: what a call replaces, and
    the array for what takes its place; `held`: what stays for a sequence, None before one begins.
    `bound`: see `SessionStep`. `shared`: places that other sessions read as well. `former`: the
    length before the last step, which can be undone; None where the state came about otherwise.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.info = info = state_of(artifact)
        self.ends = ends = {end.name: end for end in (*artifact.inputs, *artifact.outputs)}
        self.buffers = {name: memory_of(ends[name]) for name in info.buffers}
        self.pairs = {
            name: [memory_of(ends[name]), memory_of(ends[name])] for name in info.replaced
        }
        self.filled = np.zeros(1, np.int64)
        self.held: Mapping[str, Array] | None = None if info.held else {}
        self.bound: dict[tuple[Stateful, int], list[tuple[int, int, int, int]]] = {}
        self.shared: SharedPlaces | None = None
        self.former: int | None = None

    @property
    def length(self) -> int:
        """The number of filled places."""
        return int(self.filled[0])

    def rows(self, buffer: str, begin: int, end: int) -> Array:
        """Places of a buffer, in place, as they are stored."""
        before = (slice(None),) * self.info.axes[buffer]
        return self.buffers[buffer][(*before, slice(begin, end))]

    def cut(self, length: int) -> None:
        """Let so many places count as filled, and others be written anew."""
        if self.shared is not None and length < self.shared.length:
            self.shared = None
        self.filled[0], self.former = length, None

    def undo(self) -> None:
        """Go back to before the last step: what it has replaced is still there."""
        assert self.former is not None
        for pair in self.pairs.values():
            pair.reverse()
        self.cut(self.former)

    def show_in(self, other: SessionMemory) -> None:
        """Give another session this state, whose filled places are the same memory.

        Whole pages of them are, until one of both writes there; what is replaced is copied.
        """
        length = self.length
        if self.buffers and not (self.shared and self.shared.covers(self.buffers, length)):
            self.shared = SharedPlaces(self.buffers, self.info.axes, length)
            self.buffers = self.shared.arrays(self.buffers, length)
            self.bound.clear()
        if self.shared is not None:
            other.buffers = self.shared.arrays(self.buffers, length)
        other.shared, other.held, other.filled[0] = self.shared, self.held, length
        for name, pair in self.pairs.items():
            other.pairs[name][0][...] = pair[0]

    def arrays(self, length: int) -> dict[str, Array]:
        """All of the state at so many places but what is held, by name."""
        rows = {name: self.rows(name, 0, length) for name in self.buffers}
        return rows | {name: pair[0] for name, pair in self.pairs.items()}


class SessionStep:
    """A variant of the model, whose places in memory are bound to those of sessions.

    `axes`: see `steps.axes_of_places`. `sizes`: the numbers of new places that it may have, 0 where
    no state grows, and `size` the largest; `sessions`: those that it advances. `verifies`: whether
    it is for drafts alone.
    """

    def __init__(self, model: Stateful, axes: Mapping[str, int]) -> None:
        self.model, self.axes = model, axes
        artifact, info = model.artifact, state_of(model.artifact)
        self.sessions, self.sizes = info.sessions, sizes_of(artifact)
        self.verifies = info.verifies
        self.size = self.sizes[-1]
        self._sized: dict[int, Stateful] = {}
        ports = info.ports
        self.inputs = tuple(e for e in artifact.own_inputs if e.name not in ports)
        self.outputs = tuple(e for e in artifact.outputs if e.name not in ports)

    def axis(self, name: str) -> int | None:
        """The dimension of a port that has a row for each new place."""
        found = self.axes.get(name)
        return None if found == NO_ROWS else found

    def n_places(self, inputs: Mapping[str, Any]) -> int:
        """The number of places that inputs are for. Raises UsageError for other names."""
        require_names(self.inputs, inputs)
        for end in self.inputs:
            axis = self.axis(end.name)
            shape = np.shape(inputs[end.name])
            if axis is not None and len(shape) == len(end.shape):
                return int(shape[axis])
        return max(1, self.size)

    def checked(self, inputs: Mapping[str, Any], n: int, sessions: int = 1) -> dict[str, Array]:
        """The inputs of `n` places as arrays. Raises UsageError where they do not fit."""
        found = {}
        for end in self.inputs:
            axis = self.axis(end.name)
            shape = [n if d == axis else extent for d, extent in enumerate(end.shape)]
            shape[:1] = [sessions * extent for extent in shape[:1]]
            wanted = Endpoint(end.name, tuple(shape), end.dtype, end.base, is_native=end.is_native)
            given = as_stated(inputs[end.name], end)
            found[end.name] = require_input(wanted, end.numpy_dtype, given)
        return found

    def part(self, inputs: Mapping[str, Array], begin: int, size: int) -> dict[str, Array]:
        """The inputs of the places from `begin` on."""
        found = {}
        for name, array in inputs.items():
            axis = self.axis(name)
            is_whole = axis is None or array.shape[axis] == size
            found[name] = array if is_whole else array.take(range(begin, begin + size), axis)
        return found

    def of_sessions(self, inputs: Mapping[str, Array], begin: int) -> dict[str, Array]:
        """The inputs of its sessions, `begin` the first of them, among those of several."""
        found = dict(inputs)
        for end in self.inputs:
            if end.shape:
                rows = end.shape[0] // self.sessions
                some = slice(begin * rows, (begin + self.sessions) * rows)
                found[end.name] = inputs[end.name][some]
        return found

    def joined(self, parts: list[dict[str, Array]]) -> dict[str, Array]:
        """The outputs of parts: rows of all places, else those of the last part."""
        found = {}
        for name, last in parts[-1].items():
            axis = self.axis(name)
            rows = [part[name] for part in parts]
            found[name] = last if axis is None else np.concatenate(rows, axis)
        return found

    def __call__(
        self, memories: Sequence[SessionMemory], inputs: Mapping[str, Array], n: int
    ) -> dict[str, Array]:
        """The outputs of a step of `n` places of as many sessions as it is for; their lengths
        stay."""
        found = self.at(n).run_bound(*self._bound(memories, inputs))
        for memory in memories:
            memory.former = memory.length
            for pair in memory.pairs.values():
                pair.reverse()
        return {end.name: found[end.name] for end in self.outputs}

    def profile(
        self, memory: SessionMemory, inputs: Mapping[str, Array], n: int
    ) -> list[KernelTime]:
        """The time of every kernel of a step of `n` places; the state stays as it was."""
        return self.at(n).profile_bound(*self._bound([memory], inputs))

    def _bound(
        self, memories: Sequence[SessionMemory], inputs: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array], dict[int, int]]:
        """Inputs, outputs and addresses of a step, as `run_bound` takes them."""
        info = memories[0].info
        given, out, places = dict(inputs), dict[str, Array](), dict[int, int]()
        if info.filled:
            given[info.filled] = np.concatenate([memory.filled for memory in memories])
        for n, memory in enumerate(memories):
            given |= {self._port(name, n): a for name, a in (memory.held or {}).items()}
            for buffer, rows, address, step in self._places(memory, n):
                places[buffer], places[rows] = address, address + memory.length * step
            for name, output in info.replaced.items():
                given[self._port(name, n)], out[self._port(output, n)] = memory.pairs[name]
        return given, out, places

    def at(self, n: int) -> Stateful:
        """The variant at `n` new places: made once."""
        if not self.model.artifact.lengths:
            return self.model
        if n not in self._sized:
            self._sized[n] = self.model.sized(dict.fromkeys(self.model.artifact.lengths, n))
        return self._sized[n]

    def _places(self, memory: SessionMemory, n: int) -> list[tuple[int, int, int, int]]:
        """For each buffer of session `n`: the bases of buffer and rows, the address of the buffer,
        and bytes from place to place."""
        key = self.model, n
        if key not in memory.bound:
            artifact, info = self.model.artifact, memory.info
            bases = {end.name: end.base for end in (*artifact.inputs, *artifact.outputs)}
            memory.bound[key] = [
                (
                    bases[self._port(name, n)],
                    bases[self._port(output, n)],
                    memory.buffers[name].__array_interface__["data"][0],
                    memory.buffers[name].strides[info.axes[name]],
                )
                for name, output in info.buffers.items()
            ]
        return memory.bound[key]

    def _port(self, name: str, n: int) -> str:
        return of_session(name, n) if self.sessions > 1 else name


def as_stated(value: Any, end: Endpoint) -> Array:
    """An array; integers of another type in that of an input."""
    given = np.asarray(value)
    if given.dtype != end.numpy_dtype and given.dtype.kind in "iu" and not end.is_float:
        return given.astype(end.numpy_dtype)
    return given


def memory_of(end: Endpoint) -> Array:
    """An array for a port as it is stored."""
    return aligned(end.shape, DTYPES[end.stored].numpy)


def no_steps(n: int, sizes: Sequence[range], joins: bool) -> UsageError:
    """The error for a number of new places that no steps are for."""
    if not n:
        return UsageError("there are no places in this step", "give one or more")
    known = ", ".join(f"{s[0]} to {s[-1]}" if len(s) > 1 else f"{s[0]}" for s in sizes)
    hint = f"give {known} at a time"
    if joins:
        return UsageError(f"{n} places are no sum of {known}, which the file takes", hint)
    return UsageError(
        f"{n} places are not computed as several steps of {known}: the file makes others of them",
        hint,
    )


def no_rows(n: int, most: int) -> UsageError:
    """The error for outputs of each of more places than the model has them for."""
    return UsageError(
        f"a step of {n} places has outputs for the last one alone: for each of {most} at most",
        f"give fewer, or {COMPILED_FOR_ALL}",
    )
