"""① Views of views that shift each row by its number read one tensor, with moving places.

    Slice(Reshape(Slice(Reshape(x, t × 2t -> 2t × t), from row 1), -> t × 2t - 1), t columns)
      ->  Oblique(x):  y[i, j] = x[i, j - i + t]

Relative positions of attention are shifted in this way (Transformer-XL, Conformer). The views join
dimensions in another order than they lie in memory, which no number of rows could follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from autotune.graph.rewriter import Rewriter, Rule
from autotune.te.arith import Linear, Ranges, linear, offset
from autotune.te.expr import Expr, Var, add, floordiv, idx, mod, mul

_MOST_VIEWS = 6


def _oblique(rw: Rewriter) -> None:
    """Slice of Reshapes and Slices with places that are sums of several axes -> Oblique."""
    shape = rw.type.shape
    extents = {f"i{n}": extent for n, extent in enumerate(shape)}
    ranges = {name: (0, extent - 1) for name, extent in extents.items()}
    at: list[Expr] = [*map(Var, extents)]
    node = rw.node
    for _ in range(_MOST_VIEWS):
        source = node.inputs[0]
        if node.op == "Slice":
            steps = zip(at, node.attrs["steps"], node.attrs["starts"], strict=True)
            at = [add(mul(i, idx(step)), idx(start)) for i, step, start in steps]
        else:
            at = _rejoined(at, rw.types[node.output].shape, rw.types[source].shape, ranges)
        forms = [linear(i, ranges) for i in at]
        is_plain = all(isinstance(x, Var) for form in forms for x, _ in form.terms)
        if is_plain and any(_overlaps(form, extents) for form in forms):
            rows = tuple(tuple(dict(_named(f)).get(n, 0) for n in extents) for f in forms)
            starts = tuple(form.const for form in forms)
            rw.result("Oblique", source, rows=rows, starts=starts)
            return
        before = rw.maker(source, "Slice", "Reshape")
        if before is None:
            return
        node = before


def _named(form: Linear) -> list[tuple[str, int]]:
    return [(x.name, c) for x, c in form.terms if isinstance(x, Var)]


def _rejoined(
    at: Sequence[Expr], shape: Sequence[int], source: Sequence[int], ranges: Ranges
) -> list[Expr]:
    """Indices into `shape` as those of the same element in the shape `source`."""
    strides = [prod(shape[n + 1 :]) for n in range(len(shape))]
    flat, found = offset(at, strides).expr, []
    for n, extent in enumerate(source):
        inner = prod(source[n + 1 :])
        digit = floordiv(flat, idx(inner))
        found.append(linear(mod(digit, idx(extent)) if n else digit, ranges).expr)
    return found


def _overlaps(form: Linear, extents: dict[str, int]) -> bool:
    """Whether several values of its axes are the same place, as of no dimension that was joined."""
    sizes = sorted((abs(c), extents[name]) for name, c in _named(form) if extents[name] > 1)
    return any(small * extent > large for (small, extent), (large, _) in pairwise(sizes))


OBLIQUE = Rule("oblique", _oblique, {"Slice"})
