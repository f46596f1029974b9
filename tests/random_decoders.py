"""Small decoders drawn at random: layers, names and orders of caches, layouts, masks, dtypes.

    drawn = draw(np.random.default_rng(3))
    drawn.model()        # as an exporter might write it
    drawn.plain()        # ONNX Runtime, with its outputs fed back

Extents collide on purpose: scores, hidden states and heads have as many elements as prompts places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
from onnx import TensorProto, numpy_helper

from autotune.graph.state import SCORES

Array = np.ndarray
LAYOUTS = ("bhls", "blhs", "lbhs", "bhsl", "bls", "hbls", "hls")
"""Orders of the dimensions of a cache: batch, heads, length, size; of one head without `h`."""
_KINDS = ("key", "value")
_STYLES = (
    ("past_key_values.{n}.{kind}", "present.{n}.{kind}"),
    ("past_{kind}_{n}", "present_{kind}_{n}"),
    ("{kind}_cache_{n}", "{kind}_cache_{n}_out"),
    ("layer{n}/past/{kind}", "layer{n}/present/{kind}"),
    ("cache{kind}{n}in", "z{kind}{n}"),
)
"""Names of caches; of the last style nobody can tell the pairs, so that they are told."""
CAPACITIES = (8, 16, 16, 24)
"""The first is too small for a prefill."""


@dataclass(frozen=True)
class Decoder:
    """One of them. `numbers`: of the layers, in the order in which they are computed.

    `inputs`, `outputs`: orders of all ports, as seeds of a permutation; 0: as exporters have them.
    `scores`: of which places steps give outputs, see `given`.
    `hidden`: further outputs, the hidden states of every place: "" none, "rows" (1, L, width),
    "flat" (L, width), "turned" (width, 1, L). `last`: scores of the last place alone.
    """

    numbers: tuple[int, ...] = (0,)
    style: int = 0
    layout: str = "bhls"
    heads: int = 2
    size: int = 4
    vocabulary: int = 16
    mask: str = "attention_mask"
    positions: bool = False
    hidden: str = ""
    last: bool = False
    dtype: str = "float32"
    inputs: int = 0
    outputs: int = 0
    seed: int = 0
    capacity: int = 16
    scores: str = "last"

    @property
    def width(self) -> int:
        """Of the hidden states."""
        return self.heads * self.size

    @property
    def pairs(self) -> dict[str, str]:
        """The output that takes the place of each cache, in the order of the layers."""
        before, behind = _STYLES[self.style]
        return {
            before.format(n=n, kind=kind): behind.format(n=n, kind=kind)
            for n in self.numbers
            for kind in _KINDS
        }

    @property
    def told(self) -> dict[str, str] | None:
        """What has to be told of the states."""
        return self.pairs if self.style == len(_STYLES) - 1 else None

    @property
    def axis(self) -> int:
        """Of the places of a cache."""
        return self.layout.index("l")

    def shape(self, length: Any) -> list[Any]:
        """Of a cache."""
        extents = {"b": 1, "h": self._heads, "l": length, "s": self._size}
        return [extents[d] for d in self.layout]

    @property
    def _heads(self) -> int:
        return self.heads if "h" in self.layout else 1

    @property
    def _size(self) -> int:
        return self.size if "h" in self.layout else self.width

    def arguments(self) -> dict[str, Any]:
        """Of `autotune.compile`, and of a session."""
        return {"capacity": self.capacity, "state": self.told, "threads": 1}

    def given(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """What a step gives of the file's outputs."""
        axes = {"logits": 1, "states": {"rows": 1, "flat": 0, "turned": 2}.get(self.hidden, 0)}
        if self.scores == "all":
            return outputs
        return {n: a.take([-1], axes[n]) if n in axes else a for n, a in outputs.items()}

    def feed(self, tokens: Array, past: int) -> dict[str, Array]:
        """The inputs of a call but for the caches."""
        total = past + tokens.shape[1]
        found = {"input_ids": tokens}
        if self.mask == "attention_mask":
            found["attention_mask"] = np.ones((1, total), np.int64)
        if self.positions:
            found["position_ids"] = np.arange(past, total)[None]
        return found

    def none(self) -> dict[str, Array]:
        """Caches without places."""
        return {name: np.zeros(self.shape(0), self.dtype) for name in self.pairs}

    def tokens(self, rng: np.random.Generator, n: int) -> Array:
        """Random ones."""
        return rng.integers(0, self.vocabulary, (1, n))

    def model(self) -> onnx.ModelProto:
        """The file."""
        return _Writer(self).model()

    def plain(self) -> Plain:
        """It in ONNX Runtime."""
        return Plain(self)


