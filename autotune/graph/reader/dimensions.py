"""① Dimensions of inputs by name: one name is one extent wherever it occurs.

    symbols(model)                       {"batch": (ids.0, mask.0), "sequence": (ids.1, mask.1)}
    shapes_at(model, {"batch": 4, "sequence": 128})     {"ids": (4, 128), "mask": (4, 128)}

A dimension without a name is called by its place: `ids.0` is the first of input `ids`. A name that
is a sum or product of others (`past + sequence`, as exporters write it) follows from them.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeAlias

from onnx import ModelProto, TensorShapeProto, ValueInfoProto

from autotune.errors import DynamicShape, UsageError
from autotune.extent import Extent, Length
from autotune.extent import Extents as LengthExtents
from autotune.wording import Word, arguments

Outline: TypeAlias = ModelProto
"""A model as it is in its file, see `onnx_reader.read_outline`."""
Extents = Mapping[str, int]
Shapes = Mapping[str, tuple[int, ...]]

_UNNAMED = ("", "?", "-1", "None")
"""What exporters write for a dimension without a name."""
_NAMED_BATCH = re.compile(r"(\w*_)?n?batch(e?s|_?size|_?dim|_?axis|_\d+)?")
_MADE_UP = re.compile(
    r"n|b|bs|[_.]?(none|unk_*|unknown_*|dynamic|dyn|(p2o\.)?dynamicdimension\.|dynamic_axes_|s|dim_?)"
    r"\d*"
)
_MOST_TOLD = 5
"""Places of a dimension; a decoder has it in two inputs of each layer."""
SIZE = Word("SIZE")
"""A size that a reader puts in."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class InputDimension:
    """A dimension of an input."""

    input: str
    axis: int

    def __str__(self) -> str:
        return f"{self.input}.{self.axis}"


def symbols(model: ModelProto) -> dict[str, tuple[InputDimension, ...]]:
    """The dimensions of inputs that have no value in the file, and where each of them occurs.

    In order of first occurrence; inputs of unknown rank have none. Names that follow from others
    are among them.
    """
    found: dict[str, list[InputDimension]] = {}
    for value in _inputs(model):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not _is_fixed(dim):
                found.setdefault(_name(value, axis), []).append(InputDimension(value.name, axis))
    return {name: tuple(places) for name, places in found.items()}


def free_symbols(model: ModelProto, shapes: Shapes) -> dict[str, tuple[InputDimension, ...]]:
    """`symbols` that have to be given a value where inputs have `shapes`: no others say it."""
    found = symbols(model)
    known = _extents_of(model, shapes)
    free = {
        name: tuple(p for p in places if p.input not in shapes)
        for name, places in found.items()
        if name not in known and not _follows(name, found.keys() | known.keys())
    }
    return {name: places for name, places in free.items() if places}


def tied(model: ModelProto, ties: Mapping[str, str]) -> ModelProto:
    """`model`, in which each of some dimensions has the name of another: they are one extent.

    Raises UsageError for a name that no open dimension of the inputs has, and for a circle.
    """
    if not ties:
        return model
    require_dimensions(model, (*ties, *ties.values()))
    ends = ends_of(ties)
    found = ModelProto()
    found.CopyFrom(model)
    for value in _inputs(found):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not _is_fixed(dim):
                name = _name(value, axis)
                dim.dim_param = ends.get(name) or _renamed(name, ends)
    return found


def ends_of(ties: Mapping[str, str]) -> dict[str, str]:
    """The name that each dimension has, where it is tied to one that is tied again."""
    return {name: _end(name, ties) for name in ties}


def _end(name: str, ties: Mapping[str, str]) -> str:
    """The last of the names that a name is tied to."""
    seen = [name]
    while seen[-1] in ties:
        seen.append(ties[seen[-1]])
        if seen[-1] in seen[:-1]:
            raise UsageError(
                f"dimensions are said to be each other: {', '.join(seen)}",
                f"give one of them a size: {arguments(dims={seen[-1]: SIZE})}",
            )
    return seen[-1]


