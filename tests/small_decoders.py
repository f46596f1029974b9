"""One layer of attention over a growing state, around which a test puts what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
from onnx import numpy_helper

TOKENS, WIDTH = 20, 8
CACHE = ("key", "value")
value = oh.make_tensor_value_info


@dataclass
class Small:
    """tokens (1, n), past keys and values (1, past, 8) of each layer -> logits (1, n, 8), present

    x = hidden(embedding);  y = shares(x · keysᵀ) · values;  logits = y of the last layer

    `nodes`, `inputs`, `outputs` and `weights` are those around it, `x`, `scores` and `y` what it
    reads: a test adds to them before it asks for the `model`.
    """

    layers: int = 1
    seed: int = 0
    opset: int = 17
    kind: int = 1
    causal: bool = True
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    scored: list[Any] = field(default_factory=list)
    """Makers of nodes: (scores, layer) -> (nodes, what Softmax reads)."""
    _n: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.array("table", self.rng.standard_normal((TOKENS, WIDTH)).astype(np.float32))
        self.x = self("Gather", "table", "input_ids")
        self.bias = self._causal() if self.causal else ""

    def __call__(self, op: str, *inputs: str, name: str = "", **attrs: Any) -> str:
        self._n += 1
        name = name or f"t{self._n}"
        self.nodes.append(oh.make_node(op, [*inputs], [name], f"n{self._n}", **attrs))
        return name

    def array(self, name: str, of: Any, dtype: Any = None) -> str:
        self.weights[name] = np.asarray(of, dtype)
        return name

    def number(self, of: Any, dtype: Any = np.int64) -> str:
        self._n += 1
        return self.array(f"c{self._n}", of, dtype)

    def past(self) -> str:
        """The number of filled places, (1)."""
        return self("Shape", "past_key_values.0.key", start=1, end=2)

    def new(self) -> str:
        """The number of new places, (1)."""
        return self("Shape", "input_ids", start=1, end=2)

    def weight(self, *shape: int) -> str:
        return self.number(self.rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    def _causal(self) -> str:
        """0 where a new place sees another one, else the lowest number: (new, past + new)."""
        past, total = self("Squeeze", self.past()), self("Add", self.past(), self.new())
        total, one = self("Squeeze", total), self.number(1)
        every = self("Range", self.number(0), total, one)
        own = self("Unsqueeze", self("Range", past, total, one), one)
        lowest = self.number(np.finfo(np.float32).min, np.float32)
        return self("Where", self("Greater", every, own), lowest, self.number(0, np.float32))

    def names(self) -> list[tuple[str, str]]:
        """Pasts and presents."""
        kinds = [(n, kind) for n in range(self.layers) for kind in CACHE]
        return [(f"past_key_values.{n}.{kind}", f"present.{n}.{kind}") for n, kind in kinds]

    def layer(self, n: int) -> None:
        whole = {}
        for kind in CACHE:
            new = self("MatMul", self.x, self.weight(WIDTH, WIDTH))
            if self.kind != 1:
                new = self("Cast", new, to=self.kind)
            past, present = f"past_key_values.{n}.{kind}", f"present.{n}.{kind}"
            found = self("Concat", past, new, name=present, axis=1)
            whole[kind] = self("Cast", found, to=1) if self.kind != 1 else found
        scores = self("MatMul", self.x, self("Transpose", whole["key"], perm=[0, 2, 1]))
        for change in self.scored:
            scores = change(scores)
        if self.bias:
            scores = self("Add", scores, self.bias)
        y = self("MatMul", self("Softmax", scores, axis=-1), whole["value"])
        self.x = self("Add", self.x, y)

    def model(
        self, layers: int | None = None, cache: Sequence[int | str] = (1, "{}", WIDTH)
    ) -> onnx.ModelProto:
        """The model with that many layers more (`layers` of itself), whose caches have a shape with
        "{}" for the extent that grows."""
        n_layers = self.layers if layers is None else layers
        for n in range(n_layers):
            self.layer(n)
        if n_layers:
            self("Identity", self.x, name="logits")
        past, total = ([n if n != "{}" else m for n in cache] for m in ("past", "past + new"))
        inputs = [value("input_ids", 7, [1, "new"]), *self.inputs]
        inputs += [value(n, self.kind, past) for n, _ in self.names()]
        outputs = [value("logits", 1, [1, "new", WIDTH]), *self.outputs]
        outputs += [value(n, self.kind, total) for _, n in self.names()]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = oh.make_graph(self.nodes, "small", inputs, outputs, weights)
        opsets = [oh.make_opsetid("", self.opset), oh.make_opsetid("com.microsoft", 1)]
        return oh.make_model(graph, opset_imports=opsets, ir_version=10)


def hybrid(layers: int = 1, caches: bool = True) -> onnx.ModelProto:
    """Short convolutions, whose last columns are replaced, and caches beside them.

    Without caches a mask is the only input that tells the length, as exporters write Mamba 2."""
    small = Small(layers=layers if caches else 0, causal=caches)
    names = sorted(f"past_conv.{n}" for n in range(layers))  # "10" comes before "2"
    small.inputs += [value(name, 1, [1, WIDTH, 2]) for name in names]
    small.outputs += [
        value(name.replace("past", "present"), 1, [1, WIDTH, 2]) for name in names[::-1]
    ]
    if not caches:
        small.inputs.append(value("attention_mask", 7, [1, "total"]))
        ends = small("Neg", small.new()), small.number([2**31 - 1]), small.number([1])
        new = small("Cast", small("Slice", "attention_mask", *ends), to=1)
        small.x = small("Mul", small.x, small("Unsqueeze", new, small.number([2])))
    for n in range(layers):
        turned = small("Transpose", small.x, perm=[0, 2, 1])
        both = small("Concat", f"past_conv.{n}", turned, axis=2)
        last = [small.number([-2]), small.number([2**31 - 1]), small.number([2])]
        small("Slice", both, *last, name=f"present_conv.{n}")
        kernel = small.weight(WIDTH, 1, 3)
        small.x = small("Transpose", small("Conv", both, kernel, group=WIDTH), perm=[0, 2, 1])
    if not caches:
        small("Identity", small.x, name="logits")
    return small.model()


class FedBack:
    """The file in ONNX Runtime, its outputs fed back by name; other inputs from the caller."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.state: dict[str, np.ndarray] = {}
        for value in self.session.get_inputs():
            if "past" in value.name:
                dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16}[value.type]
                shape = [n if isinstance(n, int) else int(n == "batch") for n in value.shape]
                self.state[value.name] = np.zeros(shape, dtype)
        self.names = [value.name for value in self.session.get_outputs()]

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        found = dict(zip(self.names, self.session.run(None, {**inputs, **self.state}), strict=True))
        for name in self.state:
            stem = name.replace("past_key_values", "present").replace("past", "present")
            self.state[name] = found[stem]
        return found


