"""RNN, GRU and LSTM in all their forms, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from autotune.errors import ModelError, UnsupportedOperator
from autotune.extent import Length
from autotune.graph.network import build_network
from tests.graph.lifted import execute_lifted, lifted
from tests.graph.onnx_models import (
    EXACT_BYTES,
    assert_matches,
    execute,
    model,
    node,
    onnxruntime_outputs,
    random_feeds,
    save,
)

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RNG = np.random.default_rng(0)


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def weights(rng: np.random.Generator, op: str, directions: int = 1) -> dict[str, np.ndarray]:
    rows = GATES[op] * HIDDEN
    return {
        "w": values(rng, directions, rows, WIDTH),
        "r": values(rng, directions, rows, HIDDEN),
        "b": values(rng, directions, 2 * rows),
    }


def outputs_of(op: str) -> str:
    return "y h c" if op == "LSTM" else "y h"


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_directions(rng: np.random.Generator, op: str, direction: str, tmp_path: Path) -> None:
    one = node(op, "x w r b", outputs_of(op), hidden_size=HIDDEN, direction=direction)
    constants = weights(rng, op, 2 if direction == "bidirectional" else 1)
    proto = model(one, {"x": (STEPS, BATCH, WIDTH)}, constants, outputs_of(op))
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_given_states_without_bias(
    rng: np.random.Generator, op: str, direction: str, tmp_path: Path
) -> None:
    n = 2 if direction == "bidirectional" else 1
    states = {"h0": (n, BATCH, HIDDEN)} | ({"c0": (n, BATCH, HIDDEN)} if op == "LSTM" else {})
    inputs = " ".join(["x w r _ _", *states])
    one = node(op, inputs, outputs_of(op), hidden_size=HIDDEN, direction=direction)
    proto = model(one, {"x": (STEPS, BATCH, WIDTH)} | states, weights(rng, op, n), outputs_of(op))
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_whose_reset_gate_scales_a_product(
    rng: np.random.Generator, direction: str, given: bool, tmp_path: Path
) -> None:
    n = 2 if direction == "bidirectional" else 1
    attrs = {"hidden_size": HIDDEN, "direction": direction, "linear_before_reset": 1}
    one = node("GRU", "x w r b _ h0" if given else "x w r b", "y h", **attrs)
    states = {"h0": (n, BATCH, HIDDEN)} if given else {}
    proto = model(one, {"x": (STEPS, BATCH, WIDTH)} | states, weights(rng, "GRU", n), "y h")
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("RNN", ["Relu"]),
        ("GRU", ["Softsign", "Relu"]),
        ("LSTM", ["Sigmoid", "Relu", "Softplus"]),
        ("LSTM", ["sigmoid", "tanh", "relu"] * 2),
    ],
)
def test_activations(rng: np.random.Generator, op: str, names: list[str], tmp_path: Path) -> None:
    n = 2 if len(names) == 6 else 1
    attrs = {"direction": "bidirectional"} if n == 2 else {}
    one = node(op, "x w r b", outputs_of(op), hidden_size=HIDDEN, activations=names, **attrs)
    proto = model(one, {"x": (STEPS, BATCH, WIDTH)}, weights(rng, op, n), outputs_of(op))
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("op", GATES)
def test_only_the_last_state_is_wanted(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    one = node(op, "x w r b", "_ h", hidden_size=HIDDEN)
    proto = model(one, {"x": (STEPS, 1, WIDTH)}, weights(rng, op), "h")
    assert_matches(proto, tmp_path, 1e-5)


def test_layers_between_others(rng: np.random.Generator, tmp_path: Path) -> None:
    """As in text recognition: columns of an image, two layers in both directions, a product."""
    shape = np.array([STEPS, BATCH, 2 * HIDDEN])
    nodes = [
        node("Conv", "x k", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b0"),
        node("Squeeze", "b0 two", "s"),
        node("Transpose", "s", "t", perm=[2, 0, 1]),
        node("LSTM", "t w r b", "y1", hidden_size=HIDDEN, direction="bidirectional"),
        node("Transpose", "y1", "y2", perm=[0, 2, 1, 3]),
        node("Reshape", "y2 shape", "y3"),
        node("GRU", "y3 w2 r2 b2", "y4 h", hidden_size=HIDDEN, linear_before_reset=1),
        node("Squeeze", "y4 one", "y5"),
        node("MatMul", "y5 m", "z"),
        node("Softmax", "z", "y", axis=2),
    ]
    second = weights(rng, "GRU")
    constants = weights(rng, "LSTM", 2) | {
        "k": values(rng, WIDTH, 2, 3, 3),
        "shape": shape,
        "one": np.array([1]),
        "two": np.array([2]),
        "m": values(rng, HIDDEN, 7),
        "w2": values(rng, 1, 3 * HIDDEN, 2 * HIDDEN),
        "r2": second["r"],
        "b2": second["b"],
    }
    proto = model(nodes, {"x": (BATCH, 2, 1, STEPS)}, constants)
    assert_matches(proto, tmp_path, 1e-5)


def test_all_steps_are_calls_of_the_same_tasks(rng: np.random.Generator, tmp_path: Path) -> None:
    """The first step has no product; the rows of a step and its part of the result are windows."""
    one = node("LSTM", "x w r b", hidden_size=HIDDEN)
    proto = model(one, {"x": (40, 1, WIDTH)}, weights(rng, "LSTM"))
    network = build_network(save(proto, tmp_path))
    labels = sorted(network.labels[key] for key in network.tasks)
    assert labels == ["LstmOutput", "LstmState", "LstmState", "MatMul", "MatMul+Add"]
    assert len(network.calls) == 1 + 2 + 39 * 3
    arrays = [a for c in network.calls for a in c.constants.values() if a.size == 4 * HIDDEN**2]
    assert len(arrays) == 39
    assert all(np.shares_memory(a, arrays[0]) for a in arrays), "weights are there once"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("w", (1, 4 * HIDDEN, WIDTH + 1)),
        ("r", (1, 3 * HIDDEN, HIDDEN)),
        ("b", (1, HIDDEN)),
        ("h0", (2, BATCH, HIDDEN)),
    ],
)
def test_shapes_that_do_not_fit_are_named(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    constants = (
        weights(rng, "LSTM") | {"h0": values(rng, 1, BATCH, HIDDEN)} | {name: values(rng, *shape)}
    )
    one = node("LSTM", "x w r b _ h0", hidden_size=HIDDEN)
    path = save(model(one, {"x": (STEPS, BATCH, WIDTH)}, constants), tmp_path)
    with pytest.raises(ModelError, match=f"'LSTM'.* shape {'x'.join(map(str, shape))} instead of"):
        build_network(path)


PEEPHOLES = values(RNG, 2, 3 * HIDDEN)
LENGTHS = np.array([STEPS, 2, 1], np.int32)


def variant(
    rng: np.random.Generator,
    op: str,
    inputs: str,
    folder: Path,
    tolerance: float = 1e-5,
    **attrs: object,
) -> None:
    """A cell in both directions, whose inputs named in upper case are constants."""
    shapes: dict[str, tuple[int, ...]] = {"x": (STEPS, BATCH, WIDTH)}
    known: dict[str, np.ndarray] = {"L": LENGTHS, "P": PEEPHOLES}
    rows = GATES[op] * HIDDEN
    for name, shape in (("w", (2, rows, WIDTH)), ("r", (2, rows, HIDDEN)), ("b", (2, 2 * rows))):
        known[name.upper()] = values(rng, *shape)
        shapes[name] = shape
    shapes |= {"p": PEEPHOLES.shape, "l": (BATCH,)}
    shapes |= dict.fromkeys(("h0", "c0"), (2, BATCH, HIDDEN))
    names = inputs.split()
    one = node(op, inputs, outputs_of(op), hidden_size=HIDDEN, direction="bidirectional", **attrs)
    kept = {n: a for n, a in known.items() if n in names}
    given = {n: s for n, s in shapes.items() if n in names}
    proto = model(one, given, kept, outputs_of(op), types={"l": "int32"})
    assert_matches(proto, folder, tolerance)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("inputs", ["x w r b", "x w r", "x W r B _ h0", "x w R _ _ h0"])
def test_weights_computed_at_run_time(
    rng: np.random.Generator, op: str, inputs: str, tmp_path: Path
) -> None:
    attrs = {"linear_before_reset": 1} if op == "GRU" else {}
    variant(rng, op, inputs, tmp_path, **attrs)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("inputs", ["x W R B L", "x W R B L h0"])
def test_sequences_that_end_at_different_steps(
    rng: np.random.Generator, op: str, inputs: str, tmp_path: Path
) -> None:
    variant(rng, op, inputs, tmp_path)


@pytest.mark.parametrize("op", GATES)
def test_lengths_of_sequences_at_run_time(
    rng: np.random.Generator, op: str, tmp_path: Path
) -> None:
    attrs = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    one = node(op, "x w r b l h0", outputs_of(op), **attrs)
    shapes = {"x": (STEPS, BATCH, WIDTH), "l": (BATCH,), "h0": (2, BATCH, HIDDEN)}
    proto = model(one, shapes, weights(rng, op, 2), outputs_of(op), types={"l": "int32"})
    network = build_network(save(proto, tmp_path))
    feeds = random_feeds(network) | {"l": LENGTHS}
    found, want = execute(network, feeds), onnxruntime_outputs(proto, feeds)
    for name in outputs_of(op).split():
        np.testing.assert_allclose(found[name], want[name], atol=1e-5)


@pytest.mark.parametrize("attrs", [{}, {"clip": 0.2}, {"input_forget": 1}])
@pytest.mark.parametrize("inputs", ["x W R B _ _ _ P", "x W R B L h0 c0 p", "x w r b _ h0 c0"])
def test_forms_of_lstm(
    rng: np.random.Generator, inputs: str, attrs: dict[str, object], tmp_path: Path
) -> None:
    variant(rng, "LSTM", inputs, tmp_path, **attrs)


@pytest.mark.parametrize("op", ["RNN", "GRU"])
def test_clip(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    variant(rng, op, "x W R B _ h0", tmp_path, clip=0.3)


@pytest.mark.parametrize(
    ("names", "attrs"),
    [
        (["HardSigmoid", "Elu", "LeakyRelu"], {}),
        (["HardSigmoid", "LeakyRelu", "Elu"], {"activation_alpha": [0.3, 0.1, 0.7]}),
        (
            ["Affine", "ScaledTanh", "ThresholdedRelu"],
            {"activation_alpha": [0.3, 0.9, 0.1], "activation_beta": [0.2, 0.8]},
        ),
    ],
)
def test_activations_with_parameters(
    rng: np.random.Generator, names: list[str], attrs: dict[str, list[float]], tmp_path: Path
) -> None:
    twice = {name: 2 * given for name, given in attrs.items()}
    variant(rng, "LSTM", "x W R B", tmp_path, activations=2 * names, **twice)


@pytest.mark.parametrize("op", GATES)
def test_batch_first(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    """As the same operator between transposes: ONNX Runtime has no layout 1."""
    states = {"h0": (BATCH, 2, HIDDEN)} | ({"c0": (BATCH, 2, HIDDEN)} if op == "LSTM" else {})
    shapes = {"x": (BATCH, STEPS, WIDTH)} | states
    constants, outputs = weights(rng, op, 2), outputs_of(op).split()
    attrs = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    inputs = " ".join(["x w r b _", *states])
    one = node(op, inputs, outputs_of(op), layout=1, **attrs)
    network = build_network(save(model(one, shapes, constants, outputs_of(op)), tmp_path))
    feeds = random_feeds(network)
    turned = [node("Transpose", n, f"{n}t", perm=[1, 0, 2]) for n in shapes]
    inner = " ".join(["xt w r b _", *(f"{n}t" for n in states)])
    turned.append(node(op, inner, " ".join(f"{n}t" for n in outputs), **attrs))
    turned.append(node("Transpose", "yt", "y", perm=[2, 0, 1, 3]))
    turned += [node("Transpose", f"{n}t", n, perm=[1, 0, 2]) for n in outputs[1:]]
    want = onnxruntime_outputs(model(turned, shapes, constants, outputs_of(op)), feeds)
    found = execute(network, feeds)
    for name in outputs:
        np.testing.assert_allclose(found[name], want[name], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "reason"), [("Sine", "activations are Sine"), ("Affine", "needs alpha and beta")]
)
def test_an_unknown_activation_is_refused(
    rng: np.random.Generator, name: str, reason: str, tmp_path: Path
) -> None:
    one = node("RNN", "x w r", "_ h", hidden_size=HIDDEN, activations=[name])
    proto = model(one, {"x": (STEPS, BATCH, WIDTH)}, {n: weights(rng, "RNN")[n] for n in "wr"}, "h")
    with pytest.raises(UnsupportedOperator, match=reason):
        build_network(save(proto, tmp_path))


ONE_THREAD = onnxruntime.SessionOptions()
ONE_THREAD.intra_op_num_threads = 1
ONE_THREAD.add_session_config_entry(*EXACT_BYTES)
"""With more, ONNX Runtime quantises the sequences of each thread by a scale of their own."""


def bytes_of(
    rng: np.random.Generator, name: str, dtype: str, is_per_channel: bool
) -> dict[str, np.ndarray]:
    """Weights (2 directions, in, gates · hidden) of bytes, their scales and zero points."""
    info = np.iinfo(dtype)
    shape = (2, WIDTH if name == "w" else HIDDEN, 4 * HIDDEN)
    parts = (2, 4 * HIDDEN) if is_per_channel else (2,)
    zero = 0 if dtype == "int8" else 120
    return {
        name: rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype),
        f"{name}s": (0.004 + 0.004 * rng.random(parts)).astype(np.float32),
        f"{name}z": np.full(parts, zero, dtype),
    }


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("inputs", "is_per_channel", "attrs"),
    [
        ("x w r b _ h0 c0 p", True, {"clip": 0.5}),
        ("x w r b l h0 _ _", False, {"input_forget": 1}),
        ("x w r _ _ _ _ _", True, {"activations": ["Sigmoid", "Tanh", "Relu"] * 2}),
    ],
)
def test_lstm_of_bytes_is_within_a_step_of_onnxruntime(
    rng: np.random.Generator,
    inputs: str,
    is_per_channel: bool,
    attrs: dict[str, object],
    dtype: str,
    tmp_path: Path,
) -> None:
    known = {"b": values(rng, 2, 8 * HIDDEN), "l": LENGTHS, "p": PEEPHOLES}
    known |= bytes_of(rng, "w", dtype, is_per_channel) | bytes_of(rng, "r", dtype, is_per_channel)
    shapes = {"x": (STEPS, BATCH, WIDTH)}
    shapes |= {n: (2, BATCH, HIDDEN) for n in ("h0", "c0") if n in inputs.split()}
    names = f"{inputs} ws wz rs rz".split()
    attrs = {"hidden_size": HIDDEN, "direction": "bidirectional", **attrs}
    one = node("DynamicQuantizeLSTM", " ".join(names), "y h c", domain="com.microsoft", **attrs)
    proto = model(one, shapes, {n: a for n, a in known.items() if n in names}, "y h c")
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    network = build_network(save(proto, tmp_path))
    feeds = random_feeds(network)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), ONE_THREAD)
    found = execute(network, feeds)
    step = 1e-5 if "l" not in names else 0.01  # behind its end a sequence counts otherwise
    for name, want in zip("yhc", session.run(list("yhc"), feeds), strict=True):
        assert found[name].shape == want.shape
        np.testing.assert_allclose(found[name], want, atol=step)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_of_bytes_ends_at_a_length(
    rng: np.random.Generator, direction: str, tmp_path: Path
) -> None:
    """What is behind the length is not in the range of data, nor are steps that are not taken."""
    known = bytes_of(rng, "w", "int8", True) | bytes_of(rng, "r", "int8", False)
    if direction != "bidirectional":
        known = {name: array[:1] for name, array in known.items()}
    names = "x w r _ _ _ _ _ ws wz rs rz"
    attrs = {"hidden_size": HIDDEN, "direction": direction}
    one = node("DynamicQuantizeLSTM", names, "y h c", domain="com.microsoft", **attrs)
    proto = model(one, {"x": ("steps", "batch", WIDTH)}, known, "y h c")
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    network = lifted(proto, {"x": (Length("steps", 7), Length("batch", 3), WIDTH)}, tmp_path)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), ONE_THREAD)
    for steps, batch in ((1, 1), (3, 2), (4, 3), (7, 3)):
        x = values(rng, steps, batch, WIDTH) * steps
        found = execute_lifted(network, {"x": x}, {"steps": steps, "batch": batch})
        for name, want in zip("yhc", session.run(list("yhc"), {"x": x}), strict=True):
            np.testing.assert_allclose(found[name], want, atol=1e-5)


def test_lstm_of_bytes_with_scales_of_another_length_is_refused(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    known = bytes_of(rng, "w", "int8", False) | bytes_of(rng, "r", "int8", False)
    known["rs"] = np.ones((2, 3), np.float32)
    one = node(
        "DynamicQuantizeLSTM",
        "x w r _ _ _ _ _ ws wz rs rz",
        domain="com.microsoft",
        hidden_size=HIDDEN,
        direction="bidirectional",
    )
    proto = model(one, {"x": (STEPS, BATCH, WIDTH)}, known)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError, match=r"\(2, 3\) scales"):
        build_network(save(proto, tmp_path))