class Plain:
    """A decoder in ONNX Runtime; `caches` by the names of its inputs."""

    def __init__(self, decoder: Decoder) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        self.decoder = decoder
        data = decoder.model().SerializeToString()
        self._session = onnxruntime.InferenceSession(data, options)
        self.names = [output.name for output in self._session.get_outputs()]
        self.reset()

    def reset(self) -> None:
        """Begin another sequence."""
        self.caches, self.length = self.decoder.none(), 0

    def __call__(self, tokens: Array) -> dict[str, Array]:
        """All outputs, by name; the caches go on."""
        feed = self.decoder.feed(tokens, self.length) | self.caches
        found = dict(zip(self.names, self._session.run(self.names, feed), strict=True))
        self.caches = {name: found[output] for name, output in self.decoder.pairs.items()}
        self.length += tokens.shape[1]
        return found


def draw(rng: np.random.Generator) -> Decoder:
    """A decoder at random; of few extents, so that most programs are compiled once."""

    def one_of(choices: Sequence[Any]) -> Any:
        return choices[int(rng.integers(len(choices)))]

    layers = int(one_of((1, 1, 1, 2, 2, 3, 3, 12)))
    numbers = rng.permutation(130)[:layers] if rng.random() < 0.3 else np.arange(layers)
    heads, size = one_of(((2, 4), (4, 2)))
    return Decoder(
        numbers=tuple(map(int, rng.permutation(numbers) if rng.random() < 0.3 else numbers)),
        style=int(rng.integers(len(_STYLES))),
        layout=one_of(LAYOUTS) if rng.random() < 0.6 else "bhls",
        heads=heads,
        size=size,
        vocabulary=one_of((4, 8)),
        mask=one_of(("attention_mask", "computed", "computed")),
        positions=bool(rng.random() < 0.4),
        hidden=one_of(("", "", "rows", "flat", "turned")),
        last=bool(rng.random() < 0.15),
        dtype="float16" if rng.random() < 0.1 else "float32",
        inputs=int(rng.integers(1, 1000)) if rng.random() < 0.6 else 0,
        outputs=int(rng.integers(1, 1000)) if rng.random() < 0.6 else 0,
        seed=int(rng.integers(1000)),
        capacity=one_of(CAPACITIES),
        scores=one_of(SCORES),
    )


