"""Reported kinds: reductions, normalisations, arithmetic and its limits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tests.fuzz.reported import Fed, Kind, Made, fed, ints, made, n, values

REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")


def reduced_over_no_axes() -> Iterator[Made]:
    """microsoft/onnxruntime#19147, burn-onnx#464: empty axes, with and without the no-op."""
    for op, noop in product(REDUCTIONS, (0, 1)):
        yield made(n(f"Reduce{op}", "x", noop_with_empty_axes=noop), 18, x=(3, 2, 2))
    for noop in (0, 1):
        op = n("ReduceSum", "x a", noop_with_empty_axes=noop)
        yield made(op, 13, x=(3, 2, 2), a=np.zeros(0, np.int64))


def reduced_over_the_last_but_one() -> Iterator[Made]:
    """openvinotoolkit/openvino#1441: the last axis but one, by every number of dimensions."""
    x = np.tile(np.arange(1, 7, dtype=np.float32), 4)
    for shape, axis in (((2, 4, 3), 1), ((2, 1, 2, 6), 2), ((6, 4), 0), ((4, 6), -2)):
        for keep in (0, 1):
            yield made(n("ReduceSum", "x a", keepdims=keep), x=fed(x.reshape(shape)), a=ints(axis))


def reduced_to_a_number() -> Iterator[Made]:
    """microsoft/onnxruntime#2247: no axes and keepdims 0."""
    for op in REDUCTIONS:
        yield made(n(f"Reduce{op}", "x", keepdims=0), 12, x=(2, 3))


def softmax_of_old_opsets() -> Iterator[Made]:
    """microsoft/onnxruntime#15949, #17833, onnx#3244: Softmax below opset 13 coerces to 2-D."""
    for opset, axis in product((9, 11, 13), (0, 1, 2, -1, -2)):
        if opset >= 11 or axis >= 0:
            for op in ("Softmax", "LogSoftmax"):
                yield made(n(op, "x", axis=axis), opset, x=(2, 3, 4))
    yield made(n("Softmax", "x"), 12, x=(1, 10, 1, 1))


def normalised_layers() -> Iterator[Made]:
    """microsoft/onnxruntime#26407, #26613: LayerNormalization, axes, scales that broadcast."""
    for axis in (-1, -2, 0, 1, 2):
        shape = (2, 3, 4)[axis:]
        op = n("LayerNormalization", "x s b", axis=axis)
        yield made(op, x=(2, 3, 4), s=values(*shape), b=values(*shape, seed=1))
    for scale in ((1,), (4,), (1, 4), (3, 1)):
        op = n("LayerNormalization", "x s", axis=1)
        yield made(op, x=(2, 3, 4), s=values(*scale))


def layers_that_are_none() -> Iterator[Made]:
    """microsoft/onnxruntime#31144, #30513, #31147: like a layer norm, with keepdims 0 or rank 1."""
    for shape, keep, op in product(((4,), (4, 4), (2, 4, 4)), (0, 1), ("Sub", "Add")):
        nodes = [
            n("ReduceMean", "x", "m", axes=[-1], keepdims=keep),
            n(op, "x m", "d"),
            n("Mul", "d d", "q"),
            n("ReduceMean", "q", "v", axes=[-1], keepdims=keep),
            n("Add", "v e", "w"),
            n("Sqrt", "w", "s"),
            n("Div", "d s", "z"),
            n("Mul", "z k"),
        ]
        if shape != (2, 4, 4) or keep:
            yield made(nodes, 13, x=shape, e=np.float32(1e-2), k=values(4))


def places_of_the_largest() -> Iterator[Made]:
    """onnx#6593, openvino#13491, #33398: ties, by the first and the last place; one element."""
    x = fed(np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-1, -1, -5, -5]], np.float32))
    for op, last, axis in product(("ArgMax", "ArgMin"), (0, 1), (0, 1, -1)):
        yield made(n(op, "x", axis=axis, select_last_index=last, keepdims=0), x=x)
    yield made(n("ArgMax", "x", axis=1), 11, x=(8, 1))
    for largest, k in product((0, 1), (1, 3)):
        yield made(n("TopK", "x k", "v i", largest=largest), x=x, k=ints(k))


