"""A small text encoder with a batch, a sequence and a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
MOST_ROWS, LONGEST, WIDTH, HEADS, WORDS = 5, 19, 16, 2, 40


class Encoder:
    """A text encoder that mixes rows by attention, with a token's and a row's output.

    `by_ids`: positions count ids that are not 1, as RoBERTa does, else places of the mask.
    """

    def __init__(
        self, n_layers: int, masked: bool = True, longest: int = LONGEST, by_ids: bool = False
    ) -> None:
        self.longest, self.by_ids = longest, by_ids
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.rng = np.random.default_rng(0)
        self.masked = masked
        x = self("Add", self("Gather", self.weight(WORDS, WIDTH), "ids"), self.positions())
        self.bias = self.masking()
        for _ in range(n_layers):
            x = self.layer(x)
        self.nodes.append(helper.make_node("Identity", [x], ["hidden"]))
        self.nodes.append(
            helper.make_node("Gather", [x, self.value(np.array(0))], ["first"], axis=1)
        )
        wide = self("Unsqueeze", self("Cast", "mask", to=1), self.ints(2))
        total = self("ReduceSum", self("Mul", x, wide), self.ints(1), keepdims=0)
        count = self("ReduceSum", wide, self.ints(1), keepdims=0)
        self.nodes.append(helper.make_node("Div", [total, count], ["mean"]))

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attrs))
        return name

    def value(self, array: Array) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.value(self.rng.standard_normal(shape).astype(np.float32) * 0.3)

    def ints(self, *values: int) -> str:
        return self.value(np.array(values, np.int64))

    def positions(self) -> str:
        counted = self("Cast", "mask", to=7)
        if self.by_ids:
            is_padding = self("Equal", "ids", self.value(np.array(1)))
            counted = self("Cast", self("Not", is_padding), to=7)
        places = self("CumSum", counted, self.value(np.array(1)))
        places = self("Mul", places, counted)
        return self("Gather", self.weight(self.longest + 1, WIDTH), places)

    def masking(self) -> str:
        off = self("Sub", self.value(np.ones(1, np.float32)), self("Cast", "mask", to=1))
        return self(
            "Unsqueeze", self("Mul", off, self.value(np.full(1, -1e4, np.float32))), self.ints(1, 2)
        )

    def dense(self, x: str, n: int, m: int) -> str:
        return self("Add", self("MatMul", x, self.weight(n, m)), self.weight(m))

    def layer(self, x: str) -> str:
        def heads(perm: Sequence[int]) -> str:
            split = self("Reshape", self.dense(x, WIDTH, WIDTH), self.ints(0, 0, HEADS, -1))
            return self("Transpose", split, perm=perm)

        scores = self("MatMul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1)))
        scores = self("Add", scores, self.bias) if self.masked else scores
        mixed = self("MatMul", self("Softmax", scores, axis=-1), heads((0, 2, 1, 3)))
        rows = self("Reshape", self("Transpose", mixed, perm=(0, 2, 1, 3)), self.ints(0, 0, WIDTH))
        x = self.norm(self("Add", x, self.dense(rows, WIDTH, WIDTH)))
        wide = self("Relu", self.dense(x, WIDTH, 2 * WIDTH))
        return self.norm(self("Add", x, self.dense(wide, 2 * WIDTH, WIDTH)))

    def norm(self, x: str) -> str:
        return self("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH))

    def proto(self, outputs: Sequence[str] = ("hidden", "mean")) -> ModelProto:
        shape = ("batch", "sequence")
        ids, mask = (
            helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n in ("ids", "mask")
        )
        hidden = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, (*shape, WIDTH))
        mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, ("batch", WIDTH))
        first = helper.make_tensor_value_info("first", TensorProto.FLOAT, ("batch", WIDTH))
        made = [value for value in (hidden, mean, first) if value.name in outputs]
        graph = helper.make_graph(self.nodes, "g", [ids, mask], made, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
