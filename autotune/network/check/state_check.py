"""⑩ Check of a model with a growing state: steps at several lengths beside the original model.

    n random places in the state ─┬─► a step of the session     ─┬─► outputs and new rows agree
                                  └─► the model's file, past n  ─┘

Prompts that several steps compute are compared with the file's as well, which takes them at once.
The original is run by ONNX Runtime as it is in the file, with a past that is as long as the state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, ValueInfoProto, helper

from autotune.brief import cut
from autotune.errors import ModelError, WrongNumbers
from autotune.graph.bound_model import BoundModel
from autotune.graph.reader.constant_inputs import fed
from autotune.graph.reader.decoder_inputs import inputs_at
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.grown import Grown
from autotune.graph.reader.growth import Growth
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.state import MOST_PROMPT, StateInfo, buffer_of
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.steps import sizes_of, state_of, steps_of
from autotune.network.check.accuracy import Report, Tally, worst_of
from autotune.network.check.differences import Difference, difference, tolerance
from autotune.network.check.experience import Spread
from autotune.network.check.experiments import (
    TELLING,
    factor_of,
    least_error,
    other_precisions,
    spreads,
    unit_of,
)
from autotune.network.check.oracles import Original, onnxruntime_oracle
from autotune.network.check.quantised_outputs import is_quantised
from autotune.network.runtime.baselines import apart_runner, blamed
from autotune.network.runtime.onnxruntime_package import ONNXRUNTIME
from autotune.network.runtime.runtime import Model, random_array
from autotune.network.runtime.session import ModelSession, step_together

Array = NDArray[Any]
_ROUNDED = 5e-2
"""Tolerance where activations are rounded to bytes: on the other side of a step, a number is as
right, and moves all that follow."""
_ROUNDINGS = 4
"""As many times what rounding to bytes may change is a difference of another kind."""
_ROUNDS = f"activations are rounded to bytes: outputs may differ by {_ROUNDED:g}"
_CACHE_ERRORS = {"float32": 0.0, "bfloat16": 2e-2, "int8": 5e-2}
"""Tolerance by the type of a state's elements: new places are read as they are rounded."""
_APART = (
    "a prompt is one step, or an error: the file computes places that come together differently"
)
_FEW = 17
"""Places of a prefill that is compared behind several lengths."""
_SAMPLES = 3
"""Models that round otherwise, in an experiment."""
_FIXED_LENGTH = "compile it without `capacity`, at each length that you need (`dims`)"
_UNCHECKED = "`check=False` compiles it all the same"
_WIDER = "compile it with a wider `cache_type`, or with a larger `max_error`"


