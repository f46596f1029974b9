"""① States of a model, by the names and shapes of its inputs and outputs as exporters write them.

    past_key_values.0.key (1, 2, past, 64)    present.0.key (1, 2, past + sequence, 64)    axis 2
    state (2, batch, 128)                     stateN (2, batch, 128)                       none

An input and an output are a pair where their names have the same words, but for those that say
before and behind (`past`, `present`, `in`, `out`, …), and their shapes agree but for one extent.
Outputs that exporters number (`cat_1`) follow the order of the inputs. The words are those of
`exporters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, TensorProto, TensorShapeProto, ValueInfoProto

from autotune.errors import UsageError
from autotune.graph.reader.dimensions import is_tensor
from autotune.graph.reader.exporters import words_of
from autotune.names import unknown_name

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_PHRASES = re.compile(r"(?i)(past|present)[_.]?keys?[_.]?values?|(past|present)_kv")
_FORMULA = re.compile(r"(?i)([hcs])_?([0nxy]?)")
"""States as formulas write them: h, h0 and hx before, hn and hy behind."""

_BEFORE, _BEHIND, _PORTS = words_of("before"), words_of("behind"), words_of("port")
_STATES, _GROWING, _FIXED = words_of("state"), words_of("grows"), words_of("fixed")
_FLAG, _TOKENS = words_of("flag"), words_of("tokens")
_SAME = {"keys": "key", "k": "key", "values": "value", "v": "value"} | {
    f"{word}s": word for word in ("state", "cache", "buffer", "cell", "memory", "context")
}
_LENGTHS = re.compile(r"(?i)past|seq|len|cache|time|total|kv")
Dimension = TensorShapeProto.Dimension
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
    inputs = inputs_of(model)
    outputs = {v.name: v for v in model.graph.output if is_tensor(v)}
    _require_told(told, inputs, outputs)
    found = _paired(told, inputs, outputs)
    batches = _batches(v for n, v in inputs.items() if n not in found)
    return tuple(
        StatePair(n, found[n], _axis(v, outputs[found[n]], batches, n in told))
        for n, v in inputs.items()
        if n in found
    )


def inputs_of(model: ModelProto) -> dict[str, ValueInfoProto]:
    """The tensors that a caller gives, by name."""
    stored = {t.name for t in model.graph.initializer}
    return {v.name: v for v in model.graph.input if v.name not in stored and is_tensor(v)}


def _require_told(
    told: Mapping[str, str],
    inputs: Mapping[str, ValueInfoProto],
    outputs: Mapping[str, ValueInfoProto],
) -> None:
    """Raise UsageError for pairs that cannot be a state."""
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


def _paired(
    told: Mapping[str, str],
    inputs: Mapping[str, ValueInfoProto],
    outputs: Mapping[str, ValueInfoProto],
) -> dict[str, str]:
    """The output of each state: as it is told, by names, by the order."""
    left = [v for name, v in outputs.items() if name not in told.values()]
    found = dict(told)
    for value in (v for name, v in inputs.items() if name not in told):
        output = _partner(value, left)
        if output is not None:
            found[value.name] = output.name
            left.remove(output)
    return found | _by_order([v for n, v in inputs.items() if n not in found], left)


def held_inputs(model: ModelProto, told: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Inputs that stay for a sequence: of an encoder, and those told to be states of themselves.

    Masks of places of an encoder are of it too, whatever their name is. Raises UsageError for
    names that the model does not have.
    """
    inputs, told = inputs_of(model), told or {}
    for name, result in told.items():
        if name == result:
            _require(name, inputs, "input")
    named = {name for name in inputs if is_of_encoder(name) or told.get(name) == name}
    shaped = [inputs[name] for name in named if dims_of(inputs[name])]
    extents = {extent_of(_places_of(value)) for value in shaped} - {"", 1}
    named |= {
        n for n, v in inputs.items() if is_mask(n) and {*map(extent_of, dims_of(v)[-1:])} & extents
    }
    return tuple(n for n in inputs if (told[n] == n if n in told else n in named))


