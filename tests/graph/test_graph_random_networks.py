"""Random networks: branches, residual sums, nested concatenations, splits, reshapes, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto

from tests.graph.onnx_models import assert_matches, model, node

HEIGHT, WIDTH = 3, 5


class _Drawn:
    """Nodes drawn so far and the tensors (name -> channels) that they make.

    They read what was made last, one of `recent` tensors.
    """

    def __init__(self, data: st.DataObject, recent: int) -> None:
        self.data = data
        self.recent = recent
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, object] = {}
        self.tensors = {"x": 4}
        self.rng = np.random.default_rng(data.draw(st.integers(0, 99)))

    def pick(self) -> str:
        return self.data.draw(st.sampled_from(self.last()))

    def last(self) -> list[str]:
        return list(self.tensors)[-self.recent :]

    def constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32) / 2)

    def add(self, op: str, inputs: list[str], channels: list[int], **attrs: object) -> None:
        names = [f"t{len(self.tensors) + n}" for n in range(len(channels))]
        self.nodes.append(node(op, " ".join(inputs), " ".join(names), **attrs))
        self.tensors |= dict(zip(names, channels, strict=True))

    def step(self, ops: Sequence[str]) -> None:
        op = self.data.draw(st.sampled_from(ops))
        x = self.pick()
        n = self.tensors[x]
        match op:
            case "Conv":
                out = self.data.draw(st.sampled_from([2, 4, 6]))
                self.add(op, [x, self.weight(out, n, 3, 3)], [out], pads=[1, 1, 1, 1])
            case "Pointwise":
                out = self.data.draw(st.sampled_from([2, 4, 6]))
                self.add("Conv", [x, self.weight(out, n, 1, 1)], [out])
            case "Depthwise":
                self.add("Conv", [x, self.weight(n, 1, 3, 3)], [n], group=n, pads=[1, 1, 1, 1])
            case "Grouped" if n % 2 == 0:
                self.add("Conv", [x, self.weight(n, n // 2, 1, 1)], [n], group=2)
            case "Add" | "Max" | "Min":
                same = [t for t in self.last() if self.tensors[t] == n]
                self.add(op, [x, self.data.draw(st.sampled_from(same))], [n])
            case "Concat":
                others = [self.pick() for _ in range(self.data.draw(st.integers(1, 2)))]
                total = n + sum(self.tensors[o] for o in others)
                if total <= 24:
                    self.add(op, [x, *others], [total], axis=1)
            case "Split" if n % 2 == 0:
                self.add(op, [x], [n // 2, n // 2], axis=1)
            case "Scale":
                self.add("Mul", [x, self.weight(n, 1, 1)], [n])
            case "MaxPool":
                attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
                self.add(op, [x], [n], **attrs)
            case "Relu" | "Sigmoid":
                self.add(op, [x], [n])


_OPS = ("Conv", "Pointwise", "Depthwise", "Grouped", "Add", "Concat", "Concat", "Split", "Scale")
_OPS += ("MaxPool", "Relu", "Sigmoid")
_ARITHMETIC = ("Add", "Max", "Min", "Relu", "Sigmoid", "Scale", "MaxPool")
"""Every tensor has the shape of the first: readers part and meet again in many ways."""


@pytest.mark.slow
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize(
    ("ops", "most", "recent"), [(_OPS, 12, 99), (_ARITHMETIC, 16, 4)], ids=["all", "arithmetic"]
)
@given(data=st.data())
def test_random_network(
    data: st.DataObject, tmp_path: Path, ops: Sequence[str], most: int, recent: int
) -> None:
    drawn = _Drawn(data, recent)
    for _ in range(data.draw(st.integers(1, most))):
        drawn.step(ops)
    drawn.add("Identity", [drawn.pick()], [1])
    made = [name for name in drawn.tensors if name != "x"]
    outputs = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    proto = model(
        drawn.nodes, {"x": (1, 4, HEIGHT, WIDTH)}, drawn.constants, outputs=" ".join(outputs)
    )
    assert_matches(proto, tmp_path, 2e-5)
