"""Reported kinds: convolutions, pooling, resizing, normalisation over images."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tests.fuzz.reported import Kind, Made, fed, ints, made, n, values

IMAGE = (1, 2, 7, 6)


def pads_of_minus_one() -> Iterator[Made]:
    """apache/tvm#13757: a convolution with pads of −1 (here: the Pad that it is)."""
    w = values(3, 2, 3, 3)
    for amounts in ((0, 0, -1, -1, 0, 0, -1, -1), (0, 0, 1, -1, 0, 0, -1, 2)):
        nodes = [n("Pad", "x p", "t"), n("Conv", "t w")]
        yield made(nodes, x=IMAGE, p=ints(*amounts), w=w)
        yield made(n("Pad", "x p"), 11, x=IMAGE, p=ints(*amounts))


def transposed_with_dilations() -> Iterator[Made]:
    """microsoft/onnxruntime#2518: the shape of ConvTranspose with strides and dilations."""
    for strides, dilations in product(((2, 1), (1, 2), (3, 2)), ((3, 1), (2, 2))):
        attrs = {"strides": strides, "dilations": dilations, "pads": [1, 0, 1, 0]}
        yield made(n("ConvTranspose", "x w", **attrs), x=IMAGE, w=values(2, 3, 3, 2))


def transposed_with_output_padding() -> Iterator[Made]:
    """apache/tvm#18635: `output_padding` of ConvTranspose is dropped."""
    for padding, group in product(((1, 1), (0, 1), (1, 0)), (1, 2)):
        attrs = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": padding}
        op = n("ConvTranspose", "x w b", group=group, **attrs)
        yield made(op, x=IMAGE, w=values(2, 3, 3, 3), b=values(3 * group))


def transposed_to_a_shape() -> Iterator[Made]:
    """apache/tvm#11076: ConvTranspose with `output_shape` and no pads."""
    for shape, auto in product(((14, 12), (15, 13)), ("SAME_UPPER", "SAME_LOWER", "NOTSET")):
        attrs = {"strides": [2, 2], "output_shape": shape, "auto_pad": auto}
        yield made(n("ConvTranspose", "x w", **attrs), 11, x=IMAGE, w=values(2, 3, 3, 3))


def transposed_groups_and_normalisation() -> Iterator[Made]:
    """alibaba/MNN#2916: grouped ConvTranspose with the scale that follows folded into it."""
    for group, op in product((1, 2), ("BatchNormalization", "Mul")):
        w = values(2, 3, 3, 3)
        m = 3 * group
        extra = [values(m, seed=k) for k in range(3)]
        first = n("ConvTranspose", "x w", "t", group=group, strides=[2, 2])
        if op == "Mul":
            yield made([first, n("Mul", "t s")], x=IMAGE, w=w, s=values(m, 1, 1))
            continue
        nodes = [first, n(op, "t s b m v")]
        spread = np.abs(values(m, seed=9)) + 0.5
        yield made(nodes, x=IMAGE, w=w, s=extra[0], b=extra[1], m=extra[2], v=spread)


def average_at_the_rim() -> Iterator[Made]:
    """microsoft/onnxruntime#16203: AveragePool, ceil_mode, what the last window is divided by."""
    for include, opset in product((0, 1), (19, 22)):
        attrs = {"kernel_shape": [7], "strides": [3], "pads": [3, 3], "ceil_mode": 1}
        yield made(n("AveragePool", "x", count_include_pad=include, **attrs), opset, x=(1, 2, 9))


def average_with_ceil_mode() -> Iterator[Made]:
    """onnx/onnx#4958, openvino#33369: rows beyond the image with ceil_mode."""
    for kernel, stride, size in ((2, 2, 17), (3, 2, 4), (1, 2, 4), (2, 3, 6)):
        attrs = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "ceil_mode": 1}
        for op in ("AveragePool", "MaxPool"):
            yield made(n(op, "x", **attrs), 19, x=(1, 2, size, size))


