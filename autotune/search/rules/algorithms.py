"""⑥ First steps of a sketch: the computation as defined, or rewritten into an equal one."""

from __future__ import annotations

import contextlib
import math

from autotune.dtypes import DTYPES
from autotune.errors import ScheduleError
from autotune.loopir.guarding import MAX_DATA
from autotune.schedule.narrow_products import product
from autotune.schedule.rewriting import flat_taps
from autotune.schedule.steps import FlatTaps, NarrowProducts, Parts, WholeTerms, Winograd
from autotune.schedule.winograd import Convolution, convolution
from autotune.search.partial import Partial, begin
from autotune.search.rules.rows import terms_fill_lanes
from autotune.search.space import Tag
from autotune.target import Target
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Axis, Load, Reduce, Select, walk
from autotune.te.prefixes import prefixes
from autotune.te.products import as_matrices, forms_of, products_of
from autotune.te.ragged import ragged_axes
from autotune.te.roundoff import roundoff
from autotune.te.whole_numbers import whole_sums
from autotune.te.windows import reuses

MAX_POINTS = 6
"""Most evaluation points along one axis: F(6, 3), with 8, loses another decimal digit."""
_LEAST_TERMS = 16
"""Of fewer, zeros would be too many."""
_ENOUGH = 2 / 3
"""Groups of terms in a register, of as many as could be there, that need no zeros."""
MIN_CHANNELS = 8
"""With fewer channels to sum over, transforming the data costs more than it saves; so it does for
a single channel of results."""

N_PRODUCTS = 3
"""Of bfloat16, in place of one of float32: six are more exact than float32, and twice as many."""
_WINOGRAD = {2: Tag.WINOGRAD2, 4: Tag.WINOGRAD4}
MANY_TERMS = 2048
"""Terms of a reduction that may be cut into parts, so that they run side by side."""
TOO_MANY_TERMS = 1 << 13
"""Terms that are not added up one after the other: rounding errors grow with their number."""
PLACES_OF_A_PART = 256
"""Least places of a state that a part of a product sums over."""
MOST_RESULTS_IN_PARTS = 1 << 12
"""Results of a product over a state, such as of all heads of a token: more are enough by far."""
FEW_RESULTS = 1024
"""With more results than these, vectors of them are enough to run side by side."""


def algorithms(dag: ComputeDAG, target: Target) -> list[Partial]:
    """The definition, and its rewrites: minimal filtering, products of narrower
    parts; long reductions are in parts. Where sums have to be integers, nothing that rounds."""
    narrow = _narrow_products(dag) if narrow_products_pay(target) else []
    return [
        *_in_order_or_parts(dag, target),
        *_minimal_filtering(dag),
        *_whole_terms(dag, target),
        *_flat_taps(dag, target),
        *narrow,
    ]


def _in_order_or_parts(dag: ComputeDAG, target: Target) -> list[Partial]:
    long = {op: n for op in dag.computes if (n := n_parts(op, target)) > 1}
    if not long:
        over_state = {op: n for op in dag.computes if (n := n_parts_of_state(op)) > 1}
        steps = (Parts(op.name, n, f"{op.name}.parts") for op, n in over_state.items())
        parts = [begin(dag).add(*steps, tags=(Tag.SPLIT_K,))] if over_state else []
        return [begin(dag), *parts]
    steps = (Parts(op.name, n, f"{op.name}.parts") for op, n in long.items())
    in_parts = begin(dag).add(*steps, tags=(Tag.SPLIT_K,))
    return [in_parts] if any(_rounds(op, target) for op in long) else [begin(dag), in_parts]


