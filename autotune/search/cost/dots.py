"""⑥ What a dot instruction costs besides itself: the addition that some lack, operands widened."""

from __future__ import annotations

from functools import lru_cache

from autotune.dtypes import holds
from autotune.target import Target
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import Compute
from autotune.te.expr import Reduce
from autotune.te.products import in_order, products

ADDED = 1.5
"""Instructions of a multiply-add whose sum is an instruction of its own: additions have more ports
than products have."""
_WIDENED, _WIDENED_SPLAT = 1, 2
"""Instructions that widen an operand: of a vector while it is loaded, of one group of terms before
it is in all lanes."""


@lru_cache(maxsize=256)
def dot_form(op: Compute, terms: int, target: Target) -> MultiplyAdd | None:
    """The instruction on vectors that adds up `terms` terms of sum `op` at once."""
    pairs = products(op.body.body) if isinstance(op.body, Reduce) else ()
    for form in target.isa.forms if pairs else ():
        fits = form.terms == terms and form.unit is None and form.accumulator == op.tensor.dtype
        if fits and in_order(form, *pairs[0]):
            return form
    return None


def work(op: Compute, form: MultiplyAdd | None) -> float:
    """Instructions for the terms of one dot instruction of `op`."""
    assert isinstance(op.body, Reduce)
    n = len(products(op.body.body))
    return n if form is None or form.accumulates else n * ADDED


def widening(form: MultiplyAdd | None, dtype: str, uses_lanes: bool) -> int:
    """Instructions that make an operand of `form` of what was loaded as `dtype`."""
    if form is None or dtype in form.operands or not any(holds(o, dtype) for o in form.operands):
        return 0
    return _WIDENED if uses_lanes else _WIDENED_SPLAT
