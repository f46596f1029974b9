"""Single operators and small subgraphs of Ansor's evaluation, as ONNX models with random weights.

Shapes: Zheng et al., "Ansor: Generating High-Performance Tensor Programs for Deep Learning", OSDI
2020, appendix B. A product of two inputs has no constants, since neither is known before. Capsule
convolution, which ONNX has no operator for, is written in `te`; as an ONNX model, for others, it is
a convolution between two Transposes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from autotune import te

Shape = tuple[int, ...]
Sizes = tuple[int, ...]


Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """The same computation in `te`: the function of its output, and its constants.

    `constants`: from the weights of the ONNX model, by name.
    """

    output: Callable[[], te.Tensor]
    constants: Callable[[Mapping[str, Array]], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Model:
    """Nodes from inputs (name to shape) and weights to the output `y`.

    `shapes`: constants of nodes that say a shape. `expression`: what autotune compiles instead.
    """

    nodes: tuple[onnx.NodeProto, ...]
    inputs: dict[str, Shape]
    weights: dict[str, Shape]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    expression: Expression | None = None

    def arrays(self) -> dict[str, Array]:
        """Random weights of a scale that keeps results near one."""
        rng = np.random.default_rng(0)
        return {
            name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
            for name, shape in self.weights.items()
        }

    def proto(self) -> onnx.ModelProto:
        """The model with those weights."""
        shapes = {n: np.array(shape, np.int64) for n, shape in self.shapes.items()}
        initial = [numpy_helper.from_array(a, n) for n, a in (self.arrays() | shapes).items()]
        values = [helper.make_tensor_value_info(n, 1, s) for n, s in self.inputs.items()]
        output = helper.make_tensor_value_info("y", 1, None)
        graph = helper.make_graph(self.nodes, "operator", values, [output], initial)
        imports = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def convolution(
    n: int, spatial: Shape, sizes: Sizes, groups: int = 1, dilation: int = 1, relu: bool = False
) -> Model:
    """`sizes`: channels in and out, kernel, stride, padding."""
    inside, out, kernel, stride, pad = sizes
    rank = len(spatial)
    attrs: dict[str, Any] = {
        "strides": [stride] * rank,
        "pads": [pad] * 2 * rank,
        "dilations": [dilation] * rank,
        "group": groups,
    }
    weights = {"w": (out, inside // groups, *[kernel] * rank)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c" if relu else "y"], **attrs)]
    if relu:
        weights |= {"b": (out,)}
        nodes[0].input.append("b")
        nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    return Model(tuple(nodes), {"x": (n, inside, *spatial)}, weights)


def transposed(n: int, spatial: Shape, sizes: Sizes) -> Model:
    """Transposed convolution; `sizes` as of `convolution`."""
    inside, out, kernel, stride, pad = sizes
    attrs: dict[str, Any] = {"strides": [stride] * 2, "pads": [pad] * 4}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)
    return Model((node,), {"x": (n, inside, *spatial)}, {"w": (inside, out, kernel, kernel)})


def product(n: int, rows: int, columns: int, terms: int) -> Model:
    """Batched matrix product of two inputs."""
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    return Model((node,), {"a": (n, rows, terms), "b": (n, terms, columns)}, {})


def norm(n: int, rows: int, columns: int) -> Model:
    """The 2-norm of every matrix."""
    node = helper.make_node("ReduceL2", ["x"], ["y"], axes=[1, 2], keepdims=0)
    return Model((node,), {"x": (n, rows, columns)}, {})


def attention_scores(n: int, length: int, heads: int, size: int) -> Model:
    """Ansor's TBG: two transpositions and the batched product of what they give."""
    nodes = (
        helper.make_node("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["qt", "kt"], ["y"]),
    )
    return Model(nodes, {"q": (n, length, heads, size), "k": (n, length, heads, size)}, {})


_CAPSULE = 4
"""Rows and columns of the matrix at every pixel and channel."""


def capsule(n: int, spatial: Shape, sizes: Sizes) -> Model:
    """Capsule convolution; `sizes` as of `convolution`, of channels of 4×4 matrices.

    y[n, h, w, i, j, o] = Σ_{kh, kw, k, c} x[n, h + kh, w + kw, i, k, c] · w[kh, kw, k, j, c, o]
    """
    inside, out, kernel, stride, pad = sizes
    size = _CAPSULE
    given: Shape = (n, *spatial, size, size, inside)
    pixels = tuple((e + 2 * pad - kernel) // stride + 1 for e in spatial)
    shapes = {
        "images": (n * size, size * inside, *spatial),
        "capsules": (n, size, size, out, *pixels),
    }
    nodes = (
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 4, 5, 1, 2]),
        helper.make_node("Reshape", ["t", "images"], ["i"]),
        helper.make_node("Conv", ["i", "w"], ["c"], strides=[stride] * 2, pads=[pad] * 4),
        helper.make_node("Reshape", ["c", "capsules"], ["m"]),
        helper.make_node("Transpose", ["m"], ["y"], perm=[0, 4, 5, 1, 2, 3]),
    )
    weights: dict[str, Shape] = {"w": (size * out, size * inside, kernel, kernel)}
    expression = Expression(
        partial(_capsule, given, pixels, sizes), partial(_capsule_weight, sizes)
    )
    return Model(nodes, {"x": given}, weights, shapes, expression)


