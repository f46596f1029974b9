"""Small decoders with random weights, as exporters write them: shapes computed, caches joined."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.helper as oh
from onnx import numpy_helper

VOCABULARY = 50
HEADS, SHARED, SIZE = 4, 2, 8
WIDTH = HEADS * SIZE
CACHE = ("key", "value")
_ZERO = numpy_helper.from_array(np.zeros(1, np.float32))
_LOWEST = float(np.finfo(np.float32).min)


@dataclass
class _Text:
    """Nodes and initialisers so far."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    position: str = ""

    def __call__(self, op: str, *inputs: str, n: int = 1, **attrs: object) -> str:
        outputs = [f"{op}_{len(self.nodes)}_{k}" for k in range(n)]
        self.nodes.append(oh.make_node(op, list(inputs), outputs, **attrs))
        return outputs[0]

    def array(self, value: object, dtype: str = "int64") -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.array(self.rng.normal(size=shape) / np.sqrt(shape[0]), "float32")

    def extent(self, x: str, axis: int) -> str:
        return self("Gather", self("Shape", x), self.array(axis))


def decoder(
    layers: int = 1,
    mask: bool = True,
    seed: int = 0,
    window: int = 0,
    cross: str = "",
    shared: int = SHARED,
    scaled_keys: bool = False,
    places: int = 0,
) -> onnx.ModelProto:
    """tokens (1, L), mask (1, P + L), past (1, 2, P, 8) … -> logits (1, L, 50), present …

    Rotary angles by the position; 4 heads have `shared` keys; a causal mask from the shapes, with a
    `window` as far as it is given. `cross`: also attention to an encoder: to its "hidden" states
    (1, S, 32) with a mask (1, S), or to "caches" (1, 4, S, 8) of keys and values, by equal weights.
    `scaled_keys`: queries and keys have the root of the scale each, and keys lose and gain a
    dimension, as PyTorch writes them. `places`: caches of so many, into which rows are written at
    `cache_position` (L), as of a static cache of transformers; without a mask.
    """
    t = _Text(np.random.default_rng(seed), position="cache_position" if places else "")
    pasts = [f"past_key_values.{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
    past, length = t.extent(pasts[0], 2), t.extent("input_ids", 1)
    total = t("Add", past, length)
    one = t.array(1)
    new = t.position or t("Range", past, total, one)
    angle = t("Mul", t("Cast", t("Unsqueeze", new, one), to=1), t.array([[1.0, 0.1]], "float32"))
    angles = t("Concat", angle, angle, angle, angle, axis=-1)
    tables = t("Cos", angles), t("Sin", angles)
    every = t.array(np.arange(places)) if places else t("Range", t.array(0), total, one)
    rows = t("Unsqueeze", new, one)
    hidden = t("Greater", t("Unsqueeze", every, t.array(0)), rows)
    if window:
        old = t("LessOrEqual", t("Add", every, t.array(window)), rows)
        hidden = t("Or", hidden, old)
    if mask:
        masked = t("Equal", t("Unsqueeze", "attention_mask", t.array([1, 2])), t.array(0))
        hidden = t("Or", hidden, masked)
    bias = t("Where", hidden, t.array(_LOWEST, "float32"), t.array(0.0, "float32"))
    x = t("Gather", t.weight(VOCABULARY, WIDTH), "input_ids")
    presents: list[str] = []
    for n in range(layers):
        past = pasts[2 * n], pasts[2 * n + 1]
        x = _layer(t, x, bias, tables, length, past, presents, shared, scaled_keys)
        if cross:
            x = _cross(t, x, length, n, cross)
    t.nodes.append(oh.make_node("MatMul", [x, t.weight(WIDTH, VOCABULARY)], ["logits"]))
    value = oh.make_tensor_value_info
    inputs = [value("input_ids", 7, [1, "sequence"])]
    if mask:
        inputs.append(value("attention_mask", 7, [1, "past + sequence"]))
    if places:
        inputs.append(value("cache_position", 7, ["sequence"]))
    inputs += [value(name, 1, [1, shared, places or "past", SIZE]) for name in pasts]
    if cross:
        inputs.append(value("encoder_attention_mask", 7, [1, "encoder"]))
    if cross == "hidden":
        inputs.append(value("encoder_hidden_states", 1, [1, "encoder", WIDTH]))
    if cross == "caches":
        inputs += [value(n, 1, [1, HEADS, "encoder", SIZE]) for n in encoder_caches(layers)]
    outputs = [value("logits", 1, [1, "sequence", VOCABULARY])]
    for name, made in zip(pasts, presents, strict=True):
        present = name.replace("past_key_values", "present")
        t.nodes.append(oh.make_node("Identity", [made], [present]))
        outputs.append(value(present, 1, [1, shared, places or "past + sequence", SIZE]))
    graph = oh.make_graph(t.nodes, "decoder", inputs, outputs, t.weights)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=9)


