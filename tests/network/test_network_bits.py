"""The same bits, whoever computes them: any number of threads, callers, and two builds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import autotune
from autotune.network.runtime.runtime import Model, random_inputs
from tests.graph.onnx_models import model, node

IMAGE = (1, 3, 112, 112)
N_CALLERS, N_TURNS = 3, 3


def residual(rng: np.random.Generator) -> onnx.ModelProto:
    """The beginning of a ResNet at its real size, with its classifier: 0.3 GFLOP."""
    weights = {
        "w0": (64, 3, 7, 7), "w1": (64, 64, 3, 3), "w2": (64, 64, 3, 3),
        "w3": (128, 64, 3, 3), "w4": (128, 128, 3, 3), "w5": (128, 64, 1, 1), "fc": (128, 1000),
    }  # fmt: skip
    constants = {
        name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in weights.items()
    }
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w0", "a", strides=[2, 2], pads=[3, 3, 3, 3]),
        node("Relu", "a", "b"),
        node("MaxPool", "b", "c", kernel_shape=[3, 3], strides=[2, 2], **same),
        node("Conv", "c w1", "d", **same),
        node("Relu", "d", "e"),
        node("Conv", "e w2", "f", **same),
        node("Add", "f c", "g"),
        node("Relu", "g", "h"),
        node("Conv", "h w3", "i", strides=[2, 2], **same),
        node("Relu", "i", "j"),
        node("Conv", "j w4", "k", **same),
        node("Conv", "h w5", "l", strides=[2, 2]),
        node("Add", "k l", "m"),
        node("Relu", "m", "n"),
        node("GlobalAveragePool", "n", "o"),
        node("Flatten", "o", "p"),
        node("MatMul", "p fc", "q"),
        node("Softmax", "q", "y"),
    ]
    return model(nodes, {"x": IMAGE}, constants)


def in_bytes(rng: np.random.Generator) -> onnx.ModelProto:
    """Two convolutions of bytes, between QuantizeLinear and DequantizeLinear."""
    constants = {
        "w1": rng.integers(-127, 128, (64, 3, 3, 3)).astype(np.int8),
        "w2": rng.integers(-127, 128, (128, 64, 3, 3)).astype(np.int8),
        "s": np.float32(1 / 32), "sw": np.float32(1 / 512), "z": np.uint8(128), "zw": np.int8(0),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z", "a"),
        node("DequantizeLinear", "a s z", "b"),
        node("DequantizeLinear", "w1 sw zw", "v1"),
        node("Conv", "b v1", "c", strides=[2, 2]),
        node("Relu", "c", "d"),
        node("QuantizeLinear", "d s z", "e"),
        node("DequantizeLinear", "e s z", "f"),
        node("DequantizeLinear", "w2 sw zw", "v2"),
        node("Conv", "f v2", "g", strides=[2, 2]),
        node("GlobalAveragePool", "g", "y"),
    ]
    return model(nodes, {"x": IMAGE}, constants)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "precision"), [(residual, "f32"), (residual, "bf16"), (in_bytes, "f32")]
)
def test_threads_callers_and_builds_give_the_same_bits(
    make: Callable[[np.random.Generator], onnx.ModelProto], precision: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(make(np.random.default_rng(0)), path)
    builds, files = [], []
    for name in ("one.atn", "other.atn"):
        made = autotune.compile(path, check=False, threads=2, precision=precision, cache=False)
        files.append(made.save(tmp_path / name).read_bytes())
        builds.append(made.artifact)
    assert files[0] == files[1]
    models = [Model(builds[n % 2], n) for n in (1, 2, 3, 4)]
    inputs = [random_inputs(models[0].input_info, seed) for seed in range(2)]
    wanted = [models[0].run(given)["y"] for given in inputs]
    assert wanted[0].tobytes() != wanted[1].tobytes()
    wrong: list[str] = []

    def calls(model: Model, caller: int) -> None:
        for turn in range(N_TURNS):
            n = (caller + turn) % 2
            if model.run(inputs[n])["y"].tobytes() != wanted[n].tobytes():
                wrong.append(f"caller {caller}, turn {turn}")

    callers = [
        threading.Thread(target=calls, args=(model, caller))
        for model in models
        for caller in range(N_CALLERS)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
