"""⑩ Check of a model with a growing state: steps at several lengths beside the original model.

    n random places in the state ─┬─► a step of the session     ─┬─► outputs and new rows agree
                                  └─► the model's file, past n  ─┘

The original is run by ONNX Runtime as it is in the file, with a past that is as long as the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, ValueInfoProto, helper

from autotune.brief import cut
from autotune.errors import NotCompilable, WrongNumbers
from autotune.graph.bound_model import BoundModel
from autotune.graph.reader.constant_inputs import fed
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.growing import Growth
from autotune.graph.reader.grown import Grown
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.reader.states import inputs_at
from autotune.graph.state import StateInfo, buffer_of
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.steps import axes_of_places, n_places_of, steps_of
from autotune.network.check.accuracy import Report, Tally, worst_of
from autotune.network.check.differences import difference, tolerance
from autotune.network.check.quantised_outputs import is_quantised
from autotune.network.runtime.baselines import apart_runner, blamed
from autotune.network.runtime.onnxruntime_package import ONNXRUNTIME
from autotune.network.runtime.runtime import Model, random_array
from autotune.network.runtime.session import ModelSession, step_together

Array = NDArray[Any]
_ROUNDED = 5e-2
"""Tolerance where activations are rounded to bytes: on the other side of a step, a number is as
right, and moves all that follow."""
_UNLIKE = 1e-2
"""Difference from which on numbers are others, and not the same in another order of sums."""
_ROUNDS = f"activations are rounded to bytes: outputs may differ by {_ROUNDED:g}"
_CACHE_ERRORS = {"float32": 0.0, "bfloat16": 2e-2, "int8": 5e-2}
"""Tolerance by the type of a state's elements: new places are read as they are rounded."""
_REPORT = "please report it with the model; `check=False` compiles it all the same"
_UNCHECKED = "`check=False` compiles it all the same"
_WIDER = "compile it with a wider `cache_type`, or with a larger `max_error`"


