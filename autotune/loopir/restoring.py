"""④ Pass `restore`: plain sums read weights as the sums of parts that are there for other sums.

    w[k, j]  ->  float32(w.part1.packed[…]) + float32(w.part0.packed[…])

Beside products of narrow parts stands the sum as it is defined (`guarding`), for data that are not
bounded. It would read the weights themselves, which nearly no call does, and a file would hold as
many bytes again. The parts lie in the order of the other sum: what is the place of an element there
is told by the packing, where each of its axes counts digits of one index of the source.

Where a packing has overlapping tiles, or repeats elements, the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from autotune.loopir.arguments import with_arguments
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import Body, Kernel, Packing, Program, Stmt, Store
from autotune.loopir.visitor import body_loads, kernel_ranges, map_statements, rewrite_exprs
from autotune.te.arith import Ranges, linear, simplify
from autotune.te.expr import Expr, Load, Tensor, Var, add, cast, floordiv, idx, loads, mod


@dataclass(frozen=True, slots=True)
class _Digit:
    """The value of an axis: index `dimension` of the source `// step mod extent`."""

    dimension: int
    step: int
    extent: int

    def of(self, indices: Sequence[Expr], ranges: Ranges) -> Expr:
        place = floordiv(indices[self.dimension], idx(self.step))
        return simplify(mod(place, idx(self.extent)), ranges)


_Part = tuple[Tensor, tuple[_Digit, ...]]


def restore_constants(program: Program, lowering: Lowering) -> Program:
    """Read constants by their packed parts; those that no kernel reads any more are dropped."""
    found = {name: _packed(program, tensors) for name, tensors in lowering.state.parts}
    known = {name: parts for name, parts in found.items() if parts}
    if not known:
        return program
    kernels = tuple(_restored(kernel, known) for kernel in program.kernels)
    used = {x.tensor.name for k in kernels for x in body_loads(k.body)}
    buffers = tuple(b for b in program.buffers if b.role != "constant" or b.name in used)
    return with_arguments(replace(program, buffers=buffers, kernels=kernels))


def _restored(kernel: Kernel, parts: Mapping[str, Sequence[_Part]]) -> Kernel:
    def one(stmt: Stmt, ranges: Ranges) -> Body | None:
        of = partial(_sum, parts=parts, ranges=ranges)
        return rewrite_exprs((stmt,), of) if isinstance(stmt, Store) else None

    return replace(kernel, body=map_statements(kernel.body, one, kernel_ranges(kernel)))


def _sum(e: Expr, parts: Mapping[str, Sequence[_Part]], ranges: Ranges) -> Expr | None:
    """An element as the sum of its parts, smallest first."""
    if not isinstance(e, Load) or e.tensor.name not in parts or any(map(loads, e.indices)):
        return None
    each = (
        Load(tensor, tuple(digit.of(e.indices, ranges) for digit in digits))
        for tensor, digits in parts[e.tensor.name]
    )
    return reduce(add, (cast(e.tensor.dtype, part) for part in reversed([*each])))


def _packed(program: Program, tensors: Sequence[Tensor]) -> list[_Part]:
    """Where the elements of all parts are; none where that is not known of one."""
    found: list[_Part] = []
    for tensor in tensors:
        packings = [p for p in program.packs if p.source.name == tensor.name]
        places = ((p.packed, _digits(p)) for p in packings)
        found += [part for part in places if part[1]][:1]
    return found if len(found) == len(tensors) else []


def _digits(packing: Packing) -> tuple[_Digit, ...]:
    """One for each axis of a packing that has every element of its source once, else none."""
    extents = {a.name: a.extent for a in packing.axes}
    found = {name: _Digit(0, 1, 1) for name, extent in extents.items() if extent == 1}
    for dimension, (index, size) in enumerate(
        zip(packing.indices, packing.source.shape, strict=True)
    ):
        form, step = linear(index), 1
        terms = [(coef, atom.name) for atom, coef in form.terms if isinstance(atom, Var)]
        if form.const or len(terms) < len(form.terms):
            return ()
        for coef, name in sorted(term for term in terms if extents[term[1]] > 1):
            if coef != step or name in found:
                return ()
            found[name] = _Digit(dimension, step, extents[name])
            step *= extents[name]
        if step < size:
            return ()
    return tuple(found[name] for name in extents) if found.keys() == extents.keys() else ()
