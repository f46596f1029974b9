"""Reported kinds: indices, slices, shapes, and what only moves elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tests.fuzz.reported import Kind, Made, fed, ints, made, n, values


def negative_indices() -> Iterator[Made]:
    """apache/tvm#19531, #19436, Xilinx/onnx-mlir#323: Gather with indices below zero."""
    for index in (ints(-1, -3, 0), np.int64(-1), np.array([[0, -1], [-2, 1]], np.int32)):
        for axis in (0, 1, -1):
            yield made(n("Gather", "x i", axis=axis), x=(3, 4), i=index)
        yield made(n("Gather", "x i"), x=(5,), i=fed(index))


def negative_indices_of_elements() -> Iterator[Made]:
    """apache/tvm#20217: GatherElements, GatherND, ScatterND and OneHot with indices below zero."""
    yield made(n("GatherElements", "x i", axis=1), x=(3, 4), i=np.full((3, 4), -1))
    yield made(n("GatherElements", "x i", axis=-2), x=(3, 4), i=np.array([[-1, -2, 0, 1]]))
    yield made(n("GatherND", "x i"), x=(3, 4), i=np.array([[-1, -1], [0, -2]]))
    yield made(n("GatherND", "x i"), x=(3, 4), i=np.array([[-1], [1]]))
    for i in (np.array([[-1], [0]]), np.array([[2], [-3]])):
        yield made(n("ScatterND", "x i u"), x=(3, 4), i=i, u=(2, 4))
    index = ints(0, 2, 4, -1)
    for axis in (-1, 0, 1):
        yield made(n("OneHot", "i d v", axis=axis), i=fed(index), d=np.int64(5), v=values(2))


def negative_axis_of_elements() -> Iterator[Made]:
    """onnx/onnx-mlir#1543: GatherElements with an axis below zero."""
    for axis in (-1, -2):
        i = np.array([[0, 1], [1, 0]])
        yield made(n("GatherElements", "x i", axis=axis), x=(2, 2), i=i)
        yield made(n("ScatterElements", "x i u", axis=axis), x=(2, 2), i=i, u=(2, 2))


def depth_of_scattered_indices() -> Iterator[Made]:
    """onnx/onnx-mlir#3611: ScatterND whose index depth is not the rank of its indices less one."""
    pairs = np.array([[0, 1], [2, 3], [-1, 0]])
    yield made(n("ScatterND", "x i u"), x=(3, 4), i=pairs, u=(3,))
    yield made(n("ScatterND", "x i u"), x=(3, 4), i=pairs[None], u=(1, 3))
    yield made(n("ScatterND", "x i u"), x=(3, 4, 2), i=pairs, u=(3, 2))
    yield made(n("ScatterND", "x i u"), x=(4, 4, 4), i=np.array([[0], [2]]), u=(2, 4, 4))


def batches_of_gathered() -> Iterator[Made]:
    """openvino#30797, torch-mlir#3070: GatherND with batch dimensions."""
    data = (2, 3, 4)
    yield made(n("GatherND", "x i", batch_dims=1), x=data, i=np.array([[1], [-1]]))
    yield made(n("GatherND", "x i", batch_dims=1), x=data, i=np.array([[[1, 0]], [[0, 3]]]))
    yield made(n("GatherND", "x i", batch_dims=2), x=data, i=np.zeros((2, 3, 1), np.int64))
    yield made(n("GatherND", "x i"), x=data, i=np.array([[[0, 1]], [[1, -1]]]))


def gathered_by_a_shape() -> Iterator[Made]:
    """apache/tvm#20179: the output of Shape as indices of Gather."""
    nodes = [n("Shape", "x", "s"), n("Gather", "w s")]
    yield made(nodes, x=(2, 3), w=values(5, 2))
    nodes = [n("Shape", "x", "s"), n("Gather", "s k", "d"), n("Concat", "d m", "t", axis=0)]
    reshape = n("Reshape", "x t")
    yield made([*nodes, reshape], x=(2, 3, 4), k=ints(1), m=ints(-1))
    yield made([*nodes, reshape], x=(2, 3, 4), k=ints(-1), m=ints(-1))


