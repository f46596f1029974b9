"""② An expression evaluated for many values of its loads, rounded to its types.

The oracle (`evaluate`) keeps floats in float64; here every operation is rounded to its dtype, as a
model's own definition has it, so that a function of a byte can be replaced by its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import DTYPES
from autotune.te.evaluate import BINARY, COMPARE
from autotune.te.expr import Binary, Call, Cast, Compare, Const, Expr, Load, Select, dtype_of
from autotune.te.intrinsics import INTRINSICS

Array = NDArray[Any]


def tabulate(e: Expr, values: Mapping[str, Array]) -> Array:
    """The values of `e` where each tensor that it reads has those in `values`, one for a Load.

    Arrays of one length, or of one element. Raises ValueError for loop indices and reductions.
    """
    with np.errstate(all="ignore"):  # NaN and infinities are results like others
        return _value(e, values)


def _value(e: Expr, values: Mapping[str, Array]) -> Array:
    match e:
        case Const(value=value, dtype=dtype):
            return np.asarray(value, DTYPES[dtype].numpy)
        case Load(tensor=tensor):
            return values[tensor.name]
        case Binary(op=op, a=a, b=b):
            return _rounded(e, BINARY[op](_value(a, values), _value(b, values)))
        case Compare(op=op, a=a, b=b):
            return COMPARE[op](_value(a, values), _value(b, values))
        case Call(fn=fn, args=(a,)):
            return _rounded(e, INTRINSICS[fn].oracle(_value(a, values)))
        case Select(cond=cond, a=a, b=b):
            return np.where(_value(cond, values), _value(a, values), _value(b, values))
        case Cast(a=a):
            return _rounded(e, _value(a, values))
        case _:
            raise ValueError(f"{e} is no function of elements")


def _rounded(e: Expr, value: Array) -> Array:
    return np.asarray(value).astype(DTYPES[dtype_of(e)].numpy)