@dataclass
class _Writer:
    """Writes the nodes of a decoder."""

    decoder: Decoder
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.decoder.seed)
        self._tables: dict[int, str] = {}

    def __call__(self, op: str, *inputs: str, n: int = 1, **attrs: Any) -> str:
        outputs = [f"{op}_{len(self.nodes)}_{k}" for k in range(n)]
        self.nodes.append(oh.make_node(op, list(inputs), outputs, **attrs))
        return outputs[0]

    def array(self, value: object, dtype: str = "int64") -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.array(self._rng.normal(size=shape) / np.sqrt(shape[0]), "float32")

    def model(self) -> onnx.ModelProto:
        d = self.decoder
        length = self("Gather", self("Shape", "input_ids"), self.array(1))
        first = next(iter(d.pairs))
        past = self("Gather", self("Shape", first), self.array(d.axis))
        total = self("Add", past, length)
        new = self("Range", past, total, self.array(1))
        every = self("Range", self.array(0), total, self.array(1))
        hidden = self(
            "Greater",
            self("Unsqueeze", every, self.array(0)),
            self("Unsqueeze", new, self.array(1)),
        )
        if d.mask == "attention_mask":
            masked = self(
                "Equal", self("Unsqueeze", "attention_mask", self.array([1])), self.array(0)
            )
            hidden = self("Or", hidden, masked)
        low, zero = self.array(-1e4, "float32"), self.array(0.0, "float32")
        bias = self("Where", hidden, low, zero)
        x = self("Gather", self.weight(d.vocabulary, d.width), "input_ids")
        places = self.weight(64, d.width)
        x = self("Add", x, self("Gather", places, "position_ids" if d.positions else new))
        outputs = {}
        for name, output in zip(*[iter(d.pairs.items())] * 2, strict=True):
            x = self._layer(x, bias, (name, output), outputs)
        return self._finished(x, length, outputs)

    def _finished(self, x: str, length: str, outputs: dict[str, Any]) -> onnx.ModelProto:
        d, value = self.decoder, oh.make_tensor_value_info
        scored = x
        if d.last:
            end = self("Unsqueeze", length, self.array(0))
            before = self("Sub", end, self.array([1]))
            scored = self("Slice", x, before, end, self.array([1]))
        logits = self("MatMul", scored, self.weight(d.width, d.vocabulary))
        self.nodes.append(oh.make_node("Identity", [logits], ["logits"]))
        rows = {"logits": [1, 1 if d.last else "sequence", d.vocabulary]}
        if d.hidden:
            op = {
                "rows": ("Identity", [x], {}),
                "flat": ("Reshape", [x, self.array([-1, d.width])], {}),
                "turned": ("Transpose", [x], {"perm": [2, 0, 1]}),
            }[d.hidden]
            self.nodes.append(oh.make_node(op[0], op[1], ["states"], **op[2]))
            rows["states"] = {
                "rows": [1, "sequence", d.width],
                "flat": ["sequence", d.width],
                "turned": [d.width, 1, "sequence"],
            }[d.hidden]
        kind = TensorProto.FLOAT16 if d.dtype == "float16" else TensorProto.FLOAT
        made = [value(name, TensorProto.FLOAT, shape) for name, shape in rows.items()]
        made += [value(name, kind, d.shape("past + sequence")) for name in outputs]
        given = [value("input_ids", TensorProto.INT64, [1, "sequence"])]
        if d.mask == "attention_mask":
            given.append(value("attention_mask", TensorProto.INT64, [1, "past + sequence"]))
        if d.positions:
            given.append(value("position_ids", TensorProto.INT64, [1, "sequence"]))
        given += [value(name, kind, d.shape("past")) for name in d.pairs]
        given, made = _ordered(given, d.inputs), _ordered(made, d.outputs)
        graph = oh.make_graph(self.nodes, "decoder", given, made, self.weights)
        return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=9)

    def _layer(
        self, x: str, bias: str, pairs: tuple[tuple[str, str], ...], outputs: dict[str, Any]
    ) -> str:
        """Attention of `x` (1, L, width) over caches, which are written in their layout."""
        d = self.decoder
        shape = self.array([1, -1, d._heads, d._size])
        q = self("Transpose", self("Reshape", self._dense(x), shape), perm=[0, 2, 1, 3])
        found = []
        for past, present in pairs:
            rows = self("Reshape", self._dense(x), shape)  # (b, l, h, s)
            new = self._laid(rows)
            if d.dtype == "float16":
                new = self("Cast", new, to=TensorProto.FLOAT16)
            self.nodes.append(oh.make_node("Concat", [past, new], [present], axis=d.axis))
            outputs[present] = None
            whole = self("Cast", present, to=TensorProto.FLOAT) if d.dtype == "float16" else present
            found.append(self._heads_first(whole))
        keys = self("Transpose", found[0], perm=[0, 1, 3, 2])
        scores = self("Mul", self("MatMul", q, keys), self.array(d._size**-0.5, "float32"))
        shares = self("Softmax", self("Add", scores, bias), axis=-1)
        mixed = self("Transpose", self("MatMul", shares, found[1]), perm=[0, 2, 1, 3])
        flat = self("Reshape", mixed, self.array([1, -1, d.width]))
        return self("Tanh", self("Add", x, self._dense(flat)))

    def _dense(self, x: str) -> str:
        return self("MatMul", x, self.weight(self.decoder.width, self.decoder.width))

    def _laid(self, rows: str) -> str:
        """(b, l, h, s) as the caches have them."""
        layout = self.decoder.layout
        order = [d for d in layout if d in "blhs"]
        gone = [d for d in "blhs" if d not in order]
        perm = [*("blhs".index(d) for d in order), *("blhs".index(d) for d in gone)]
        turned = self("Transpose", rows, perm=perm)
        axes = [len(order) + k for k in range(len(gone))]
        return self("Squeeze", turned, self.array(axes)) if gone else turned

    def _heads_first(self, cache: str) -> str:
        """A cache as (b, h, l, s)."""
        layout = self.decoder.layout
        gone = [d for d in "bhls" if d not in layout]
        axes = [len(layout) + k for k in range(len(gone))]
        whole = self("Unsqueeze", cache, self.array(axes)) if gone else cache
        order = layout + "".join(gone)
        return self("Transpose", whole, perm=[order.index(d) for d in "bhls"])


def _ordered(values: list[Any], seed: int) -> list[Any]:
    if not seed:
        return values
    return [values[n] for n in np.random.default_rng(seed).permutation(len(values))]


TWELVE = Decoder(
    numbers=(3, 10, 2, 0, 1, 11, 9, 4, 7, 5, 8, 6),
    style=2,
    inputs=5,
    outputs=7,
    vocabulary=4,
    hidden="turned",
    heads=4,
)
"""Twelve layers whose names sort badly; its extents are those of a prompt of four."""


def different(found: Mapping[str, Array], expected: Mapping[str, Array], atol: float) -> list[str]:
    """What differs, in words."""
    return [
        f"{name}: {np.shape(found[name])} of {wanted.shape}"
        for name, wanted in expected.items()
        if name in found
        and (
            np.shape(found[name]) != wanted.shape
            or not np.allclose(found[name], wanted, atol=atol, rtol=1e-3)
        )
    ]
