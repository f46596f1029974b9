"""⑥ Sizes of register tiles that are matrices in registers of a unit (AMX).

Eight registers hold up to six matrices of 16 × 16 sums and two operands: 2 × 2, 1 × 4, 2 × 3, …
"""

from __future__ import annotations

from autotune.schedule.steps import CacheTerms
from autotune.search.partial import Partial
from autotune.target import Target
from autotune.target.isa import TileUnit
from autotune.te.dag import Compute
from autotune.te.products import Matrices, as_matrices

_OPERANDS = 2
"""Registers that products take at least."""
_LEAST_ROWS = 4
"""Rows of a matrix, where there are as many: an instruction takes as long as it has rows."""


def most_sums(m: Matrices) -> int:
    """Matrices of sums that registers hold beside operands."""
    return _unit(m).n_registers - _OPERANDS


def row_domain(extent: int, m: Matrices) -> tuple[int, ...]:
    """Rows of a matrix: divisors of `extent`, and as many as a register has."""
    most = min(_unit(m).rows, extent)
    least = min(_LEAST_ROWS, most)
    return tuple(r for r in range(least, most + 1) if extent % r == 0 or r == most)


def matrix_domain(extent: int, m: Matrices, is_row: bool) -> tuple[int, ...]:
    """Sizes of a register tile along an axis: of one to six matrices of the same rows."""
    counts = range(1, most_sums(m) + 1)
    if not is_row:
        return tuple(n for n in counts if n <= extent)
    sizes = {n * r for n in counts for r in row_domain(extent, m)}
    return tuple(sorted(s for s in sizes if s <= extent))


def terms_together(
    p: Partial, anchor: Compute, m: Matrices, target: Target
) -> tuple[Partial, Compute, Matrices, str]:
    """`anchor` with a copy of its second factor in the order of matrices, and that stage."""
    ((_, b),) = m.factors
    name = f"{anchor.name}.{b.tensor.name}.terms"
    out = p.add(CacheTerms(b.tensor.name, anchor.name, name, m.form.terms))
    changed = out.state[anchor.name].op
    found = as_matrices(changed, target.isa.forms)
    assert found is not None
    return out, changed, found, name


def _unit(m: Matrices) -> TileUnit:
    assert m.form.unit is not None
    return m.form.unit