def n_parts(op: Compute, target: Target) -> int:
    """Split-K factor of a reduction with many terms and few results, 1: none.

    About as many as each then has terms, which is when both sums round least. Where terms fill
    vectors, every result can run by itself, and a part is a number of whole rows of terms.
    """
    if not op.reduce_axes or ragged_axes(op) or reuses(op):
        return 1
    n_terms, n_results = _count(op.reduce_axes), _count(op.axes)
    in_lanes = _runs_in_lanes(op, target)
    if n_terms < MANY_TERMS or n_results > (target.lanes if in_lanes else FEW_RESULTS):
        return 1
    if in_lanes and len(op.reduce_axes) == 1:
        return 1
    extent = op.reduce_axes[0].extent
    divisors = (n for n in range(1, extent + 1) if extent % n == 0)
    return min(divisors, key=lambda n: abs(math.log(n * n / n_terms)))


def n_parts_of_state(op: Compute) -> int:
    """Split-K factor of a product with few results over the filled places of a state, 1: none.

    A token has as many results as its heads have channels: fewer rows and vectors of them than
    there may be threads, or a number that these do not divide.
    """
    body = op.body.body if isinstance(op.body, Reduce) else None
    is_over_state = body is not None and any(
        prefixes(e.cond) for e in walk(body) if isinstance(e, Select)
    )
    if not is_over_state or not reuses(op) or len(op.reduce_axes) != 1 or ragged_axes(op):
        return 1
    extent = op.reduce_axes[0].extent
    most = extent // PLACES_OF_A_PART if _count(op.axes) <= MOST_RESULTS_IN_PARTS else 1
    return max((n for n in range(1, most + 1) if extent % n == 0), default=1)


def _runs_in_lanes(op: Compute, target: Target) -> bool:
    """Whether a rule fills vectors with the terms of each result; a single number has no rule."""
    return bool(op.axes) and terms_fill_lanes(op, target)


def _count(axes: tuple[Axis, ...]) -> int:
    return math.prod(a.extent for a in axes)


def _rounds(op: Compute, target: Target) -> bool:
    """Whether too many terms would be added up one after the other."""
    return _count(op.reduce_axes) >= TOO_MANY_TERMS and not _runs_in_lanes(op, target)


def _whole_terms(dag: ComputeDAG, target: Target) -> list[Partial]:
    """All sums of products of data whose terms are no groups of an instruction, with zeros."""
    found = {op: n for op in dag.computes if (n := whole_extent(dag, op, target))}
    steps = (WholeTerms(op.name, n) for op, n in found.items())
    return [begin(dag).add(*steps, tags=(Tag.WHOLE_TERMS,))] if found else []


def _flat_taps(dag: ComputeDAG, target: Target) -> list[Partial]:
    """Sums over windows of few channels, by matrices of as many terms as a row of a window has."""
    found = (op for op in dag.computes if _flat_form(dag, op, target.isa.forms))
    return [begin(dag).add(FlatTaps(op.name), tags=(Tag.FLAT_TAPS,)) for op in found]


def _flat_form(dag: ComputeDAG, op: Compute, forms: tuple[MultiplyAdd, ...]) -> MultiplyAdd | None:
    """The form on matrices that sum `op` has with its taps in one axis, and has not as defined."""
    units = tuple(f for f in forms_of(products_of(op), op.tensor.dtype, forms) if f.unit)
    if not units or as_matrices(op, units):
        return None
    with contextlib.suppress(ScheduleError):
        changed = flat_taps(dag, FlatTaps(op.name))[op.name]
        found = as_matrices(changed, units) if isinstance(changed, Compute) else None
        return found.form if found else None
    return None


def rearranged_forms(
    dag: ComputeDAG, op: Compute, forms: tuple[MultiplyAdd, ...]
) -> tuple[MultiplyAdd, ...]:
    """The `forms` that add up several terms of `op` where these are in another order, or have zeros
    behind them."""
    flat = _flat_form(dag, op, forms)
    return (*_forms_of_data(dag, op, forms), *([flat] if flat else []))


