"""① A model with a state at a capacity: its shapes for each number of new places.

step = grown(model, capacity=2048)      of one new place
step.with_prefill()                     a prefill of up to 512 places, and that step
step.verifying()                        a step of up to 16 places with outputs for each, for drafts
step.with_chunks()                      steps of 128, 32, 8 and 1, where no prefill is possible
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from onnx import ModelProto, TensorProto

from autotune.errors import NotCompilable, UsageError
from autotune.files import read_input
from autotune.graph.reader.decoder_inputs import DecoderInputs, decoder_inputs
from autotune.graph.reader.dimensions import Shapes, require_static, shapes_at, symbols
from autotune.graph.reader.growth import Growth
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.reader.states import cache_flag, find_states, held_inputs, shown
from autotune.graph.reader.static_caches import written_axis
from autotune.graph.state import MOST_PROMPT, MOST_VERIFIED, SCORES

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
GENAI_CONFIGURATION = "genai_config.json"
MOST_CONFIGURATION_BYTES = 1 << 20
"""The file that onnxruntime-genai's builder writes beside a model."""
LEAST_PAST = 3
"""Places for the past of a variant at its capacity: see `Growth.pasts`."""
_LEAST_MOST = 13
"""A prefill of fewer places is not looked at: there are too few numbers to compare."""
_LEAST_VERIFIED = 128
"""Texts of fewer places end before a step for drafts is worth its programs."""
_CHUNKS = (128, 32, 8)
"""New places of steps where none is for any number of them."""


@dataclass(frozen=True)
class Grown:
    """A step of a model at a capacity, for `growth.chunk` new places.

    `outline`, `inputs`, `dims`: of the model. `sessions`: that the step advances, see
    `graph.together`. `scores`: one of `state.SCORES`. `is_open`: whether it is a prefill, for any
    number of new places up to that. `is_masked`: whether it computes all places of the capacity.
    `verifies`: whether it is for drafts, see `StateInfo`.
    """

    outline: ModelProto = field(compare=False, repr=False)
    inputs: DecoderInputs
    dims: Mapping[str, int]
    growth: Growth
    sessions: int = 1
    scores: str = SCORES[0]
    is_open: bool = False
    is_masked: bool = False
    verifies: bool = False

    @cached_property
    def shapes(self) -> tuple[Shapes, ...]:
        """Shapes of the inputs at the `pasts` of the growth. Raises DynamicShape."""
        return tuple(self._shapes(self.growth, past) for past in self.growth.pasts)

    @cached_property
    def shape(self) -> Shapes:
        """Shapes of the inputs at the past of the growth. Raises DynamicShape."""
        return self._shapes(self.growth, self.growth.past)

    @cached_property
    def first(self) -> Shapes:
        """Those behind nothing, in a step of one place."""
        return self._shapes(replace(self.growth, chunk=1), 0)

    @property
    def other(self) -> tuple[Growth, Shapes] | None:
        """The growth with another number of places, and the shapes at its past; None where the file
        takes one number."""
        if self.inputs.chunk:
            return None
        beside = replace(self.growth, chunk=self.growth.chunk - 1 or 2)
        return beside, self._shapes(beside, beside.past)

    def at(self, n: int) -> Grown:
        """The step for `n` new places."""
        return replace(self, growth=replace(self.growth, chunk=n))

    def with_prefill(self, places: int = MOST_PROMPT) -> tuple[Grown, ...]:
        """A prefill of up to `places` and this step; () where the file takes one number of places,
        or the capacity is small."""
        most = min(self.growth.capacity - LEAST_PAST, places)
        if self.inputs.chunk or most < _LEAST_MOST:
            return ()
        return replace(self.at(most), is_open=True), self

    def verifying(self) -> tuple[Grown, ...]:
        """The step that verifies drafts; () where a prefill does as well, where there is none, and
        where the capacity is small."""
        is_known = self.scores != SCORES[0] or not self.with_prefill()
        if is_known or self.growth.capacity < _LEAST_VERIFIED:
            return ()
        one = self.at(MOST_VERIFIED)
        return (replace(one, is_open=True, verifies=True, scores=SCORES[1]),)

    def with_chunks(self) -> tuple[Grown, ...]:
        """Steps of single numbers of places, the largest first; this one last."""
        if self.inputs.chunk:
            return (self,)
        able = (n for n in _CHUNKS if n + LEAST_PAST <= self.growth.capacity)
        return *map(self.at, able), self

    def _shapes(self, growth: Growth, past: int) -> Shapes:
        return _shapes(self.outline, growth, self.inputs, past, self.dims)


def grown(
    path: Path,
    capacity: int,
    told: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    cache: str = "float32",
) -> Grown:
    """A decode step of a model; of as many places as its file takes, where that is one number.

    `cache`: see `Growth`. Raises UsageError for a model without a state that grows or takes tokens
    in, and for a capacity or a cache that it cannot have.
    """
    outline = read_outline(path)
    growth, inputs = growth_of(outline, capacity, told)
    _require_places(outline, growth)
    is_read_by_steps = bool(inputs.chunk_axes or inputs.chunk)
    if not growth.states and not (growth.replaced and is_read_by_steps):
        raise UsageError(
            f"'{path.name}' has no state that grows",
            "name the input and the output of each: `state={'past': 'present'}`",
        )
    n = inputs.chunk or 1
    if n + LEAST_PAST > capacity:
        of = "one token" if n == 1 else f"{n} tokens, which the file takes,"
        raise UsageError(
            f"a capacity of {capacity} is too small for steps of {of}",
            f"give a `capacity` of {n + LEAST_PAST} or more",
        )
    types = {value.name: value.type.tensor_type.elem_type for value in outline.graph.input}
    if cache != "float32" and not any(types[name] in _FLOATS for name in growth.states):
        raise UsageError(
            f"the states of '{path.name}' that grow are no floats", "leave out `cache_type`"
        )
    extents = {**extents_of_folder(path, outline, growth.states), **(dims or {})}
    return Grown(outline, inputs, extents, replace(growth, chunk=n, cache=cache))