def largest_of_many() -> Iterator[Made]:
    """microsoft/onnxruntime#2434, TensorRT#2259: TopK of a thousand, most of them equal."""
    data = np.zeros((1, 1000), np.float32)
    data[0, :6] = [0.1, 0.3, 0.02, 0.45, 0.08, 0.05]
    for k in (3, 10):
        yield made(n("TopK", "x k", "v i"), 11, x=fed(data), k=ints(k))


def places_of_nan() -> Iterator[Made]:
    """apache/tvm#19558, openvino#33626, #37748: ArgMax with NaN is NumPy's."""
    nan = np.nan
    for row in ([2, nan, 7, 4, 1], [nan, 2, 7, 4, 1], [2, 4, 7, 1, nan], [nan] * 5):
        x = fed(np.array(row, np.float32))
        yield made(n("ArgMax", "x", axis=0, keepdims=0), x=x)


def running_sums() -> Iterator[Made]:
    """CumSum along any axis, exclusive and reversed; of one element."""
    for axis, exclusive, reverse in product((0, 1, -1), (0, 1), (0, 1)):
        op = n("CumSum", "x a", exclusive=exclusive, reverse=reverse)
        yield made(op, x=(3, 4), a=np.int64(axis))
    yield made(n("CumSum", "x a", exclusive=1), x=(1,), a=np.int32(0))


def remainders() -> Iterator[Made]:
    """openvinotoolkit/openvino#35829, #20898: Mod of large and of negative integers."""
    a = np.array([3, 1234567890, 999999999, 1999999993, -7, -1500000001])
    for dtype, fmod, b in product((np.int64, np.int32), (0, 1), (13, -13)):
        b = np.full(a.shape, b, dtype)
        yield made(n("Mod", "a b", fmod=fmod), 18, a=fed(a.astype(dtype)), b=b)
    for b in (1.5, -1.5, 3.0):
        x = Fed([-7.5, 7.5, 0.5, -0.5, 1e6, -1e6])
        yield made(n("Mod", "a b", fmod=1), 18, a=x, b=np.float32(b))


def whole_quotients() -> Iterator[Made]:
    """openvinotoolkit/openvino#35830, #37766: Div of integers near 2³¹ is exact."""
    a = np.array([777777777, 1111111111, 1900000000, -1999999999])
    for dtype, b in product((np.int32, np.int64), (11, -3)):
        yield made(n("Div", "a b"), 18, a=fed(a.astype(dtype)), b=np.full(4, b, dtype))


def softplus_of_small_numbers() -> Iterator[Made]:
    """microsoft/onnxruntime#10491: Softplus, Sigmoid and friends far from zero."""
    x = Fed([-12.3392, -30.0, -87.0, 0.0, 20.0, 88.0, 90.0, 100.0])
    for op in ("Softplus", "Sigmoid", "Tanh", "Mish", "Elu", "Selu", "HardSwish", "Softsign"):
        if op != "Mish":
            yield made(n(op, "x"), x=x)
    nodes = [n("Sigmoid", "x", "s"), n("Log", "s")]
    yield made(nodes, x=Fed([-20.0, -5.0, 0.0, 5.0]))


def minima_that_broadcast() -> Iterator[Made]:
    """apache/tvm#18592: Min and Max of a row and one element, of three, of one."""
    for op in ("Min", "Max", "Sum", "Mean"):
        yield made(n(op, "x z"), x=(30,), z=(1,))
        yield made(n(op, "x z w"), x=(2, 1, 4), z=(3, 1), w=values(4))
        yield made(n(op, "x"), x=(2, 3))


def slopes_that_broadcast() -> Iterator[Made]:
    """microsoft/onnxruntime#3205, pytorch/glow#4741: PRelu slopes per channel, of one element."""
    for slope in ((3, 1, 1), (1,), (1, 3, 1, 1), (4,)):
        nodes = [n("Relu", "x", "r"), n("Sub", "x r", "t"), n("PRelu", "t s")]
        yield made(nodes, x=(2, 3, 5, 4), s=values(*slope))
        yield made(n("PRelu", "x s"), 9, x=(2, 3, 5, 4), s=values(*slope))


