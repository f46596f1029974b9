"""⑤ One multiply-add of vectors, as LLVM's intrinsics take it."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.codegen.emission.text import FunctionBuilder, Value
from autotune.target.isa import MultiplyAdd


def multiply_add(
    b: FunctionBuilder, form: MultiplyAdd, bits: int, total: Value, operands: Sequence[Value]
) -> Value:
    """`total`, a vector of so many bits, with the products of `operands` added."""
    name = form.intrinsics[bits]
    if not form.accumulates:
        return b.add(total, b.call(name, total.type, operands))
    if form.takes_scalable(bits):
        return b.call_scalable(name, [total, *operands])
    return b.call(name, total.type, [total, *operands])
