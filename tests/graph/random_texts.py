"""Random models on strings: encoders, comparisons and moves, with words that they do not know.

proto, feeds = random_texts(rng)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

Array = NDArray[Any]
KNOWN = ("no", "yes", "", "Köln", "a b", "naïve", "0", "1")
OTHERS = ("unknown", "YES", "other")
ML = "ai.onnx.ml"
_KINDS = {"text": TensorProto.STRING, "int": TensorProto.INT64, "float": TensorProto.FLOAT}


class _Texts:
    """Nodes on tensors [n, 2] of strings, integers and floats."""

    def __init__(self, rng: np.random.Generator, n_rows: int) -> None:
        self.rng, self.n_rows = rng, n_rows
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.known = {"text": ["s", "t"], "int": ["i"], "float": ["x"]}

    def name(self, kind: str) -> str:
        return str(self.rng.choice(self.known[kind]))

    def words(self, n: int) -> list[str]:
        return [str(w) for w in self.rng.choice(KNOWN, n, replace=False)]

    def __call__(
        self, op: str, inputs: list[str], kind: str, domain: str = "", **attrs: Any
    ) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, domain=domain, **attrs))
        self.known.setdefault(kind, []).append(name)
        return name

    def constant(self, kind: str, values: Any, shape: tuple[int, ...]) -> str:
        name = f"c_{len(self.constants)}"
        tensor = helper.make_tensor(name, _KINDS[kind], shape, values)
        self.constants.append(tensor)
        return name

    def encode(self) -> None:
        source, target = (str(k) for k in self.rng.choice(["text", "int", "float"], 2))
        n = int(self.rng.integers(1, 6))
        sides: dict[str, Any] = {}
        for side, kind in (("keys", source), ("values", target)):
            unique = side == "keys"
            if kind == "text":
                sides[f"{side}_strings"] = self.words(n)
            elif kind == "int":
                wide = int(self.rng.choice([9, 10**12]))
                sides[f"{side}_int64s"] = self.rng.choice(9, n, replace=not unique) * (wide // 9)
            else:
                numbers = [float(v) for v in self.rng.choice([0.5, -1.0, 2.0, 7.25, 9.0], n, False)]
                sides[f"{side}_floats"] = numbers
        if self.rng.random() < 0.5:
            defaults = {"text": ("string", "none"), "int": ("int64", 5), "float": ("float", 0.25)}
            sides[f"default_{defaults[target][0]}"] = defaults[target][1]
        self("LabelEncoder", [self.name(source)], target, ML, **sides)

    def one_hot(self) -> None:
        given = {"cats_strings": self.words(int(self.rng.integers(1, 6)))}
        flags = self("OneHotEncoder", [self.name("text")], "flags", ML, zeros=1, **given)
        axis = self.constant("int", [2], (1,))
        self("ReduceSum", [flags, axis], "float", keepdims=0)

    def compare(self) -> None:
        other = self.constant("text", [self.words(1)[0].encode()], (1,))
        second = other if self.rng.random() < 0.5 else self.name("text")
        flag = self("Equal", [self.name("text"), second], "flag")
        kind = str(self.rng.choice(["text", "int"]))
        self("Where", [flag, self.name(kind), self.name(kind)], kind)

    def move(self) -> None:
        kind, op = "text", str(self.rng.choice(["Identity", "turn", "join", "pick"]))
        if op == "Identity":
            self(op, [self.name(kind)], kind)
        elif op == "turn":
            turned = self("Transpose", [self.name(kind)], "turned", perm=[1, 0])
            self("Transpose", [turned], kind, perm=[1, 0])
        elif op == "join":
            joined = self("Concat", [self.name(kind), self.name(kind)], "joined", axis=1)
            places = self.constant("int", [3, 1], (2,))
            self("ArrayFeatureExtractor", [joined, places], kind, ML)
        else:
            places = self.constant("int", [1, 0], (2,))
            self("Gather", [self.name(kind), places], kind, axis=1)


def random_texts(
    rng: np.random.Generator, rows: int | str = 5
) -> tuple[ModelProto, dict[str, Array]]:
    """A model of a few nodes and the last tensor of each kind as output, and inputs."""
    made = _Texts(rng, 5)
    for _ in range(int(rng.integers(3, 9))):
        getattr(made, str(rng.choice(["encode", "encode", "one_hot", "compare", "move"])))()
    kinds = {"s": "text", "t": "text", "i": "int", "x": "float"}

    def port(name: str, kind: str) -> Any:
        return helper.make_tensor_value_info(name, _KINDS[kind], (rows, 2))

    own = {kind: names[-1] for kind, names in made.known.items() if kind in _KINDS}
    outputs = [port(n, k) for k, n in own.items() if n not in kinds]
    inputs = [port(n, k) for n, k in kinds.items()]
    graph = helper.make_graph(made.nodes, "texts", inputs, outputs, made.constants)
    imports = [helper.make_opsetid("", 19), helper.make_opsetid(ML, int(rng.choice([3, 4])))]
    return helper.make_model(graph, opset_imports=imports, ir_version=9), feeds(rng, 5)


def feeds(rng: np.random.Generator, n_rows: int) -> dict[str, Array]:
    """Inputs of a random model."""
    shape = (n_rows, 2)
    words: Mapping[str, Array] = {
        n: rng.choice([*KNOWN, *OTHERS], shape).astype(object) for n in ("s", "t")
    }
    floats = rng.choice([0.5, -1.0, 2.0, 7.25, 9.0, 3.0, np.nan], shape).astype(np.float32)
    return {**words, "i": rng.choice([*range(9), 10**12 // 9], shape), "x": floats}