def check_state(
    model: Model,
    bound: BoundModel,
    grown: Grown,
    max_error: float | None = None,
    seed: int = 0,
    precision: str = "f32",
) -> tuple[Report, bool]:
    """Compare steps of `model` with its file, at the shortest and longest states and between.

    Gives also whether several steps are one of all their places, see `StateInfo.joins`.
    `max_error`: allowed where a state is kept in fewer bits than in the file; None for what is
    usual. `precision`: of products. Raises WrongNumbers, MissingDependency without ONNX Runtime,
    ModelError where it cannot run the model.
    """
    usual = _CACHE_ERRORS[grown.growth.cache]
    stored = max_error if usual and max_error is not None else usual
    original = _Original(bound, grown, model.n_threads, _last_rows(model))
    work = _Check(model, grown.growth, original, seed, stored, precision)
    work.begin()
    for chunk, length in _points(model, work.sessions[0].capacity):
        work.step([length], chunk)
    for chunk, length in _points(model, work.sessions[0].capacity, True):
        work.step([length], chunk, True)
    for k in sorted({s.sessions for s in _infos(model)} - {1}):
        last = work.sessions[0].capacity - 1
        work.step([n * last // (k - 1) for n in range(k)])
    joins = work.joins()
    return work.report(joins), joins


@dataclass(frozen=True, eq=False)
class _Step:
    """A step of `chunk` places behind `length`, and what the file is fed for it; `has_all`: with
    outputs for each."""

    kind: str
    feed: Mapping[str, Array]
    length: int
    chunk: int
    has_all: bool = False


@dataclass
class _Check:
    """Steps of sessions of `model` beside the original; `stored`: tolerance of a narrow state,
    `precision`: of products."""

    model: Model
    growth: Growth
    original: _Original
    seed: int
    stored: float = 0.0
    precision: str = "f32"
    tallies: dict[str, Tally] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    _spreads: dict[tuple[float, str], Spread] = field(default_factory=dict)
    """Of the oracle beside itself where it rounds otherwise, at the steps so far."""

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

    def step(self, lengths: Sequence[int], chunk: int = 1, has_all: bool = False) -> None:
        """Compare a step of `chunk` places of sessions of these lengths. Raises WrongNumbers."""
        for one, actual in self._taken(lengths, chunk, has_all):
            wanted = self.original.run(one)
            for name, array in actual.items():
                self._compare(one, name, array, wanted)

    def _taken(
        self, lengths: Sequence[int], chunk: int, has_all: bool = False
    ) -> Iterator[tuple[_Step, dict[str, Array]]]:
        """A step of sessions of these lengths; all outputs of each, new rows of states as well."""
        sessions, rng = self.sessions[: len(lengths)], self._rng
        together = f", {len(lengths)} sessions" if len(lengths) > 1 else ""
        many = len(sessions) > 1
        self.model.spoil()  # what lies behind a length is nobody's
        given, feeds, starts = [], [], dict(zip(sessions, lengths, strict=True))
        for session, length in starts.items():
            states = _fill(session, length, rng)
            given.append({e.name: _drawn(rng, session, e, chunk) for e in session.input_info})
            every = self._held[session] | given[-1]
            feeds.append(self.original.feed(every, states, length, chunk))
        if many:
            inputs = {name: np.concatenate([one[name] for one in given]) for name in given[0]}
            found = step_together(self.model, sessions, inputs)
        else:
            found = sessions[0].run(given[0], has_all=has_all)
        for n, (session, feed) in enumerate(zip(sessions, feeds, strict=True)):
            kind = f"{chunk} behind {starts[session]}{together}{', all outputs' if has_all else ''}"
            one = _Step(kind, feed, starts[session], chunk, has_all)
            self.kinds.append(one.kind)
            actual = {name: array[n : n + 1] if many else array for name, array in found.items()}
            for state, (output, _) in self.growth.states.items():
                new = starts[session], session.length
                actual[output] = session.numbers(buffer_of(state), *new)
            states = session.replaced_arrays()
            actual |= {output: states[name] for name, output in self.growth.replaced.items()}
            yield one, actual

    def joins(self) -> bool:
        """Whether prompts of several steps are what the file makes of them at once.

        Places that attend to later ones of a prompt, and what is scaled by its length, are not.
        """
        session = self.sessions[0]
        prompts, session.most = _prompts(self.model)
        wanted = [n for n in prompts if n <= session.capacity and session.can_take(n)]
        found = all(self._joins(n, 0) and self._joins(n, session.capacity - n) for n in wanted)
        session.most = MOST_PROMPT
        return found

    def _joins(self, n: int, length: int) -> bool:
        """Whether a prompt of `n` places behind others is that of the file."""
        for step, actual in self._taken([length], n):
            try:
                wanted = self.original.run(step)
            except ModelError:  # it computes no such number of places at once
                return True
            for name, array in actual.items():
                if array.shape != wanted[name].shape:
                    return False
                found, allowed, n_moved = self._judged(step, name, array, wanted)
                allowed = max(allowed, _ROUNDINGS * self._allowed)
                if not found.within(allowed, n_moved):
                    return False
                self._add(step, name, found, allowed, array, wanted[name])
        return True

    @property
    def _allowed(self) -> float:
        """Tolerance of what rounds more than float32."""
        rounded = _ROUNDED if self.original.rounds else 0.0
        kept = max(self.stored, self.original.stored)
        return max(least_error(unit_of(self.precision)), rounded, kept)

    def _compare(self, step: _Step, name: str, array: Array, wanted: Mapping[str, Array]) -> None:
        """Compare an output of a step. Raises WrongNumbers."""
        found, allowed, n_moved = self._judged(step, name, array, wanted)
        self._add(step, name, found, allowed, array, wanted[name])
        if not found.within(allowed, n_moved):
            raise WrongNumbers(
                f"'{cut(name)}' differs from ONNX Runtime in a step of {step.kind} places: "
                f"error {found.error:.1e}, allowed {allowed:.1e} ({found.what})",
                self._advice(),
            )

    def _judged(
        self, step: _Step, name: str, array: Array, wanted: Mapping[str, Array]
    ) -> tuple[Difference, float, int]:
        """How an output differs, what of it is allowed, and how many elements may have moved."""
        found = difference(np.ascontiguousarray(array), wanted[name].astype(array.dtype))
        unit = unit_of(self.precision)
        allowed = max(tolerance(array.dtype), self._allowed)
        if found.within(allowed):
            return found, allowed, 0
        spread = self._spread(step, name, unit, wanted, found)
        allowed = max(allowed, min(factor_of(unit) * spread.error, TELLING))
        n_moved = math.ceil(factor_of(unit) * spread.n_moved)
        if found.within(allowed, n_moved) and unit == 1.0:
            self.notes[name] = (
                f"ill-conditioned here: output '{cut(name)}' in a step of {step.kind} places: "
                f"ONNX Runtime itself differs by {spread.error:.1e} where it rounds otherwise, "
                f"the compiled network by {found.error:.1e}"
            )
        return found, allowed, n_moved

    def _add(
        self,
        step: _Step,
        name: str,
        found: Difference,
        allowed: float,
        array: Array,
        expected: Array,
    ) -> None:
        tally = self.tallies.setdefault(name, Tally(name))
        tally.is_decided = True
        tally.add(step.kind, found, allowed, array, expected)

    def _spread(
        self,
        step: _Step,
        name: str,
        unit: float,
        wanted: Mapping[str, Array],
        found: Difference,
    ) -> Spread:
        """How far the oracle lies from itself: in the steps so far, or, where that does not explain
        what was found, in this one too."""
        known = self._spreads.get((unit, name), Spread())
        factor = factor_of(unit)
        if found.within(factor * known.error, math.ceil(factor * known.n_moved)):
            return known
        for one, spread in spreads(wanted, self.original.rounded(step, unit)).items():
            self._spreads[unit, one] = self._spreads.get((unit, one), Spread()).joined(spread)
        return self._spreads[unit, name]

    def _advice(self) -> str:
        if self.precision != "f32":
            return other_precisions(self.precision)
        return _WIDER if self.stored else _FIXED_LENGTH

    def report(self, joins: bool) -> Report:
        """The largest differences."""
        outputs = tuple(tally.accuracy for tally in self.tallies.values())
        worst, rounds = worst_of(outputs), (_ROUNDS,) if self.original.rounds else ()
        notes = (*rounds, *self.notes.values(), *(() if joins else (_APART,)))
        kinds = tuple(self.kinds)
        return Report((ONNXRUNTIME,), kinds, worst.error, worst.allowed, notes, outputs)


def _prompts(model: Model) -> tuple[list[int], int]:
    """Prompts of several steps, which no single one is for, and the most places of a prefill
    in them."""
    least, *others = sorted((sizes_of(one) for one in steps_of(model.artifact)), key=_last)
    if others and len(others[-1]) > 1:
        half = min(_FEW, others[-1][-1]) // 2 + 1
        return [2 * half - 1, half + 1], half
    n, sizes = least[-1], {one[-1] for one in others}
    twice = [n * k for k in (2, 3) if n * k not in sizes][:1]
    return ([others[0][-1] + 2 * n, *twice] if others else twice), MOST_PROMPT


def _last(sizes: range) -> int:
    return sizes[-1]


def _infos(model: Model) -> Iterator[StateInfo]:
    for one in model.variants:
        assert one.artifact.state is not None
        yield one.artifact.state


def _last_rows(model: Model) -> Mapping[str, int]:
    return next(info.last_rows for info in _infos(model) if not info.begins)


def _points(model: Model, capacity: int, verifies: bool = False) -> Iterator[tuple[int, int]]:
    """Steps of every number of places behind nothing, one place, half of the capacity, and up to
    its end; of a prefill a few, and the most. `verifies`: those for drafts instead."""
    of_drafts = [one.artifact for one in model.variants if state_of(one.artifact).verifies]
    for step in of_drafts if verifies else steps_of(model.artifact):
        sizes = sizes_of(step)
        for n in sorted({sizes[0], min(_FEW, sizes[-1]), sizes[-1]}):
            left = capacity - n
            is_most = n == sizes[-1] > _FEW and len(sizes) > 1  # the file takes long for each
            for length in sorted({0, left} if is_most else {0, 1, left // 2, left}):
                yield n, length


def _fill(session: ModelSession, length: int, rng: np.random.Generator) -> dict[str, Array]:
    """Random rows in a session's buffers, and what lies behind them, by the name of the buffer; and
    in what is replaced as a whole, by the input."""
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
    ends = {end.name: end for end in session.model.artifact.inputs}
    for name, array in session.replaced_arrays().items():
        array[...] = random_array(rng, ends[name]).astype(array.dtype)
        states[name] = array.copy()
    session.assume(length)
    return states


def _drawn(rng: np.random.Generator, session: ModelSession, end: Endpoint, n: int) -> Array:
    shape = session.shape_of(end.name, n)
    return random_array(rng, replace(end, shape=shape))


class _Original:
    """The model's file in ONNX Runtime, at any length."""

    def __init__(
        self, bound: BoundModel, grown: Grown, n_threads: int, last_rows: Mapping[str, int]
    ) -> None:
        self._growth = growth = grown.growth
        outline = read_outline(bound.path)
        self._bound, self._n_threads, self._last_rows = bound, n_threads, last_rows
        self.rounds = _rounds(outline)
        self._types = {i.name: i.type.tensor_type.elem_type for i in outline.graph.input}
        with blamed(ONNXRUNTIME, "load", _UNCHECKED):
            self._run = apart_runner(bound.path, n_threads)
        zeros = {
            value.name: np.zeros(_shape(value, grown.first), self._dtype(value.name))
            for value in outline.graph.input
        }
        kinds = {self._dtype(name) for name in growth.states}
        self.stored = max((tolerance(k) for k in kinds if k != np.float32), default=0.0)
        """Tolerance of the types that the file itself keeps its states in: it rounds new rows."""
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

    def feed(
        self, inputs: Mapping[str, Array], states: Mapping[str, Array], length: int, chunk: int
    ) -> dict[str, Array]:
        """The inputs of a step as the file takes them."""
        growth = self._growth
        found = self._computed(length, length + chunk) | dict(inputs)
        for state in growth.states:
            rows = states[buffer_of(state)].astype(self._dtype(state))
            found[state] = self._padded(state, rows)
        return found | {name: states[name].astype(self._dtype(name)) for name in growth.replaced}

    def run(self, step: _Step) -> dict[str, Array]:
        """Outputs by name: new rows of a state, and the last row where a step has no other."""
        with blamed(ONNXRUNTIME, "run", _UNCHECKED):
            return self._new_rows(step, self._run(step.feed))

    def rounded(self, step: _Step, unit: float) -> Iterator[dict[str, Array]]:
        """The same of models that round otherwise, by `unit` roundings of float32."""
        shapes = {name: array.shape for name, array in step.feed.items()}
        oracle = onnxruntime_oracle(Original(self._bound, shapes), self._n_threads)
        for found in oracle.rounded(step.feed, range(1, _SAMPLES + 1), unit):
            yield self._new_rows(step, found)

    def _new_rows(self, step: _Step, outputs: Mapping[str, Array]) -> dict[str, Array]:
        new = range(step.length, step.length + step.chunk)
        axes = dict(self._growth.states.values())
        lasts = {} if step.has_all else self._last_rows
        found = {n: a.take(new, axes[n]) if n in axes else a for n, a in outputs.items()}
        return {n: a.take([-1], lasts[n]) if n in lasts else a for n, a in found.items()}

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