def _renamed(name: str, ends: Mapping[str, str]) -> str:
    """An expression of names, with those that they are tied to."""
    if not re.search(r"[-+*/]", name):
        return name
    return re.sub(r"[^\W\d]\w*", lambda found: ends.get(found[0], found[0]), name)


def shapes_at(model: ModelProto, extents: Extents, shapes: Shapes | None = None) -> Shapes:
    """Shapes of inputs where dimensions have these extents, beside `shapes` that are given anyway.

    What the extents do not settle is left out. Raises UsageError for a name that the model does not
    have, a negative extent, and an extent that a given shape contradicts.
    """
    given = dict(shapes or {})
    found = symbols(model)
    require_dimensions(model, extents)
    for name, extent in extents.items():
        if extent < 0:
            raise UsageError(f"dimension '{name}' cannot be {extent}", "give 0 or more")
        for place in found[name]:
            shape = given.get(place.input)
            if shape is not None and shape[place.axis : place.axis + 1] not in ((), (extent,)):
                raise UsageError(
                    f"dimension '{name}' is {extent}, and {shape[place.axis]} in the shape of "
                    f"input '{place.input}'",
                    "give one of them",
                )
    known = _extents_of(model, given) | dict(extents)
    for value in _inputs(model):
        shape = _shape_at(value, known)
        if value.name not in given and shape is not None:
            given[value.name] = shape
    return given


def extents_at(
    model: ModelProto, lengths: Mapping[str, Length], shapes: Shapes
) -> dict[str, LengthExtents]:
    """Extents of the inputs in `shapes`, their longest, which follow `lengths` by dimension.

    Raises UsageError for a dimension that is an expression of them, and not affine in one.
    """
    known = _extents_of(model, shapes)
    found: dict[str, LengthExtents] = dict(shapes)
    for value in _inputs(model):
        dims = value.type.tensor_type.shape.dim
        if value.name in shapes and len(dims) == len(shapes[value.name]):
            found[value.name] = tuple(
                n if _is_fixed(dim) else _extent(_name(value, axis), n, lengths, known)
                for axis, (dim, n) in enumerate(zip(dims, shapes[value.name], strict=True))
            )
    return found


def _extent(name: str, longest: int, lengths: Mapping[str, Length], known: Extents) -> Extent:
    """The extent of a dimension, which is one of the lengths, follows from one, or from none."""
    if name in lengths:
        return lengths[name]
    bound = {**known, **{n: length.longest for n, length in lengths.items()}}
    bound.pop(name, None)
    steps = {
        n: longest - (_evaluated(name, {**bound, n: length.at(length.most - 1)}) or 0)
        for n, length in lengths.items()
        if length.most > 1 and _evaluated(name, bound) == longest
    }
    moving = [n for n, step in steps.items() if step]
    if not moving:
        return longest
    length = lengths[moving[0]]
    found = Length(length.name, length.most, max(steps[moving[0]], 1))
    found = replace(found, offset=longest - found.longest)
    first = _evaluated(name, {**bound, length.name: length.at(1)})
    if len(moving) > 1 or found.at(1) != first:
        raise UsageError(
            f"dimension '{name}' does not follow from one length alone",
            f"give all but one of its sizes: {arguments(dims=dict.fromkeys(moving, SIZE))}",
        )
    return found


