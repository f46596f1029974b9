"""⑩ Sessions: a model with a state that stays in place from one call to the next.

    session = load("decoder.atn").session()
    logits = session.step(prompt)            # (1, n) tokens: a prompt of any length
    for _ in range(100):
        logits = session.step(logits[:, -1:].argmax(-1))

A step of n places runs the largest variants that fit, one after another, over one copy of the
weights. New rows of a state are written behind the filled ones of its buffer by the kernels that
compute them; what is replaced as a whole alternates between two arrays. What an encoder gives is
taken once, by `begin`, which computes of it what all steps read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import aligned
from autotune.dtypes import DTYPES
from autotune.errors import UsageError
from autotune.files import open_input, replacing
from autotune.graph.state import StateInfo, of_session
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.container import ZIP_ERRORS
from autotune.network.artifact.steps import axes_of_places, n_places_of, steps_of
from autotune.network.runtime.arguments import in_order, require_input, require_names
from autotune.network.runtime.sampling import sampler

Array = NDArray[Any]

_STATE_OF = "state_of"


class Stateful(Protocol):
    """A model with a state, at each of its numbers of new places."""

    artifact: Artifact

    @property
    def variants(self) -> Sequence[Stateful]:
        """The model at each of them."""

    def run_bound(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array], places: Mapping[int, int]
    ) -> dict[str, Array]:
        """One inference on arrays as they are stored; those of `out` are written in place, and
        `places` are addresses of others, by their base."""


class ModelSession:
    """A state of a model, and the steps that advance it. One thread at a time may use it.

    `model`: one with a state. Other sessions of the model share its weights and its code.
    """

    def __init__(self, model: Stateful) -> None:
        if model.artifact.state is None:
            raise UsageError(
                f"'{model.artifact.name}' has no state",
                "compile it with `capacity`, or name its state (`state`)",
            )
        self.model, self._info = model, model.artifact.state
        self._lock = threading.Lock()
        first = model.artifact
        self._ends = ends = {end.name: end for end in (*first.inputs, *first.outputs)}
        self._buffers = {name: _memory(ends[name]) for name in self._info.buffers}
        self._arrays = {
            name: [_memory(ends[name]), _memory(ends[name])] for name in self._info.replaced
        }
        self._filled = np.zeros(1, np.int64)
        self._places: dict[tuple[Stateful, int], list[tuple[int, int, int, int]]] = {}
        self._held: Mapping[str, Array] | None = None if self._info.held else {}
        self._begin = next((one for one in model.variants if _info(one).begins), None)
        advancing = [one for one in model.variants if one is not self._begin]
        axes = axes_of_places(steps_of(first))
        steps = [_Step(self, one, n_places_of(one.artifact), axes) for one in advancing]
        steps.sort(key=lambda step: (-step.sessions, -step.size))
        self._steps = [step for step in steps if step.sessions == 1]
        self._together = [step for step in steps if step.sessions > 1]

    @property
    def capacity(self) -> int:
        """The most places; 0 where no state grows."""
        return self._info.capacity

    @property
    def length(self) -> int:
        """The number of filled places."""
        return int(self._filled[0])

    @property
    def input_info(self) -> tuple[Endpoint, ...]:
        """The inputs of a step, at its smallest number of places."""
        return self._steps[-1].inputs

    @property
    def output_info(self) -> tuple[Endpoint, ...]:
        """The outputs of a step, at its smallest number of places."""
        return self._steps[-1].outputs

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
            end.name: require_input(end, end.numpy_dtype, _as_stated(given[end.name], end))
            for end in self.begin_info
        }
        with self._alone():
            if self._begin is not None:
                held = {end.name: _memory(end) for end in self._begin.artifact.outputs}
                self._begin.run_bound(checked, held, {})
                self._held = held
            self._forget()

    def step(self, *inputs: Any, **named: Any) -> Any:
        """Advance by the places of the inputs; the output, or a tuple of several.

        `inputs`: in the order of `input_info`, or by name. Outputs with a row for each place have
        all of them. Raises UsageError for inputs that do not fit, for more places than are left,
        and while another thread is in a step; then the state is as it was.
        """
        given = in_order(self.input_info, inputs) if inputs else {}
        found = tuple(self.run(given | named).values())
        return found[0] if len(found) == 1 else found

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """`step` for inputs by name; outputs by name."""
        with self._alone():
            return self._advance(inputs)

    def generate(
        self, tokens: Any, max_new: int | None = None, stop: Container[int] = (), **sampling: Any
    ) -> Iterator[int]:
        """Tokens behind `tokens` (of one sequence), one by one, as each is computed.

        It ends after `max_new`, behind a token of `stop`, and where the state is full. `sampling`:
        see `sampling.sampler`; greedy by default. The state has all tokens but the last. Raises
        UsageError for a model of several inputs in a step or without scores of tokens.
        """
        choose = sampler(**sampling)
        if len(self.input_info) != 1 or self.input_info[0].is_float:
            raise UsageError("a step of the model takes more than tokens", "use `step`")
        name = self._scores()
        source = self.input_info[0]
        given = np.asarray(tokens, source.numpy_dtype).reshape(1, -1)
        return self._generated(given, source.name, name, choose, max_new, stop)

    def _generated(
        self,
        given: Array,
        source: str,
        name: str,
        choose: Callable[[Array], int],
        max_new: int | None,
        stop: Container[int],
    ) -> Iterator[int]:
        left = self.capacity if max_new is None else max_new
        while left > 0:
            scores = self.run({source: given})[name]
            token = choose(scores.reshape(-1, scores.shape[-1])[-1])
            yield token
            left -= 1
            if token in stop or self.length >= self.capacity:
                return
            given = np.full((1, 1), token, given.dtype)

    def _scores(self) -> str:
        """The output that has a score for each token."""
        floats = [end.name for end in self.output_info if end.is_float]
        named = [name for name in floats if "logits" in name]
        found = named or floats
        if len(found) != 1:
            raise UsageError("no output of the model is the scores of tokens", "use `step`")
        return found[0]

    def reset(self) -> None:
        """Forget all places; what `begin` was given stays."""
        with self._alone():
            self._forget()

    def _forget(self) -> None:
        self._filled[0] = 0
        for pair in self._arrays.values():
            pair[0][...] = 0

    def truncate(self, length: int) -> None:
        """Forget the places from `length` on. Raises UsageError where there are not so many."""
        if not 0 <= length <= self.length or (self._arrays and length != self.length):
            raise UsageError(
                f"a state of {self.length} places cannot be cut to {length}", "give fewer places"
            )
        with self._alone():
            self._filled[0] = length

    def fork(self) -> ModelSession:
        """Another session with a copy of the state, as for beams and shared prefixes."""
        with self._alone():
            other = ModelSession(self.model)
            other._filled[:], other._held = self._filled, self._held
            for name in self._buffers:
                other.rows(name, 0, self.length)[...] = self.rows(name, 0, self.length)
            for name, pair in self._arrays.items():
                other._arrays[name][0][...] = pair[0]
            return other

    def save(self, path: str | Path) -> None:
        """Write the state to an `.npz` file, whole or not at all."""
        with self._alone():
            arrays = {name: self.rows(name, 0, self.length) for name in self._buffers}
            arrays |= {name: pair[0] for name, pair in self._arrays.items()}
            arrays |= self._held or {}
            told = json.dumps([self.model.artifact.model_hash, self.length])
            plain = {f"state/{name}": _plain(array) for name, array in arrays.items()}
            with replacing(Path(path)) as file:
                np.savez(file, **{_STATE_OF: np.array(told)}, **plain)  # type: ignore[arg-type]

    def load(self, path: str | Path) -> None:
        """Read a state that a session of the same model has saved.

        Raises UsageError for another file, for a state of another model or kept in another type,
        and for one of more places than there are; then the state is as it was.
        """
        with self._alone():
            arrays, length = self._read(Path(path))
            for name in self._buffers:
                rows = self.rows(name, 0, length)
                rows[...] = arrays[name].view(rows.dtype)
            for name, pair in self._arrays.items():
                pair[0][...] = arrays[name].view(pair[0].dtype)
            self._filled[0] = length
            self._held = self._held_in(arrays)

    @property
    def _held_ends(self) -> tuple[Endpoint, ...]:
        return self._begin.artifact.outputs if self._begin is not None else ()

    def _held_in(self, arrays: Mapping[str, Array]) -> dict[str, Array] | None:
        """What `begin` has left, from a file; None where it had not been called."""
        found = {}
        for end in self._held_ends:
            if end.name not in arrays:
                return None
            found[end.name] = _memory(end)
            found[end.name][...] = arrays[end.name].view(found[end.name].dtype)
        return found

    # --- parts, for checks and other runtimes ---

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the inputs that are buffers of growing states, without those of steps."""
        steps = set(self._info.steps.values())
        return tuple(name for name in self._buffers if name not in steps)

    @property
    def n_bytes(self) -> int:
        """Bytes of the state."""
        pairs = (array for pair in self._arrays.values() for array in pair)
        return sum(array.nbytes for array in (*self._buffers.values(), *pairs))

    def rows(self, buffer: str, begin: int, end: int) -> Array:
        """Places of a buffer, in place, as they are stored."""
        before = (slice(None),) * self._info.axes[buffer]
        return self._buffers[buffer][(*before, slice(begin, end))]

    def replaced_arrays(self) -> dict[str, Array]:
        """What is replaced as a whole in each step, in place as it is stored, by the input."""
        return {name: pair[0] for name, pair in self._arrays.items()}

    def n_places(self, inputs: Mapping[str, Any]) -> int:
        """The number of places that inputs of a step are for. Raises UsageError for others."""
        return self._steps[-1].n_places(inputs)

    def move(self, length: int) -> None:
        """Go on in other memory with the first places: arrays that `rows` gave stay as they are."""
        former = {name: self.rows(name, 0, length) for name in self._buffers}
        self._buffers = {name: _memory(self._ends[name]) for name in former}
        self._places.clear()
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
        self._filled[0] = length

    def shape_of(self, port: str, n: int) -> tuple[int, ...]:
        """The shape of an input or output of a step of n places."""
        last = self._steps[-1]
        end = next(e for e in (*last.inputs, *last.outputs) if e.name == port)
        axis = last.axes.get(port)
        return tuple(n if d == axis else extent for d, extent in enumerate(end.shape))

    # --- one step ---

    def _advance(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        last = self._steps[-1]
        n = last.n_places(inputs)
        self._require_begun()
        if self.capacity and self.length + n > self.capacity:
            raise UsageError(
                f"{n} more places do not fit: {self.length} of {self.capacity} are filled",
                "compile with a larger `capacity`, or `reset` the session",
            )
        parts: list[dict[str, Array]] = []
        done, before = 0, self.length
        checked = last.checked(inputs, n)
        try:
            for step, size in self._plan(n):
                parts.append(step([self], step.part(checked, done, size)))
                done += size
                self._filled[0] += size if self.capacity else 0
        except BaseException:
            self._filled[0] = before
            raise
        return parts[0] if len(parts) == 1 else last.joined(parts)

    def _require_begun(self) -> None:
        if self._held is None:
            names = ", ".join(f"'{end.name}'" for end in self.begin_info)
            raise UsageError(
                f"no sequence has begun: the model takes {names} once for one",
                "call `session.begin` with it before the first step",
            )

    def _plan(self, n: int) -> Iterator[tuple[_Step, int]]:
        """The steps for n places, the largest first."""
        if not self.capacity:
            yield self._steps[0], 1
            return
        left = n
        for step in self._steps:
            while step.size and left >= step.size:
                yield step, step.size
                left -= step.size
        if left:
            sizes = ", ".join(str(step.size) for step in self._steps)
            raise UsageError(
                f"{n} places are no sum of {sizes}", "compile it for a chunk of 1 as well"
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

    def _read(self, path: Path) -> tuple[dict[str, Array], int]:
        try:
            with open_input(path) as opened, np.load(opened, allow_pickle=False) as file:
                digest, length = json.loads(str(file[_STATE_OF]))
                arrays = {name.removeprefix("state/"): file[name] for name in file.files}
        except UsageError:
            raise
        except (OSError, *ZIP_ERRORS, TypeError, AttributeError) as error:
            raise _no_state(path) from error
        if digest != self.model.artifact.model_hash:
            raise UsageError(f"'{path}' is the state of another model", "save one of this model")
        if self.capacity and not 0 <= length <= self.capacity:
            raise UsageError(
                f"'{path}' has {length} places, and there are {self.capacity}",
                "compile with a larger `capacity`",
            )
        wanted = {name: self.rows(name, 0, length) for name in self._buffers}
        wanted |= {name: pair[0] for name, pair in self._arrays.items()}
        if any(n in arrays and arrays[n].dtype != _plain(a).dtype for n, a in wanted.items()):
            raise UsageError(
                f"'{path}' keeps the state in another type of elements",
                "save one of this model, or compile it with the same `cache_type`",
            )
        shapes = {name: array.shape for name, array in wanted.items()}
        shapes |= {end.name: end.shape for end in self._held_ends if end.name in arrays}
        if any(name not in arrays or arrays[name].shape != s for name, s in shapes.items()):
            raise _no_state(path)
        return arrays, length


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
    one = first._steps[-1]
    require_names(one.inputs, inputs)
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
                some = sessions[done : done + step.sessions]
                rows = {n: a[done : done + step.sessions] for n, a in checked.items()}
                parts.append(step(some, rows))
                done += step.sessions
        for session in sessions:
            session._filled[0] += 1 if session.capacity else 0
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


class _Step:
    """A variant of the model, with its places in memory bound to a session's."""

    def __init__(
        self, session: ModelSession, model: Stateful, size: int, axes: Mapping[str, int]
    ) -> None:
        self.session, self.model, self.size = session, model, size
        artifact, info = model.artifact, _info(model)
        self.sessions = info.sessions
        given = {*info.buffers, *info.replaced, *info.held, info.filled}
        made = {*info.buffers.values(), *info.replaced.values()}
        self.inputs = tuple(e for e in artifact.inputs if e.name not in given)
        self.outputs = tuple(e for e in artifact.outputs if e.name not in made)
        self.axes = axes

    def n_places(self, inputs: Mapping[str, Any]) -> int:
        """The number of places that inputs are for. Raises UsageError for other names."""
        require_names(self.inputs, inputs)
        for end in self.inputs:
            axis = self.axes.get(end.name)
            shape = np.shape(inputs[end.name])
            if axis is not None and len(shape) == len(end.shape):
                return int(shape[axis])
        return max(1, self.size)

    def checked(self, inputs: Mapping[str, Any], n: int, sessions: int = 1) -> dict[str, Array]:
        """The inputs of `n` places as arrays. Raises UsageError where they do not fit."""
        found = {}
        for end in self.inputs:
            shape = list(end.shape)
            if end.name in self.axes:
                shape[self.axes[end.name]] = n
            shape[:1] = [sessions * extent for extent in shape[:1]]
            wanted = Endpoint(end.name, tuple(shape), end.dtype, end.base, is_native=end.is_native)
            given = _as_stated(inputs[end.name], end)
            found[end.name] = require_input(wanted, end.numpy_dtype, given)
        return found

    def part(self, inputs: Mapping[str, Array], begin: int, size: int) -> dict[str, Array]:
        """The inputs of the places from `begin` on."""
        return {
            name: array.take(range(begin, begin + size), self.axes[name])
            if name in self.axes and array.shape[self.axes[name]] != size
            else array
            for name, array in inputs.items()
        }

    def joined(self, parts: list[dict[str, Array]]) -> dict[str, Array]:
        """The outputs of parts: rows of all places, else those of the last part."""
        return {
            name: np.concatenate([p[name] for p in parts], self.axes[name])
            if name in self.axes
            else last
            for name, last in parts[-1].items()
        }

    def __call__(
        self, sessions: Sequence[ModelSession], inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The outputs of a step of as many sessions as it is for; their lengths stay."""
        info = sessions[0]._info
        given, out, places = dict(inputs), dict[str, Array](), dict[int, int]()
        if info.filled:
            given[info.filled] = np.concatenate([session._filled for session in sessions])
        for n, session in enumerate(sessions):
            at = session.length
            given |= {self._port(name, n): a for name, a in (session._held or {}).items()}
            for buffer, rows, address, step in self._places(session, n):
                places[buffer], places[rows] = address, address + at * step
            for name, output in info.replaced.items():
                given[self._port(name, n)], out[self._port(output, n)] = session._arrays[name]
        found = self.model.run_bound(given, out, places)
        for session in sessions:
            for name in info.replaced:
                session._arrays[name].reverse()
        return {end.name: found[end.name] for end in self.outputs}

    def _places(self, session: ModelSession, n: int) -> list[tuple[int, int, int, int]]:
        """For each buffer of session `n`: the bases of buffer and rows, the address of the buffer,
        and bytes from place to place."""
        key = self.model, n
        if key not in session._places:
            artifact, info = self.model.artifact, session._info
            bases = {end.name: end.base for end in (*artifact.inputs, *artifact.outputs)}
            session._places[key] = [
                (
                    bases[self._port(name, n)],
                    bases[self._port(output, n)],
                    session._buffers[name].__array_interface__["data"][0],
                    session._buffers[name].strides[info.axes[name]],
                )
                for name, output in info.buffers.items()
            ]
        return session._places[key]

    def _port(self, name: str, n: int) -> str:
        return of_session(name, n) if self.sessions > 1 else name


def _info(model: Stateful) -> StateInfo:
    assert model.artifact.state is not None
    return model.artifact.state


def _as_stated(value: Any, end: Endpoint) -> Array:
    """An array; integers of another type in that of an input."""
    given = np.asarray(value)
    if given.dtype != end.numpy_dtype and given.dtype.kind in "iu" and not end.is_float:
        return given.astype(end.numpy_dtype)
    return given


def _memory(end: Endpoint) -> Array:
    return aligned(end.shape, DTYPES[end.stored].numpy)


def _plain(array: Array) -> Array:
    """An array of a type that NumPy writes."""
    return array if array.dtype.kind in "iufb" else array.view(f"u{array.dtype.itemsize}")


def _no_state(path: Path) -> UsageError:
    return UsageError(f"'{path}' is no state of a session of this model", "save one of this model")
