"""① A model with a state at a capacity: its shapes for each number of new places.

grown(model, capacity=2048, chunks=(128, 32, 8, 1))  ─►  Grown for each chunk
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from autotune.graph.state import CHUNKS, SCORES

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
GENAI_CONFIGURATION = "genai_config.json"
MOST_CONFIGURATION_BYTES = 1 << 20
"""The file that onnxruntime-genai's builder writes beside a model."""
_LEAST_PAST = 3
"""Places for the past of a variant at its capacity: see `Growth.pasts`."""


@dataclass(frozen=True)
class Grown:
    """A model at a capacity and a chunk. `shapes`: of its inputs at the `pasts` of `growth`.
    `first`: behind nothing, in a step of one place. `sessions`: that a step advances, see
    `graph.together`. `other`: the growth with another chunk, and the shapes at its past; None where
    the file takes one number of new places. `scores`: one of `state.SCORES`."""

    growth: Growth
    shapes: tuple[Shapes, ...]
    first: Shapes
    sessions: int = 1
    other: tuple[Growth, Shapes] | None = None
    scores: str = SCORES[0]


def grown(
    path: Path,
    capacity: int,
    chunks: Sequence[int] = CHUNKS,
    told: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    cache: str = "float32",
) -> tuple[Grown, ...]:
    """A variant for each chunk, the largest first; chunks that no prompt can fill are left out.

    `cache`: see `Growth`. Raises UsageError for a model without a state that grows, and for a
    capacity, chunks or a cache that it cannot have.
    """
    outline = read_outline(path)
    growth, inputs = growth_of(outline, capacity, told)
    _require_places(outline, growth)
    able = [n for n in chunks if n == inputs.chunk] if inputs.chunk else chunks
    if not able:
        raise UsageError(
            f"'{path.name}' takes {inputs.chunk} tokens in each step, no other number",
            f"give `chunks=({inputs.chunk},)`",
        )
    sizes = sorted({n for n in able if n + _LEAST_PAST <= capacity}, reverse=True)
    if not growth.states:
        raise UsageError(
            f"'{path.name}' has no state that grows",
            "name the input and the output of each: `state={'past': 'present'}`",
        )
    if not sizes or min(chunks) < 1:
        raise UsageError(
            f"a capacity of {capacity} with chunks of {', '.join(map(str, chunks))} cannot be",
            "give a larger `capacity`, and chunks from 1 on",
        )
    types = {value.name: value.type.tensor_type.elem_type for value in outline.graph.input}
    if cache != "float32" and not any(types[name] in _FLOATS for name in growth.states):
        raise UsageError(
            f"the states of '{path.name}' that grow are no floats", "leave out `cache_type`"
        )
    extents = {**extents_of_folder(path, outline, growth.states), **(dims or {})}
    several = (replace(growth, chunk=n, cache=cache) for n in sizes)
    return tuple(_at(outline, one, inputs, extents) for one in several)


def for_sessions(at: Sequence[Grown], sessions: Iterable[int]) -> Iterator[Grown]:
    """Variants for a place of several sessions, the most first. Raises UsageError."""
    wanted = sorted({*sessions}, reverse=True)
    if wanted and (wanted[-1] < 2 or at[-1].growth.chunk != 1):
        raise UsageError(
            f"{wanted[-1]} sessions cannot be advanced together",
            "give `sessions` from 2 on, and `chunks` with 1",
        )
    yield from (replace(at[-1], sessions=n) for n in wanted)


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
    """Raise NotCompilable for a mask that no length tells the numbers of."""
    if not growing or not inputs.prepared:
        return
    name = inputs.prepared[0]
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


def _at(model: ModelProto, growth: Growth, inputs: DecoderInputs, dims: Mapping[str, int]) -> Grown:
    shapes = tuple(_shapes(model, growth, inputs, past, dims) for past in growth.pasts)
    first = _shapes(model, replace(growth, chunk=1), inputs, 0, dims)
    beside = replace(growth, chunk=growth.chunk - 1 or 2)
    other = None if inputs.chunk else (beside, _shapes(model, beside, inputs, beside.past, dims))
    return Grown(growth, shapes, first, other=other)


def _shapes(
    model: ModelProto, growth: Growth, inputs: DecoderInputs, past: int, dims: Mapping[str, int]
) -> Shapes:
    """Shapes of all inputs where so many places are filled. Raises DynamicShape."""
    known = symbols(model)
    extents = dict(dims)
    at = {
        (name, axis): growth.capacity if name in growth.static else past
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