def steps_below_zero() -> Iterator[Made]:
    """nod-ai/AMD-SHARK-ModelDev#824: Slice with steps below zero, to the very beginning."""
    for start, end, step in (
        (-1, -100, -1),
        (3, 0, -1),
        (3, -(2**31), -2),
        (100, -100, -3),
        (-1, -(2**63), -1),
    ):
        for axis in (0, -1):
            operands = {"b": ints(start), "e": ints(end), "a": ints(axis), "t": ints(step)}
            yield made(n("Slice", "x b e a t"), x=(5, 4), **operands)


def ends_beyond() -> Iterator[Made]:
    """Slice with ends beyond the tensor, as exporters write them; older opsets."""
    for start, end in ((0, 2**63 - 1), (-2, 2**31 - 1), (1, 100), (-100, 3)):
        yield made(n("Slice", "x b e"), x=(5, 4), b=ints(start, 0), e=ints(end, 4))
        yield made(n("Slice", "x", starts=[start], ends=[end], axes=[1]), 9, x=(5, 4))


def squeezed() -> Iterator[Made]:
    """apache/tvm#19966, #15598, XUANTIE-RV/tvm#4: axes as attribute, input, below zero, none."""
    for axes in ([0], [2], [0, 2]):
        yield made(n("Squeeze", "x", axes=axes), 11, x=(1, 3, 1, 2))
        yield made(n("Squeeze", "x a"), 13, x=(1, 3, 1, 2), a=ints(*(a - 4 for a in axes)))
    yield made(n("Squeeze", "x"), 13, x=(1, 3, 1, 2))
    yield made([n("Squeeze", "x a", "t"), n("Transpose", "t")], x=(1, 3, 2), a=ints(0))


def unsqueezed() -> Iterator[Made]:
    """apache/tvm#9146, #16604, onnx-tensorrt#280: Unsqueeze in every opset, unsorted, negative."""
    for axes in ([0], [0, 2], [2, 0], [-1], [-1, 0]):
        if min(axes) >= 0:
            yield made(n("Unsqueeze", "x", axes=sorted(axes)), 10, x=(3, 4))
        yield made(n("Unsqueeze", "x a"), 13, x=(3, 4), a=ints(*axes))


def expanded() -> Iterator[Made]:
    """apache/tvm#17769: Expand to fewer dimensions, to ones, of a number."""
    for shape, to in (((3, 1), (2, 1, 6)), ((3, 4), (1,)), ((3, 1), (3, 4)), ((), (2, 3))):
        yield made(n("Expand", "x s"), x=shape, s=ints(*to))
    nodes = [n("ReduceMean", "x", "m", axes=[2], keepdims=0), n("Expand", "m s")]
    yield made(nodes, 13, x=(1, 3, 4), s=ints(2, 1, 3))


def reshaped() -> Iterator[Made]:
    """Tencent/ncnn#567, #4342, #4564: Reshape that changes the first dimension, zeros, −1."""
    for to in ((3, 6, 5, 3), (-1, 9), (0, -1), (0, 0, -1), (1, -1, 1, 3), (2, 9, 15)):
        yield made(n("Reshape", "x s"), x=(1, 18, 5, 3), s=ints(*to))
    nodes = [n("Constant", "", "s", value_ints=[-1, 90]), n("Reshape", "x s")]
    yield made(nodes, 12, x=(3, 18, 5))
    yield made(n("Reshape", "x s", allowzero=1), 14, x=(2, 6), s=ints(3, 4))


def reshaped_after_a_convolution() -> Iterator[Made]:
    """Tencent/ncnn#1827: a Reshape of channels that lie innermost, and a Transpose of it."""
    w = values(6, 2, 3, 3)
    for to, perm in (
        ((1, 3, 2, 25), (0, 2, 1, 3)),
        ((6, 25), (1, 0)),
        ((2, 3, 5, 5), (3, 0, 1, 2)),
    ):
        nodes = [n("Conv", "x w", "c"), n("Reshape", "c s", "t"), n("Transpose", "t", perm=perm)]
        yield made(nodes, x=(1, 2, 7, 7), w=w, s=ints(*to))