def average_counts_end_padding() -> Iterator[Made]:
    """microsoft/onnxruntime#24681: AveragePool-19 forgets the padding at the end."""
    for auto, opset in product(("SAME_LOWER", "SAME_UPPER"), (11, 19)):
        for shape, kernel in (((1, 1, 6, 2), [5, 1]), ((1, 2, 5, 5), [2, 4])):
            attrs = {"kernel_shape": kernel, "auto_pad": auto, "count_include_pad": 1}
            if opset == 19:  # onnxruntime has the fault: the older opset means the same
                attrs["auto_pad"] = auto
            yield made(n("AveragePool", "x", **attrs), 11, x=shape)


def padding_before_an_average() -> Iterator[Made]:
    """microsoft/onnxruntime#22177: a Pad is fused into the AveragePool behind it."""
    for include, op in product((0, 1), ("AveragePool", "MaxPool")):
        attrs = {"kernel_shape": [3, 3], "strides": [2, 2]}
        if op == "AveragePool":
            attrs["count_include_pad"] = include
        nodes = [n("Pad", "x p", "t"), n(op, "t", **attrs)]
        yield made(nodes, x=IMAGE, p=ints(0, 0, 1, 1, 0, 0, 1, 1))


def padding_with_a_value_before_a_window() -> Iterator[Made]:
    """Siblings of onnxruntime#22177: other values and modes in front of windows that pad."""
    for mode, op in product(("constant", "edge", "reflect"), ("Conv", "MaxPool")):
        first = n("Pad", "x p v" if mode == "constant" else "x p", "t", mode=mode)
        p, v = ints(0, 0, 1, 2, 0, 0, 2, 1), np.float32(-1.5)
        extra = {"v": v} if mode == "constant" else {}
        attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        second = n(op, "t w" if op == "Conv" else "t", **attrs)
        if op == "Conv":
            extra["w"] = values(2, 2, 3, 3)
        yield made([first, second], x=IMAGE, p=p, **extra)


def largest_of_padding() -> Iterator[Made]:
    """openvino#20879: MaxPool with dilations, pads and negative numbers; pads are no zeros."""
    x = fed(-np.abs(values(1, 1, 5, 5)) - 1)
    for dilation, auto in product((1, 2), ("NOTSET", "SAME_UPPER", "VALID")):
        attrs = {"kernel_shape": [2, 2], "auto_pad": auto, "dilations": [dilation] * 2}
        if auto == "NOTSET":
            attrs["pads"] = [1, 1, 1, 1]
        if dilation == 1 or auto == "NOTSET":
            yield made(n("MaxPool", "x", **attrs), 12, x=x)


def upsampling_linearly() -> Iterator[Made]:
    """microsoft/onnxruntime#1179: Upsample and Resize-10 in linear mode."""
    for opset, scale in product((9, 10), ((2, 2), (1, 3), (1.5, 2))):
        op = "Upsample" if opset == 9 else "Resize"
        s = np.array([1, 1, *scale], np.float32)
        yield made(n(op, "x s", mode="linear"), opset, x=(1, 1, 4, 4), s=s)


def corners_aligned() -> Iterator[Made]:
    """onnxruntime#3292, #17564, TensorRT#273: align_corners beside the other transformations."""
    modes = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
    for mode, size in product(modes, ((9, 11), (14, 12), (3, 6))):
        attrs = {"mode": "linear", "coordinate_transformation_mode": mode}
        yield made(n("Resize", "x _ _ s", **attrs), 13, x=IMAGE, s=ints(1, 2, *size))


def cubic_to_one() -> Iterator[Made]:
    """microsoft/onnxruntime#11496: cubic resizing down to one pixel and elsewhere."""
    for size in ((1, 1), (2, 3), (8, 9)):
        for mode in ("half_pixel", "asymmetric"):
            attrs = {"mode": "cubic", "coordinate_transformation_mode": mode}
            yield made(n("Resize", "x _ _ s", **attrs), 13, x=(1, 1, 4, 4), s=ints(1, 1, *size))


