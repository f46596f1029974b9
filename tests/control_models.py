"""Random models with branches and loops that data decide, nested in each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

SHAPE = (4, 8)
"""Of every tensor that is passed on."""


class Maker:
    """Makes graphs over tensors of one shape; every result has a name of its own."""

    def __init__(self, rng: Generator) -> None:
        self.rng, self.n = rng, 0

    def name(self, stem: str) -> str:
        self.n += 1
        return f"{stem}{self.n}"

    def model(self, n_nodes: int, depth: int) -> ModelProto:
        nodes, seen = self.nodes(["x", "z"], n_nodes, depth, must=True)
        outputs = [self.rng.choice(seen[2:]), seen[-1]]
        names = list(dict.fromkeys(map(str, outputs)))
        graph = helper.make_graph(
            nodes,
            "random",
            [self._value("x"), self._value("z")],
            [self._value(name) for name in names],
            self._weights(),
        )
        imports = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def nodes(
        self, seen: Sequence[str], n: int, depth: int, must: bool = False
    ) -> tuple[list[NodeProto], list[str]]:
        """`n` steps behind tensors that are `seen`, and these with the results."""
        nodes: list[NodeProto] = []
        names = list(seen)
        for step in range(n):
            is_control = depth > 0 and (self.rng.random() < 0.4 or (must and step == n // 2))
            if is_control:
                made, result = self.control(names, depth)
            else:
                made, result = self.plain(names)
            nodes += made
            names.append(result)
        return nodes, names

    def plain(self, seen: Sequence[str]) -> tuple[list[NodeProto], str]:
        """One operator on what is seen last and something else."""
        op = str(self.rng.choice(["Add", "Mul", "Tanh", "Neg", "Relu", "MatMul", "Sub"]))
        out = self.name("t")
        if op == "MatMul":
            return [helper.make_node(op, [seen[-1], "w"], [out])], out
        other = str(self.rng.choice(list(seen)))
        inputs = [seen[-1], other] if op in ("Add", "Mul", "Sub") else [seen[-1]]
        if op == "Mul":  # values stay small
            half = self.name("h")
            return [
                helper.make_node("Tanh", [other], [half]),
                helper.make_node("Mul", [seen[-1], half], [out]),
            ], out
        return [helper.make_node(op, inputs, [out])], out

    def control(self, seen: Sequence[str], depth: int) -> tuple[list[NodeProto], str]:
        """An If or a Loop."""
        return self.branch(seen, depth) if self.rng.random() < 0.5 else self.loop(seen, depth)

    def branch(self, seen: Sequence[str], depth: int) -> tuple[list[NodeProto], str]:
        total, holds, out = self.name("s"), self.name("c"), self.name("i")
        branches = {}
        for which in ("then_branch", "else_branch"):
            n = int(self.rng.integers(0, 4))
            nodes, names = self.nodes(seen, n, depth - 1)
            result = names[-1] if n else self.name("o")
            if not n:  # a tensor of the graph around it, or a weight
                source = str(self.rng.choice([*seen, "v"]))
                nodes = [helper.make_node("Identity", [source], [result])]
            branches[which] = helper.make_graph(nodes, which, [], [self._value(result)])
        axis = int(self.rng.integers(2))
        source = str(self.rng.choice(list(seen)))
        return [
            helper.make_node("ReduceSum", [source], [total], keepdims=axis),
            *self._flat(total, axis),
            helper.make_node("Greater", [total + "f", "zero"], [holds]),
            helper.make_node("If", [holds], [out], **branches),
        ], out

    def _flat(self, name: str, keepdims: int) -> list[NodeProto]:
        return [helper.make_node("Reshape", [name, "one"], [name + "f"])]

    def loop(self, seen: Sequence[str], depth: int) -> tuple[list[NodeProto], str]:
        """A Loop that ends where a sum is small, or after a number of iterations that data tell."""
        number, before, state = self.name("n"), self.name("b"), self.name("l")
        nodes, names = self.nodes([*seen, state], int(self.rng.integers(1, 4)), depth - 1)
        total, after = self.name("s"), self.name("g")
        is_counted = self.rng.random() < 0.5
        if is_counted:
            nodes.append(helper.make_node("Identity", [before], [after]))
        else:
            nodes += [
                helper.make_node("ReduceSum", [names[-1]], [total], keepdims=0),
                helper.make_node("Less", [total, "zero"], [after]),
            ]
        body_inputs = [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(before, TensorProto.BOOL, []),
            self._value(state),
        ]
        row, final = self.name("r"), self.name("k")
        nodes.append(helper.make_node("ReduceMax", [names[-1]], [row], axes=[1], keepdims=1))
        nodes.append(helper.make_node("Identity", [names[-1]], [final]))
        outputs = [
            helper.make_tensor_value_info(after, TensorProto.BOOL, []),
            self._value(final),
            helper.make_tensor_value_info(row, TensorProto.FLOAT, [SHAPE[0], 1]),
        ]
        body: GraphProto = helper.make_graph(nodes, "body", body_inputs, outputs)
        made, rows, most, out = (self.name(s) for s in ("p", "q", "m", "o"))
        has_rows = self.rng.random() < 0.3
        source = str(self.rng.choice(list(seen)))
        before_loop = [helper.make_node("ArgMax", [source], [most + "a"], axis=1, keepdims=1)]
        before_loop += [
            helper.make_node("ReduceMax", [most + "a"], [most + "b"], keepdims=0),
            helper.make_node("Identity", [most + "b"], [most]),
        ]
        limit = most if is_counted else "few"
        carried = str(self.rng.choice([seen[-1], "v"]))
        nodes = [
            *before_loop,
            helper.make_node("Loop", [limit, "", carried], [made, rows], body=body),
        ]
        if not has_rows:  # of which only data know how many there are
            return nodes, made
        return [
            *nodes,
            helper.make_node("ReduceSum", [rows], [rows + "s"], keepdims=0),
            helper.make_node("Add", [made, rows + "s"], [rows + "a"]),
            helper.make_node("Tanh", [rows + "a"], [out]),
        ], out

    def _value(self, name: str):  # type: ignore[no-untyped-def]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)

    def _weights(self) -> list[TensorProto]:
        arrays = {
            "w": (self.rng.standard_normal((8, 8)) / 3).astype(np.float32),
            "v": self.rng.standard_normal(SHAPE).astype(np.float32),
            "zero": np.array(0, np.float32),
            "one": np.array([1]),
            "few": np.array(3),
        }
        return [numpy_helper.from_array(a, name) for name, a in arrays.items()]


def random_model(seed: int, n_nodes: int = 5, depth: int = 2) -> ModelProto:
    """A model of inputs `x` and `z`, with at least one If or Loop."""
    return Maker(np.random.default_rng(seed)).model(n_nodes, depth)