def _capsule(given: Shape, pixels: Shape, sizes: Sizes) -> te.Tensor:
    inside, out, kernel, stride, pad = sizes
    n, height, width, size = given[:4]
    x = te.placeholder(given, "x")
    w = te.placeholder((kernel, kernel, size, size, inside, out), "w", constant=True)
    padded = (n, height + 2 * pad, width + 2 * pad, *given[3:])
    extended = te.compute(
        padded,
        lambda n, h, v, i, k, c: te.where(
            (h >= pad) & (h < height + pad) & (v >= pad) & (v < width + pad),
            x[n, h - pad, v - pad, i, k, c],
            0.0,
        ),
        "pad",
    )
    taps = [te.reduce_axis(e, a) for a, e in (("kh", kernel), ("kw", kernel))]
    k, c = te.reduce_axis(size, "k"), te.reduce_axis(inside, "c")

    def element(n: Any, h: Any, v: Any, i: Any, j: Any, o: Any) -> Any:
        pixel = extended[n, h * stride + taps[0], v * stride + taps[1], i, k, c]
        return te.sum(pixel * w[taps[0], taps[1], k, j, c, o], (*taps, k, c))

    return te.compute((n, *pixels, size, size, out), element, "y")


def _capsule_weight(sizes: Sizes, weights: Mapping[str, Array]) -> dict[str, Array]:
    """(j·o, k·c, kh, kw) -> (kh, kw, k, j, c, o)."""
    inside, out, kernel = sizes[:3]
    split = weights["w"].reshape(_CAPSULE, out, _CAPSULE, inside, kernel, kernel)
    return {"w": np.ascontiguousarray(split.transpose(4, 5, 2, 0, 3, 1))}


_C2D = [
    ((224, 224), (3, 64, 7, 2, 3)),
    ((56, 56), (64, 64, 1, 1, 0)),
    ((14, 14), (256, 256, 3, 1, 1)),
    ((7, 7), (512, 512, 3, 1, 1)),
]
_C1D = [
    ((256,), (64, 128, 3, 2, 1)),
    ((128,), (128, 256, 1, 2, 0)),
    ((64,), (256, 256, 5, 1, 2)),
    ((32,), (512, 512, 3, 1, 1)),
]
_DEP = [((112, 112), (32, 3, 1)), ((112, 112), (64, 3, 2)), ((14, 14), (512, 3, 2))]
_DEP += [((7, 7), (1024, 3, 1))]
_GRP = [((56, 56), (64, 128, 3, 2, 1)), ((28, 28), (128, 256, 3, 2, 1))]
_GRP += [((14, 14), (256, 512, 3, 2, 1)), ((7, 7), (512, 512, 3, 1, 1))]
_T2D = [((4, 4), (512, 256, 4, 2, 1)), ((8, 8), (256, 128, 4, 2, 1))]
_T2D += [((16, 16), (128, 64, 4, 2, 1)), ((32, 32), (64, 3, 4, 2, 1))]
_CAP = [((16, 16), (32, 32, 3, 2, 1)), ((8, 8), (32, 32, 3, 1, 1))]
_CAP += [((16, 16), (8, 16, 3, 2, 1)), ((8, 8), (16, 16, 3, 1, 1))]
_NRM = [(256, 256), (512, 512), (1024, 1024), (4096, 1024)]
_GMM = [(128, 128, 128), (512, 32, 512), (512, 512, 512), (1024, 1024, 1024)]
_TBG = [(128, 12, 64), (128, 16, 64), (64, 12, 128), (128, 12, 128)]

Case = tuple[str, Callable[[int], Model]]


def _convolutions(table: Sequence[tuple[Shape, Sizes]], **more: Any) -> list[Case]:
    return [(str((*s, *z)), partial(convolution, spatial=s, sizes=z, **more)) for s, z in table]


def _depthwise(spatial: Shape, sizes: Sizes) -> Case:
    channels, kernel, stride = sizes
    full = (channels, channels, kernel, stride, kernel // 2)
    model = partial(convolution, spatial=spatial, sizes=full, groups=channels)
    return str((*spatial, *sizes)), model


CASES: dict[str, list[Case]] = {
    "C1D": _convolutions(_C1D),
    "C2D": _convolutions(_C2D),
    "C3D": _convolutions([((16, *s), z) for s, z in _C2D]),
    "GMM": [(str(z), partial(product, rows=z[0], columns=z[1], terms=z[2])) for z in _GMM],
    "GRP": _convolutions(_GRP, groups=4),
    "DIL": _convolutions(_C2D, dilation=2),
    "DEP": [_depthwise(s, z) for s, z in _DEP],
    "T2D": [(str((*s, *z)), partial(transposed, spatial=s, sizes=z)) for s, z in _T2D],
    "CAP": [(str((*s, *z)), partial(capsule, spatial=s, sizes=z)) for s, z in _CAP],
    "NRM": [(str(z), partial(norm, rows=z[0], columns=z[1])) for z in _NRM],
    "ConvLayer": _convolutions(_C2D, relu=True),
    "TBG": [(str(z), partial(attention_scores, length=z[0], heads=z[1], size=z[2])) for z in _TBG],
}
"""Shapes in the order of the paper: extents, channels, kernel, stride, padding."""
