"""① States of a model, by the names and shapes of its inputs and outputs as exporters write them.

    past_key_values.0.key (1, 2, past, 64)    present.0.key (1, 2, past + sequence, 64)    axis 2
    state (2, batch, 128)                     stateN (2, batch, 128)                       none

An input and an output are a pair where their names have the same words, but for those that say
before and behind (`past`, `present`, `in`, `out`, …), and their shapes agree but for one extent.
Outputs that exporters number (`cat_1`) follow the order of the inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from onnx import ModelProto, TensorProto, TensorShapeProto, ValueInfoProto

from autotune.errors import UsageError
from autotune.graph.ir import Array
from autotune.graph.reader.dimensions import is_tensor
from autotune.graph.reader.static_caches import counted_places, first_places
from autotune.names import unknown_name

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_PHRASES = re.compile(r"(?i)(past|present)[_.]?keys?[_.]?values?|(past|present)_kv")
_FORMULA = re.compile(r"(?i)([hcs])_?([0nxy]?)")
"""States as formulas write them: h, h0 and hx before, hn and hy behind."""

_BEFORE = frozenset(("past", "prev", "previous", "old", "last", "initial", "init"))
_BEHIND = frozenset(("present", "new", "next", "cur", "current", "updated", "final", "n"))
_PORTS = frozenset(("in", "input", "i", "out", "output", "o"))
"""Words that say before or behind of any input and output: only of a state are they a pair."""
_STATES = frozenset(
    (
        *("state", "hidden", "cell", "h", "c", "rnn", "lstm", "gru", "memory", "mem", "cache"),
        *("cached", "key", "value", "kv", "buffer", "buf", "conv", "context", "r"),
    )
)
_GROWING = frozenset(("key", "value", "kv", "att", "attn", "attention"))
_FIXED = frozenset(("encoder", "cross"))
_FLAG = frozenset(("use", "cache"))
"""Words of the input that says whether there is a past, where a file has both computations."""
_SAME = {"keys": "key", "k": "key", "values": "value", "v": "value"} | {
    f"{word}s": word for word in ("state", "cache", "buffer", "cell", "memory", "context")
}
_LENGTHS = re.compile(r"(?i)past|seq|len|cache|time|total|kv")
_TOKENS = frozenset(("ids", "tokens", "token", "embeds", "embeddings"))
_POSITIONS = frozenset(("pos", "position", "positions"))
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)

_Dimension = TensorShapeProto.Dimension
_Key = tuple[tuple[str, ...], tuple[str, ...]]


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

    `masks`, `positions`, `lasts`, `totals`, `shapes`, `firsts`, `counts`: see `growing.Growth`;
    the last two where there are static caches alone. `chunk_axes`: (input,
    dimension) of the new places, `total_axes`: of all with them. `chunk`: the number of new places
    where the file has one; 0 where it is open. `prepared`: masks of all places whose numbers have
    no meaning that is known, as those that are added to scores.
    """

    masks: tuple[str, ...]
    positions: tuple[str, ...]
    lasts: tuple[str, ...]
    totals: tuple[str, ...]
    chunk_axes: tuple[tuple[str, int], ...]
    total_axes: tuple[tuple[str, int], ...]
    shapes: Mapping[str, tuple[int, ...]]
    chunk: int
    prepared: tuple[str, ...] = ()
    firsts: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()


class FollowLength(Protocol):
    """Names of inputs that follow from the length of a state: see `growing.Growth`."""

    @property
    def masks(self) -> tuple[str, ...]:
        """Those that tell which places count."""

    @property
    def positions(self) -> tuple[str, ...]:
        """Those that number the new places."""

    @property
    def lasts(self) -> tuple[str, ...]:
        """The last filled place of each sample."""

    @property
    def totals(self) -> tuple[str, ...]:
        """The length with the new places."""

    @property
    def firsts(self) -> tuple[str, ...]:
        """The place of the first new one of each sample."""

    @property
    def counts(self) -> tuple[str, ...]:
        """The number of filled places of each sample, with the new ones."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Extents of those that number the new places, -1 where the file leaves them open."""