def require_static(
    model: ModelProto, known: Container[str] = (), shapes: Shapes | None = None
) -> None:
    """Raise DynamicShape where inputs have dimensions without a value; it names all of them.

    `known`: names that are given one, beside those that `shapes` say.
    """
    given = shapes or {}
    without = [v for v in _inputs(model) if not v.type.tensor_type.HasField("shape")]
    unranked = [v for v in without if v.name not in given]
    free = {n: p for n, p in free_symbols(model, given).items() if n not in known}
    if not free and not unranked:
        return
    settings: dict[str, Any] = {"dims": dict.fromkeys(free, SIZE)} if free else {}
    settings |= {"shapes": {v.name: (SIZE, SIZE) for v in unranked}} if unranked else {}
    what = [_told(name, places) for name, places in free.items()]
    what += [f"all of '{value.name}'" for value in unranked]
    hint = f"give their sizes: {arguments(**settings)}; or an input that has them: `like=ARRAYS`"
    raise DynamicShape(f"dimensions of the inputs have no value: {', '.join(what)}", hint, settings)


def _told(name: str, places: Iterable[InputDimension]) -> str:
    shown = [str(place) for place in places]
    if len(shown) > _MOST_TOLD:
        shown[_MOST_TOLD:] = [f"{len(shown) - _MOST_TOLD} more"]
    return name if shown == [name] else f"{name} ({', '.join(shown)})"


def input_names(model: ModelProto) -> list[str]:
    """Names of the inputs that are tensors without a value."""
    return [value.name for value in _inputs(model)]


def input_ranks(model: ModelProto) -> dict[str, int]:
    """Number of dimensions of each input."""
    return {v.name: len(v.type.tensor_type.shape.dim) for v in _inputs(model)}


def dimension_names(model: ModelProto) -> dict[str, tuple[str, ...]]:
    """Names of the dimensions of each input that has some, empty for those with an extent."""
    return {
        v.name: tuple("" if _is_fixed(dim) else _name(v, axis) for axis, dim in enumerate(dims))
        for v in _inputs(model)
        if (dims := v.type.tensor_type.shape.dim)
    }


def is_decoder(model: ModelProto) -> bool:
    """Whether names of inputs speak of a state that grows, as exporters call it."""
    names = [name.lower() for name in input_names(model)]
    return any("past" in name or "cache" in name for name in names)


def _inputs(model: ModelProto) -> Iterable[ValueInfoProto]:
    """Tensors that no initialiser gives a value: before IR 4 weights were inputs too."""
    known = {t.name for t in model.graph.initializer}
    return (v for v in model.graph.input if v.name not in known and is_tensor(v))


def is_tensor(value: ValueInfoProto) -> bool:
    """Whether a value is a tensor, and no sequence, optional or map."""
    return value.type.WhichOneof("value") in (None, "tensor_type")


def _is_fixed(dim: TensorShapeProto.Dimension) -> bool:
    """Whether the file says its extent, which may be 0; some exporters write -1 for none."""
    return dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0


def has_row_outputs(model: ModelProto) -> bool:
    """Whether outputs are tensors of which no dimension but the first is open."""
    return all(map(_is_row, model.graph.output))


def _is_row(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    if not is_tensor(value) or not kind.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in kind.shape.dim[1:])


def _name(value: ValueInfoProto, axis: int) -> str:
    name = value.type.tensor_type.shape.dim[axis].dim_param
    return str(InputDimension(value.name, axis)) if name in _UNNAMED else name


