"""Loops over experts become products with chosen matrices: the numbers of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import UnsupportedOperator
from autotune.extent import Length
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.lift import lifted_network
from autotune.graph.network import build_network
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs

WIDTH, INNER, BLOCK = 32, 48, 16


class Loop:
    """A model that computes rows by experts, one after the other."""

    def __init__(self, rng: np.random.Generator, n_experts: int, k: int, **how: Any) -> None:
        self.rng, self.n_experts, self.k, self.how = rng, n_experts, k, how
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def __call__(self, op: str, *inputs: str, n: int = 1, **attrs: Any) -> Any:
        made = [f"t{len(self.nodes)}.{i}" for i in range(n)]
        self.nodes.append(helper.make_node(op, inputs, made, **attrs))
        return made if n > 1 else made[0]

    def constant(self, *values: int) -> str:
        return self.array(np.array(values, np.int64))

    def array(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def weight(self, *shape: int) -> str:
        return self.array((self.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def model(self, rows: int | str) -> onnx.ModelProto:
        share, choice = self("TopK", self("Softmax", "router"), self.constant(self.k), n=2)
        if self.how.get("mask") == "equal":
            hot = choice
        else:
            values, depth = self.constant(0, 1), self.array(np.array(self.n_experts))
            hot = self("Transpose", self("OneHot", choice, depth, values), perm=[2, 1, 0])
        total = self("Mul", "x", self.array(np.zeros(1, np.float32)))
        for n in self.rng.permutation(self.n_experts):
            if n not in self.how.get("without", ()):
                total = self.turn(total, share, choice, hot, int(n))
        known = [numpy_helper.from_array(a, name) for name, a in self.constants.items()]
        self.nodes.append(helper.make_node("Identity", [total], ["y"]))
        ports = {"x": [rows, WIDTH], "router": [rows, self.n_experts]}
        given = [helper.make_tensor_value_info(n, 1, s) for n, s in ports.items()]
        result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", given, result, known)
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)

    def turn(self, total: str, share: str, choice: str, hot: str, n: int) -> str:
        if self.how.get("mask") == "equal":
            mask, first = self("Equal", choice, self.array(np.array(n))), 1
        else:
            mask, first = self("Gather", hot, self.array(np.array(n))), 0
        found = self("NonZero", self("Cast", mask, to=TensorProto.INT64))
        parts = self("Split", found, self.constant(1, 1), n=2, axis=0)
        slot, row = (self("Squeeze", p, self.constant(0)) for p in (parts[first], parts[1 - first]))
        y = self.body(self("Gather", "x", row), n)
        if self.how.get("mixes"):
            y = self("Softmax", y, axis=0)
        pair = self(
            "Concat", *(self("Unsqueeze", p, self.constant(1)) for p in (row, slot)), axis=1
        )
        own = self("Unsqueeze", self("GatherND", share, pair), self.constant(1))
        y = self("Mul", y, own)
        column = self("Unsqueeze", row, self.constant(1))
        if self.how.get("sum") == "nd":
            return str(self("ScatterND", total, column, y, reduction="add"))
        index = self("Expand", column, self("Shape", y))
        if self.how.get("sum") == "add":
            return str(self("ScatterElements", total, index, y, axis=0, reduction="add"))
        zeros = self("ConstantOfShape", self("Shape", total))
        return str(self("Add", total, self("ScatterElements", zeros, index, y, axis=0)))

    def body(self, x: str, n: int) -> str:
        if self.how.get("gemm"):
            bias, weight = self.weight(INNER), self.weight(INNER, WIDTH)
            y = self("Relu", self("Gemm", x, weight, bias, transB=1))
        else:
            gate = self("Add", self.times(x, WIDTH, INNER), self.weight(INNER))
            up = self.times(x, WIDTH, INNER)
            y = self("Mul", self("Mul", gate, self("Sigmoid", gate)), up)
        return self.times(y, INNER, WIDTH)

    def times(self, x: str, k: int, n: int) -> str:
        """The product with a matrix, of few bits where `bits` says so."""
        bits = self.how.get("bits", 0)
        if not bits:
            return str(self("MatMul", x, self.weight(k, n)))
        packed = (n, k // BLOCK, BLOCK * bits // 8)
        scales = (self.rng.random((n, k // BLOCK)) / 2**bits).astype(np.float32)
        more = ["", "", self.weight(n)] if self.how.get("bias") else []
        if self.how.get("zeros"):
            n_bytes = -(-k // BLOCK * bits // 8)
            more = [self.array(self.rng.integers(0, 256, (n, n_bytes), np.uint8)), *more[1:]]
        given = [self.array(self.rng.integers(0, 256, packed, np.uint8)), self.array(scales)]
        attrs = {"K": k, "N": n, "bits": bits, "block_size": BLOCK}
        return str(self("MatMulNBits", x, *given, *more, domain="com.microsoft", **attrs))


def feeds_of(rng: np.random.Generator, rows: int, n_experts: int) -> dict[str, Array]:
    shapes = {"x": (rows, WIDTH), "router": (rows, n_experts)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize(
    ("n_experts", "k", "how"),
    [
        (4, 2, {}),
        (12, 3, {"sum": "add", "mask": "equal"}),
        (5, 1, {"sum": "nd", "gemm": True}),
        (3, 3, {"sum": "add", "gemm": True}),
        (4, 2, {"bits": 4, "zeros": True}),
        (3, 1, {"bits": 8, "bias": True, "sum": "nd"}),
    ],
)
def test_a_loop_over_experts_has_the_numbers_of_onnxruntime(
    n_experts: int,
    k: int,
    how: dict[str, Any],
    rows: int,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    made = Loop(rng, n_experts, k, **how).model(rows)
    onnx.save(made, tmp_path / "m.onnx")
    feeds = feeds_of(rng, rows, n_experts)
    network = build_network(tmp_path / "m.onnx")
    wanted = onnxruntime_outputs(made, feeds)["y"]
    np.testing.assert_allclose(execute(network, feeds)["y"], wanted, atol=1e-5)
    n_kernels = len(network.calls)
    assert n_kernels < 36, "one body for all experts"


@pytest.mark.parametrize("how", [{"mixes": True}, {"without": (1,)}])
def test_a_loop_whose_turns_are_no_rows_of_experts_is_refused_as_any_other(
    how: dict[str, Any], tmp_path: Path, rng: np.random.Generator
) -> None:
    onnx.save(Loop(rng, 4, 2, **how).model(7), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedOperator, match="NonZero"):
        build_network(tmp_path / "m.onnx")


def test_a_loop_over_experts_follows_the_number_of_rows(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    onnx.save(Loop(rng, 4, 2).model("rows"), tmp_path / "m.onnx")
    rows = Length("rows", 40)
    dims = {"x": (rows, WIDTH), "router": (rows, 4)}
    network = lifted_network(BoundModel(tmp_path / "m.onnx"), dims)
    assert not network.written, "no number of rows of an expert is computed"