def inputs_at(names: FollowLength, length: int, n_new: int) -> dict[str, Array]:
    """The inputs that follow from the length, for `n_new` places of one sequence behind it."""
    total = length + n_new
    return (
        dict.fromkeys(names.masks, np.ones((1, total)))
        | {name: _places(length, total, names.shapes.get(name, ())) for name in names.positions}
        | dict.fromkeys(names.lasts, np.array([total - 1]))
        | dict.fromkeys(names.firsts, np.array([length]))
        | dict.fromkeys(names.counts, np.array([total]))
        | dict.fromkeys(names.totals, np.array(total))
    )


def _places(first: int, end: int, shape: Sequence[int]) -> Array:
    """The numbers of places, or of the first one where an input of `shape` takes no more; the same
    in all rows that it has."""
    places = np.arange(first, first + 1 if shape[-1:] == (1,) else end)
    rows = [max(1, extent) for extent in shape[:-1]] if shape else [1]
    return np.broadcast_to(places, (*rows, len(places)))


@dataclass(frozen=True, slots=True)
class _Name:
    """A name as its words and numbers, without those that say before or behind.

    `side`: whether a word says which; `port`: whether one says so of any input and output.
    """

    key: _Key
    side: bool
    port: bool

    @property
    def words(self) -> frozenset[str]:
        return frozenset(self.key[0])


def find_states(model: ModelProto, told: Mapping[str, str] | None = None) -> tuple[StatePair, ...]:
    """The states of a model, in the order of its inputs; `told`: pairs of an input and an output.

    Raises UsageError for names that the model does not have, and for shapes that do not fit.
    """
    told = {name: result for name, result in (told or {}).items() if name != result}
    stored = {t.name for t in model.graph.initializer}
    inputs = {v.name: v for v in model.graph.input if v.name not in stored and is_tensor(v)}
    outputs = {v.name: v for v in model.graph.output if is_tensor(v)}
    for name, result in told.items():
        _require(name, inputs, "input")
        _require(result, outputs, "output")
        if list(told.values()).count(result) > 1:
            raise UsageError(
                f"output '{result}' is told for two states", "give each input an output of its own"
            )
        if not _fits(inputs[name], outputs[result]):
            raise UsageError(
                f"'{name}' {shown(inputs[name])} and '{result}' {shown(outputs[result])} differ "
                "in more than one dimension",
                "a state keeps its type and shape, or grows along one dimension",
            )
    left = [v for name, v in outputs.items() if name not in told.values()]
    found = dict(told)
    for value in (v for name, v in inputs.items() if name not in told):
        output = _partner(value, left)
        if output is not None:
            found[value.name] = output.name
            left.remove(output)
    found |= _by_order([v for n, v in inputs.items() if n not in found], left)
    batches = _batches(v for n, v in inputs.items() if n not in found)
    return tuple(
        StatePair(n, found[n], _axis(v, outputs[found[n]], batches, n in told))
        for n, v in inputs.items()
        if n in found
    )


