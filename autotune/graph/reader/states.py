"""① States of a model, by the names and shapes of its inputs and outputs as exporters write them.

    past_key_values.0.key (1, 2, past, 64)    present.0.key (1, 2, past + sequence, 64)    axis 2

An input and an output are a pair where their names have the same words, but for those that say
before and behind (`past`, `present`, `in`, `out`, …), and their shapes agree but for one extent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, TensorShapeProto, ValueInfoProto

from autotune.errors import UsageError
from autotune.graph.reader.dimensions import is_tensor

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_BEFORE = frozenset(("past", "in", "input", "prev", "previous", "old", "last", "initial", "init"))
_BEHIND = frozenset(
    ("present", "out", "output", "new", "next", "cur", "current", "updated", "final")
)
_PHRASES = re.compile(r"(?i)(past|present)[_.]?key[_.]?values?|(past|present)_kv")
_TOKENS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds", "tokens")


@dataclass(frozen=True, slots=True)
class StatePair:
    """An input and the output that takes its place in the next call.

    `axis`: the dimension that grows by the new places; None for a state of a fixed shape.
    """

    input: str
    output: str
    axis: int | None


@dataclass(frozen=True, slots=True)
class DecoderInputs:
    """Inputs that follow from the length of a state, and dimensions of inputs by what they are.

    `masks`, `positions`, `lasts`, `totals`: see `growing.Growth`. `chunk_axes`: (input, dimension)
    of the new places, `total_axes`: of all with them.
    """

    masks: tuple[str, ...]
    positions: tuple[str, ...]
    lasts: tuple[str, ...]
    totals: tuple[str, ...]
    chunk_axes: tuple[tuple[str, int], ...]
    total_axes: tuple[tuple[str, int], ...]


def find_states(model: ModelProto, told: Mapping[str, str]) -> tuple[StatePair, ...]:
    """The states of a model, in the order of its inputs; `told`: pairs of an input and an output.

    Raises UsageError for names that the model does not have, and for shapes that do not fit.
    """
    stored = {t.name for t in model.graph.initializer}
    inputs = {v.name: v for v in model.graph.input if v.name not in stored and is_tensor(v)}
    outputs = {v.name: v for v in model.graph.output if is_tensor(v)}
    for name, result in told.items():
        _require(name, inputs, "input")
        _require(result, outputs, "output")
    left = [name for name in outputs if name not in told.values()]
    found = []
    for name, value in inputs.items():
        output = told.get(name) or _partner(value, [outputs[n] for n in left])
        if not output:
            continue
        left = [n for n in left if n != output]
        axes = _differing(value, outputs[output])
        if axes is None:
            raise UsageError(
                f"the shapes of '{name}' and '{output}' differ in more than one dimension",
                "a state keeps its shape, or grows along one dimension",
            )
        found.append(StatePair(name, output, axes[0] if axes else None))
    return tuple(found)


def decoder_inputs(model: ModelProto, states: Sequence[StatePair]) -> DecoderInputs:
    """The inputs of a decoder that are neither its states nor its tokens, by what they are."""
    taken = {pair.input for pair in states} | {t.name for t in model.graph.initializer}
    rest = {v.name: v for v in model.graph.input if v.name not in taken}
    masks, positions, lasts, totals = (
        tuple(n for n in rest if part in n.lower() and "encoder" not in n.replace("decoder", ""))
        for part in ("mask", "position", "seqlens", "total_seq")
    )
    chunk = {_chunk_name(rest[n]) for n in (*_TOKENS, *positions) if n in rest} - {""}
    axes = tuple(
        (name, axis)
        for name, value in rest.items()
        if name not in masks
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param in chunk or (axis == _last_axis(value) and _is_counted(name, positions))
    )
    return DecoderInputs(
        masks, positions, lasts, totals, axes, tuple((n, _last_axis(rest[n])) for n in masks)
    )


def _is_counted(name: str, positions: Sequence[str]) -> bool:
    """Whether an input has an element for each new place."""
    return name in positions or (name in _TOKENS and not name.endswith("embeds"))


def _chunk_name(value: ValueInfoProto) -> str:
    """The name of the dimension of new places of tokens, embeddings or positions."""
    dims = value.type.tensor_type.shape.dim
    if not dims:
        return ""
    return str(dims[1 if value.name.endswith("embeds") else len(dims) - 1].dim_param)


def _last_axis(value: ValueInfoProto) -> int:
    return max(0, len(value.type.tensor_type.shape.dim) - 1)


def _partner(value: ValueInfoProto, outputs: Sequence[ValueInfoProto]) -> str:
    """The output that takes the place of an input; "" where none does."""
    words, is_before = _words(value.name)
    for output in outputs:
        found, is_behind = _words(output.name)
        is_hidden = output.name.lower() == f"{value.name.lower()}n"  # h and hn, as in formulas
        is_named = words == found and (is_before or is_behind)
        is_told = bool(words) or "past" in value.name
        if (is_hidden or (is_named and is_told)) and _fits(value, output):
            return str(output.name)
    return ""


def _words(name: str) -> tuple[tuple[str, ...], bool]:
    """The words of a name without those that say before or behind, and whether it had such."""
    bare = _PHRASES.sub(" ", name)
    words = [word.lower() for word in _WORDS.findall(bare)]
    kept = tuple(w for w in words if w not in _BEFORE and w not in _BEHIND)
    return kept, bare != name or len(kept) < len(words)


def _fits(value: ValueInfoProto, output: ValueInfoProto) -> bool:
    a, b = value.type.tensor_type, output.type.tensor_type
    return a.elem_type == b.elem_type and _differing(value, output) is not None


def _differing(value: ValueInfoProto, output: ValueInfoProto) -> tuple[int, ...] | None:
    """The dimension in which shapes differ, or none; None where they do not fit together."""
    a, b = (v.type.tensor_type.shape.dim for v in (value, output))
    if not output.type.tensor_type.HasField("shape") or len(a) != len(b):
        return None
    pairs = list(zip(a, b, strict=True))
    if any(x.dim_value != y.dim_value for x, y in pairs if x.dim_value and y.dim_value):
        return None
    found = tuple(n for n, (x, y) in enumerate(pairs) if _text(x) != _text(y))
    open_ = tuple(n for n, (x, y) in enumerate(pairs) if not (_text(x) and _text(y)))
    if len(found) > 1:  # exporters name what they do not know
        found = tuple(n for n in found if "past" in _text(a[n])) or found
    if not found and len(open_) == 1:
        return open_
    return found if len(found) < 2 else None


def _text(dim: TensorShapeProto.Dimension) -> str:
    return str(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param)


def _require(name: str, known: Mapping[str, ValueInfoProto], what: str) -> None:
    if name not in known:
        raise UsageError(
            f"the model has no {what} '{name}'", f"it has {', '.join(map(repr, known))}"
        )
