"""Reported kinds: graphs that optimisers got wrong, recurrent operators, old exporters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tests.fuzz.reported import Kind, Made, fed, ints, made, n, values


def recurrent_with_states() -> Iterator[Made]:
    """onnx-tensorflow#409, onnx#2881, candle#2542: directions, states, which outputs are read."""
    for op, direction in product(("LSTM", "GRU", "RNN"), ("forward", "reverse", "bidirectional")):
        d = 2 if direction == "bidirectional" else 1
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
        w, r = values(d, gates * 3, 4), values(d, gates * 3, 3, seed=1)
        b, h = values(d, gates * 6, seed=2), values(d, 2, 3, seed=3)
        attrs = {"hidden_size": 3, "direction": direction}
        common = {"x": (3, 2, 4), "w": w, "r": r}
        yield made(n(op, "x w r b", "y z", **attrs), 14, b=b, **common)
        yield made(n(op, "x w r b _ h", "_ z", **attrs), 14, b=b, h=(d, 2, 3), **common)
        if op == "LSTM":
            yield made(n(op, "x w r b _ h c", "y z q", **attrs), 14, b=b, h=h, c=h, **common)
        if op == "GRU":
            yield made(n(op, "x w r b", linear_before_reset=1, **attrs), 14, b=b, **common)
        yield made(n(op, "x w r _ _ h", **attrs), 14, h=h, **common)


def an_inner_tensor_is_an_output() -> Iterator[Made]:
    """microsoft/onnxruntime#4110: a tensor inside of a fused group is also an output."""
    conv = n("Conv", "x w", "t", pads=[1, 1, 1, 1])
    w = values(3, 2, 3, 3)
    for op in ("Relu", "Sigmoid", "Neg"):
        yield made([conv, n(op, "t")], outputs="t y", x=(1, 2, 5, 5), w=w)
        yield made([conv, n(op, "t"), n("Add", "t y", "z")], outputs="z y t", x=(1, 2, 5, 5), w=w)
    nodes = [n("MatMul", "x w", "t"), n("Add", "t b", "u"), n("Relu", "u")]
    yield made(nodes, outputs="y t", x=(3, 4), w=values(4, 5), b=values(5))


def one_tensor_many_readers() -> Iterator[Made]:
    """alibaba/MNN#3038, onnxruntime#23133: outputs that share what they read, or are equal."""
    nodes = [n("Relu", "x", "r"), n("Neg", "r", "a"), n("Exp", "r", "b"), n("Add", "r r", "c")]
    yield made(nodes, x=(3, 4))
    yield made([n("Relu", "x", "a"), n("Relu", "x", "b")], x=(3, 4))
    nodes = [n("Split", "x", "a b", axis=1), n("Identity", "a", "c"), n("Neg", "a", "d")]
    yield made(nodes, 13, outputs="a b c d", x=(2, 4))
    for op in ("Transpose", "Identity"):
        yield made([n(op, "x", "t"), n("MatMul", "t x")], x=(3, 3))
    yield made([n("Mul", "x x", "s"), n("Add", "s x", "t"), n("Sub", "t s")], x=(2, 3))


def scales_around_a_convolution() -> Iterator[Made]:
    """onnx#8203 and its like: a Mul or Add of another shape than the channels' is not folded."""
    w = values(4, 2, 1, 1)
    for op, shape in product(("Mul", "Add", "Div"), ((4, 1, 1), (4,), (1, 1, 1, 4), (5, 1), ())):
        c = np.abs(values(*shape)) + np.float32(0.5)
        nodes = [n("Conv", "x w", "t"), n(op, "t c")]
        yield made(nodes, x=(1, 2, 5, 4), w=w, c=c)


def transposed_around() -> Iterator[Made]:
    """onnxruntime#15949: transpositions moved through Softmax, reductions, Concat and Add."""
    there, back = [0, 2, 3, 1], [0, 3, 1, 2]
    shape = (1, 2, 3, 4)
    first, last = n("Transpose", "x", "t", perm=there), n("Transpose", "u", perm=back)
    for axis in (1, 2, 3, -1):
        yield made([first, n("Softmax", "t", "u", axis=axis), last], x=shape)
        yield made([first, n("Concat", "t t", "u", axis=axis), last], x=shape)
    yield made([first, n("ReduceMean", "t", axes=[1, 2], keepdims=0)], 13, x=shape)
    yield made([first, n("Add", "t c", "u"), last], x=shape, c=values(2))
    yield made([first, n("Add", "t c", "u"), last], x=shape, c=values(3, 1, 2))


def attention_by_hand() -> Iterator[Made]:
    """microsoft/onnxruntime#4293: attention as exporters write it; masks of every shape."""
    for mask in ((5, 5), (1, 1, 5, 5), (2, 1, 1, 5), (1,), None):
        nodes = [
            n("Transpose", "k", "t", perm=[0, 1, 3, 2]),
            n("MatMul", "q t", "s"),
            n("Div", "s d", "m"),
            *([n("Add", "m b", "a")] if mask else []),
            n("Softmax", "a" if mask else "m", "p", axis=-1),
            n("MatMul", "p v"),
        ]
        extra = {"b": values(*mask, seed=7)} if mask else {}
        heads = (2, 3, 5, 4)
        yield made(nodes, 13, q=heads, k=heads, v=heads, d=np.float32(2), **extra)


