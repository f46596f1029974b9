"""② Rows that choose a matrix each -> blocks of rows that have one in common.

    y[s<n, c] = Σ x[s, k] · W[e[s], k, c]
    ->  y[q<n, j, c] = Σ x[q, j, k] · W[e[q], k, c]        row j of block q

Rows are sorted by what they choose, and each block is filled from the rows of one choice. Whatever
a task computes of each row by itself, it computes of a row of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder
from autotune.te.expr import (
    Axis,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    children,
    loads,
    map_expr,
    substitute,
    variables,
)
from autotune.te.numbers import is_number

ROW = "s"


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """A task of rows that choose: `choice`, of the row `ROW`, is below `n_choices`.

    `axis`: that of rows, with their limit. `operands`: placeholders with a row for each of them.
    `told`: that which the choice is read from.
    """

    axis: Axis
    choice: Expr
    n_choices: int
    told: str
    operands: tuple[str, ...]


def chosen_rows(dag: ComputeDAG) -> ChosenRows | None:
    """The rows of a task, if it computes each by itself and of one matrix of several; else None."""
    first = dag.computes[0].axes[:1]
    if not first or len(dag.outputs) != 1:
        return None
    axis = replace(first[0], name=ROW)
    choices: dict[Expr, int] = {}
    operands: dict[str, None] = {}
    is_product = False
    for op in dag.computes:
        if not op.axes or (op.axes[0].extent, op.axes[0].limit) != (axis.extent, axis.limit):
            return None
        row = op.axes[0].var
        for e in _along(op.body, row):
            if not isinstance(e, Load) or any(row.name in variables(i) for i in e.indices[1:]):
                return None
            if e.indices[0] == row:
                operands[e.tensor.name] = None
            else:
                choices[substitute(e.indices[0], {row.name: Var(ROW)})] = e.tensor.shape[0]
                is_product = is_product or isinstance(op.body, Reduce)
    if len(choices) != 1 or not is_product:
        return None
    ((choice, n_choices),) = choices.items()
    told = {(x.tensor.name, x.indices) for x in loads(choice)}
    if len(told) != 1:
        return None
    ((name, indices),) = told
    if indices != (Var(ROW),) or name in operands or not isinstance(dag[name], Placeholder):
        return None
    own = tuple(p.name for p in dag.placeholders if p.name in operands)
    return ChosenRows(axis, choice, n_choices, name, own)


def _along(body: Expr, row: Var) -> Iterator[Expr]:
    """The variable of rows where it is no index, and what is read by an index that it is in."""
    todo = [body]
    while todo:
        e = todo.pop()
        if isinstance(e, Load) or e == row:
            yield from [e] if row.name in variables(e) else []
        else:
            todo += children(e)


def blocked(dag: ComputeDAG, rows: ChosenRows, blocks: Axis, places: Axis) -> ComputeDAG:
    """The task of at most so many `blocks` of so many `places`, whose limits follow numbers.

    The placeholder `rows.told` has the choice of each block, and `rows.operands` rows of blocks.
    """
    counts = [Placeholder(t) for a in (blocks, places) for t in numbers_read(a.limit)]
    axes, most, size = (blocks, places), blocks.extent, places.extent
    tensors: dict[str, Tensor] = {}
    for op in dag.ops:
        if op.name == rows.told:
            tensors[op.name] = replace(op.tensor, shape=(most,))
        elif isinstance(op, Compute) or op.name in rows.operands:
            shape = (most, size, *op.tensor.shape[1:])
            tensors[op.name] = replace(op.tensor, shape=shape)
    own = tensors[rows.told][axes[0]]
    ops: list[Op] = []
    for op in dag.ops:
        tensor = tensors.get(op.name, op.tensor)
        if isinstance(op, Placeholder):
            ops.append(replace(op, tensor=tensor))
            continue
        choice = substitute(rows.choice, {ROW: op.axes[0].var})
        body = map_expr(op.body, partial(_of_blocks, choice, own, op.axes[0].var, tensors, axes))
        ops.append(Compute(tensor, (*axes, *op.axes[1:]), body))
    used = {x.tensor.name for op in ops if isinstance(op, Compute) for x in op.reads}
    kept = [op for op in ops if isinstance(op, Compute) or op.name in used]
    return ComputeDAG((*kept[:1], *counts, *kept[1:]), dag.outputs)


def _of_blocks(
    choice: Expr,
    own: Expr,
    row: Var,
    tensors: dict[str, Tensor],
    axes: tuple[Axis, Axis],
    e: Expr,
) -> Expr | None:
    if e == choice:
        return own
    if not isinstance(e, Load) or e.indices[:1] != (row,):
        return None
    return Load(tensors[e.tensor.name], (axes[0].var, axes[1].var, *e.indices[1:]))


def numbers_read(limit: Expr | None) -> tuple[Tensor, ...]:
    """The numbers that a limit follows."""
    found = [] if limit is None else [x for x in loads(limit) if is_number(x)]
    return tuple(dict.fromkeys(x.tensor for x in found))
