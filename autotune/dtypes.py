"""Floor 0: element types, as records. A new type is an entry of `DTYPES`.

    dtype     memory   arithmetic   sums of products   range
    bfloat16  2 bytes  float32      float32            ±3.4e38, 8 bits of precision
    float16   2 bytes  float32      float32            ±65504, 11 bits
    int8      1 byte   int8, wraps  int32              -128 … 127

An expression of a type that has no arithmetic of its own is computed in `compute` and rounded to
the type where it is stored or cast. Integers wrap. Names are those of NumPy and `ml_dtypes`; JSON
and expressions hold names, code asks the record of a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

Kind: TypeAlias = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    `bits` in memory; `low`, `high`: the smallest and largest finite value. `llvm`: the LLVM type of
    an element in memory. `onnx`: number of the type in a `TensorProto`. `compute`: name of the
    dtype that its arithmetic is done in. `accumulator`: name of the dtype of its sums and products.
    `eps`: spacing of the numbers from 1 on; 0 for integers.
    """

    name: str
    kind: Kind
    bits: int
    low: float
    high: float
    llvm: str
    onnx: int
    compute: str
    accumulator: str
    eps: float = 0.0

    @property
    def numpy(self) -> np.dtype[Any]:
        """Dtype of arrays."""
        return numpy_dtype(self.name)

    @property
    def n_bytes(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it has fractions."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers; a bool does not."""
        return self.kind in ("int", "uint")

    @property
    def is_unsigned(self) -> bool:
        """Whether it has no negative numbers."""
        return self.kind in ("uint", "bool")

    @property
    def is_narrow(self) -> bool:
        """Whether arithmetic is done in a wider type than elements are stored in."""
        return self.compute != self.name

    @property
    def plain(self) -> Kind:
        """The kind of number that other languages have for it: of halves and bools the bits."""
        is_bits = self.kind == "bool" or (self.is_float and self.is_narrow)
        return "uint" if is_bits else self.kind

    @property
    def c(self) -> str:
        """The type of an element in C."""
        if self.plain == "float":
            return "float" if self.bits == 32 else "double"
        return f"{self.plain}{self.bits}_t"

    @property
    def js(self) -> str:
        """The typed array of JavaScript."""
        big = "Big" if self.plain != "float" and self.bits == 64 else ""
        return f"{big}{self.plain.title()}{self.bits}Array"

    @property
    def rust(self) -> str:
        """The type of an element in Rust."""
        return f"{self.plain[0]}{self.bits}"

    @property
    def word(self) -> str:
        """ONNX Runtime's word for it."""
        return self.c if self.plain == "float" else self.name

    @property
    def digits(self) -> int:
        """Decimal digits that tell any two floats apart."""
        return 17 if self.eps and self.eps < 1e-12 else 9

    def literal(self, value: float) -> float | int | bool:
        """The element nearest to `value`, as a constant of this type holds it.

        Floats are rounded where arithmetic is wider than the type, or else by code generation.
        """
        if self.kind == "bool":
            return bool(value)
        if not self.is_float:
            return int(value)
        return self.rounded(value) if self.is_narrow else float(value)

    def rounded(self, value: float) -> float:
        """`value` rounded to the nearest element, halves to even; too large a float is infinite."""
        with np.errstate(all="ignore"):
            return float(np.asarray(value, np.float64).astype(self.numpy))

    def wrapped(self, value: int) -> int:
        """The element that is `value` modulo 2^bits."""
        n = value & ((1 << self.bits) - 1)
        return n - (1 << self.bits) if self.kind == "int" and n > self.high else n


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of a name, NumPy's own or one of `ml_dtypes`, which is imported for these alone."""
    if is_of_ml_dtypes(name):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(name)


def is_of_ml_dtypes(name: str) -> bool:
    """Whether NumPy has the type from `ml_dtypes`."""
    return name in SMALL_TYPES or name == _BFLOAT16


_BFLOAT16 = "bfloat16"


def _float(name: str, llvm: str, onnx: int, compute: str = "") -> DType:
    info = np.finfo(name)
    high, compute = float(info.max), compute or name
    eps = float(info.eps)
    return DType(name, "float", info.bits, -high, high, llvm, onnx, compute, compute, eps)


def _bfloat16() -> DType:
    """The upper half of a float32: 8 bits of exponent, 7 of fraction."""
    high, eps = float.fromhex("0x1.fep127"), 2.0**-7
    return DType(_BFLOAT16, "float", 16, -high, high, "i16", 16, "float32", "float32", eps)


def _integer(kind: Kind, bits: int, onnx: int) -> DType:
    name = f"{kind}{bits}"
    info = np.iinfo(name)
    sums = "int32" if bits < 32 else name
    low, high = int(info.min), int(info.max)
    return DType(name, kind, bits, low, high, f"i{bits}", onnx, name, sums)


DTYPES: Mapping[str, DType] = {
    d.name: d
    for d in (
        _float("float32", "float", onnx=1),
        _float("float64", "double", onnx=11),
        _bfloat16(),
        _float("float16", "half", onnx=10, compute="float32"),
        _integer("int", 64, onnx=7),
        _integer("int", 32, onnx=6),
        _integer("int", 16, onnx=5),
        _integer("int", 8, onnx=3),
        _integer("uint", 64, onnx=13),
        _integer("uint", 32, onnx=12),
        _integer("uint", 16, onnx=4),
        _integer("uint", 8, onnx=2),
        DType("bool", "bool", 8, 0, 1, "i8", 9, "bool", "bool"),
    )
}
"""Element types that a program can compute with, by name."""


@dataclass(frozen=True, slots=True)
class SmallType:
    """An element type of models in which nothing is computed: another one holds its values.

    `onnx`: number of the type in a `TensorProto`. `stored`: name of the type of `DTYPES` that holds
    the values in a network. Of floats, `digits` are the bits of the fraction, `smallest` is the
    smallest normal number, `beyond` what a number is that is too large and not limited (infinite,
    or NaN). `of_nan`: what NaN is, a number in types without one.
    """

    name: str
    onnx: int
    stored: str
    low: float
    high: float
    digits: int = 0
    smallest: float = 0.0
    beyond: float = float("nan")
    of_nan: float = float("nan")

    @property
    def numpy(self) -> np.dtype[Any]:
        """Dtype of a user's arrays."""
        return numpy_dtype(self.name)

    @property
    def is_float(self) -> bool:
        """Whether it has fractions."""
        return self.smallest > 0

    @property
    def word(self) -> str:
        """ONNX Runtime's word for it."""
        return self.name.replace("_", "")

    @property
    def bits(self) -> int:
        """Bits of an element in a file."""
        return int(self.name.removeprefix("u").removeprefix("int").removeprefix("float")[0])


def _small_float(
    name: str, onnx: int, high: float, digits: int, smallest: float, **special: float
) -> SmallType:
    return SmallType(name, onnx, "float32", -high, high, digits, smallest, **special)


def _small_integer(name: str, onnx: int, low: int, high: int) -> SmallType:
    return SmallType(name, onnx, "int8" if low else "uint8", low, high)


SMALL_TYPES: Mapping[str, SmallType] = {
    d.name: d
    for d in (
        _small_float("float8_e4m3fn", 17, 448.0, 3, 2.0**-6),
        _small_float("float8_e4m3fnuz", 18, 240.0, 3, 2.0**-7),
        _small_float("float8_e5m2", 19, 57344.0, 2, 2.0**-14, beyond=float("inf")),
        _small_float("float8_e5m2fnuz", 20, 57344.0, 2, 2.0**-15),
        _small_float("float4_e2m1fn", 23, 6.0, 1, 1.0, beyond=6.0, of_nan=-0.0),
        _small_integer("uint4", 21, 0, 15),
        _small_integer("int4", 22, -8, 7),
        _small_integer("uint2", 25, 0, 3),
        _small_integer("int2", 26, -2, 1),
    )
}
"""Element types that inputs, outputs and constants of a model may have as well, by name."""


PORT_TYPES: Mapping[str, DType | SmallType] = {**DTYPES, **SMALL_TYPES}
"""All element types of tensors that go in and out of a network, by name."""


DTYPE_OF_WORD: Mapping[str, str] = {d.word: d.name for d in PORT_TYPES.values()}
"""Names of element types by ONNX Runtime's words for them."""


def tensor_type(name: str) -> str:
    """`tensor(float)` of "float32"; of what is none of these types, as NumPy's strings, by rule."""
    known = PORT_TYPES.get(name)
    return f"tensor({known.word if known else {'object': 'string'}.get(name, name)})"


def word_in(kind: str) -> str:
    """`float` of `tensor(float)`."""
    return kind.removeprefix("tensor(").removesuffix(")")


def plain_dtype(name: str) -> DType | None:
    """The type that programs of other languages have for elements of a port; None without one."""
    known = PORT_TYPES.get(name)
    if isinstance(known, SmallType):
        return None if known.is_float else DTYPES[known.stored]
    return known


def stored_dtype(name: str) -> str:
    """Dtype of the elements of a port in memory; halves and small types are converted at the edge
    of a network. Other names, as of strings, are their own."""
    known = PORT_TYPES.get(name)
    if known is None:
        return name
    return known.stored if isinstance(known, SmallType) else known.compute


def dtype_bytes(name: str) -> int:
    """Bytes of one element in memory."""
    return DTYPES[name].n_bytes


def is_float(name: str) -> bool:
    """Whether elements of dtype `name` have fractions."""
    return DTYPES[name].is_float


def holds(wide: str, narrow: str) -> bool:
    """Whether dtype `wide` has every value of dtype `narrow`: the same, or narrower integers."""
    a, b = DTYPES[wide], DTYPES[narrow]
    if not (a.is_integer and b.is_integer):
        return wide == narrow
    return a.low <= b.low and b.high <= a.high


def limits_within(name: str, of: str) -> tuple[float, float]:
    """The smallest and largest value of dtype `name` that dtype `of` has as well.

    The largest int32 is no float32: the largest one below is.
    """
    inner, outer = DTYPES[name], DTYPES[of]
    if not outer.is_float:
        return int(max(inner.low, outer.low)), int(min(inner.high, outer.high))
    high = outer.rounded(inner.high)
    if high > inner.high or not np.isfinite(high):
        high = float(np.nextafter(outer.numpy.type(high), outer.numpy.type(-np.inf)))
    return max(float(inner.low), outer.low), high


def dtype_of_array(dtype: np.dtype[Any]) -> DType | None:
    """The record of the dtype of an array; None for one that no program computes with."""
    return DTYPES.get(dtype.name)
