"""⑩ Sessions: a model with a state that stays in place from one call to the next.

    session = load("decoder.atn").session()
    logits = session.step(prompt)            # (1, n) tokens: a prompt of any length
    for _ in range(100):
        logits = session.step(logits[:, -1:].argmax(-1))

A prefill of any number of places and a step of one share one copy of the weights. New rows of a
state are written behind the filled ones of its buffer by the kernels that compute them; what is
replaced as a whole alternates between two arrays. What an encoder gives is taken once, by `begin`,
which computes of it what all steps read.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.calls import PublicNames
from autotune.dtypes import DTYPES
from autotune.errors import UsageError
from autotune.graph.state import MOST_PROMPT, NO_ROWS
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.steps import (
    axes_of_places,
    is_step,
    parts_of,
    state_of,
    steps_of,
)
from autotune.network.artifact.variants import VariantChoice
from autotune.network.runtime.arguments import in_order, require_input, require_names
from autotune.network.runtime.generation import TokenSession, generated
from autotune.network.runtime.kernel_time import KernelTime
from autotune.network.runtime.sampling import sampler
from autotune.network.runtime.session_step import (
    SessionMemory,
    SessionStep,
    Stateful,
    as_stated,
    memory_of,
    no_rows,
    no_steps,
)
from autotune.network.runtime.speculation import SessionDraft, Wanted, draft_of, speculated
from autotune.network.runtime.state_file import Kinds, plain, read_state, write_state

Array = NDArray[Any]


class ModelSession(PublicNames):
    """A state of a model, and the steps that advance it. One thread at a time may use it.

    `model`: one with a state. Other sessions of the model share its weights and its code.
    """

    def __init__(self, model: Stateful) -> None:
        if model.artifact.state is None:
            raise UsageError(
                f"'{model.artifact.name}' has no state",
                "compile it with `capacity`, or name its state (`state`)",
            )
        if model.artifact.lengths and not model.artifact.state.filled:
            raise UsageError(
                f"'{model.artifact.name}' has lengths beside its state, which sessions do not take",
                "compile it for single sizes with `dims`",
            )
        self.model, self._info = model, model.artifact.state
        self._lock = threading.Lock()
        self._memory = SessionMemory(model.artifact)
        self._begin = next((m for m in model.variants if state_of(m.artifact).begins), None)
        axes = axes_of_places(steps_of(model.artifact))
        steps = [SessionStep(one, axes) for one in model.variants if self._advances(one)]
        steps.sort(key=lambda step: (-step.sessions, -step.size))
        self._steps = [step for step in steps if is_step(state_of(step.model.artifact))]
        self._verifying = next((step for step in steps if step.verifies), None)
        self._together = [step for step in steps if step.sessions > 1]
        self._least = min(self._steps, key=lambda step: step.size)
        self._choice = VariantChoice([{e.name: e.shape for e in s.inputs} for s in self._steps])
        self.joins = self._info.joins and NO_ROWS not in axes.values()
        """Whether several steps are one of all their places."""
        self.most = MOST_PROMPT
        """Places that are computed at once; a check of parts takes fewer."""

    def _advances(self, model: Stateful) -> bool:
        """Whether a variant goes on from this state, which has the shapes of the first one's."""
        shapes = {end.name: end.shape for end in model.artifact.inputs}
        is_same = all(shapes.get(n) == pair[0].shape for n, pair in self._memory.pairs.items())
        return model is not self._begin and (is_same or state_of(model.artifact).sessions > 1)

    @property
    def capacity(self) -> int:
        """The most places; 0 where no state grows."""
        return self._info.capacity

    @property
    def length(self) -> int:
        """The number of filled places."""
        return self._memory.length

    @property
    def input_info(self) -> tuple[Endpoint, ...]:
        """The inputs of a step, at its smallest number of places."""
        return self._least.inputs

    @property
    def output_info(self) -> tuple[Endpoint, ...]:
        """The outputs of a step, at its smallest number of places."""
        return self._least.outputs

    @property
    def begin_info(self) -> tuple[Endpoint, ...]:
        """The inputs that stay for a sequence, as `begin` takes them."""
        return self._begin.artifact.inputs if self._begin is not None else ()

    def __repr__(self) -> str:
        return f"Session({self.model.artifact.name}, {self.length} of {self.capacity} places)"

    def begin(self, *inputs: Any, **named: Any) -> None:
        """Begin a sequence with what stays for it, such as the hidden states of an encoder.

        `inputs`: in the order of `begin_info`, or by name, also as one mapping. Nothing is filled
        then. Raises UsageError for inputs that do not fit, and while another thread is in a step;
        then the state is as it was.
        """
        is_mapping = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        by_name = inputs[0] if is_mapping else in_order(self.begin_info, inputs) if inputs else {}
        given = {**by_name, **named}
        require_names(self.begin_info, given)
        checked = {
            end.name: require_input(end, end.numpy_dtype, as_stated(given[end.name], end))
            for end in self.begin_info
        }
        with self._alone():
            if self._begin is not None:
                held = {end.name: memory_of(end) for end in self._begin.artifact.outputs}
                self._begin.run_bound(checked, held, {})
                self._memory.held = held
            self._forget()

    def step(self, *inputs: Any, **named: Any) -> Any:
        """Advance by the places of the inputs; the output, or a tuple of several.

        `inputs`: in the order of `input_info`, or by name. Outputs with a row for each place have
        that of the last one, or all where the model was compiled with `scores="all"`. Raises
        UsageError for inputs that do not fit, for more places than are left, and while another
        thread is in a step; then the state is as it was.
        """
        given = in_order(self.input_info, inputs) if inputs else {}
        found = tuple(self.run(given | named).values())
        return found[0] if len(found) == 1 else found

    def run(self, inputs: Mapping[str, Any], *, has_all: bool = False) -> dict[str, Array]:
        """`step` for inputs by name; outputs by name.

        `has_all`: with a row for each of at most `most_rows` new places.
        """
        with self._alone():
            return self._advance(inputs, has_all)

    def first_step(self, n: int) -> tuple[int, Stateful]:
        """The places of the first of the steps that compute `n` new ones, and its model.

        Raises UsageError where there are no such steps.
        """
        if not self.takes(n):
            raise no_steps(n, [step.sizes for step in self._steps], self.joins)
        first = self._parts(n)[0]
        return first, self._of_size(first).at(first)

    def profile(self, inputs: Mapping[str, Any]) -> list[KernelTime]:
        """Time every kernel of one step, in order; the state stays as it was.

        Raises UsageError as `step`, and for places that take several steps.
        """
        with self._alone():
            plan, checked = self._planned(inputs)
            if len(plan) > 1:
                raise UsageError(f"{len(plan)} steps are no single one", "give fewer places")
            ((step, n),) = plan
            return step.profile(self._memory, checked, n)

    def generate(
        self,
        tokens: Any,
        max_new: int | None = None,
        stop: Container[int] = (),
        *,
        draft: Any = None,
        k: int = 4,
        **sampling: Any,
    ) -> Iterator[int]:
        """Tokens behind `tokens` (of one sequence), one by one, as each is computed.

        It ends after `max_new`, behind a token of `stop`, and where the state is full. `sampling`:
        see `sampling.sampler`; greedy by default. The state has all tokens but the last. `draft`
        proposes `k` tokens at a time, fewer than `most_rows`, which one step verifies
        (`speculation`): "ngrams", or a session of a smaller model that has read the same text.
        Raises UsageError for a model of several inputs in a step or without scores of tokens.
        """
        choose, one = sampler(**sampling), TokenSession(self)
        given, most = one.tokens(tokens), self.capacity if max_new is None else max_new
        if draft is None or most < 1:
            return generated(one, given, choose, most, stop)
        one.require_rows(k)
        is_session = isinstance(draft, ModelSession)
        found = SessionDraft(TokenSession(draft)) if is_session else draft_of(draft)
        return speculated(one, given, found, choose, Wanted(most, stop, k))

    def reset(self) -> None:
        """Forget all places; what `begin` was given stays."""
        with self._alone():
            self._forget()

    def _forget(self) -> None:
        self._memory.cut(0)
        for pair in self._memory.pairs.values():
            pair[0][...] = 0

    def truncate(self, length: int) -> None:
        """Forget the places from `length` on; a state of a fixed shape goes back by one step alone.

        Raises UsageError where there are not so many.
        """
        able, has_pairs = (self.length, self._memory.former), bool(self._memory.pairs)
        if not 0 <= length <= self.length or (has_pairs and length not in able):
            raise UsageError(
                f"a state of {self.length} places cannot be cut to {length}", "give fewer places"
            )
        with self._alone():
            if has_pairs and length < self.length:
                self._memory.undo()
            else:
                self._memory.cut(length)

    def fork(self) -> ModelSession:
        """Another session with this state, as for beams and shared prefixes.

        Filled places are one memory, in whole pages, until one of both writes there.
        """
        with self._alone():
            other = ModelSession(self.model)
            self._memory.show_in(other._memory)
            return other

    def save(self, path: str | Path) -> None:
        """Write the state to an `.npz` file, whole or not at all."""
        with self._alone():
            arrays = self._memory.arrays(self.length) | dict(self._memory.held or {})
            write_state(Path(path), self.model.artifact.model_hash, self.length, arrays)

    def load(self, path: str | Path) -> None:
        """Read a state that a session of the same model has saved.

        Raises UsageError for another file, for a state of another model or kept in another type,
        and for one of more places than there are; then the state is as it was.
        """
        with self._alone():
            digest, held = self.model.artifact.model_hash, _stored(self._held_ends)
            found, length = read_state(Path(path), digest, self.capacity, self._kinds, held)
            self._memory.cut(0)
            for name, array in self._memory.arrays(length).items():
                array[...] = found[name].view(array.dtype)
            self._memory.cut(length)
            self._memory.held = self._held_in(found)

    def _kinds(self, length: int) -> Kinds:
        """What a file of a state of so many places has."""
        arrays = self._memory.arrays(length)
        return {name: (array.shape, plain(array).dtype) for name, array in arrays.items()}

    @property
    def _held_ends(self) -> tuple[Endpoint, ...]:
        return self._begin.artifact.outputs if self._begin is not None else ()

    def _held_in(self, arrays: Mapping[str, Array]) -> dict[str, Array] | None:
        """What `begin` has left, from a file; None where it had not been called."""
        found = {}
        for end in self._held_ends:
            if end.name not in arrays:
                return None
            found[end.name] = memory_of(end)
            found[end.name][...] = arrays[end.name].view(found[end.name].dtype)
        return found

    # --- parts, for checks and other runtimes ---

    @property
    def gives_last_rows(self) -> bool:
        """Whether outputs are those of the last new place alone."""
        return bool(self._info.last_rows)

    @property
    def most_rows(self) -> int:
        """The most new places that a step gives outputs for each of, as drafts need them."""
        if not self.gives_last_rows:
            return self.capacity
        return self._verifying.size if self._verifying is not None else 1

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the inputs that are buffers of growing states, without those of steps."""
        steps = set(self._info.steps.values())
        return tuple(name for name in self._memory.buffers if name not in steps)

    @property
    def all_buffers(self) -> tuple[str, ...]:
        """Names of all buffers that grow, steps among them."""
        return tuple(self._memory.buffers)

    @property
    def n_bytes(self) -> int:
        """Bytes of the state."""
        pairs = (array for pair in self._memory.pairs.values() for array in pair)
        return sum(array.nbytes for array in (*self._memory.buffers.values(), *pairs))

    def rows(self, buffer: str, begin: int, end: int) -> Array:
        """Places of a buffer, in place, as they are stored."""
        return self._memory.rows(buffer, begin, end)

    def replaced_arrays(self) -> dict[str, Array]:
        """What is replaced as a whole in each step, in place as it is stored, by the input."""
        return {name: pair[0] for name, pair in self._memory.pairs.items()}

    def n_places(self, inputs: Mapping[str, Any]) -> int:
        """The number of places that inputs of a step are for. Raises UsageError for others."""
        return self._least.n_places(inputs)

    def takes(self, n: int) -> bool:
        """Whether there are steps of `n` new places."""
        return self.can_take(n) and (self.joins or len(self._parts(n)) == 1)

    def can_take(self, n: int) -> bool:
        """Whether there are steps of `n` new places together, or that go on from one another."""
        return 0 < n == sum(self._parts(n))

    def _parts(self, n: int) -> list[int]:
        """The steps that compute `n` new places."""
        return parts_of(n, [step.sizes for step in self._steps], self.most)

    def move(self, length: int) -> None:
        """Go on in other memory with the first places: arrays that `rows` gave stay as they are."""
        memory = self._memory
        memory.shared = None
        former = {name: self.rows(name, 0, length) for name in memory.buffers}
        memory.buffers = {name: memory_of(memory.ends[name]) for name in former}
        memory.bound.clear()
        for name, rows in former.items():
            self.rows(name, 0, length)[...] = rows

    def numbers(self, buffer: str, begin: int, end: int) -> Array:
        """Copy of places of a buffer: the numbers that they stand for."""
        rows, steps = self.rows(buffer, begin, end), self._info.steps.get(buffer)
        if steps is not None:
            return np.asarray(rows * self.rows(steps, begin, end))
        is_narrow = rows.dtype.kind not in "iufb"
        return rows.astype(np.float32) if is_narrow else rows.copy()

    def assume(self, length: int) -> None:
        """Let so many places count as filled, with what is in their rows."""
        self._memory.cut(length)

    def shape_of(self, port: str, n: int) -> tuple[int, ...]:
        """The shape of an input or output of a step of n places."""
        step = next((step for step in self._steps if n in step.sizes), self._least)
        end = next(e for e in (*step.inputs, *step.outputs) if e.name == port)
        axis = step.axis(port)
        return tuple(n if d == axis else extent for d, extent in enumerate(end.shape))

    # --- one step ---

    def _advance(self, inputs: Mapping[str, Any], has_all: bool) -> dict[str, Array]:
        plan, checked = self._planned(inputs, has_all)
        parts: list[dict[str, Array]] = []
        memory, before = self._memory, self.length
        try:
            for step, n in plan:
                part = step.part(checked, self.length - before, n)
                parts.append(step([memory], part, n))
                memory.filled[0] += n
        except BaseException:
            memory.filled[0] = before
            raise
        return parts[0] if len(parts) == 1 else self._least.joined(parts)

    def _planned(
        self, inputs: Mapping[str, Any], has_all: bool = False
    ) -> tuple[list[tuple[SessionStep, int]], dict[str, Array]]:
        """Steps with their new places, and their inputs as arrays. Raises UsageError."""
        if not self.capacity:
            step = self._chosen(inputs)
            return [(step, step.size)], step.checked(inputs, 1)
        n = self.n_places(inputs)
        self._require_begun()
        if self.length + n > self.capacity:
            raise UsageError(
                f"{n} more places do not fit: {self.length} of {self.capacity} are filled",
                "compile with a larger `capacity`, or `reset` the session",
            )
        if has_all and n > self.most_rows:
            raise no_rows(n, self.most_rows)
        if has_all and self._verifying is not None and n in self._verifying.sizes:
            return [(self._verifying, n)], self._verifying.checked(inputs, n)
        if not self.takes(n):
            raise no_steps(n, [step.sizes for step in self._steps], self.joins)
        plan = [(self._of_size(size), size) for size in self._parts(n)]
        return plan, plan[0][0].checked(inputs, n)

    def _of_size(self, n: int) -> SessionStep:
        return next(step for step in self._steps if n in step.sizes)

    def _chosen(self, inputs: Mapping[str, Any]) -> SessionStep:
        """The step for inputs of these shapes, where no state grows. Raises UsageError."""
        ends = self._least.inputs
        require_names(ends, inputs)
        arrays = {end.name: as_stated(inputs[end.name], end) for end in ends}
        number = self._choice.number(arrays)
        if number is None:
            raise self._choice.error(arrays)
        return self._steps[number]

    def _for_each(self, inputs: Mapping[str, Any], k: int) -> SessionStep:
        """The step of one place for a session, by the inputs of `k`. Raises UsageError."""
        if self.capacity:
            require_names(self._least.inputs, inputs)
            if self._least.size != 1:
                raise UsageError(
                    f"the model takes {self._least.size} places in a step", "step each session"
                )
            return self._least
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        rows = {name: a[: len(a) // k] if a.ndim else a for name, a in arrays.items()}
        return self._chosen(rows)

    def _require_begun(self) -> None:
        if self._memory.held is None:
            names = ", ".join(f"'{end.name}'" for end in self.begin_info)
            raise UsageError(
                f"no sequence has begun: the model takes {names} once for one",
                "call `session.begin` with it before the first step",
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "another thread is in a step of this session", "give each thread a session"
            )
        try:
            yield
        finally:
            self._lock.release()


def step_together(
    model: Stateful, sessions: Sequence[ModelSession], inputs: Mapping[str, Any]
) -> dict[str, Array]:
    """A step of one place of several sessions of `model`: see `Model.step_together`."""
    if len({id(s) for s in sessions}) < len(sessions) or any(
        s.model is not model for s in sessions
    ):
        raise UsageError(
            "sessions to step together are not several of this model", "give each once"
        )
    if not sessions:
        raise UsageError("there are no sessions to step together", "give one or more")
    first, k = sessions[0], len(sessions)
    one = first._for_each(inputs, k)
    checked = one.checked(inputs, 1, k)
    with ExitStack() as all_of_them:
        for n, session in enumerate(sessions):
            all_of_them.enter_context(session._alone())
            session._require_begun()
            if session.capacity and session.length >= session.capacity:
                raise UsageError(
                    f"session {n} is full: {session.capacity} places are filled",
                    "`reset` it, or step the others",
                )
        parts, done = [], 0
        for step in (*first._together, one):
            while k - done >= step.sessions:
                some = [session._memory for session in sessions[done : done + step.sessions]]
                parts.append(step(some, step.of_sessions(checked, done), one.size))
                done += step.sessions
        for session in sessions:
            session._memory.filled[0] += one.size
    return {name: np.concatenate([np.atleast_1d(p[name]) for p in parts]) for name in parts[0]}


def _stored(ends: Sequence[Endpoint]) -> Kinds:
    """What a file has of arrays for these ports."""
    none = {end.name: plain(np.empty(0, DTYPES[end.stored].numpy)) for end in ends}
    return {end.name: (end.shape, none[end.name].dtype) for end in ends}
