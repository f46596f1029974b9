"""① Tasks of many rows that choose a matrix each become tasks of blocks of rows.

    rows, their choices ─► order (rows of one choice in blocks, how many blocks there are)
    operands ─► blocks ─► task of blocks (`te.chosen_rows`) ─► blocks ─► rows

A matrix is read once for all rows of a block. The number of blocks is a number of the network, as
lengths are that operators write. What one such task makes and another reads stays in blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.graph.operators.definition import inside
from autotune.graph.tasks.joined_groups import JoinedGroups
from autotune.graph.tasks.storage import Activation, unused_name
from autotune.graph.tasks.subgraph import Subgraph
from autotune.strides import dense
from autotune.te.chosen_rows import ROW, ChosenRows, blocked, chosen_rows, numbers_read
from autotune.te.collapse import collapse
from autotune.te.dag import Compute, ComputeDAG, Placeholder, compute
from autotune.te.expr import (
    INDEX,
    Axis,
    Expr,
    Reduce,
    Tensor,
    both,
    compare,
    floordiv,
    idx,
    minimum,
    select,
    substitute,
)

_MOST_IN_BLOCK = 16
"""Rows of a block: with more, more of them are padding."""
_ROWS_PER_CHOICE = 2
"""With fewer on average at the most, a matrix is hardly read more than once."""

_COUNTS = Tensor("count", (1,), INDEX), Tensor("fill", (1,), INDEX)
"""How many blocks there are, and how many rows the fullest has."""


@dataclass(frozen=True)
class GroupedRows:
    """`subgraphs` with those that were put in place of others; `position`: of each that was not."""

    subgraphs: list[Subgraph]
    position: dict[int, int]

    def moved(self, joined: Sequence[JoinedGroups]) -> list[JoinedGroups]:
        """Runs of calls at their new positions."""
        return [replace(j, parts=tuple(self.position[n] for n in j.parts)) for j in joined]


def grouped_rows(
    subgraphs: Sequence[Subgraph],
    values: dict[str, Activation],
    outputs: Collection[str],
    taken: Collection[int] = (),
) -> GroupedRows:
    """The calls of a network with tasks of blocks; `values` gets what they have between them.

    `outputs`: values that the caller reads. `taken`: positions of calls that stay.
    """
    found: list[Subgraph] = []
    position: dict[int, int] = {}
    grouping = _Grouping(values)
    for n, one in enumerate(subgraphs):
        rows = None if n in taken else chosen_rows(one.dag)
        if rows is None or rows.axis.extent < _ROWS_PER_CHOICE * rows.n_choices:
            found += grouping.read(one.inputs.values())
            position[n] = len(found)
            found.append(one)
        else:
            found += grouping.call(one, rows)
    found += grouping.read(outputs)
    return GroupedRows(found, position)


@dataclass(frozen=True)
class _Order:
    """How rows lie in blocks: values of their places, of the row at each place, of the choice of
    each block, of the number of blocks, and of the rows that the fullest has."""

    size: int
    most: int
    place: str
    row: str
    choice: str
    count: str
    fill: str

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Blocks, and places of one, as many as `_COUNTS` say."""
        return self.ending(*_COUNTS)

    def ending(self, count: Tensor, fill: Tensor) -> tuple[Axis, Axis]:
        """The same where other tensors say it."""
        return Axis("block", self.most, count[0]), Axis("place", self.size, fill[0])

    @property
    def counts(self) -> dict[str, str]:
        """The values of `_COUNTS`."""
        return {"count": self.count, "fill": self.fill}