def clipped() -> Iterator[Made]:
    """apache/tvm#16604: Clip in every opset: attributes, inputs, one of them, none."""
    for opset in (7, 10):
        yield made(n("Clip", "x", min=-0.5, max=0.5), opset, x=(3, 4))
        yield made(n("Clip", "x", max=0.2), opset, x=(3, 4))
    low, high = np.float32(-0.3), np.float32(0.3)
    for opset in (11, 13):
        yield made(n("Clip", "x l h"), opset, x=(3, 4), l=low, h=high)
        yield made(n("Clip", "x _ h"), opset, x=(3, 4), h=high)
        yield made(n("Clip", "x l"), opset, x=(3, 4), l=low)
    yield made([n("Relu", "x", "r"), n("Clip", "r")], 11, x=(3, 4))


def powers() -> Iterator[Made]:
    """Pow of numbers below zero to whole exponents, of zero, of whole exponents in an array."""
    x = Fed([-2.0, -1.0, -0.5, 0.0, 0.5, 2.0])
    for exponent in (2.0, 3.0, 0.0, -1.0, -2.0, 1.0):
        yield made(n("Pow", "x e"), x=x, e=np.float32(exponent))
    yield made(n("Pow", "x e"), x=x, e=np.array([1, 2, 3, 4, 5, 6], np.float32))
    yield made(n("Pow", "x e"), x=x, e=np.array(3, np.int64))


def rounded() -> Iterator[Made]:
    """Round, Floor, Ceil and Cast of halves, of numbers below zero and of large ones."""
    x = Fed([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e9, -3.7])
    for op in ("Round", "Floor", "Ceil"):
        yield made(n(op, "x"), x=x)
    for to in (6, 7, 9, 11):
        yield made(n("Cast", "x", to=to), x=x)


def products_of_vectors() -> Iterator[Made]:
    """MatMul of one and two dimensions, batches that broadcast, inner extents of one."""
    for a, b in (
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((3, 4), (4,)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 1), (1, 5)),
        ((1, 7), (7, 1)),
        ((2, 3, 4), (1, 4, 4)),
    ):
        yield made(n("MatMul", "a b"), a=a, b=b)
        yield made(n("MatMul", "a b"), a=a, b=values(*b))


def general_products() -> Iterator[Made]:
    """Gemm with every bias, scale and transposition; without a bias."""
    for a, b, bias in product((0, 1), (0, 1), ((5,), (3, 1), (1, 5), (1,), None)):
        x = (4, 3) if a else (3, 4)
        w = values(5, 4) if b else values(4, 5)
        extra = {} if bias is None else {"c": values(*bias)}
        op = n("Gemm", "x w" if bias is None else "x w c", transA=a, transB=b, alpha=0.5, beta=2.0)
        yield made(op, 13, x=x, w=w, **extra)


def sums_by_einstein() -> Iterator[Made]:
    """Einsum with traces, blanks, ellipses, results of no dimensions, three operands."""
    for equation, *shapes in (
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bij,bjk", (2, 3, 4), (2, 4, 5)),
        ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
        ("ij->", (3, 4)),
        ("ii->i", (3, 3)),
        ("ii", (3, 3)),
        ("i,i->", (4,), (4,)),
        ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
        (" i j , j k -> k i ", (2, 3), (3, 4)),
        ("bhid,bhjd->bhij", (1, 2, 3, 4), (1, 2, 5, 4)),
    ):
        names = "abc"[: len(shapes)]
        operands = dict(zip(names, shapes, strict=True))
        yield made(n("Einsum", " ".join(names), equation=equation), **operands)


KINDS: tuple[Kind, ...] = (
    *(reduced_over_no_axes, reduced_over_the_last_but_one, reduced_to_a_number),
    *(softmax_of_old_opsets, normalised_layers, layers_that_are_none, places_of_the_largest),
    *(largest_of_many, places_of_nan, running_sums, remainders, whole_quotients),
    *(softplus_of_small_numbers, minima_that_broadcast, slopes_that_broadcast, clipped, powers),
    *(rounded, products_of_vectors, general_products, sums_by_einstein),
)
