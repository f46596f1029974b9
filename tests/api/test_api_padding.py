"""What is proved to be paddable gives the same numbers in ONNX Runtime; what leaks is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from autotune.api.compile.padding import Padding, batchable, cut, pad, paddable, why_not
from autotune.codec import from_json, to_json
from autotune.errors import UsageError
from autotune.graph.bound_model import BoundModel
from autotune.graph.network import build_network
from tests.graph.onnx_models import execute, model, node

Arrays = dict[str, NDArray[Any]]

BATCH, EXTENT, WIDTH, HEADS, WORDS = 2, 14, 8, 2, 20
LOWEST = float(np.finfo(np.float32).min)
KINDS = {"ids": "int64", "mask": "int64"}
SHAPES: Mapping[str, tuple[int, ...]] = {
    "ids": (BATCH, EXTENT),
    "mask": (BATCH, EXTENT),
    "x": (BATCH, EXTENT, WIDTH),
}


def weights(seed: int, scale: float = 1.0) -> dict[str, object]:
    """Weights and numbers that the models of this file use."""
    rng = np.random.default_rng(seed)
    shapes = {"words": (WORDS, WIDTH), "places": (EXTENT + 2, WIDTH), "kernel": (WIDTH, WIDTH, 3)}
    shapes |= {f"{n}{k}": (WIDTH, WIDTH) for n in "qkvo" for k in range(2)}
    found: dict[str, object] = {
        n: (scale * rng.standard_normal(s) / np.sqrt(WIDTH)).astype(np.float32)
        for n, s in shapes.items()
    }
    found["words_of_zero"] = np.diag([1e30] + [1.0] * (WORDS - 1)).astype(np.float32)
    found |= {"billion": np.float32(-1e9), "thousands": np.float32(-1e4)}
    found |= {"lowest": np.float32(LOWEST), "minus_inf": np.float32(-np.inf)}
    found |= {"weak": np.float32(-10.0), "float_one": np.float32(1), "small": np.float32(1e-9)}
    found |= {"zero": np.array(0), "one": np.array(1), "two": np.array(2), "minus": np.array(-1)}
    found |= {f"axis{n}": np.array([n]) for n in range(3)} | {"keys": np.array([1, 2])}
    found |= {"split": np.array([0, 0, HEADS, WIDTH // HEADS]), "whole": np.array([0, 0, WIDTH])}
    found |= {"ones": np.ones(WIDTH, np.float32), "zeros": np.zeros(WIDTH, np.float32)}
    found |= {"top": np.array([1]), "far": np.array([2**62]), "back": np.array([-(2**62)])}
    found |= {"float_zero": np.float32(0), "last": np.array([-1]), "turned": np.array([1, 0, 2])}
    found |= {"rows": np.array([-1, WIDTH]), "square": np.float32(2), "half": np.float32(0.5)}
    return found


def saved(folder: Path, nodes: list[NodeProto], outputs: str = "y", seed: int = 0, scale: float = 1,
          **types: str) -> Path:  # fmt: skip
    """A model file; its inputs are those of `ids`, `mask` and `x` that nodes read."""
    used = {i for n in nodes for i in n.input}
    dims = {n: ("batch", "length", WIDTH)[: len(SHAPES[n])] for n in SHAPES if n in used}
    constants = {n: a for n, a in weights(seed, scale).items() if n in used}
    proto = model(nodes, dims, constants, outputs, types=KINDS | types)
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


def proof(path: Path) -> Padding | str:
    names = [i.name for i in onnx.load(path).graph.input]
    return paddable(BoundModel(path), "length", {n: SHAPES[n] for n in names})


def data(path: Path, length: int, seed: int, padding: Padding | None = None) -> Arrays:
    """Random inputs that a proof holds for."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for port in onnx.load(path).graph.input:
        shape = (BATCH, length, WIDTH)[: len(SHAPES[port.name])]
        kind = helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        if port.name == "x":
            found["x"] = (3 * rng.standard_normal(shape)).astype(kind)
        else:
            found[port.name] = rng.integers(0, 2 if port.name == "mask" else WORDS, shape)
            found[port.name] = found[port.name].astype(kind)
    anchors = padding.anchors if padding is not None else ()
    if anchors and "mask" in found:
        at = {"first": slice(1), "last": slice(-1, None), "all": slice(None)}
        found["mask"][:, at[anchors[seed % len(anchors)]]] = 1
    return found