def cache_flag(model: ModelProto) -> str:
    """The input that says whether there is a past; "" where no input does."""
    flags = (v.name for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.BOOL)
    return next((name for name in flags if words_in(name) >= _FLAG), "")


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
    if words & (_GROWING | _STATES - {"cache"}):  # key_cache_0 is key.0
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


def words_in(name: str) -> set[str]:
    """The words of a name, in small letters."""
    return {word.lower() for word in _WORDS.findall(name)}


def is_of_encoder(name: str) -> bool:
    """Whether a name says that an input stays for a sequence."""
    return bool(words_in(name) & _FIXED)


def is_mask(name: str) -> bool:
    """Whether a name says that an input tells which places count."""
    return any(word.endswith("mask") for word in words_in(name))


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
    a, b = dims_of(value), dims_of(output)
    if len(a) != len(b):
        return False
    pairs = list(zip(a, b, strict=True))
    same = all(x.dim_value == y.dim_value for x, y in pairs if not (is_open(x) or is_open(y)))
    return same and sum(map(_is_sum, a, b)) < 2


def _axis(
    value: ValueInfoProto, output: ValueInfoProto, batches: frozenset[str], is_told: bool
) -> int | None:
    """The dimension that grows: its name is part of a sum, or says a length, or none else can.

    Exporters invent names for extents that they do not know; such a one is no proof of growth.
    """
    a = dims_of(value)
    b = dims_of(output) or [Dimension()] * len(a)
    pairs = list(zip(a, b, strict=True))
    sums = [n for n, (x, y) in enumerate(pairs) if _is_sum(x, y)]
    if sums:
        return sums[0]
    differing = [
        n
        for n, (x, y) in enumerate(pairs)
        if is_open(x) and is_open(y) and not (name_of(x) and name_of(x) == name_of(y))
    ]
    able = [n for n in differing if name_of(a[n]) not in batches and "batch" not in name_of(a[n])]
    is_fixed = bool(_name(value.name, _BEFORE).words & _FIXED)
    named = [n for n in able if _LENGTHS.search(name_of(a[n]))]
    if len(named) == 1 and not is_fixed:
        return named[0]
    inner = [n for n in able if n > 0]
    return max(inner) if inner and (is_told or _is_cache(value.name)) else None


def _is_sum(before: Dimension, behind: Dimension) -> bool:
    """Whether an extent is another with something added: `past + sequence`."""
    a, b = name_of(before), name_of(behind)
    return is_open(before) and a != b and a != "" and a in re.split(r"[\s+*/()-]+", b)


def _batches(inputs: Iterable[ValueInfoProto]) -> frozenset[str]:
    """Names of the first dimension of inputs that are no states."""
    return frozenset(name_of(dims_of(v)[0]) for v in inputs if len(dims_of(v)) > 1) - {""}


def dims_of(value: ValueInfoProto) -> Sequence[Dimension]:
    """The dimensions of an input or output."""
    return list(value.type.tensor_type.shape.dim)


def is_open(dim: Dimension) -> bool:
    """Whether the file leaves an extent open."""
    return not (dim.HasField("dim_value") and dim.dim_value >= 0)


def _places_of(value: ValueInfoProto) -> Dimension:
    """The dimension of places of hidden states, caches or a mask."""
    dims = dims_of(value)
    return dims[-2] if len(dims) > 2 else dims[-1]


def extent_of(dim: Dimension) -> str | int:
    """The name of an extent, or its number; "" where it has neither."""
    return name_of(dim) if is_open(dim) else int(dim.dim_value)


def name_of(dim: Dimension) -> str:
    """The name of an extent; "" where it has none."""
    return str(dim.dim_param)


def shown(value: ValueInfoProto) -> str:
    """The shape of an input or output as the file states it."""
    dims = ", ".join(
        name_of(d) or ("?" if is_open(d) else str(d.dim_value)) for d in dims_of(value)
    )
    return f"({dims})"


def _require(name: str, known: Mapping[str, ValueInfoProto], what: str) -> None:
    if name not in known:
        raise unknown_name(what, name, known)
