"""③ The matrices of minimal filtering, and a matrix times a vector as the body of a computation.

    y[h] = Σ_kh x[h + kh]·w[kh]        h < m, kh < r

needs α = m + r - 1 inputs. Toom and Cook: evaluate both factors at α points, multiply point by
point, interpolate. As matrices (S. Winograd, 1980; A. Lavin, S. Gray, 2016):

    y = Aᵀ [(G w) ⊙ (Bᵀ x)]

so r·m products become α. With a stride s the phases of x and w, each of them filtered so, add up:

    y[h] = Σ_kh x[s·h + kh]·w[kh] = Σ_{q < s} Σ_k x[s·(h + k) + q]·w[s·k + q]

A phase with a single tap takes m products. F(4, 3) needs 6 products instead of 12 with unit stride,
and with a stride of two 5 + 4.

The points are 0, ±1, ±2, ±1/2, … and ∞: the fewer and the nearer to 1, the smaller the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from math import lcm, prod

from autotune.errors import ScheduleError
from autotune.te.expr import Expr, add, compare, f32, idx, mul, select, sub

Matrix = tuple[tuple[Fraction, ...], ...]
_POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "4", "-4")))


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(m, r) with stride s: `inverse` [m, α], `data` [α, s·(m - 1) + r] and `weight` [α, r] are
    Aᵀ, Bᵀ and G. `watched`: points that together depend on all data, and on data that are equal."""

    inverse: Matrix
    data: Matrix
    weight: Matrix
    watched: tuple[int, ...]


def filtering(m: int, r: int, stride: int = 1) -> Filtering:
    """The matrices of F(m, r), those of its phases below one another where `stride` is not 1.

    Raises ScheduleError when there are too few points.
    """
    phases = [_phase(m, -(-(r - q) // stride)) for q in range(stride)]
    inverse = tuple(sum((f.inverse[k] for f in phases), ()) for k in range(m))
    data = _spread([f.data for f in phases], stride * (m - 1) + r)
    first = [0, *accumulate(len(f.data) for f in phases)]
    watched = tuple(n + k for n, f in zip(first, phases, strict=False) for k in f.watched)
    return Filtering(inverse, data, _spread([f.weight for f in phases], r), watched)


def _spread(phases: list[Matrix], width: int) -> Matrix:
    """Rows of all phases; column k of phase q out of s is column s·k + q."""
    out: list[list[Fraction]] = []
    for q, matrix in enumerate(phases):
        for row in matrix:
            out.append([Fraction(0)] * width)
            out[-1][q :: len(phases)] = row
    return _matrix(out)


def _phase(m: int, r: int) -> Filtering:
    if r == 1:
        same = _matrix([[Fraction(k == n) for k in range(m)] for n in range(m)])
        return Filtering(same, same, ((Fraction(1),),) * m, tuple(range(m)))
    return _unit_stride(m, r)


def _unit_stride(m: int, r: int) -> Filtering:
    """Toom and Cook's matrices, Bᵀ in integers where the points allow.

    Watched are 0, 1 and ∞: each datum has a coefficient in the row of 0 or in that of ∞, but where
    all data are equal, all rows vanish except that of 1.
    """
    n = m + r - 2
    if n > len(_POINTS) or min(m, r) < 2:
        raise ScheduleError(f"there is no minimal filtering F({m}, {r})")
    points = _POINTS[:n]
    inverse = [[p**k for p in points] + [Fraction(k == m - 1)] for k in range(m)]
    # G scales row i by 1/Π(aᵢ - aⱼ); Bᵀ holds the coefficients of Π_{j≠i}(x - aⱼ)
    scale = [prod((a - b for b in points if b != a), start=Fraction(1)) for a in points]
    weight = [[p**k / s for k in range(r)] for p, s in zip(points, scale, strict=True)]
    weight.append([Fraction(k == r - 1) for k in range(r)])
    data = [[*_polynomial([b for b in points if b != a]), Fraction(0)] for a in points]
    data.append(_polynomial(list(points)))
    for i in range(n):  # integers in Bᵀ: move the factors into G
        unit = lcm(*(c.denominator for c in data[i]))
        data[i] = [c * unit for c in data[i]]
        weight[i] = [c / unit for c in weight[i]]
    return Filtering(_matrix(inverse), _matrix(data), _matrix(weight), (0, 1, n))


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of Π(x - root), lowest first."""
    out = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *out]
        out = [s - root * c for s, c in zip(shifted, [*out, Fraction(0)], strict=True)]
    return out


def _matrix(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)


# --- a matrix times a vector, as the body of a computation ------------------------------------


def combine(matrix: Matrix, row: Expr, value: Callable[[int], Expr]) -> Expr:
    """Element `row` of `matrix`·x, where `value(k)` is x[k]: a choice among written-out sums.

    Rows and columns of a minimal filtering come in pairs that differ in signs only. Their sums are
    written so that the common parts of a pair are equal expressions, to be computed once.
    """
    rows = [_row(matrix, n, value) for n in range(len(matrix))]
    return reduce(
        lambda rest, n: select(compare("eq", row, idx(n)), rows[n], rest),
        range(len(rows) - 2, -1, -1),
        rows[-1],
    )


def _row(matrix: Matrix, n: int, value: Callable[[int], Expr]) -> Expr:
    partner = _partner(matrix, n)
    if partner is not None:
        same = [k for k, c in enumerate(matrix[n]) if c and c == matrix[partner][k]]
        other = [k for k, c in enumerate(matrix[n]) if c and c != matrix[partner][k]]
        if same and other:
            first = matrix[min(n, partner)]
            parts = (_terms(first, same, value), _terms(first, other, value))
            return add(*parts) if n < partner else sub(*parts)
    return _paired_sum(matrix, n, value)


def _partner(matrix: Matrix, n: int) -> int | None:
    """The row that differs from row `n` in signs alone."""
    size = [abs(c) for c in matrix[n]]
    same = (k for k, row in enumerate(matrix) if k != n and [abs(c) for c in row] == size)
    return next(same, None)


def _paired_sum(matrix: Matrix, n: int, value: Callable[[int], Expr]) -> Expr:
    """Row `n` as a sum in which columns that are alike but for signs are added up first."""
    columns: Matrix = tuple(zip(*matrix, strict=True))
    todo = [k for k, c in enumerate(matrix[n]) if c]
    terms: list[tuple[Fraction, Expr]] = []
    while todo:
        k = todo.pop(0)
        c, partner = matrix[n][k], _partner(columns, k)
        if partner not in todo:
            terms.append((c, value(k)))
            continue
        todo.remove(partner)
        join = add if matrix[n][partner] == c else sub
        terms.append((c, join(value(k), value(partner))))
    return _weighted(terms)


def _terms(row: Sequence[Fraction], columns: Sequence[int], value: Callable[[int], Expr]) -> Expr:
    return _weighted([(row[k], value(k)) for k in columns])


def _weighted(terms: list[tuple[Fraction, Expr]]) -> Expr:
    """Σ c·x, one multiply-add for each c that is not 1, starting from one that is."""
    ordered = sorted(terms, key=lambda t: t[0] != 1)
    total: Expr | None = None
    for c, x in ordered:
        if total is None:
            total = x if c == 1 else mul(f32(float(c)), x)
        elif c == 1:
            total = add(total, x)
        elif c == -1:
            total = sub(total, x)
        else:
            total = add(mul(f32(float(c)), x), total)
    assert total is not None
    return total