def encoder_caches(layers: int) -> list[str]:
    """Names of the inputs that are keys and values of an encoder."""
    return [f"past_key_values.{n}.encoder.{kind}" for n in range(layers) for kind in CACHE]


def merged(layers: int = 1, seed: int = 0) -> onnx.ModelProto:
    """A decoder with attention to an encoder, of both kinds, as optimum merges them.

    `use_cache_branch` false: the past is not read, keys and values of the encoder are made; true:
    they are inputs, and their outputs have no elements.
    """
    first, later = (decoder(layers, seed=seed, cross=kind) for kind in ("hidden", "caches"))
    value = oh.make_tensor_value_info
    outputs = list(first.graph.output)
    for name in encoder_caches(layers):
        made = name.replace("past_key_values", "present")
        outputs.append(value(made, 1, [1, HEADS, "encoder_out", SIZE]))
        kept = next(n for n in first.graph.node if n.name == made)
        first.graph.node.append(oh.make_node("Identity", [kept.output[0]], [made]))
        later.graph.node.append(
            oh.make_node("ConstantOfShape", [f"{made}.shape"], [made], value=_ZERO)
        )
        shape = np.array([1, HEADS, 0, SIZE])
        later.graph.initializer.append(numpy_helper.from_array(shape, f"{made}.shape"))
    for state in (v.name for v in first.graph.input if ".encoder." not in v.name):
        if state.startswith("past"):
            none = np.zeros((1, SHARED, 0, SIZE), np.float32)
            first.graph.initializer.append(numpy_helper.from_array(none, f"no {state}"))
            for node in first.graph.node:
                node.input[:] = [f"no {state}" if n == state else n for n in node.input]
    inputs = {v.name: v for model in (first, later) for v in model.graph.input}
    inputs["use_cache_branch"] = value("use_cache_branch", 9, [1])
    branches = {}
    for name, model in (("then_branch", later), ("else_branch", first)):
        body = model.graph
        branches[name] = oh.make_graph(list(body.node), name, [], outputs, list(body.initializer))
    node = oh.make_node("If", ["use_cache_branch"], [o.name for o in outputs], **branches)
    graph = oh.make_graph([node], "merged", list(inputs.values()), outputs)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=9)


def _cross(t: _Text, x: str, length: str, layer: int, kind: str) -> str:
    """Attention of every place to those of an encoder that its mask has."""
    q = _heads(t, x, length, HEADS)
    made = [t.weight(WIDTH, WIDTH) for _ in CACHE]
    keys = [f"past_key_values.{layer}.encoder.{name}" for name in CACHE]
    if kind == "hidden":
        for n, name in enumerate(keys):
            y = t("MatMul", "encoder_hidden_states", made[n])
            heads = t("Reshape", y, t.array([1, -1, HEADS, SIZE]))
            keys[n] = t("Transpose", heads, perm=[0, 2, 1, 3])
            t.nodes[-1].name = name.replace("past_key_values", "present")
    hidden = t("Sub", t.array(1.0, "float32"), t("Cast", "encoder_attention_mask", to=1))
    bias = t("Mul", t("Unsqueeze", hidden, t.array([1, 2])), t.array(_LOWEST, "float32"))
    scores = t("MatMul", q, t("Transpose", keys[0], perm=[0, 1, 3, 2]))
    shares = t("Softmax", t("Add", scores, bias), axis=-1)
    found = t("Transpose", t("MatMul", shares, keys[1]), perm=[0, 2, 1, 3])
    flat = t("Reshape", found, t.array([1, -1, WIDTH]))
    return t("Add", x, t("MatMul", flat, t.weight(WIDTH, WIDTH)))


