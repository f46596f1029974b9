"""Networks of odd sizes, compiled from programs drawn from all of the space, against ONNX Runtime.

Tiles that do not divide what they cover meet here: buffers that share memory, results that lie
where an operand lay, rows that are spaced.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import NodeProto

from autotune.errors import ScheduleError
from autotune.graph.network import build_network
from autotune.graph.reader.onnx_reader import prepare_model
from autotune.loopir.lower import lower
from autotune.network.check.check import check_onnxruntime
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.schedule.steps import Steps
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.target import Target, parse_target, runs_here
from autotune.te.dag import ComputeDAG
from tests.graph.onnx_models import model, node

OVERLAPPING = (98, 193, 216)
"""Some of 240 that were wrong when a last tile that stands apart was stored over an operand."""

TARGETS = [t for t in (parse_target("x86-64-v3"), parse_target("x86-64-v4")) if runs_here(t)]


class _Blocks:
    """Residual blocks, one behind the other; `channels` of what was made last, tensor `last`."""

    def __init__(self, seed: int, channels: int) -> None:
        self.random, self.values = Random(seed), np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.last, self.channels = "x", channels

    def add(self, op: str, *inputs: str, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), name, **attrs))
        return name

    def conv(self, x: str, n_in: int, n_out: int, size: int = 1, **attrs: int) -> str:
        shape = (n_out, n_in // attrs.get("group", 1), size, size)
        scale = float(np.sqrt(np.prod(shape[1:])))
        names = [f"w{len(self.weights)}", f"b{len(self.weights)}"]
        arrays = self.values.standard_normal(shape) / scale, self.values.standard_normal(n_out)
        self.weights |= {n: a.astype(np.float32) for n, a in zip(names, arrays, strict=True)}
        return self.add("Conv", x, *names, pads=[size // 2] * 4, **attrs)

    def activation(self, x: str) -> str:
        op = self.random.choice(["Relu", "HardSwish", "Tanh", "Sigmoid"])
        return self.add(op, x) if self.random.random() < 0.8 else x

    def block(self) -> None:
        """A wider convolution, then one of three residual blocks of its channels."""
        wider = self.random.choice([self.random.randint(5, 60), 8 * self.random.randint(3, 30)])
        x = self.activation(self.conv(self.last, self.channels, wider))
        match self.random.choice(["plain", "depthwise", "squeeze"]):
            case "plain":
                y = self.conv(x, wider, wider, self.random.choice([1, 3]))
            case "depthwise":
                y = self.activation(self.conv(x, wider, wider, 3, group=wider))
                y = self.conv(y, wider, wider)
            case _:
                few = -(-wider // 4)
                y = self.activation(self.conv(self.add("GlobalAveragePool", x), wider, few))
                y = self.add("Mul", x, self.add("Sigmoid", self.conv(y, few, wider)))
        operands = [x, y] if self.random.random() < 0.5 else [y, x]
        self.last, self.channels = self.activation(self.add("Add", *operands)), wider


def drawn_steps(dag: ComputeDAG, target: Target, rng: np.random.Generator) -> Steps:
    """A program of any sketch, whatever its speed."""
    sketches = generate_sketches(dag, target)
    while True:
        sketch = sketches[int(rng.integers(len(sketches)))]
        rows = sketch.sample(60, rng)
        for row in rows[analyse(dag, sketch, rows, target).valid][:1]:
            try:
                lower(dag, sketch.bind(row))
                return sketch.bind(row)
            except ScheduleError:  # buffers that are too large
                continue


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(3), *OVERLAPPING])
def test_any_programs_make_the_network(seed: int, tmp_path: Path) -> None:
    blocks = _Blocks(seed, channels=3 + seed)
    for _ in range(3):
        blocks.block()
    shape = (1 + seed % 2, 3 + seed, 7 + seed % 5, 9)
    path = tmp_path / "net.onnx"
    onnx.save(model(blocks.nodes, {"x": shape}, blocks.weights, blocks.last), path)
    network = build_network(path)
    target, rng = TARGETS[seed % len(TARGETS)], np.random.default_rng(seed)
    steps = {key: drawn_steps(dag, target, rng) for key, dag in network.tasks.items()}
    compiled = Model(compile_network(network, steps, target, 1 + seed % 2))
    assert check_onnxruntime(compiled, prepare_model(path, {})) < 3e-5
