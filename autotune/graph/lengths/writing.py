"""① Which lengths the operators of a model write, and which nodes take some of one.

    written_in(bound, dims) ─► Written: {"nonzero": 8400}, …

The model is read twice with other numbers: what then differs follows one. A Slice or TopK whose
operand follows one and whose result does not takes at most so many of it, and makes another length,
so the model is read again, until no more are found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from onnx import ModelProto, NodeProto

from autotune.errors import ModelError, NotCompilable
from autotune.extent import Extents, Length, at
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.imports import Written
from autotune.graph.network import named
from autotune.graph.operators.top_k import is_long
from autotune.graph.operators.writers import WRITERS
from autotune.graph.reader.importer import import_graph
from autotune.graph.written import WrittenLengths

_FAR = ((99_991, 100_003), (4_999, 5_003))
"""Numbers from which lengths are counted: more than any part of one that is taken; the smaller ones
where constants of that size are too large."""
_MOST_READS = 12


def written_in(bound: BoundModel, dims: Mapping[str, Extents]) -> Written | None:
    """The lengths that operators write; None where none can. Raises ModelError."""
    numbers = {e.name: e.most for shape in dims.values() for e in shape if isinstance(e, Length)}
    shapes = {name: at(extents, numbers) for name, extents in dims.items()}
    if not may_write(named(partial(bound.load, shapes)).proto):
        return None
    try:
        return _written(bound, shapes, _FAR[0])
    except NotCompilable:
        raise
    except ModelError:
        return _written(bound, shapes, _FAR[1])


def _written(
    bound: BoundModel, shapes: Mapping[str, tuple[int, ...]], far: tuple[int, int]
) -> Written | None:
    shortened: dict[str, int] = {}
    fixed: set[str] = set()
    for _ in range(_MOST_READS):
        one, other = (_read(bound, shapes, first, shortened, fixed) for first in far)
        more = dict(_shorter(one, other))
        same = {n for n, size in one.asked.items() if size == other.asked.get(n)}
        if more.keys() <= shortened.keys() and same <= fixed:
            break
        is_other = not more.keys() <= shortened.keys()  # a number may then be a length
        shortened |= more
        fixed = set() if is_other else fixed | same
    found = _at_mosts(bound, shapes, shortened, fixed)
    long = {name for name, (axis, whole, _) in found.looks.items() if is_long(whole[axis])}
    if long:
        found = _at_mosts(bound, shapes, shortened, fixed, long)
    return Written(found.mosts, found.tensors, shortened, fixed, long) if found.tensors else None


def _at_mosts(
    bound: BoundModel, shapes: Mapping[str, tuple[int, ...]], *known: Any
) -> WrittenLengths:
    """The lengths of the model, each at its most."""
    found = WrittenLengths(lambda name, most: most, *known)
    model = named(partial(bound.load, shapes))
    named(partial(import_graph, model, bound.operators, found))
    return found


def may_write(model: ModelProto) -> bool:
    """Whether some node of the model is of such an operator."""
    bodies = (model.graph.node, *(function.node for function in model.functions))
    return any(op in WRITERS for nodes in bodies for op in _operators(nodes))


def _operators(nodes: Iterable[NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield node.op_type
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _operators(body.node)


def _read(
    bound: BoundModel,
    shapes: Mapping[str, tuple[int, ...]],
    first: int,
    shortened: Mapping[str, int],
    fixed: Collection[str],
) -> WrittenLengths:
    """The lengths of the model with numbers from `first` on."""
    numbers, free = dict[str, int](), count(first, 7)

    def number(name: str, most: int) -> int:
        return numbers.setdefault(name, next(free))

    found = WrittenLengths(number, shortened, fixed)
    model = named(partial(bound.load, shapes))
    named(partial(import_graph, model, bound.operators, found))
    return found


def _shorter(one: WrittenLengths, other: WrittenLengths) -> Iterator[tuple[str, int]]:
    """Nodes that take at most so many of a length."""
    for name, (axis, before, after) in one.looks.items():
        if name not in other.looks:
            continue
        _, before_too, after_too = other.looks[name]
        if before[axis] != before_too[axis] and after[axis] == after_too[axis]:
            yield name, after[axis]