def require_equal(path: Path, padding: Padding, n_lengths: int = 5) -> None:
    """Compare ONNX Runtime at random lengths with ONNX Runtime, and us, on padded inputs."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    network = build_network(path, {n: s for n, s in SHAPES.items() if n in padding.inputs})
    lengths = np.random.default_rng(1).integers(padding.least, EXTENT + 1, n_lengths)
    for seed, length in enumerate((padding.least, *map(int, lengths))):
        feed = data(path, length, seed, padding)
        assert why_not(feed, padding) == ""
        expected = session.run(None, feed)
        longer = pad(feed, padding, EXTENT)
        whole = dict(zip(names, session.run(None, longer), strict=True))
        ours = execute(network, longer) if seed == 0 else whole
        for name, right in zip(names, expected, strict=True):
            for results in (whole, ours):
                got = cut(results, padding, length)[name]
                np.testing.assert_allclose(got, right, rtol=2e-4, atol=2e-5, err_msg=name)


# --- random networks -----------------------------------------------------------------------------


def random_network(rng: np.random.Generator) -> list[NodeProto]:
    """A small transformer of random parts, in about every second one that leaks."""

    def pick(*options: str, leaks: tuple[str, ...] = ()) -> str:
        return str(rng.choice(leaks if leaks and rng.random() < 0.15 else options))

    nodes = [node("Gather", "words ids", "word")]
    nodes += [node("Shape", "ids", "shape"), node("Gather", "shape one", "n")]
    positions = pick("none", "range", "counted", leaks=("backwards", "share"))
    nodes.append(node("Range", "zero n one", "range"))
    match positions:
        case "none":
            nodes.append(node("Identity", "word", "h0"))
        case "range":
            nodes.append(node("Gather", "places range", "place"))
        case "counted":
            nodes.append(node("CumSum", "mask one", "running"))
            nodes.append(node("Mul", "running mask", "number"))
            nodes.append(node("Gather", "places number", "place"))
        case "backwards":
            nodes.append(node("Sub", "n range", "left"))
            nodes.append(node("Gather", "places left", "place"))
        case _:
            nodes.append(node("Cast", "range", "f", to=TensorProto.FLOAT))
            nodes.append(node("Cast", "n", "g", to=TensorProto.FLOAT))
            nodes.append(node("Div", "f g", "share"))
            nodes.append(node("Unsqueeze", "share axis1", "place"))
    if positions != "none":
        nodes.append(node("Add", "word place", "h0"))
    nodes.append(node("Cast", "mask", "mask_f", to=TensorProto.FLOAT))
    nodes.append(node("Unsqueeze", "mask_f keys", "mask_k"))
    nodes += masked(
        pick(
            "add",
            "where",
            "inf",
            "billion",
            leaks=("weak", "none", "inverted", "rows", "thousands"),
        )
    )
    is_causal = rng.random() < 0.3
    if is_causal:
        nodes += [
            node("Unsqueeze", "range axis0", "row"),
            node("Unsqueeze", "range axis1", "column"),
            node("LessOrEqual", "row column", "seen"),
            node("Where", "seen float_zero lowest", "causal"),
        ]
    for k in range(int(rng.integers(1, 3))):
        nodes += layer(k, is_causal, pick("LayerNormalization", "RMS", "none"), pick)
        last = f"h{k + 1}"
    nodes += pooled(last, pick("none", "first", "mean", "max", "count", leaks=("all", "end")))
    return nodes


def masked(kind: str) -> list[NodeProto]:
    """`bias`, what is added to the scores."""
    match kind:
        case "add" | "weak" | "billion" | "thousands":
            factor = "lowest" if kind == "add" else kind
            return [node("Sub", "float_one mask_k", "off"), node("Mul", f"off {factor}", "bias")]
        case "where" | "inf":
            value = "lowest" if kind == "where" else "minus_inf"
            return [
                node("Cast", "mask_k", "on", to=TensorProto.BOOL),
                node("Where", f"on float_zero {value}", "bias"),
            ]
        case "inverted":
            return [node("Mul", "mask_k lowest", "bias")]
        case "rows":  # hides queries instead of keys
            return [
                node("Transpose", "mask_k", "mask_q", perm=[0, 1, 3, 2]),
                node("Sub", "float_one mask_q", "off"),
                node("Mul", "off lowest", "bias"),
            ]
        case _:
            return [node("Mul", "mask_k float_zero", "bias")]


def layer(k: int, is_causal: bool, norm: str, pick: Any) -> list[NodeProto]:
    """Attention, the residual and a normalisation: h{k} to h{k+1}."""
    h, nodes = f"h{k}", []
    for name in "qkv":
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", f"{h} {name}{k}", f"{name}{k}.rows"),
            node("Reshape", f"{name}{k}.rows split", f"{name}{k}.split"),
            node("Transpose", f"{name}{k}.split", f"{name}{k}.heads", perm=perm),
        ]
    nodes += [node("MatMul", f"q{k}.heads k{k}.heads", f"s{k}"), node("Add", f"s{k} bias", f"b{k}")]
    if is_causal:
        nodes.append(node("Min" if pick("a", "b") == "a" else "Add", f"b{k} causal", f"c{k}"))
    soft = f"c{k}" if is_causal else f"b{k}"
    nodes += [
        node("Softmax", soft, f"p{k}", axis=int(pick("-1", leaks=("-2",)))),
        node("MatMul", f"p{k} v{k}.heads", f"m{k}"),
        node("Transpose", f"m{k}", f"t{k}", perm=[0, 2, 1, 3]),
        node("Reshape", f"t{k} whole", f"w{k}"),
        node("MatMul", f"w{k} o{k}", f"r{k}"),
        node("Add", f"r{k} {h}", f"a{k}"),
        node(pick("Relu", "Tanh", "Sigmoid", "Erf", "Softplus", "Identity"), f"a{k}", f"f{k}"),
    ]
    match norm:
        case "none":
            return [*nodes, node("Identity", f"f{k}", f"h{k + 1}")]
        case "RMS":
            return [
                *nodes,
                node("Pow", f"f{k} square", f"f{k}.2"),
                node("ReduceMean", f"f{k}.2", f"f{k}.m", axes=[-1]),
                node("Add", f"f{k}.m small", f"f{k}.e"),
                node("Sqrt", f"f{k}.e", f"f{k}.r"),
                node("Div", f"f{k} f{k}.r", f"h{k + 1}"),
            ]
        case _:
            return [*nodes, node(norm, f"f{k} ones zeros", f"h{k + 1}")]


def pooled(h: str, kind: str) -> list[NodeProto]:
    """`y`, made of the last hidden state."""
    column = [node("Unsqueeze", "mask_f axis2", "m")]
    match kind:
        case "none":
            return [node("Identity", h, "y")]
        case "first":
            return [node("Gather", f"{h} zero", "y", axis=1)]
        case "end":
            return [node("Gather", f"{h} minus", "y", axis=1)]
        case "all":
            return [node("ReduceMean", h, "y", axes=[1])]
        case "mean":
            return [
                *column,
                node("Mul", f"{h} m", "hm"),
                node("ReduceSum", "hm axis1", "total", keepdims=0),
                node("ReduceSum", "m axis1", "count", keepdims=0),
                node("Max", "count small", "least"),
                node("Div", "total least", "y"),
            ]
        case "max":
            return [
                *column,
                node("Equal", "m float_zero", "none"),
                node("Where", f"none lowest {h}", "seen_only"),
                node("ReduceMax", "seen_only", "y", axes=[1], keepdims=0),
            ]
        case _:  # the last one that counts
            return [
                node("Constant", "", "width", value_ints=[1, 1, WIDTH]),
                node("ReduceSum", "mask axis1", "tokens", keepdims=1),
                node("Sub", "tokens one", "end"),
                node("Unsqueeze", "end axis2", "end3"),
                node("Expand", "end3 width", "at"),
                node("GatherElements", f"{h} at", "y", axis=1),
            ]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_proved_gives_the_numbers_of_the_exact_length(
    seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    path = saved(tmp_path, random_network(rng), seed=seed, scale=float(rng.choice([0.5, 1, 4])))
    found = proof(path)
    if isinstance(found, Padding):
        require_equal(path, found)
    else:
        assert "'length' cannot be padded: " in found


# --- single operators ----------------------------------------------------------------------------

Nodes = list[NodeProto]
COUNT = [
    node("Shape", "x", "shape", start=1, end=2),
    node("Cast", "shape", "count", to=TensorProto.FLOAT),
]
MASK = [
    node("Cast", "mask", "f", to=TensorProto.FLOAT),
    node("Unsqueeze", "f axis2", "m"),
    node("Mul", "x m", "xm"),
]
SCORES = [node("Transpose", "x", "xt", perm=[0, 2, 1]), node("MatMul", "x xt", "s")]
NUMBERS = [
    node("Shape", "x", "n1", start=1, end=2),
    node("Squeeze", "n1", "n"),
    node("Range", "zero n one", "r"),
]
LEAKS: dict[str, tuple[str, Nodes]] = {
    "a mean": ("ReduceMean", [node("ReduceMean", "x", "y", axes=[1])]),
    "a mean of masked": ("ReduceMean", [*MASK, node("ReduceMean", "xm", "y", axes=[1])]),
    "a division by the length": (
        "constant|Div", [*MASK, *COUNT, node("ReduceSum", "xm axis1", "t"),
                         node("Div", "t count", "y")]),
    "a minimum of masked": ("ReduceMin", [*MASK, node("ReduceMin", "xm", "y", axes=[1])]),
    "a maximum of masked": ("ReduceMax", [*MASK, node("ReduceMax", "xm", "y", axes=[1])]),
    "a product of masked": ("ReduceProd", [*MASK, node("ReduceProd", "xm", "y", axes=[1])]),
    "a norm": ("ReduceL2", [node("Add", "x float_one", "z"),
                            node("ReduceL2", "z", "y", axes=[1])]),
    "exponentials": ("ReduceSumExp|ReduceLogSumExp",
                     [node("ReduceLogSumExp", "x", "y", axes=[1])]),
    "a softmax": ("Softmax", [node("Softmax", "x", "y", axis=1)]),
    "a softmax masked too late": ("Softmax", [
        *SCORES, node("Softmax", "s", "p"), node("Cast", "mask", "f", to=TensorProto.FLOAT),
        node("Unsqueeze", "f axis1", "k"), node("Mul", "p k", "y")]),
    "the largest": ("ArgMax", [node("ArgMax", "x", "y", axis=1)]),
    "the largest ones": ("Rank", [node("TopK", "x two1", "y index", axis=1)]),
    "the last": ("Slice|Gather", [node("Gather", "x minus", "y", axis=1)]),
    "reversed": ("Slice", [node("Slice", "x last back axis1 last", "y")]),
    "shifted": ("Concat|Pad|Slice", [
        node("Slice", "x top far axis1", "a"), node("Slice", "x axis0 top axis1", "b"),
        node("Concat", "a b", "y", axis=1)]),
    "sums from behind": ("CumSum", [
        node("Exp", "x", "z"), node("CumSum", "z one", "y", reverse=1)]),
    "a convolution": ("Conv", [
        node("Transpose", "x", "xt", perm=[0, 2, 1]),
        node("Conv", "xt kernel", "y", pads=[1, 1])]),
    "a pool": ("MaxPool|Pool", [
        node("Transpose", "x", "xt", perm=[0, 2, 1]),
        node("MaxPool", "xt", "y", kernel_shape=[3], pads=[1, 1])]),
    "normalised over all": ("InstanceNormalization", [
        node("Transpose", "x", "xt", perm=[0, 2, 1]),
        node("InstanceNormalization", "xt ones zeros", "y")]),
    "the sum of positions": ("constant|ReduceSum", [
        *NUMBERS, node("Cast", "r", "rf", to=TensorProto.FLOAT),
        node("ReduceSum", "rf axis0", "t"), node("Add", "x t", "y")]),
    "positions as shares": ("constant", [
        *NUMBERS, *COUNT, node("Cast", "r", "rf", to=TensorProto.FLOAT),
        node("Div", "rf count", "share"), node("Unsqueeze", "share axis1", "c"),
        node("Add", "x c", "y")]),
    "rows of batches": ("output", [node("Reshape", "x rows", "y")]),
    "all with all": ("MatMul", [
        node("Add", "x float_one", "z"), node("Transpose", "z", "zt", perm=[0, 2, 1]),
        node("MatMul", "zt z", "y")]),
    "zero times infinity": ("ReduceSum", [
        *MASK, node("Log", "x", "l"), node("Mul", "l m", "lm"),
        node("ReduceSum", "lm axis1", "y")]),
    "zero by zero": ("ReduceSum", [
        *MASK, node("Div", "x x", "l"), node("Mul", "l m", "lm"),
        node("ReduceSum", "lm axis1", "y")]),
    "a weak mask": ("Softmax", [
        *SCORES, node("Cast", "mask", "f", to=TensorProto.FLOAT), node("Unsqueeze", "f axis1", "k"),
        node("Sub", "float_one k", "off"), node("Mul", "off weak", "bias"),
        node("Add", "s bias", "b"), node("Softmax", "b", "p"), node("MatMul", "p x", "y")]),
    "how many are not masked": ("ReduceSum", [
        node("Equal", "mask zero", "off"), node("Cast", "off", "f", to=TensorProto.FLOAT),
        node("ReduceSum", "f axis1", "y")]),
    "a negative place": ("Gather", [
        node("ReduceSum", "mask axis1", "t", keepdims=0), node("Neg", "t", "back"),
        node("Gather", "ids back", "z", axis=1), node("Identity", "z", "y")]),
    "places beyond a table": ("Gather", [
        node("Mul", "ids two", "z"), node("CumSum", "z one", "at"),
        node("Gather", "places at", "y")]),
    "words that overflow at 0": ("ReduceSum", [
        node("Gather", "words_of_zero ids", "w"), node("Pow", "w square", "w2"),
        node("Cast", "mask", "f", to=TensorProto.FLOAT), node("Unsqueeze", "f axis2", "m"),
        node("Mul", "w2 m", "wm"), node("ReduceSum", "wm axis1", "y")]),
    "an LSTM": ("", [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("LSTM", "t lstm_w lstm_r", "y", hidden_size=WIDTH)]),
}  # fmt: skip
KEEPS: dict[str, Nodes] = {
    "a product": [node("MatMul", "x q0", "y")],
    "rows of batches": [node("Reshape", "x rows", "t"), node("MatMul", "t q0", "u"),
                        node("Reshape", "u same", "y")],
    "sums so far": [node("CumSum", "x one", "y")],
    "sums of zeros from behind": [node("CumSum", "x one", "y", reverse=1)],
    "lengths before batches": [node("Transpose", "x", "t", perm=[1, 0, 2]),
                               node("Reshape", "t rows", "y")],
    "zeros in a sum": [node("ReduceSum", "x axis1", "y")],
    "squares": [node("ReduceL2", "x", "y", axes=[1])],
    "positions": [*NUMBERS, node("Gather", "places r", "p"), node("Add", "x p", "y")],
    "the first": [node("Gather", "x zero", "y", axis=1)],
    "each with each": [node("Transpose", "x", "xt", perm=[0, 2, 1]), node("MatMul", "x xt", "y")],
    "a sum of products": [*SCORES[:1], node("MatMul", "xt x", "y")],
    "a maximum of what is not negative": [*MASK, node("Relu", "xm", "z"),
                                          node("ReduceMax", "z", "y", axes=[1])],
    "the last token": [
        node("ReduceSum", "mask axis1", "t", keepdims=1), node("Sub", "t one", "e"),
        node("GatherElements", "ids e", "y", axis=1)],
    "the first largest": [node("ArgMax", "mask", "y", axis=1)],
    "a causal mask": [
        *SCORES, *NUMBERS, node("Unsqueeze", "r axis0", "c"), node("Unsqueeze", "r axis1", "q"),
        node("LessOrEqual", "c q", "seen"), node("Where", "seen s lowest", "b"),
        node("Softmax", "b", "p"), node("MatMul", "p x", "y")],
    "a softmax of what an exporter writes": [
        *SCORES, node("Cast", "mask", "on", to=TensorProto.BOOL),
        node("Unsqueeze", "on axis1", "k"),
        node("Where", "k s lowest", "b"), node("ReduceMax", "b", "top", axes=[-1]),
        node("Sub", "b top", "d"), node("Exp", "d", "e"), node("ReduceSum", "e last", "t"),
        node("Div", "e t", "p"), node("MatMul", "p x", "y")],
    "a decision by a score": [
        *MASK, node("ReduceSum", "xm axis1", "t"), node("Greater", "t float_zero", "is"),
        node("Where", "is x t", "y")],
}  # fmt: skip


def saved_operators(folder: Path, nodes: Nodes) -> Path:
    rng = np.random.default_rng(0)
    extra: dict[str, object] = {"two1": np.array([2]), "same": np.array([BATCH, -1, WIDTH])}
    extra |= {
        n: rng.standard_normal((1, 4 * WIDTH, WIDTH)).astype(np.float32)
        for n in ("lstm_w", "lstm_r")
    }
    made = {o for n in nodes for o in n.output}
    used = {i for n in nodes for i in n.input}
    inputs = {n: ("batch", "length", WIDTH)[: len(s)] for n, s in SHAPES.items() if n in used}
    constants = {n: a for n, a in (weights(0) | extra).items() if n in used - made}
    kinds = {"ArgMax": "int64", "GatherElements": "int64", "Identity": "int64"}
    types = KINDS | {"y": kinds.get(nodes[-1].op_type, "float32")}
    path = folder / "m.onnx"
    onnx.save(model(nodes, inputs, constants, "y", types=types), path)
    return path


@pytest.mark.parametrize("name", LEAKS)
def test_what_reads_padded_places_is_refused_by_name(name: str, tmp_path: Path) -> None:
    ops, nodes = LEAKS[name]
    found = proof(saved_operators(tmp_path, nodes))
    assert isinstance(found, str)
    assert not ops or any(op in found for op in ops.split("|")), found


@pytest.mark.parametrize("name", KEEPS)
def test_what_reads_real_places_alone_is_padded(name: str, tmp_path: Path) -> None:
    path = saved_operators(tmp_path, KEEPS[name])
    found = proof(path)
    assert isinstance(found, Padding), found
    require_equal(path, found)


def test_data_that_a_proof_does_not_hold_for_is_not_padded(tmp_path: Path) -> None:
    found = proof(saved_operators(tmp_path, KEEPS["a softmax of what an exporter writes"]))
    assert isinstance(found, Padding)
    x = np.ones((BATCH, 4, WIDTH), np.float32)
    mask = np.array([[1, 0, 0, 0], [0, 1, 1, 0]])
    for wrong in (mask, np.full((BATCH, 4), 2), np.ones((BATCH, 3), np.int64)):
        assert why_not({"x": x, "mask": wrong}, found)
        with pytest.raises(UsageError):
            pad({"x": x, "mask": wrong}, found, EXTENT)
    assert why_not({"x": x, "mask": mask[:1]}, found) == ""
    with pytest.raises(UsageError, match="do not fit"):
        pad({"x": x, "mask": np.ones((BATCH, 4), np.int64)}, found, 3)


def test_a_proof_survives_json(tmp_path: Path) -> None:
    found = proof(saved_operators(tmp_path, KEEPS["a causal mask"]))
    assert isinstance(found, Padding)
    assert from_json(Padding, json.loads(json.dumps(to_json(found)))) == found


@pytest.mark.parametrize("name", ["a causal mask", "lengths before batches", "the first"])
def test_batches_are_padded_with_samples(name: str, tmp_path: Path) -> None:
    path = saved_operators(tmp_path, KEEPS[name])
    found = batchable(BoundModel(path), "batch", {"x": SHAPES["x"]})
    if name == "lengths before batches":  # rows of all samples lie among each other
        assert isinstance(found, str)
        return
    assert isinstance(found, Padding)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = data(path, 9, 0)
    expected = session.run(["y"], feed)[0]
    got = cut({"y": session.run(["y"], pad(feed, found, 5))[0]}, found, BATCH)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