def _shape_at(value: ValueInfoProto, extents: Extents) -> tuple[int, ...] | None:
    """The shape of an input of open dimensions, None where some of them are unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or all(map(_is_fixed, tensor.shape.dim)):
        return None
    shape = [
        dim.dim_value if _is_fixed(dim) else _evaluated(_name(value, axis), extents)
        for axis, dim in enumerate(tensor.shape.dim)
    ]
    known = tuple(n for n in shape if n is not None)
    return known if len(known) == len(shape) else None


def _extents_of(model: ModelProto, shapes: Shapes) -> dict[str, int]:
    """Values of symbolic dimensions, from shapes of inputs that do not contradict each other."""
    seen: dict[str, set[int]] = {}
    for value in _inputs(model):
        for axis, extent in enumerate(shapes.get(value.name, ())):
            if axis < len(value.type.tensor_type.shape.dim):
                seen.setdefault(_name(value, axis), set()).add(extent)
    return {name: extents.pop() for name, extents in seen.items() if len(extents) == 1}


def require_dimensions(model: ModelProto, names: Iterable[str]) -> None:
    """Raises UsageError for a name that no open dimension of the inputs has."""
    found = symbols(model)
    name = next((n for n in names if n not in found), None)
    if name is None:
        return
    fixed = {
        str(InputDimension(v.name, a)): d.dim_value for v in _inputs(model) for a, d in _fixed(v)
    }
    known = ", ".join(_told(n, p) for n, p in found.items()) or "none"
    if name in fixed:
        raise UsageError(
            f"dimension '{name}' is {fixed[name]} in the model",
            f"give `shapes` to change it anyway; open dimensions: {known}",
        )
    near = "".join(f"did you mean '{n}'? " for n in get_close_matches(name, found, n=1))
    raise UsageError(f"the model has no dimension '{name}'", f"{near}its open dimensions: {known}")


def _fixed(value: ValueInfoProto) -> Iterable[tuple[int, TensorShapeProto.Dimension]]:
    dims = enumerate(value.type.tensor_type.shape.dim)
    return ((axis, dim) for axis, dim in dims if _is_fixed(dim))


def batches(
    model: ModelProto, known: Collection[str] = (), shapes: Shapes | None = None
) -> tuple[str, ...]:
    """Open dimensions that count independent samples, as far as names and places tell.

    A name with `batch` in it wherever it is; a short one, one that an exporter made up, or none
    where it is the first of its inputs, and where the first of no other input says otherwise.
    `known`, `shapes`: see `require_static`.
    """
    free = {n: p for n, p in free_symbols(model, shapes or {}).items() if n not in known}
    ranks = input_ranks(model)
    named = [name for name in free if _NAMED_BATCH.fullmatch(name.lower())]
    has_named = {place.input for name in named for place in free[name]}
    firsts = {
        n: p
        for n, p in free.items()
        if n not in named and all(x.axis == 0 and x.input not in has_named for x in p)
    }
    made_up = [name for name, places in firsts.items() if _is_made_up(name, places)]
    is_first = (
        bool(made_up)
        and max(ranks.values()) > 1
        and all(_may_be_batch(v, {*made_up, *named, *known}) for v in _inputs(model))
    )
    return tuple(name for name in free if name in named or (is_first and name in made_up))


def _is_made_up(name: str, places: tuple[InputDimension, ...]) -> bool:
    """Whether a name says nothing: that of its place, of a batch, or of an exporter."""
    rest = name.removeprefix(places[0].input)
    return name == str(places[0]) or _MADE_UP.fullmatch(rest.lower()) is not None


def _may_be_batch(value: ValueInfoProto, names: Container[str]) -> bool:
    """Whether the first dimension of an input may be a batch of one; that of a scalar may be."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return False
    dims = tensor.shape.dim
    return not dims or _name(value, 0) in names or (_is_fixed(dims[0]) and dims[0].dim_value == 1)


# --- names that follow from others ------------------------------------------------------------


def _follows(name: str, known: Iterable[str]) -> bool:
    """Whether a name is an expression of other names."""
    others = dict.fromkeys((n for n in known if n != name), 1)
    return _evaluated(name, others) is not None


def _evaluated(name: str, extents: Extents) -> int | None:
    """The extent of a dimension: given by its name, or computed where that is an expression."""
    if name in extents:
        return extents[name]
    try:
        return _value(ast.parse(name.strip(), mode="eval").body, extents)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, extents: Extents) -> int:
    """Raises KeyError for an unknown name, ValueError for other than arithmetic of integers."""
    match node:
        case ast.Name(id=name):
            return extents[name]
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, extents), _value(right, extents))
        case _:
            raise ValueError("no arithmetic of names and integers")