def _layer(
    t: _Text,
    x: str,
    bias: str,
    tables: tuple[str, str],
    length: str,
    past: tuple[str, str],
    presents: list[str],
    shared: int,
    scaled_keys: bool,
) -> str:
    q = _rotated(t, _heads(t, x, length, HEADS), tables)
    k = _joined(t, past[0], _rotated(t, _heads(t, x, length, shared), tables))
    v = _joined(t, past[1], _heads(t, x, length, shared))
    presents += [k, v]
    if scaled_keys:
        flat = t("Reshape", _repeated(t, k, shared), t.array([HEADS, -1, SIZE]))
        turned = t("Transpose", flat, perm=[0, 2, 1])
        keys = t("Reshape", turned, t.array([1, HEADS, SIZE, -1]))
        root = t.array(SIZE**-0.25, "float32")
        scores = t("MatMul", t("Mul", q, root), t("Mul", keys, root))
    else:
        keys = t("Transpose", _repeated(t, k, shared), perm=[0, 1, 3, 2])
        scores = t("Mul", t("MatMul", q, keys), t.array(SIZE**-0.5, "float32"))
    shares = t("Softmax", t("Add", scores, bias), axis=-1)
    found = t("Transpose", t("MatMul", shares, _repeated(t, v, shared)), perm=[0, 2, 1, 3])
    flat = t("Reshape", found, t.array([1, -1, WIDTH]))
    x = t("Add", x, t("MatMul", flat, t.weight(WIDTH, WIDTH)))
    return t(
        "Add", x, t("MatMul", t("Tanh", t("MatMul", x, t.weight(WIDTH, 48))), t.weight(48, WIDTH))
    )


def _joined(t: _Text, past: str, new: str) -> str:
    """A cache with new places: behind the others, or at the positions, as exporters write it."""
    if not t.position:
        return t("Concat", past, new, axis=2)
    index = t("Unsqueeze", t.position, t.array([-1]))
    whole, rows = (t("Transpose", name, perm=[2, 0, 1, 3]) for name in (past, new))
    return t("Transpose", t("ScatterND", whole, index, rows), perm=[1, 2, 0, 3])


def _heads(t: _Text, x: str, length: str, n: int) -> str:
    y = t("MatMul", x, t.weight(WIDTH, n * SIZE))
    parts = (t.array([1]), t("Unsqueeze", length, t.array(0)), t.array([n]), t.array([SIZE]))
    return t("Transpose", t("Reshape", y, t("Concat", *parts, axis=0)), perm=[0, 2, 1, 3])


def _rotated(t: _Text, x: str, tables: tuple[str, str]) -> str:
    half = [t("Slice", x, t.array([a]), t.array([b]), t.array([3])) for a, b in ((0, 4), (4, 8))]
    turned = t("Concat", t("Neg", half[1]), half[0], axis=-1)
    return t("Add", t("Mul", x, tables[0]), t("Mul", turned, tables[1]))


def _repeated(t: _Text, x: str, shared: int) -> str:
    """Each of the shared heads for as many heads."""
    if shared == HEADS:
        return x
    total = t("Unsqueeze", t.extent(x, 2), t.array(0))
    lead = t.array([1, shared, HEADS // shared])
    shape = t("Concat", lead, total, t.array([SIZE]), axis=0)
    wide = t("Expand", t("Unsqueeze", x, t.array([2])), shape)
    flat = t("Concat", t.array([1, HEADS]), total, t.array([SIZE]), axis=0)
    return t("Reshape", wide, flat)