def gelu_by_hand() -> Iterator[Made]:
    """GELU as exporters write it: by Erf, by Tanh, with constants in any order."""
    erf = [n("Div", "x s", "a"), n("Erf", "a", "b"), n("Add", "b o", "c")]
    constants = {"s": np.float32(1.4142135), "o": np.float32(1), "h": np.float32(0.5)}
    yield made([*erf, n("Mul", "x c", "d"), n("Mul", "d h")], x=(3, 5), **constants)
    yield made([*erf, n("Mul", "x h", "d"), n("Mul", "d c")], x=(3, 5), **constants)
    swish = [n("Sigmoid", "x", "g"), n("Mul", "x g")]
    yield made(swish, x=(3, 5))


def chosen_by_conditions() -> Iterator[Made]:
    """Where with numbers, broadcast on all sides; comparisons of integers; logic of flags."""
    nodes = [n("Greater", "x z", "c"), n("Where", "c x k")]
    yield made(nodes, x=(3, 1), z=(1, 4), k=np.float32(-1))
    yield made(nodes, x=(3, 4), z=(4,), k=values(3, 1))
    for op in ("Equal", "Less", "GreaterOrEqual"):
        a, b = fed(ints(1, 2, 3, -4)), ints(1, 3, 2, -4)
        yield made([n(op, "a b", "c"), n("Cast", "c", to=1)], a=a, b=b)
    flags = fed(np.array([True, False, True]))
    for op in ("And", "Or", "Xor"):
        yield made(n(op, "a b"), a=flags, b=np.array([[True, True, False], [False] * 3]))
    yield made(n("Not", "a"), a=flags)


def numbers_of_no_dimensions() -> Iterator[Made]:
    """Tensors of rank 0: as inputs, between operators, as outputs."""
    yield made(n("Add", "x z"), x=(), z=())
    yield made([n("Mul", "x c", "t"), n("Exp", "t")], x=(), c=np.float32(0.5))
    yield made([n("ReduceMean", "x", "m", keepdims=0), n("Sub", "x m")], 13, x=(2, 3))
    yield made([n("ReduceMax", "x", "m", keepdims=0), n("Unsqueeze", "m a")], x=(4,), a=ints(0))
    yield made(n("Gather", "x i"), x=(4,), i=np.int64(2))
    yield made([n("Reshape", "x s"), n("Neg", "y", "z")], x=(1, 1), s=np.zeros(0, np.int64))


def constants_alone() -> Iterator[Made]:
    """Outputs that depend on no input; nodes whose inputs are all constants; unused inputs."""
    yield made([n("Add", "a b"), n("Relu", "x", "z")], x=(2,), a=values(3), b=values(3))
    nodes = [n("ConstantOfShape", "s", "o"), n("Add", "x o")]
    yield made(nodes, x=(2, 3), s=ints(2, 3))
    nodes = [n("Shape", "x", "s"), n("ConstantOfShape", "s", "o"), n("Add", "x o")]
    yield made(nodes, x=(2, 3))
    bounds = {"b": np.float32(0), "e": np.float32(3), "d": np.float32(1)}
    yield made([n("Range", "b e d", "r"), n("Mul", "x r")], x=(2, 3), **bounds)
    yield made(n("Relu", "x"), x=(2, 3), unread=(4,))


def half_precision() -> Iterator[Made]:
    """Models in float16: inputs, outputs, casts inside."""
    x = fed(values(2, 3, 5).astype(np.float16))
    for op in ("Relu", "Sigmoid", "Abs"):
        yield made(n(op, "x"), x=x)
    yield made(n("MatMul", "x w"), x=x, w=values(5, 4).astype(np.float16))
    yield made([n("Cast", "x", "f", to=1), n("Exp", "f", "g"), n("Cast", "g", to=10)], x=x)
    yield made(n("Softmax", "x", axis=1), 13, x=x)


def many_dimensions() -> Iterator[Made]:
    """Transpositions and broadcasts of five and six dimensions."""
    for perm in ((0, 2, 1, 4, 3), (4, 3, 2, 1, 0), (1, 0, 3, 2, 4)):
        yield made(n("Transpose", "x", perm=perm), x=(2, 3, 1, 4, 5))
    yield made(n("Add", "x z"), x=(2, 1, 3, 1, 2, 1), z=(1, 4, 1, 2, 1, 3))
    yield made(n("ReduceSum", "x a", keepdims=0), x=(2, 3, 2, 2, 3), a=ints(0, 2, -1))


KINDS: tuple[Kind, ...] = (
    *(recurrent_with_states, an_inner_tensor_is_an_output, one_tensor_many_readers),
    *(scales_around_a_convolution, transposed_around, attention_by_hand, gelu_by_hand),
    *(chosen_by_conditions, numbers_of_no_dimensions, constants_alone, half_precision),
    *(many_dimensions,),
)