def chunked(size: int) -> onnx.ModelProto:
    """Linear attention in chunks of `size`, whose number is rounded up: a causal product in each,
    and the sums of those before it on the state, (1, 8, 8)."""
    small = Small(layers=0, causal=False)
    small.inputs.append(value("past_recurrent.0", 1, [1, WIDTH, WIDTH]))
    small.outputs.append(value("present_recurrent.0", 1, [1, WIDTH, WIDTH]))
    small.x = small("Mul", small.x, small.number(0.3, np.float32))
    new, of = small.new(), small.number([size])
    short = small("Mod", small("Sub", of, small("Mod", new, of)), of)
    pads = small("Concat", small.number([0, 0, 0, 0]), short, small.number([0]), axis=0)
    apart = small.number([1, -1, size, WIDTH])

    def rows() -> str:
        x = small("MatMul", small.x, small.weight(WIDTH, WIDTH))
        return small("Reshape", small("Pad", x, pads), apart)

    q, k, v = rows(), rows(), rows()
    scores = small("MatMul", q, small("Transpose", k, perm=[0, 1, 3, 2]))
    causal = small.number(np.tril(np.ones((size, size))), np.float32)
    own = small("MatMul", small("Mul", scores, causal), v)
    sums = small("MatMul", small("Transpose", k, perm=[0, 1, 3, 2]), v)
    before = small("CumSum", sums, small.number(1), exclusive=1)
    past = small("Unsqueeze", "past_recurrent.0", small.number([1]))
    y = small("Add", own, small("MatMul", q, small("Add", before, past)))
    rows_of_all = small("Reshape", y, small.number([1, -1, WIDTH]))
    small("Slice", rows_of_all, small.number([0]), new, small.number([1]), name="logits")
    total = small("ReduceSum", sums, small.number([1]), keepdims=0)
    small("Add", "past_recurrent.0", total, name="present_recurrent.0")
    return small.model()
