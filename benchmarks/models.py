"""The networks that are measured, by name: those of the `onnx` wheel, and three it does not carry.

    python -m benchmarks.models FOLDER      # writes the three to FOLDER

The wheel's light models keep the structure of a network and have no weights; the benchmarks
give both sides the same seeded ones (`autotune.graph.reader.random_weights`). MobileNet v1
(Howard et al. 2017), MobileNet v2 (Sandler et al. 2018) and ResNet-18 (He et al. 2016) are built
here as exporters leave them: batch 1, normalisations folded into biased convolutions, and weights
whose scale keeps the mean square of every activation near one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnx.helper as oh
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, numpy_helper

from autotune.graph.network import Network, build_network

OPSET, IR_VERSION = 17, 8
N_CLASSES = 1000
_LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
_BIAS_SCALE = 0.05
_RESIDUAL_GAIN = 0.35
"""Mean square of a residual branch beside its trunk: (1 + 0.35)^8 ≈ 11 after eight blocks."""


@dataclass(slots=True)
class Builder:
    """A chain of nodes with branches: every method adds a node and returns its output's name."""

    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=lambda: {"input": 3})

    def conv(self, x: str, n: int, k: int, stride: int = 1, gain: float = 2.0) -> str:
        """k×k convolution to `n` channels; `gain`: 2 before a ReLU (He), 1 before none."""
        return self._conv(x, n, k, stride, 1, gain)

    def depthwise(self, x: str, stride: int) -> str:
        """3×3 convolution of every channel by itself."""
        return self._conv(x, self.channels[x], 3, stride, self.channels[x], 2.0)

    def _conv(self, x: str, n: int, k: int, stride: int, groups: int, gain: float) -> str:
        shape = (n, self.channels[x] // groups, k, k)
        return self._node(
            "Conv",
            [x, self._weight(shape, gain), self._bias(n)],
            n,
            kernel_shape=[k, k],
            strides=[stride, stride],
            pads=[k // 2] * 4,
            group=groups,
        )

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        return self._node("Relu", [x], self.channels[x])

    def relu6(self, x: str) -> str:
        """min(max(x, 0), 6), a Clip."""
        if not any(t.name == "six" for t in self.weights):
            self.weights.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
            self.weights.append(numpy_helper.from_array(np.array(6, np.float32), "six"))
        return self._node("Clip", [x, "zero", "six"], self.channels[x])

    def add(self, x: str, y: str) -> str:
        """A residual connection."""
        return self._node("Add", [x, y], self.channels[x])

    def max_pool(self, x: str, k: int, stride: int) -> str:
        """Largest of every k×k window."""
        return self._node(
            "MaxPool",
            [x],
            self.channels[x],
            kernel_shape=[k, k],
            strides=[stride, stride],
            pads=[k // 2] * 4,
        )

    def classify(self, x: str) -> str:
        """Global average, fully connected layer, softmax."""
        n = self.channels[x]
        flat = self._node("Flatten", [self._node("GlobalAveragePool", [x], n)], n)
        operands = [flat, self._weight((N_CLASSES, n), 1.0), self._bias(N_CLASSES)]
        logits = self._node("Gemm", operands, N_CLASSES, transB=1)
        return self._node("Softmax", [logits], N_CLASSES, axis=1)

    def _node(self, kind: str, inputs: list[str], channels: int, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(oh.make_node(kind, inputs, [name], name=name, **attributes))
        self.channels[name] = channels
        return name

    def _weight(self, shape: tuple[int, ...], gain: float) -> str:
        scale = np.sqrt(gain / np.prod(shape[1:]))
        return self._constant("weight", scale * self.rng.standard_normal(shape))

    def _bias(self, n: int) -> str:
        return self._constant("bias", _BIAS_SCALE * self.rng.standard_normal(n))

    def _constant(self, kind: str, values: NDArray[Any]) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name


def mobilenet_v1(b: Builder) -> str:
    """MobileNet v1, width 1.0: 569 M multiply-adds."""
    x = b.relu(b.conv("input", 32, 3, 2))
    widths = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
    for n, stride in [*widths, (1024, 2), (1024, 1)]:
        x = b.relu(b.conv(b.relu(b.depthwise(x, stride)), n, 1))
    return b.classify(x)


def mobilenet_v2(b: Builder) -> str:
    """MobileNet v2, width 1.0: 301 M multiply-adds."""
    x = b.relu6(b.conv("input", 32, 3, 2))
    # expansion, channels, blocks, stride of the first block
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    for expansion, n, blocks, stride in [*stages, (6, 160, 3, 2), (6, 320, 1, 1)]:
        for i in range(blocks):
            x = _inverted_residual(b, x, expansion, n, stride if i == 0 else 1)
    return b.classify(b.relu6(b.conv(x, 1280, 1)))


def _inverted_residual(b: Builder, x: str, expansion: int, n: int, stride: int) -> str:
    wide = b.channels[x] * expansion
    y = b.relu6(b.conv(x, wide, 1)) if expansion > 1 else x
    y = b.relu6(b.depthwise(y, stride))
    if stride > 1 or b.channels[x] != n:
        return b.conv(y, n, 1, gain=1.0)
    return b.add(x, b.conv(y, n, 1, gain=_RESIDUAL_GAIN))


def resnet18(b: Builder) -> str:
    """ResNet-18: 1.81 G multiply-adds."""
    x = b.max_pool(b.relu(b.conv("input", 64, 7, 2, gain=0.5)), 3, 2)
    for n, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        for i in range(2):
            x = _basic_block(b, x, n, stride if i == 0 else 1)
    return b.classify(x)


def _basic_block(b: Builder, x: str, n: int, stride: int) -> str:
    y = b.relu(b.conv(x, n, 3, stride))
    if stride == 1 and b.channels[x] == n:
        return b.relu(b.add(b.conv(y, n, 3, gain=_RESIDUAL_GAIN), x))
    shortcut = b.conv(x, n, 1, stride, gain=0.5)
    return b.relu(b.add(b.conv(y, n, 3, gain=0.5), shortcut))


BUILT: dict[str, Callable[[Builder], str]] = {
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
}
LIGHT = (
    "resnet50",
    "vgg19",
    "squeezenet",
    "inception_v1",
    "inception_v2",
    "bvlc_alexnet",
    "zfnet512",
    "densenet121",
    "shufflenet",
)
NAMES = (*LIGHT, *BUILT)


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """One of `BUILT`: input `input` of 1×3×224×224, output `output` of 1×1000."""
    builder = Builder(np.random.default_rng(seed))
    last = BUILT[name](builder)
    builder.nodes[-1].output[0] = "output"
    assert builder.nodes[-1].name == last
    value = partial(oh.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    graph = oh.make_graph(
        builder.nodes,
        name,
        [value("input", shape=[1, 3, 224, 224])],
        [value("output", shape=[1, N_CLASSES])],
        builder.weights,
    )
    opset = [oh.make_opsetid("", OPSET)]
    return oh.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)


def model_file(name: str, folder: Path) -> Path:
    """The file of the network `name`, which is built in `folder` where it is not in the wheel."""
    if name in LIGHT:
        return _LIGHT / f"light_{name}.onnx"
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        onnx.save(build(name), temporary)
        temporary.replace(path)
    return path


def lacks_weights(path: Path) -> bool:
    """Whether a network comes from the wheel, without weights."""
    return path.parent.resolve() == _LIGHT.resolve()


def read(path: Path) -> Network:
    """The network of a file, with random weights where it has none of its own."""
    return build_network(path, random_weights=lacks_weights(path))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Build the networks that do not come with the onnx package."""
    for name in BUILT:
        click.echo(model_file(name, folder))


if __name__ == "__main__":
    main()