def for_sessions(step: Grown, sessions: Iterable[int]) -> Iterator[Grown]:
    """Variants for a place of several sessions, the most first. Raises UsageError."""
    wanted = sorted({*sessions}, reverse=True)
    if wanted and (wanted[-1] < 2 or step.growth.chunk != 1):
        why = "" if wanted[-1] < 2 else f": the file takes {step.growth.chunk} tokens in a step"
        raise UsageError(
            f"{wanted[-1]} sessions cannot be advanced together{why}",
            "give `sessions` from 2 on, of a file that takes one token",
        )
    yield from (replace(step, sessions=n) for n in wanted)


def growth_of(
    outline: ModelProto, capacity: int, told: Mapping[str, str] | None = None
) -> tuple[Growth, DecoderInputs]:
    """The growth of a model in steps of one place, and its inputs. Raises as `find_states`."""
    found = find_states(outline, told)
    beside = decoder_inputs(outline, found)
    places = beside.positions or beside.firsts
    static = {
        pair.input: axis
        for pair in found
        if pair.axis is None and places
        for axis in [written_axis(outline, pair.input, pair.output)]
        if axis is not None
    }
    found = tuple(replace(p, axis=static.get(p.input, p.axis)) for p in found)
    growing = {p.input: (p.output, p.axis) for p in found if p.axis is not None}
    held = tuple(name for name in held_inputs(outline, told) if name not in growing)
    inputs = decoder_inputs(outline, found, held)
    _require_known(outline, growing, inputs)
    others = {p.input: p.output for p in found if p.axis is None}
    growth = Growth(
        states=growing,
        capacity=capacity,
        chunk=1,
        masks=inputs.masks,
        prepared={name: m for name, m in inputs.prepared.items() if m is not None},
        positions=inputs.positions,
        lasts=inputs.lasts,
        totals=inputs.totals,
        replaced={name: output for name, output in others.items() if name not in held},
        held=held,
        passed={name: output for name, output in others.items() if name in held},
        flag=cache_flag(outline),
        shapes=inputs.shapes,
        static=frozenset(static),
        firsts=inputs.firsts if static else (),
        counts=inputs.counts if static else (),
    )
    return growth, inputs


def _require_known(
    model: ModelProto, growing: Mapping[str, tuple[str, int]], inputs: DecoderInputs
) -> None:
    """Raise NotCompilable for a mask whose numbers no length tells."""
    unknown = [name for name, meaning in inputs.prepared.items() if meaning is None]
    if not growing or not unknown:
        return
    name = unknown[0]
    value = next(value for value in model.graph.input if value.name == name)
    raise NotCompilable(
        f"the numbers of '{name}' {shown(value)}, a mask of all places, do not follow from the "
        "length of the state: they may be flags, or what is added to scores",
        "export the model with a mask of integers (batch, places), or without one",
    )


def _require_places(model: ModelProto, growth: Growth) -> None:
    """Raise UsageError where caches have another number of places in the file."""
    dims = {v.name: v.type.tensor_type.shape.dim for v in model.graph.input}
    for name in growth.static:
        places = dims[name][growth.states[name][1]].dim_value
        if places not in (0, growth.capacity):
            raise UsageError(
                f"'{name}' has {places} places in the file", f"give `capacity={places}`"
            )


def extents_of_folder(path: Path, model: ModelProto, states: Iterable[str]) -> dict[str, int]:
    """Extents that the configuration of onnxruntime-genai beside a model tells: of a head."""
    try:
        text = read_input(path.parent / GENAI_CONFIGURATION, MOST_CONFIGURATION_BYTES)
        size = json.loads(text)["model"]["decoder"]["head_size"]
    except (UsageError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    inputs = {value.name: value for value in model.graph.input}
    lasts = (inputs[name].type.tensor_type.shape.dim[-1] for name in states)
    names = {dim.dim_param for dim in lasts} - {""}
    return dict.fromkeys(names, size) if isinstance(size, int) else {}


def _shapes(
    model: ModelProto, growth: Growth, inputs: DecoderInputs, past: int, dims: Mapping[str, int]
) -> Shapes:
    """Shapes of all inputs where so many places are filled. Raises DynamicShape."""
    known = symbols(model)
    extents = dict(dims)
    at = {
        (name, axis): growth.extent(name) if name in growth.static else past
        for name, (_, axis) in growth.states.items()
    }
    at |= dict.fromkeys(inputs.chunk_axes, growth.chunk)
    at |= dict.fromkeys(inputs.total_axes, past + growth.chunk)
    of_tokens = {(name, 0) for name, axis in inputs.chunk_axes if axis > 0}
    for name, places in known.items():
        found = {at[p.input, p.axis] for p in places if (p.input, p.axis) in at}
        if len(found) == 1:
            extents.setdefault(name, found.pop())
        elif not found and (
            all(p.axis == 0 for p in places)
            or any((p.input, p.axis) in of_tokens for p in places)
            or "batch" in name.lower()
        ):
            extents.setdefault(name, 1)
    settled = shapes_at(model, extents)
    require_static(model, extents, settled)
    return settled
