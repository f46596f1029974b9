"""② Tensor expressions: `from autotune import te` exports `autotune.te.language`."""

from __future__ import annotations

import sys as _sys
from typing import TYPE_CHECKING, NoReturn

import ml_dtypes as ml_dtypes  # gives NumPy the names of its types

from autotune.te import tvm_names as _tvm_names
from autotune.te.functions import abs as abs
from autotune.te.functions import bit_and as bit_and
from autotune.te.functions import bit_or as bit_or
from autotune.te.functions import byte_dot as byte_dot
from autotune.te.functions import ceil as ceil
from autotune.te.functions import clip as clip
from autotune.te.functions import erf as erf
from autotune.te.functions import exp as exp
from autotune.te.functions import floor as floor
from autotune.te.functions import integer_power as integer_power
from autotune.te.functions import log as log
from autotune.te.functions import max as max
from autotune.te.functions import maximum as maximum
from autotune.te.functions import min as min
from autotune.te.functions import minimum as minimum
from autotune.te.functions import power as power
from autotune.te.functions import prod as prod
from autotune.te.functions import quotient as quotient
from autotune.te.functions import remainder as remainder
from autotune.te.functions import round as round
from autotune.te.functions import rsqrt as rsqrt
from autotune.te.functions import saturate as saturate
from autotune.te.functions import sigmoid as sigmoid
from autotune.te.functions import sqrt as sqrt
from autotune.te.functions import sum as sum
from autotune.te.functions import tanh as tanh
from autotune.te.functions import trailing_zeros as trailing_zeros
from autotune.te.functions import where as where
from autotune.te.language import compute as compute
from autotune.te.language import dag_of as dag_of
from autotune.te.language import placeholder as placeholder
from autotune.te.language import reduce_axis as reduce_axis
from autotune.te.values import Expression as Expression
from autotune.te.values import ReduceAxis as ReduceAxis
from autotune.te.values import Tensor as Tensor

if not TYPE_CHECKING:  # else any name would have a type

    def __getattr__(name: str) -> NoReturn:
        _tvm_names.refuse("te", name, _tvm_names.TE, _sys.modules[__name__])