def held_inputs(model: ModelProto, told: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Inputs that stay for a sequence: of an encoder, and those told to be states of themselves.

    Masks of places of an encoder are of it too, whatever their name is. Raises UsageError for
    names that the model does not have.
    """
    stored = {t.name for t in model.graph.initializer}
    inputs = {v.name: v for v in model.graph.input if v.name not in stored and is_tensor(v)}
    told = told or {}
    for name, result in told.items():
        if name == result:
            _require(name, inputs, "input")
    named = {name for name in inputs if _lowered(name) & _FIXED or told.get(name) == name}
    extents = {_extent(_places_of(inputs[name])) for name in named if _dims(inputs[name])} - {"", 1}
    named |= {
        n for n, v in inputs.items() if _is_mask(n) and {*map(_extent, _dims(v)[-1:])} & extents
    }
    return tuple(n for n in inputs if (told[n] == n if n in told else n in named))


def cache_flag(model: ModelProto) -> str:
    """The input that says whether there is a past; "" where no input does."""
    flags = (v.name for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.BOOL)
    return next((name for name in flags if _lowered(name) >= _FLAG), "")


def decoder_inputs(
    model: ModelProto, states: Sequence[StatePair], held: Sequence[str] = ()
) -> DecoderInputs:
    """The inputs of a decoder that are neither its states nor its tokens, by what they are.

    `held`: those that stay for a sequence.
    """
    taken = {pair.input for pair in states} | {t.name for t in model.graph.initializer} | {*held}
    rest = [v for v in model.graph.input if v.name not in taken and is_tensor(v)]
    words = {v.name: _lowered(v.name) for v in rest}
    own = [v for v in rest if not words[v.name] & _FIXED]
    firsts = first_places(model)
    positions = [v for v in own if words[v.name] & _POSITIONS and _is_integer(v)]
    masks = [v for v in own if _is_mask(v.name)]
    tokens = [v for v in own if words[v.name] & _TOKENS and _dims(v)]
    chunk = {_text(_dims(v)[_chunk_axis(v)]) for v in (*tokens, *positions) if _dims(v)} - {""}
    masks = [v for v in masks if _dims(v) and _is_total(_dims(v)[-1], chunk)]
    counted = {v.name: _chunk_axis(v) for v in (*tokens, *positions) if _dims(v)}
    counted = {n: a for n, a in counted.items() if n not in {v.name for v in masks}}
    counted |= {v.name: len(_dims(v)) - 2 for v in masks if len(_dims(v)) > 2}
    axes = tuple(
        (value.name, axis)
        for value in rest
        for axis, dim in enumerate(_dims(value))
        if _is_open(dim) and (_text(dim) in chunk or counted.get(value.name) == axis)
    )
    return DecoderInputs(
        masks=tuple(v.name for v in masks),
        positions=tuple(v.name for v in positions),
        lasts=tuple(v.name for v in own if "seqlens" in v.name.lower()),
        totals=tuple(v.name for v in own if "total_seq" in v.name.lower()),
        chunk_axes=axes,
        total_axes=tuple((v.name, len(_dims(v)) - 1) for v in masks),
        shapes={v.name: tuple(map(_extent_or_open, _dims(v))) for v in positions},
        chunk=max((_dims(v)[_chunk_axis(v)].dim_value for v in tokens), default=0),
        firsts=tuple(v.name for v in own if v.name in firsts),
        counts=tuple(v.name for v in own if v.name in counted_places(model) - firsts),
        prepared=tuple(v.name for v in masks if len(_dims(v)) > 2 or not _is_flag(v)),
    )


# --- names ---


def _partner(value: ValueInfoProto, outputs: Iterable[ValueInfoProto]) -> ValueInfoProto | None:
    """The output that takes the place of an input by its name."""
    return next((o for o in outputs if _is_named(value.name, o.name) and _fits(value, o)), None)


def _is_named(before: str, behind: str) -> bool:
    """Whether names say that an output is the next value of an input."""
    formulas = _FORMULA.fullmatch(before), _FORMULA.fullmatch(behind)
    if formulas[0] and formulas[1]:
        return formulas[0][1].lower() == formulas[1][1].lower()
    a, b = _name(before, _BEFORE), _name(behind, _BEHIND)
    if a.key != b.key:
        return False
    is_state = bool(a.words & _STATES) and not a.words & _TOKENS
    return (a.side and b.side) or (is_state and (a.side or a.port or b.side or b.port))


def _name(name: str, side: frozenset[str]) -> _Name:
    bare = _PHRASES.sub(" ", name)
    found = [_SAME.get(w.lower(), w.lower()) for w in _WORDS.findall(bare)]
    kept = [w for w in found if w not in _BEFORE | _BEHIND | _PORTS]
    words = {w for w in kept if not w.isdigit()}
    if words & _GROWING:  # key_cache_0 is key.0
        words -= {"cache"}
    return _Name(
        (tuple(sorted(words)), tuple(w for w in kept if w.isdigit())),
        side=bare != name or not side.isdisjoint(found),
        port=not _PORTS.isdisjoint(found),
    )


def _by_order(
    inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]
) -> dict[str, str]:
    """Caches whose outputs have names of nodes: as many outputs, in the order of the inputs."""
    caches = [v for v in inputs if _is_cache(v.name)]
    fitting = [o for o in outputs if any(_fits(v, o) for v in caches)]
    if len(caches) != len(fitting) or not all(map(_fits, caches, fitting)):
        return {}
    return {v.name: o.name for v, o in zip(caches, fitting, strict=True)}


def _lowered(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)}


def _is_mask(name: str) -> bool:
    return any(word.endswith("mask") for word in _lowered(name))


def _is_cache(name: str) -> bool:
    """Whether a name says that an input holds the past of an attention."""
    words = _name(name, _BEFORE).words
    return not words & _FIXED and (bool(words & _GROWING) or "past" in name.lower())


# --- shapes ---


def _fits(value: ValueInfoProto, output: ValueInfoProto) -> bool:
    """Whether an output can take the place of an input, or a longer one's."""
    if value.type.tensor_type.elem_type != output.type.tensor_type.elem_type:
        return False
    if not output.type.tensor_type.HasField("shape"):
        return bool(value.type.tensor_type.HasField("shape"))
    a, b = _dims(value), _dims(output)
    if len(a) != len(b):
        return False
    pairs = list(zip(a, b, strict=True))
    same = all(x.dim_value == y.dim_value for x, y in pairs if not (_is_open(x) or _is_open(y)))
    return same and sum(map(_is_sum, a, b)) < 2


def _axis(
    value: ValueInfoProto, output: ValueInfoProto, batches: frozenset[str], is_told: bool
) -> int | None:
    """The dimension that grows: its name is part of a sum, or says a length, or none else can.

    Exporters invent names for extents that they do not know; such a one is no proof of growth.
    """
    a = _dims(value)
    b = _dims(output) or [_Dimension()] * len(a)
    pairs = list(zip(a, b, strict=True))
    sums = [n for n, (x, y) in enumerate(pairs) if _is_sum(x, y)]
    if sums:
        return sums[0]
    differing = [
        n
        for n, (x, y) in enumerate(pairs)
        if _is_open(x) and _is_open(y) and not (_text(x) and _text(x) == _text(y))
    ]
    able = [n for n in differing if _text(a[n]) not in batches and "batch" not in _text(a[n])]
    is_fixed = bool(_name(value.name, _BEFORE).words & _FIXED)
    named = [n for n in able if _LENGTHS.search(_text(a[n]))]
    if len(named) == 1 and not is_fixed:
        return named[0]
    inner = [n for n in able if n > 0]
    return max(inner) if inner and (is_told or _is_cache(value.name)) else None


def _is_sum(before: _Dimension, behind: _Dimension) -> bool:
    """Whether an extent is another with something added: `past + sequence`."""
    a, b = _text(before), _text(behind)
    return _is_open(before) and a != b and a != "" and a in re.split(r"[\s+*/()-]+", b)


def _batches(inputs: Iterable[ValueInfoProto]) -> frozenset[str]:
    """Names of the first dimension of inputs that are no states."""
    return frozenset(_text(_dims(v)[0]) for v in inputs if len(_dims(v)) > 1) - {""}


def _dims(value: ValueInfoProto) -> Sequence[_Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _is_open(dim: _Dimension) -> bool:
    return not (dim.HasField("dim_value") and dim.dim_value >= 0)


def _places_of(value: ValueInfoProto) -> _Dimension:
    """The dimension of places of hidden states, caches or a mask."""
    dims = _dims(value)
    return dims[-2] if len(dims) > 2 else dims[-1]


def _extent(dim: _Dimension) -> str | int:
    """The name of an extent, or its number; "" where it has neither."""
    return _text(dim) if _is_open(dim) else int(dim.dim_value)


def _extent_or_open(dim: _Dimension) -> int:
    return -1 if _is_open(dim) else int(dim.dim_value)


def _text(dim: _Dimension) -> str:
    return str(dim.dim_param)


def shown(value: ValueInfoProto) -> str:
    """The shape of an input or output as the file states it."""
    dims = ", ".join(_text(d) or ("?" if _is_open(d) else str(d.dim_value)) for d in _dims(value))
    return f"({dims})"


def _is_total(dim: _Dimension, chunk: set[str]) -> bool:
    return _is_open(dim) and _text(dim) not in chunk


def _chunk_axis(value: ValueInfoProto) -> int:
    """The dimension of new places of tokens, embeddings or positions."""
    last = len(_dims(value)) - 1
    return max(0, last if _is_integer(value) else last - 1)


def _is_integer(value: ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in _INTEGERS


def _is_flag(value: ValueInfoProto) -> bool:
    return _is_integer(value) or value.type.tensor_type.elem_type == TensorProto.BOOL


def _require(name: str, known: Mapping[str, ValueInfoProto], what: str) -> None:
    if name not in known:
        raise unknown_name(what, name, known)
