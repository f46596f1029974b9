"""Programs in other languages run compiled networks by ONNX Runtime (`make clients` brings it)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import autotune
from autotune.network.runtime.runtime import random_inputs
from tests.hybrid_models import DETECTOR
from tests.hybrid_models import saved as hybrid
from tests.network.provider_client import MODELS, parsed

ROOT = Path(__file__).parents[2]
BROUGHT = ROOT / "build/clients"
SOURCES = ROOT / "examples/onnxruntime_clients"
PACKAGE = BROUGHT / "node_modules/com.github.asus4.onnxruntime/Plugins"
Array = np.ndarray[Any, Any]


def _cc(folder: Path, headers: Path, libraries: Path) -> list[str]:
    link = ["-L", str(libraries), "-lonnxruntime"]
    _made(["c++", "-std=c++17", "-I", str(headers), str(SOURCES / "client.cc"), *link, "-o",
           str(folder / "client")], folder)  # fmt: skip
    return [str(folder / "client")]


def _go(folder: Path, headers: Path, libraries: Path) -> list[str]:
    env = {
        "CGO_CFLAGS": f"-I{headers}",
        "CGO_LDFLAGS": f"-L{libraries} -lonnxruntime",
        "GOFLAGS": "-trimpath",
    }
    command = ["go", "build", "-o", str(folder / "client"), str(SOURCES / "client.go")]
    _made(command, folder, env)
    return [str(folder / "client")]


def _cs(folder: Path, headers: Path, libraries: Path) -> list[str]:
    program = str(folder / "Client.exe")
    _made(["mcs", f"-out:{program}", str(SOURCES / "Client.cs"), "-r:System.Core"], folder)
    return ["mono", program]


def _node(folder: Path, headers: Path, libraries: Path) -> list[str]:
    return ["node", str(SOURCES / "client.mjs")]


CLIENTS: dict[str, tuple[str, Callable[[Path, Path, Path], list[str]]]] = {
    "C++": ("c++", _cc),
    "Go": ("go", _go),
    "C#": ("mcs", _cs),
    "Node": ("node", _node),
}


def _made(command: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, **(env or {})}
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Headers and libraries of ONNX Runtime."""
    if not PACKAGE.is_dir():
        pytest.skip("ONNX Runtime for other languages is brought by `make clients`")
    libraries = tmp_path_factory.mktemp("libraries")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (libraries / name).symlink_to(PACKAGE / "Linux/x64/libonnxruntime.so")
    return next(PACKAGE.rglob("onnxruntime_c_api.h")).parent, libraries


def _static(folder: Path) -> tuple[onnx.ModelProto, dict[str, str] | None]:
    text = """f (float[1, 3, 17, 17] x, float[8, 3, 3, 3] w) => (float[1, 8, 17, 17] y) {
        c = Conv<pads = [1, 1, 1, 1]>(x, w)  y = Relu(c) }"""
    return parsed(text), None


def _quantised(folder: Path) -> tuple[onnx.ModelProto, dict[str, str] | None]:
    rng = np.random.default_rng(3)
    weights = rng.integers(-127, 128, (32, 16)).astype(np.int8)
    scales = {"sx": 0.05, "sw": 0.01, "sy": 0.2}
    tensors = [numpy_helper.from_array(np.float32(v), name) for name, v in scales.items()]
    tensors += [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.int8(0), "zero")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zero"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "sy", "zero"], ["mq"]),
        helper.make_node("DequantizeLinear", ["mq", "sy", "zero"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, 1, (5, k)) for n, k in (("x", 32), ("y", 16))]
    graph = helper.make_graph(nodes, "q", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), None


KINDS: dict[str, Callable[[Path], tuple[onnx.ModelProto, dict[str, str] | None]]] = {
    "static": _static,
    "open dimensions": lambda folder: (parsed(MODELS["lengths"][0]), MODELS["lengths"][1]),
    "a part of ONNX Runtime's": lambda folder: (onnx.load(hybrid(DETECTOR, folder)), None),
    "quantised": _quantised,
    "a decoder with a cache": lambda folder: (parsed(MODELS["cache"][0]), MODELS["cache"][1]),
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders: an original, and an export of it."""
    made = {}
    for kind, model in KINDS.items():
        folder = made[kind] = tmp_path_factory.mktemp("kind")
        text, dims = model(folder)
        onnx.save(text, folder / "original.onnx")
        done = autotune.compile(
            folder / "original.onnx", dims=dims, check=False, threads=2, keep_cut=True
        )
        done.artifact.save(folder / "original.atn")
        autotune.export(done.artifact, folder / "out", "net", onnx=True)
    return made


def _inputs(kind: str, folder: Path) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    if kind == "a decoder with a cache":
        shapes = {"x": (1, 1, 8), "past_key": (1, 3, 8)}
    elif kind == "open dimensions":
        shapes = {"x": (7, 64), "s": (7,)}
    else:
        return dict(random_inputs(autotune.load(folder / "original.atn").input_info))
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def _expected(folder: Path, feeds: dict[str, Array], steps: int) -> dict[str, Array]:
    """What ONNX Runtime's own nodes give after some steps."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        folder / "original.onnx", providers=["CPUExecutionProvider"]
    )
    names = [end.name for end in session.get_outputs()]
    for _ in range(steps):
        found = dict(zip(names, session.run(None, feeds), strict=True))
        feeds = feeds | {
            n.replace("present", "past"): x for n, x in found.items() if n.startswith("present")
        }
    return found


@pytest.mark.slow
@pytest.mark.sampled(0)
@pytest.mark.parametrize("language", CLIENTS)
def test_a_program_of_another_language_gives_the_numbers(
    language: str, runtime: tuple[Path, Path], exports: dict[str, Path], tmp_path: Path
) -> None:
    compiler, make = CLIENTS[language]
    if shutil.which(compiler) is None:
        pytest.skip(f"{language} needs {compiler}")
    command = make(tmp_path, *runtime)
    env = {**os.environ, "LD_LIBRARY_PATH": str(runtime[1])}
    for kind, folder in exports.items():
        feeds, steps = _inputs(kind, folder), 4 if "decoder" in kind else 1
        words = []
        for name, x in feeds.items():
            x.tofile(tmp_path / name)
            element = "float" if x.dtype == np.float32 else "int64"
            words += [name, element, "x".join(map(str, x.shape)), str(tmp_path / name)]
        cwd = BROUGHT if language == "Node" else tmp_path
        provider, context = autotune.onnxruntime_provider(), folder / "out/net_ctx.onnx"
        done = subprocess.run(
            [*command, str(provider), str(context), str(steps), *words],
            capture_output=True, text=True, env=env, cwd=cwd,
        )  # fmt: skip
        assert done.returncode == 0, (kind, done.stderr)
        expected = _expected(folder, feeds, steps)
        lines = [line.split() for line in done.stdout.splitlines()]
        assert [line[0] for line in lines] == list(expected), kind
        for n, (name, *shape) in enumerate(lines):
            found = np.fromfile(cwd / f"{n}.out", expected[name].dtype).reshape(
                tuple(map(int, shape))
            )
            assert found.shape == expected[name].shape, (kind, name)
            np.testing.assert_allclose(found, expected[name], rtol=2e-3, atol=1e-4)
    done = subprocess.run(
        [*command, str(provider), str(tmp_path / "nothing.onnx"), "1"],
        capture_output=True, text=True, env=env, cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 1
    assert "nothing.onnx" in done.stderr