def whole_extent(dag: ComputeDAG, op: Compute, target: Target) -> int:
    """Terms of a sum of products of data, with zeros, that instructions take in groups.

    0 where they are such groups, are few, or no instruction adds up several. Matrices have the
    fewest groups of which as many fill the rows of a register as of any extent.
    """
    forms = _forms_of_data(dag, op, target.isa.forms)
    if not forms:
        return 0
    n_terms = op.reduce_axes[-1].extent
    form = max(forms, key=lambda f: f.flops(target.vector_bits))
    n_groups, most = -(-n_terms // form.terms), form.unit.rows if form.unit else 1
    n_steps = -(-n_groups // most)
    least = -(-n_groups // n_steps)
    divisors = (g for g in range(1, most + 1) if n_groups % g == 0)
    is_whole = n_terms % form.terms == 0 and max(divisors) >= _ENOUGH * least
    return 0 if is_whole else form.terms * n_steps * least


def _forms_of_data(
    dag: ComputeDAG, op: Compute, forms: tuple[MultiplyAdd, ...]
) -> tuple[MultiplyAdd, ...]:
    """The `forms` that add up several products of data, of a sum of enough of them."""
    pairs = products_of(op) if reuses(op) and not ragged_axes(op) else ()
    factors = [e for pair in pairs for e in pair if isinstance(e, Load)]
    n_terms = op.reduce_axes[-1].extent if op.reduce_axes else 0
    constants = any(dag.is_constant(e.tensor.name) for e in factors)
    if len(factors) != 2 or constants or n_terms < _LEAST_TERMS:
        return ()
    return tuple(f for f in forms_of(pairs, op.tensor.dtype, forms) if f.terms > 1)


def _minimal_filtering(dag: ComputeDAG) -> list[Partial]:
    out = []
    for op in dag.computes:
        found = None if op.name in whole_sums(dag) else convolution(dag, op.name)
        if found is None or _count(found.channels) < MIN_CHANNELS or not found.outputs:
            continue
        taps = tuple(p.tap.name for p in found.pairs)
        for tile in _tiles(dag, found):
            step = Winograd(op.name, taps, tile)
            out.append(begin(dag).add(step, tags=(_WINOGRAD[tile],)))
    return out


def _tiles(dag: ComputeDAG, found: Convolution) -> range:
    """Results of a tile that the number of points allows.

    Where transformed data are rounded to a narrow type, results of F(2, 3) are off by up to three
    quarters of its spacing, those of F(4, 3) by eight times that: two, where one step of the type
    is allowed because something is rounded to it. It has to hold all data that are transformed.
    """
    widest = max(p.n_taps for p in found.pairs)
    dtype = DTYPES[found.data.tensor.dtype]
    if not dtype.is_narrow:
        return range(2, MAX_POINTS - widest + 2, 2)
    is_allowed = dtype.high > MAX_DATA and roundoff(dag) >= dtype.eps
    return range(2, 3 if is_allowed else 2)


def narrow_products_pay(target: Target) -> bool:
    """Whether a form of multiply-add of bfloat16 may be faster than as many of float32 as it is
    needed for: whether it is, is measured (`tuner.bound`)."""
    flops = [f.flops(target.vector_bits) for f in target.isa.forms if is_narrow(f)]
    plain = target.isa.forms[0].flops(target.vector_bits)
    return any(n > N_PRODUCTS * plain for n in flops)


def is_narrow(form: MultiplyAdd) -> bool:
    """Whether `form` multiplies bfloat16 and adds float32."""
    return form.operands == ("bfloat16", "bfloat16") and form.accumulator == "float32"


def _narrow_products(dag: ComputeDAG) -> list[Partial]:
    """All products of float32 by narrower ones, where they are of data with much else."""
    sums = [op for op in dag.computes if product(dag, op.name) and reuses(op)]
    if not sums or whole_sums(dag):
        return []
    steps = (NarrowProducts(op.name, N_PRODUCTS) for op in sums)
    return [begin(dag).add(*steps, tags=(Tag.NARROW3,))]