def padded() -> Iterator[Made]:
    """PINTO0309/onnx2tf#413, alibaba/MNN#2825: Pad without a value, with axes, of all modes."""
    for mode in ("constant", "edge", "reflect", "wrap"):
        for amounts in ((1, 0, 2, 1), (0, 2, 0, 1)):
            op = n("Pad", "x p" if mode != "constant" else "x p _", mode=mode)
            yield made(op, 19, x=(3, 4), p=ints(*amounts))
    yield made(n("Pad", "x p _ a"), 18, x=(3, 4, 2), p=ints(1, 2, 0, 1), a=ints(-1, 0))
    yield made(n("Pad", "x", pads=[0, 1, 2, 0], value=1.5), 2 + 5, x=(3, 4))


def tiled() -> Iterator[Made]:
    """ENOT-AutoDL/onnx2torch#174: Tile with repeats of one, of a row, of zero dimensions."""
    for shape, repeats in (((2, 3), (1, 1)), ((2, 3), (3, 2)), ((1, 4), (5, 1)), ((3,), (4,))):
        yield made(n("Tile", "x r"), x=shape, r=ints(*repeats))


def split_unevenly() -> Iterator[Made]:
    """apache/tvm#8889: Split sizes as attribute and input, num_outputs that leaves a rest."""
    yield made(n("Split", "x", "a b", split=[1, 3], axis=1), 11, x=(2, 4))
    yield made(n("Split", "x s", "a b c", axis=-1), 13, x=(2, 6), s=ints(1, 2, 3))
    yield made(n("Split", "x", "a b c", axis=1, num_outputs=3), 18, x=(2, 7))
    nodes = [n("Split", "x", "a b", axis=0), n("Sub", "b a")]
    yield made(nodes, 13, x=(4, 3))
    yield made([n("Split", "x", "a b", axis=1), n("Concat", "b a b", axis=1)], 13, x=(2, 4))


def spaces_and_depths() -> Iterator[Made]:
    """DepthToSpace of both modes, and behind a convolution, as super-resolution has it."""
    for mode, block in product(("DCR", "CRD"), (2, 3)):
        op = n("DepthToSpace", "x", blocksize=block, mode=mode)
        yield made(op, x=(1, 2 * block * block, 3, 2))
        nodes = [n("Conv", "x w", "c"), n("DepthToSpace", "c", blocksize=2, mode=mode)]
        yield made(nodes, x=(1, 2, 4, 4), w=values(8, 2, 1, 1))


def flattened() -> Iterator[Made]:
    """Flatten at axis 0, at the rank, below zero, and of an image in front of a product."""
    for axis in (0, 1, 2, 3, -1, -3):
        yield made(n("Flatten", "x", axis=axis), 13, x=(2, 3, 4))
    nodes = [n("Conv", "x w", "c"), n("Flatten", "c", "f"), n("Gemm", "f m", transB=1)]
    yield made(nodes, x=(2, 2, 5, 4), w=values(3, 2, 2, 2), m=values(4, 36))


def concatenated() -> Iterator[Made]:
    """Concat of one tensor, of itself, of constants, below zero, of what is read elsewhere."""
    for axis in (0, 1, -1):
        yield made(n("Concat", "x", axis=axis), x=(2, 3))
        yield made(n("Concat", "x x c", axis=axis), x=(3, 3), c=values(3, 3))
    nodes = [n("Relu", "x", "r"), n("Concat", "r x", "c", axis=1), n("Add", "r x", "z")]
    yield made(nodes, x=(2, 3))
    nodes = [n("Concat", "x x", "c", axis=1), n("Concat", "c x", axis=1), n("Neg", "c", "z")]
    yield made(nodes, x=(2, 3))


def sub_matrices() -> Iterator[Made]:
    """Trilu with diagonals far outside, of wide and of high matrices, of batches."""
    for k, upper, shape in product((-9, -1, 0, 2, 9), (0, 1), ((3, 5), (2, 4, 3))):
        yield made(n("Trilu", "x k", upper=upper), x=shape, k=np.int64(k))


KINDS: tuple[Kind, ...] = (
    *(negative_indices, negative_indices_of_elements, negative_axis_of_elements),
    *(depth_of_scattered_indices, batches_of_gathered, gathered_by_a_shape, steps_below_zero),
    *(ends_beyond, squeezed, unsqueezed, expanded, reshaped, reshaped_after_a_convolution),
    *(padded, tiled, split_unevenly, spaces_and_depths, flattened, concatenated, sub_matrices),
)