def check_state(
    model: Model, bound: BoundModel, grown: Grown, max_error: float | None = None, seed: int = 0
) -> Report:
    """Compare steps of `model` with its file, at the shortest and longest states and between.

    `max_error`: allowed where a state is kept in fewer bits than in the file; None for what is
    usual. Raises WrongNumbers, MissingDependency without ONNX Runtime, ModelError where it cannot
    run the model, NotCompilable for one whose step of several places is not as many of one.
    """
    usual = _CACHE_ERRORS[grown.growth.cache]
    stored = max_error if usual and max_error is not None else usual
    original = _Original(bound, grown, model.n_threads)
    work = _Check(model, grown.growth, original, seed, stored)
    work.begin()
    for chunk, length in _points(model, work.sessions[0].capacity):
        work.step([length], chunk)
    for k in sorted({s.sessions for s in _infos(model)} - {1}):
        last = work.sessions[0].capacity - 1
        work.step([n * last // (k - 1) for n in range(k)])
    work.require_chunks()
    return work.report()


@dataclass
class _Check:
    """Steps of sessions of `model` beside the original; `stored`: tolerance of a narrow state."""

    model: Model
    growth: Growth
    original: _Original
    seed: int
    stored: float = 0.0
    tallies: dict[str, Tally] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        most = max(info.sessions for info in _infos(self.model))
        self.sessions = [self.model.session() for _ in range(most)]
        self._rng = np.random.default_rng(self.seed)
        self._held: dict[ModelSession, dict[str, Array]] = {}

    def begin(self) -> None:
        """Begin a sequence of each session at random, where something stays for one."""
        for session in self.sessions:
            begun = {end.name: random_array(self._rng, end) for end in session.begin_info}
            if begun:
                session.begin(begun)
            self._held[session] = self.original.begun(begun)

    def step(self, lengths: Sequence[int], chunk: int = 1) -> None:
        """Compare a step of `chunk` places of sessions of these lengths. Raises WrongNumbers."""
        sessions, rng = self.sessions[: len(lengths)], self._rng
        together = f", {len(lengths)} sessions" if len(lengths) > 1 else ""
        given, expected, starts = [], [], {}
        for session, length in zip(sessions, lengths, strict=True):
            states = _fill(session, length, rng)
            given.append({e.name: _drawn(rng, session, e, chunk) for e in session.input_info})
            every = self._held[session] | given[-1]
            expected.append(self.original.run(every, states, length, chunk))
            starts[session] = length
        inputs = {name: np.concatenate([one[name] for one in given]) for name in given[0]}
        many = len(sessions) > 1
        found = step_together(self.model, sessions, inputs) if many else sessions[0].run(inputs)
        for n, (session, wanted) in enumerate(zip(sessions, expected, strict=True)):
            kind = f"{chunk} behind {starts[session]}{together}"
            self.kinds.append(kind)
            actual = {name: array[n : n + 1] if many else array for name, array in found.items()}
            for state, (output, _) in self.growth.states.items():
                new = starts[session], session.length
                actual[output] = session.numbers(buffer_of(state), *new)
            for name, array in actual.items():
                self._compare(kind, name, array, wanted[name])

    def require_chunks(self) -> None:
        """Raise NotCompilable where a step of several places is not as many of one: the masks of a
        file that was exported with one are not those of several."""
        steps = steps_of(self.model.artifact)
        sizes, axes = {n_places_of(one) for one in steps}, axes_of_places(steps)
        chunk = min(sizes - {0, 1}, default=0)
        if not chunk or 1 not in sizes or self.original.rounds or self.stored:
            return
        session = self.sessions[0]
        _fill(session, 1, self._rng)
        inputs = {e.name: _drawn(self._rng, session, e, chunk) for e in session.input_info}
        whole = session.run(inputs)
        session.assume(1)
        for n in range(chunk):
            part = {k: a.take([n], axes[k]) if k in axes else a for k, a in inputs.items()}
            for name, array in session.run(part).items():
                of_all = whole[name].take([n], axes[name]) if name in axes else whole[name]
                is_told = name in axes or n == chunk - 1
                if is_told and difference(array, of_all).error > _UNLIKE:
                    raise NotCompilable(
                        f"a step of {chunk} places is not {chunk} steps of one: the file was "
                        "exported for one",
                        "give one number of places: `chunks=(1,)`",
                    )

    def _compare(self, kind: str, name: str, array: Array, expected: Array) -> None:
        found = difference(np.ascontiguousarray(array), expected.astype(array.dtype))
        rounded = _ROUNDED if self.original.rounds else 0.0
        allowed = max(tolerance(array.dtype), rounded, self.stored)
        tally = self.tallies.setdefault(name, Tally(name))
        tally.is_decided = True
        tally.add(kind, found, allowed, array, expected)
        if not found.within(allowed):
            raise WrongNumbers(
                f"'{cut(name)}' differs from ONNX Runtime in a step of {kind} places: "
                f"error {found.error:.1e}, allowed {allowed:.1e} ({found.what})",
                _WIDER if self.stored else _REPORT,
            )

    def report(self) -> Report:
        """The largest differences."""
        outputs = tuple(tally.accuracy for tally in self.tallies.values())
        worst, notes = worst_of(outputs), (_ROUNDS,) if self.original.rounds else ()
        kinds = tuple(self.kinds)
        return Report((ONNXRUNTIME,), kinds, worst.error, worst.allowed, notes, outputs)


def _infos(model: Model) -> Iterator[StateInfo]:
    for one in model.variants:
        assert one.artifact.state is not None
        yield one.artifact.state


def _points(model: Model, capacity: int) -> Iterator[tuple[int, int]]:
    """Steps of every chunk behind nothing, one place, half of the capacity, and up to its end."""
    for step in steps_of(model.artifact):
        chunk = n_places_of(step)
        for length in sorted({0, 1, (capacity - chunk) // 2, capacity - chunk}):
            yield chunk, length


def _fill(session: ModelSession, length: int, rng: np.random.Generator) -> dict[str, Array]:
    """Random rows in a session's buffers, and what lies behind them; by the name of the buffer."""
    states, info = {}, session.model.artifact.state
    assert info is not None
    for name in session.buffers:
        rows = session.rows(name, 0, session.capacity)
        if name in info.steps:
            rows[...] = rng.integers(-127, 128, rows.shape)
            steps = session.rows(info.steps[name], 0, session.capacity)
            steps[...] = rng.uniform(0.5, 1.5, steps.shape) / 64
        else:
            rows[...] = rng.standard_normal(rows.shape).astype(rows.dtype)
        states[name] = session.numbers(name, 0, length)
    session.assume(length)
    return states


def _drawn(rng: np.random.Generator, session: ModelSession, end: Endpoint, n: int) -> Array:
    shape = session.shape_of(end.name, n)
    return random_array(rng, replace(end, shape=shape))


class _Original:
    """The model's file in ONNX Runtime, at any length."""

    def __init__(self, bound: BoundModel, grown: Grown, n_threads: int) -> None:
        self._growth = growth = grown.growth
        outline = read_outline(bound.path)
        self.rounds = _rounds(outline)
        self._types = {i.name: i.type.tensor_type.elem_type for i in outline.graph.input}
        with blamed(ONNXRUNTIME, "load", _UNCHECKED):
            self._run = apart_runner(bound.path, n_threads)
        zeros = {
            value.name: np.zeros(_shape(value, grown.first), self._dtype(value.name))
            for value in outline.graph.input
        }
        self._first = zeros | self._computed(0, 1)
        self._held = {name: zeros[name] for name in growth.held} | fed(outline, bound.constants)

    def begun(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All that stays for a sequence: `inputs`, and what the file makes of them where there is
        no past."""
        growth, held = self._growth, self._held | dict(inputs)
        if growth.flag and growth.passed:
            flag = {growth.flag: np.zeros_like(held[growth.flag])}
            with blamed(ONNXRUNTIME, "run", _UNCHECKED):
                found = self._run({**self._first, **inputs, **flag})
            held |= {name: found[output] for name, output in growth.passed.items()}
        return held

    def run(
        self, inputs: Mapping[str, Array], states: Mapping[str, Array], length: int, chunk: int
    ) -> Mapping[str, Array]:
        """Outputs by name; new rows of a state alone."""
        growth, total = self._growth, length + chunk
        feed = self._computed(length, total) | dict(inputs)
        for state in growth.states:
            rows = states[buffer_of(state)].astype(self._dtype(state))
            feed[state] = self._padded(state, rows)
        with blamed(ONNXRUNTIME, "run", _UNCHECKED):
            found = dict(self._run(feed))
        for output, axis in growth.states.values():
            found[output] = found[output].take(range(length, total), axis)
        return found

    def _padded(self, state: str, rows: Array) -> Array:
        """Rows as the file takes them: with others behind them where it takes all places."""
        if state not in self._growth.static:
            return rows
        axis = self._growth.states[state][1]
        left = [
            (0, self._growth.capacity - n if d == axis else 0) for d, n in enumerate(rows.shape)
        ]
        return np.pad(rows, left)

    def _computed(self, length: int, total: int) -> dict[str, Array]:
        """The inputs that follow from the length."""
        found = inputs_at(self._growth, length, total - length)
        return {name: array.astype(self._dtype(name)) for name, array in found.items()}

    def _dtype(self, name: str) -> np.dtype[Any]:
        return np.dtype(helper.tensor_dtype_to_np_dtype(self._types[name]))


def _shape(value: ValueInfoProto, shapes: Shapes) -> tuple[int, ...]:
    """The shape of an input."""
    dims = value.type.tensor_type.shape.dim
    return shapes.get(value.name) or tuple(dim.dim_value for dim in dims)


def _rounds(model: ModelProto) -> bool:
    """Whether products round their operands to bytes: one step is more than float32's errors."""
    return is_quantised(model) or any(map(_rounding, model.graph.node))


def _rounding(node: NodeProto) -> AttributeProto | None:
    """The attribute that lets activations be rounded to bytes, where it does."""
    return next((a for a in node.attribute if a.name == "accuracy_level" and a.i), None)
