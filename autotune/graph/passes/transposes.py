"""① Several Transposes become one, also where a Reshape between them adds or drops dimensions of 1.

Transpose(Transpose(x))                   ->  Transpose(x)
Transpose(Reshape(Transpose(x), 12×64×8)) ->  Reshape(Transpose(x))      from 1×12×64×8
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.graph.ir import Node, moves_nothing
from autotune.graph.rewriter import Rewriter, Rule


def _transpose(rw: Rewriter) -> None:
    """Transpose(Transpose(x)) -> Transpose(x); one that moves only dimensions of 1 -> Reshape."""
    source, shape = rw.input(0), rw.kind(0).shape
    perm = tuple(rw.attr("perm", reversed(range(len(shape)))))
    inner = rw.maker(source, "Transpose")
    behind = None if inner is not None else _transposed(rw, source)
    if behind is not None:
        _through(rw, perm, behind)
    elif inner is not None:
        perm = tuple(inner.attrs["perm"][p] for p in perm)
        rw.result("Transpose", inner.inputs[0], perm=perm)
    elif perm == tuple(range(len(perm))):
        rw.alias(source)
    elif moves_nothing(perm, shape):
        rw.result("Reshape", source)
    elif perm != rw.attr("perm"):
        rw.result("Transpose", source, perm=perm)


def _transposed(rw: Rewriter, name: str) -> Node | None:
    """The Transpose of which a tensor has other dimensions of 1."""
    wide = _wide(rw.types[name].shape)
    while (view := rw.maker(name, "Reshape")) is not None:
        name = view.inputs[0]
        if _wide(rw.types[name].shape) != wide:
            return None
    return rw.maker(name, "Transpose")


def _through(rw: Rewriter, perm: Sequence[int], inner: Node) -> None:
    """One Transpose of the operand of `inner`, dimensions of 1 in front, and the Reshape behind."""
    source = inner.inputs[0]
    shape = rw.types[source].shape
    wide = iter(p for p in inner.attrs["perm"] if shape[p] != 1)
    places = {n: next(wide) for n, extent in enumerate(rw.kind(0).shape) if extent != 1}
    order = [places[p] for p in perm if p in places]
    joined = (*(n for n, extent in enumerate(shape) if extent == 1), *order)
    rw.result("Reshape", rw("Transpose", source, perm=joined))


def _wide(shape: Iterable[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]


TRANSPOSE = Rule("merge-transposes", _transpose, {"Transpose"})