@dataclass
class _Grouping:
    values: dict[str, Activation]
    orders: dict[object, _Order] = field(default_factory=dict)
    blocks: dict[object, str] = field(default_factory=dict)
    """Rows in blocks, by the order and the place of the rows in memory."""
    left: dict[str, Subgraph] = field(default_factory=dict)
    """Calls that copy rows out of blocks, which nothing has read yet, by what owns their memory."""

    def read(self, names: Iterable[str]) -> Iterator[Subgraph]:
        """The copies of rows that are read."""
        for name in names:
            copy = self.left.pop(self.values[name].root, None)
            if copy is not None:
                yield copy

    def call(self, one: Subgraph, rows: ChosenRows) -> Iterator[Subgraph]:
        """The call of blocks in place of one of rows, with what it needs."""
        numbers = {t.name: one.inputs[t.name] for t in numbers_read(rows.axis.limit)}
        told = one.inputs[rows.told]
        key = self._memory(told), rows.axis, rows.choice, tuple(numbers.items())
        if key not in self.orders:
            yield from self.read([told])
            self.orders[key] = self._order(told, rows)
            yield from self._ordering(one, rows, self.orders[key], numbers)
        order = self.orders[key]
        names = {op.name for op in one.dag.ops}
        count, fill = (unused_name(stem, names) for stem in ("count", "fill"))
        ends = order.ending(*(Tensor(n, (1,), INDEX) for n in (count, fill)))
        dag = blocked(one.dag, rows, *ends)
        kept = {p.name for p in dag.placeholders}
        inputs = {n: v for n, v in one.inputs.items() if n in kept}
        inputs |= {rows.told: order.choice, count: order.count, fill: order.fill}
        for name in rows.operands:
            source = self._memory(one.inputs[name])
            if (order, source) not in self.blocks:
                yield from self.read([one.inputs[name]])
                yield self._gathered(one, name, order)
            inputs[name] = self.blocks[order, source]
        own = self._value(f"{one.output}.blocks", dag[one.dag.outputs[0]].tensor)
        self.blocks[order, self._memory(one.output)] = own
        yield replace(one, dag=dag, inputs=inputs, output=own)
        root = self.values[one.output].root
        self.left[root] = self._in_rows(one, rows, order, own, numbers)

    def _memory(self, value: str) -> object:
        """Where a value lies: of views of the same elements one."""
        found = self.values[value]
        return found.root, found.offset

    def _value(self, stem: str, tensor: Tensor) -> str:
        name = unused_name(stem, self.values)
        shape = tensor.shape
        self.values[name] = Activation(name, shape, tensor.dtype, dense(shape))
        return name

    # --- order ---

    def _order(self, told: str, rows: ChosenRows) -> _Order:
        n = rows.axis.extent
        size = 2
        while size < min(_MOST_IN_BLOCK, n // rows.n_choices):
            size *= 2
        most = min(n, (n + rows.n_choices * (size - 1)) // size)

        def value(stem: str, *shape: int) -> str:
            return self._value(f"{told}.{stem}", Tensor(stem, shape, INDEX))

        return _Order(
            size,
            most,
            value("place", n),
            value("row", most, size),
            value("choice", most),
            value("blocks", 1),
            value("fill", 1),
        )

    def _ordering(
        self, one: Subgraph, rows: ChosenRows, order: _Order, numbers: Mapping[str, str]
    ) -> Iterator[Subgraph]:
        """The calls that put rows in order: rows of a choice stay in their order."""
        told = one.dag[rows.told].tensor
        tensors = (told, *numbers_read(rows.axis.limit))
        given = {rows.told: one.inputs[rows.told], **numbers}
        counts = self._value(f"{order.count}.rows", Tensor("rows", (rows.n_choices,), INDEX))
        firsts = self._value(f"{order.count}.firsts", Tensor("firsts", (rows.n_choices,), INDEX))
        yield _call([_counts(rows)], tensors, given, counts)
        yield from _sizes(rows.n_choices, order, counts, firsts)
        rank = self._value(f"{order.place}.rank", Tensor("rank", (rows.axis.extent,), INDEX))
        yield from _places(rows, order, tensors, given, (rank, firsts))

    # --- rows and blocks ---

    def _gathered(self, one: Subgraph, name: str, order: _Order) -> Subgraph:
        """The call that copies rows into blocks."""
        x = one.dag[name].tensor
        row = Tensor("row", (order.most, order.size), INDEX)
        axes = [*order.axes, *_others(x)]
        element = x[(inside(row[axes[0], axes[1]], x.shape[0]), *axes[2:])]
        result = compute("blocks", axes, element)
        value = self._value(f"{one.inputs[name]}.blocks", result.tensor)
        self.blocks[order, self._memory(one.inputs[name])] = value
        known = {**order.counts, "row": order.row, name: one.inputs[name]}
        return _call([result], [*_COUNTS, row, x], known, value)

    def _in_rows(
        self,
        one: Subgraph,
        rows: ChosenRows,
        order: _Order,
        blocks: str,
        numbers: Mapping[str, str],
    ) -> Subgraph:
        """The call that copies rows out of blocks."""
        result = one.dag[one.dag.outputs[0]].tensor
        n_places = order.most * order.size
        x = Tensor("blocks", (n_places, *result.shape[1:]), result.dtype)
        place = Tensor("place", (rows.axis.extent,), INDEX)
        axes = [rows.axis, *_others(x)]
        element = x[(inside(place[axes[0]], n_places), *axes[1:])]
        read = [place, x, *numbers_read(rows.axis.limit)]
        known = {"place": order.place, "blocks": blocks, **numbers}
        return _call([compute("rows", axes, element)], read, known, one.output)


def _counts(rows: ChosenRows) -> Compute:
    """How many rows there are of each choice."""
    r, i = Axis("r", rows.axis.extent), Axis("i", rows.n_choices)
    is_of = compare("eq", substitute(rows.choice, {ROW: r.var}), i.var)
    return compute("rows", (i,), _counted(_below(rows.axis.limit, r, is_of), r))


def _sizes(n_choices: int, order: _Order, counts: str, firsts: str) -> Iterator[Subgraph]:
    """The first block of each choice, how many blocks there are, the rows that the fullest has, and
    the choice of each block: the last whose first one is not behind it."""
    i, j, single = Axis("i", n_choices), Axis("j", n_choices), Axis("one", 1)
    rows, known = Tensor("rows", (n_choices,), INDEX), {"rows": counts}
    size = _over(rows[j], order.size)
    before = Reduce("sum", select(compare("lt", j.var, i.var), size, idx(0)), (j,))
    yield _call([compute("firsts", (i,), before)], [rows], known, firsts)
    total = compute("count", (single,), Reduce("sum", size, (j,)))
    yield _call([total], [rows], known, order.count)
    most = compute("most", (single,), Reduce("max", rows[j], (j,)))
    fill = compute("fill", (single,), minimum(most.tensor[single], idx(order.size)))
    yield _call([most, fill], [rows], known, order.fill)
    first = Tensor("firsts", (n_choices,), INDEX)
    q, _ = order.axes
    is_before = both(compare("gt", i.var, idx(0)), compare("le", first[i], q.var))
    choice = compute("choice", (q,), _counted(is_before, i))
    known = {**order.counts, "firsts": firsts}
    yield _call([choice], [*_COUNTS, first], known, order.choice)


def _places(
    rows: ChosenRows,
    order: _Order,
    tensors: Sequence[Tensor],
    given: Mapping[str, str],
    values: tuple[str, str],
) -> Iterator[Subgraph]:
    """The place of each row, and the row at each place; `values`: of ranks and first blocks."""
    n, limit = rows.axis.extent, rows.axis.limit
    s, r = rows.axis, Axis("r", n)
    of = {v.name: substitute(rows.choice, {ROW: v.var}) for v in (s, r)}
    is_same = both(compare("lt", r.var, s.var), compare("eq", of["r"], of[ROW]))
    yield _call([compute("rank", (s,), _counted(is_same, r))], tensors, given, values[0])
    rank, first = Tensor("rank", (n,), INDEX), Tensor("firsts", (rows.n_choices,), INDEX)
    place = compute("place", (s,), first[of[ROW]] * order.size + rank[s])
    known = {**given, "rank": values[0], "firsts": values[1]}
    yield _call([place], [rank, first, *tensors], known, order.place)
    places, (q, p) = Tensor("place", (n,), INDEX), order.axes
    is_at = compare("eq", places[r], q.var * order.size + p.var)
    row = Reduce("sum", select(_below(limit, r, is_at), r.var, idx(0)), (r,))
    known = {**given, **order.counts, "place": order.place}
    yield _call([compute("row", (q, p), row)], [places, *_COUNTS, *tensors], known, order.row)


def _over(n: Expr, size: int) -> Expr:
    """The quotient, rounded up."""
    return floordiv(n + (size - 1), idx(size))


def _others(x: Tensor) -> list[Axis]:
    return [Axis(f"c{n}", extent) for n, extent in enumerate(x.shape[1:])]


def _below(limit: Expr | None, axis: Axis, cond: Expr) -> Expr:
    """Whether `cond` holds of a row that counts."""
    return cond if limit is None else both(compare("lt", axis.var, limit), cond)


def _counted(cond: Expr, axis: Axis) -> Expr:
    return Reduce("sum", select(cond, idx(1), idx(0)), (axis,))


def _call(
    ops: Sequence[Compute], read: Sequence[Tensor], inputs: Mapping[str, str], output: str
) -> Subgraph:
    used = {x.tensor.name for op in ops for x in op.reads}
    placeholders = [Placeholder(t) for t in read if t.name in used]
    dag = collapse(ComputeDAG((*placeholders, *ops), (ops[-1].name,)))
    known = {n: v for n, v in inputs.items() if n in used}
    return Subgraph(dag, known, {}, output, "Rows")