def nearest_of_26_to_64() -> Iterator[Made]:
    """onnxruntime#28310, tvm#19500: which neighbour, by every way to round."""
    for near in ("round_prefer_ceil", "round_prefer_floor", "floor", "ceil"):
        for mode in ("half_pixel", "asymmetric"):
            attrs = {"nearest_mode": near, "coordinate_transformation_mode": mode}
            scale = np.array([1, 1, 1, 1.5], np.float32)
            x = fed(np.arange(27, dtype=np.float32).reshape(1, 1, 1, 27))
            yield made(n("Resize", "x _ s", mode="nearest", **attrs), 13, x=x, s=scale)


def resized_in_tf_order() -> Iterator[Made]:
    """NVIDIA/TensorRT#2689: nearest, asymmetric, floor with sizes, a roi of no elements."""
    attrs = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    nothing = np.zeros(0, np.float32)
    for size in ((14, 12), (9, 6), (7, 18)):
        op = n("Resize", "x r e s", mode="nearest", **attrs)
        yield made(op, 11, x=IMAGE, r=nothing, e=nothing, s=ints(1, 2, *size))


def sampled_by_a_grid() -> Iterator[Made]:
    """NVIDIA/TensorRT#4646: GridSample-20 beside GridSample-16, one row of pixels."""
    grid = fed(np.random.default_rng(3).uniform(-1.3, 1.3, (1, 1, 9, 2)).astype(np.float32))
    for opset, padding, corners in product((16, 20), ("zeros", "border"), (0, 1)):
        mode = "bilinear" if opset == 16 else "linear"
        op = n("GridSample", "x g", mode=mode, padding_mode=padding, align_corners=corners)
        yield made(op, opset, x=(1, 1, 3, 16), g=grid)


def normalised_instances() -> Iterator[Made]:
    """microsoft/onnxruntime#7572: InstanceNormalization of odd widths; one channel; 1-d."""
    for shape in ((1, 3, 5, 7), (2, 1, 4, 4), (1, 4, 11), (1, 2, 3, 3, 3), (1, 2, 1, 2)):
        s, b = values(shape[1]), values(shape[1], seed=1)
        yield made(n("InstanceNormalization", "x s b", epsilon=1e-4), x=shape, s=s, b=b)


def normalised_batches() -> Iterator[Made]:
    """microsoft/onnxruntime#3873: BatchNormalization of 2, 3, 4 and 5 dimensions."""
    for shape, opset in product(((3, 3), (2, 3, 5), IMAGE, (1, 2, 3, 2, 4)), (9, 15)):
        s, b, m = (values(shape[1], seed=k) for k in range(3))
        v = np.abs(values(shape[1], seed=5)) + 0.1
        yield made(n("BatchNormalization", "x s b m v"), opset, x=shape, s=s, b=b, m=m, v=v)


def convolutions_of_unusual_shapes() -> Iterator[Made]:
    """tt-forge-onnx#2230: kernels, dilations and channels that are odd or larger than usual."""
    for kernel, dilation, shape in (
        ((5, 8), (2, 1), (1, 3, 17, 21)),
        ((9, 2), (1, 14), (1, 3, 12, 17)),
        ((4, 2), (3, 5), (2, 3, 17, 11)),
        ((1, 7), (1, 1), (1, 3, 1, 20)),
    ):
        pads = [k // 2 for k in kernel] * 2
        op = n("Conv", "x w", dilations=dilation, pads=pads)
        yield made(op, x=shape, w=values(5, 3, *kernel))


KINDS: tuple[Kind, ...] = (
    *(pads_of_minus_one, transposed_with_dilations, transposed_with_output_padding),
    *(transposed_to_a_shape, transposed_groups_and_normalisation, average_at_the_rim),
    *(average_with_ceil_mode, average_counts_end_padding, padding_before_an_average),
    *(padding_with_a_value_before_a_window, largest_of_padding, upsampling_linearly),
    *(corners_aligned, cubic_to_one, nearest_of_26_to_64, resized_in_tf_order),
    *(sampled_by_a_grid, normalised_instances, normalised_batches),
    *(convolutions_of_unusual_shapes,),
)
