"""Small files of every kind that the imported version writes, with what they are to give.

    python -m tests.compatibility.make        this version's: tests/compatibility/VERSION.zip
    PYTHONPATH=CLONE python tests/compatibility/make.py      those of the version in CLONE

Once for each version, when it is released (`make release`), and never changed afterwards: the
tests of this folder load them in every later version. Code is for x86-64-v3, so any machine runs
it. Kinds that came later have the version from which on they are made.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper as oh
from onnx import numpy_helper

Arrays = dict[str, NDArray[Any]]
Maker = Callable[[], onnx.ModelProto]
HERE = Path(__file__).parent
TARGET = ("--target", "x86-64-v3")
RANDOM = 7
DATES = (1980, 1, 1, 0, 0, 0)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[Any, ...]],
    outputs: dict[str, tuple[Any, ...]],
    weights: Arrays,
    types: dict[str, int] | None = None,
) -> onnx.ModelProto:
    kinds = types or {}
    ends = [
        [oh.make_tensor_value_info(n, kinds.get(n, 1), s) for n, s in side.items()]
        for side in (inputs, outputs)
    ]
    arrays = [numpy_helper.from_array(a, name) for name, a in weights.items()]
    graph = oh.make_graph(nodes, "g", *ends, arrays)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=9)


def _weights(**shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(RANDOM)
    return {
        n: (rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32)
        for n, s in shapes.items()
    }


def convolutions() -> onnx.ModelProto:
    """A convolution, a mean, a classifier."""
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        oh.make_node("Relu", ["a"], ["b"]),
        oh.make_node("GlobalAveragePool", ["b"], ["c"]),
        oh.make_node("Flatten", ["c"], ["d"]),
        oh.make_node("Gemm", ["d", "v"], ["y"], transB=1),
    ]
    weights = _weights(w=(16, 3, 3, 3), v=(5, 16))
    return _model(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 5)}, weights)


def attention() -> onnx.ModelProto:
    """Scores of rows with one another, of an open number of rows."""
    nodes = [
        oh.make_node("MatMul", ["x", "q"], ["a"]),
        oh.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        oh.make_node("MatMul", ["a", "t"], ["s"]),
        oh.make_node("Softmax", ["s"], ["p"], axis=-1),
        oh.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    ends = ("batch", "rows", 8)
    return _model(nodes, {"x": ends}, {"y": ends}, _weights(q=(8, 8)))


def quantised() -> onnx.ModelProto:
    """A product of bytes between QuantizeLinear and DequantizeLinear."""
    rng = np.random.default_rng(RANDOM)
    weights: Arrays = {
        "w": rng.integers(-127, 128, (16, 8), np.int8),
        "s": np.float32(1 / 16),
        "z": np.uint8(128),
        "zw": np.int8(0),
    }
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "s", "z"], ["a"]),
        oh.make_node("DequantizeLinear", ["a", "s", "z"], ["b"]),
        oh.make_node("DequantizeLinear", ["w", "s", "zw"], ["v"]),
        oh.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    return _model(nodes, {"x": (4, 16)}, {"y": (4, 8)}, weights)


def with_fallback() -> onnx.ModelProto:
    """A convolution, and a part that no version compiles: ONNX Runtime's own Unique."""
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        oh.make_node("Relu", ["a"], ["b"]),
        oh.make_node("ReduceMax", ["b"], ["m"], axes=[0, 2, 3], keepdims=0),
        oh.make_node("Unique", ["m"], ["u", "i", "n"], domain="com.microsoft"),
        oh.make_node("ReduceMax", ["u"], ["y"], keepdims=0),
    ]
    weights = _weights(w=(32, 16, 3, 3))
    weights["w"] = np.round(weights["w"] * 16) / 16
    model = _model(nodes, {"x": (1, 16, 24, 24)}, {"y": ()}, weights)
    model.opset_import.append(oh.make_opsetid("com.microsoft", 1))
    return model


def decoder() -> onnx.ModelProto:
    """One layer of causal attention over the keys and values of the tokens before."""
    weights = _weights(table=(20, 8), wk=(8, 8), wv=(8, 8))
    weights |= {"zero": np.int64(0), "one": np.int64(1), "lowest": np.float32(-1e9)}
    weights |= {"ends": np.array([1], np.int64), "first": np.array([0], np.int64)}
    nodes = [
        oh.make_node("Gather", ["table", "input_ids"], ["x"]),
        oh.make_node("MatMul", ["x", "wk"], ["k"]),
        oh.make_node("MatMul", ["x", "wv"], ["v"]),
        oh.make_node("Concat", ["past.key", "k"], ["present.key"], axis=1),
        oh.make_node("Concat", ["past.value", "v"], ["present.value"], axis=1),
        oh.make_node("Transpose", ["present.key"], ["t"], perm=[0, 2, 1]),
        oh.make_node("MatMul", ["x", "t"], ["s"]),
        oh.make_node("Shape", ["past.key"], ["past"], start=1, end=2),
        oh.make_node("Shape", ["present.key"], ["all"], start=1, end=2),
        oh.make_node("Squeeze", ["past"], ["n_past"]),
        oh.make_node("Squeeze", ["all"], ["n_all"]),
        oh.make_node("Range", ["n_past", "n_all", "one"], ["rows"]),
        oh.make_node("Range", ["zero", "n_all", "one"], ["columns"]),
        oh.make_node("Unsqueeze", ["rows", "ends"], ["r"]),
        oh.make_node("Unsqueeze", ["columns", "first"], ["c"]),
        oh.make_node("Greater", ["c", "r"], ["later"]),
        oh.make_node("Where", ["later", "lowest", "s"], ["m"]),
        oh.make_node("Softmax", ["m"], ["p"], axis=-1),
        oh.make_node("MatMul", ["p", "present.value"], ["logits"]),
    ]
    kept = {f"past.{n}": (1, "past", 8) for n in ("key", "value")}
    grown = {f"present.{n}": (1, "total", 8) for n in ("key", "value")}
    return _model(
        nodes,
        {"input_ids": (1, "n"), **kept},
        {"logits": (1, "n", 8), **grown},
        weights,
        {"input_ids": onnx.TensorProto.INT64},
    )


def encoder() -> onnx.ModelProto:
    """Attention over the tokens that a mask has, and what the first token of each row gets."""
    weights = _weights(table=(20, 8), q=(8, 8))
    weights |= {"lowest": np.float32(-1e9), "one": np.float32(1), "first": np.int64(0)}
    weights |= {"axes": np.array([1], np.int64)}
    nodes = [
        oh.make_node("Gather", ["table", "input_ids"], ["x"]),
        oh.make_node("MatMul", ["x", "q"], ["a"]),
        oh.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        oh.make_node("MatMul", ["a", "t"], ["s"]),
        oh.make_node("Unsqueeze", ["attention_mask", "axes"], ["wide"]),
        oh.make_node("Cast", ["wide"], ["kept"], to=onnx.TensorProto.FLOAT),
        oh.make_node("Sub", ["one", "kept"], ["left"]),
        oh.make_node("Mul", ["left", "lowest"], ["bias"]),
        oh.make_node("Add", ["s", "bias"], ["m"]),
        oh.make_node("Softmax", ["m"], ["p"], axis=-1),
        oh.make_node("MatMul", ["p", "x"], ["z"]),
        oh.make_node("Gather", ["z", "first"], ["y"], axis=1),
    ]
    types = dict.fromkeys(("input_ids", "attention_mask"), onnx.TensorProto.INT64)
    ends: dict[str, tuple[Any, ...]] = dict.fromkeys(types, ("batch", "sequence"))
    return _model(nodes, ends, {"y": ("batch", 8)}, weights, types)


ARTIFACTS: dict[str, tuple[Maker, tuple[int, int], tuple[str, ...]]] = {
    "plain": (convolutions, (0, 2), ()),
    "variants": (attention, (0, 2), ("--dim", "batch=1,4", "--dim", "rows=6")),
    "quantised": (quantised, (0, 2), ()),
    "fallback": (with_fallback, (0, 2), ("--keep-cut",)),
    "lengths": (attention, (0, 3), ("--dim", "batch=..4", "--dim", "rows=..16")),
    "state": (decoder, (0, 3), ("--capacity", "16")),
    "several": (convolutions, (0, 3), ("--target", "x86-64-v3,x86-64-v4")),
    "bf16": (convolutions, (0, 3), ("--precision", "bf16")),
    "ragged": (encoder, (0, 3), ("--ragged", "--dim", "batch=..4", "--dim", "sequence=..16")),
}
"""Maker of the model, first version, options of `compile`."""

SIZES = {"variants": ((1, 6, 8), (4, 6, 8)), "lengths": ((1, 1, 8), (2, 11, 8), (4, 16, 8))}
"""Shapes of the inputs of what takes several."""
PROMPT, TOKENS = 5, 9


def inputs_of(name: str, model: onnx.ModelProto) -> list[Arrays]:
    """Calls of an artifact."""
    rng = np.random.default_rng(RANDOM)
    if name == "state":
        return [{"input_ids": rng.integers(0, 20, (1, TOKENS))}]
    if name == "ragged":
        mask = (np.arange(9) < np.array([[9], [3], [7]])).astype(np.int64)
        return [{"input_ids": rng.integers(1, 20, mask.shape) * mask, "attention_mask": mask}]
    port = model.graph.input[0]
    shape = tuple(d.dim_value for d in port.type.tensor_type.shape.dim)
    shapes = SIZES.get(name, (shape,))
    return [{port.name: rng.integers(-8, 9, s).astype(np.float32) / 8} for s in shapes]


def outputs_of(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """By ONNX Runtime; of a decoder, all tokens in one step without any before."""
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    before = {
        p.name: np.zeros((1, 0, 8), np.float32) for p in session.get_inputs() if "past" in p.name
    }
    names = [p.name for p in session.get_outputs() if "present" not in p.name]
    return dict(zip(names, session.run(names, {**inputs, **before}), strict=True))


def make(version: tuple[int, int], folder: Path) -> None:
    """Write all files of a version."""
    home = folder / "home"
    for name, (maker, first, options) in ARTIFACTS.items():
        if version >= first:
            model = maker()
            onnx.save(model, folder / f"{name}.onnx")
            _command(
                home, folder, "compile", f"{name}.onnx", "-o", f"{name}.atn", *TARGET, *options
            )
            _save_calls(folder / f"{name}.npz", model, inputs_of(name, model))
    _logs(version, home, folder)
    (folder / "surface.json").write_text(json.dumps(surface(), indent=1))
    if version >= (0, 3):
        _later(home, folder)


def _save_calls(path: Path, model: onnx.ModelProto, calls: list[Arrays]) -> None:
    """Arrays of all calls by `in N NAME` and `out N NAME`."""
    arrays: Arrays = {}
    for i, given in enumerate(calls):
        arrays |= {f"in {i} {n}": a for n, a in given.items()}
        arrays |= {f"out {i} {n}": a for n, a in outputs_of(model, given).items()}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _logs(version: tuple[int, int], home: Path, folder: Path) -> None:
    tune = ("tune", "plain.onnx", "--trials", "24", "--threads", "1", *TARGET)
    _command(home, folder, *tune, "--log", "plain.jsonl")
    _command(home, folder, "distill", "plain.jsonl", "-o", "best.jsonl")
    (folder / "formula.py").write_text(_FORMULA)
    formula = ("formula.py:product", "--args", "4,6")
    _command(home, folder, "compile", *formula, "-o", "formula.atn", *TARGET)


_FORMULA = """
from autotune import te


def product(n, m):
    a, b = te.placeholder((n, 8), "a"), te.placeholder((8, m), "b")
    k = te.reduce_axis(8, "k")
    return te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
"""


def _later(home: Path, folder: Path) -> None:
    """What there is from 0.3.0 on."""
    _command(home, folder, "distill", "plain.jsonl", "--store", "store")
    _command(home, folder, "export", "plain.atn", "-o", "plain", "--onnx")
    _command(home, folder, "export", "lengths.atn", "-o", "lengths")
    _command(home, folder, "bench", "plain.atn", "--time", "0.1s", "--save", "base.json")
    _command(home, folder, "target", "znver4", "-o", "machine.json")


def surface() -> dict[str, dict[str, list[str]]]:
    """Options of commands; public names, with those of their attributes and parameters."""
    import click

    import autotune
    from autotune.cli.main import app
    from autotune.errors import ExitCode

    context = click.Context(app)
    commands = {name: app.get_command(context, name) for name in app.list_commands(context)}
    values = {name: getattr(autotune, name) for name in autotune.__all__}
    return {
        "commands": {n: _options_of(command) for n, command in commands.items()},
        "names": {n: _attributes_of(value) for n, value in values.items()},
        "parameters": {n: _parameters_of(value) for n, value in values.items()},
        "exit_codes": {code.name: [str(int(code))] for code in ExitCode},
    }


def _options_of(command: Any) -> list[str]:
    parts = (part for one in command.params for part in (*one.opts, *one.secondary_opts))
    return sorted(part for part in parts if part.startswith("-"))


def _attributes_of(value: Any) -> list[str]:
    return sorted(n for n in dir(value) if n[0] != "_") if isinstance(value, type) else []


def _parameters_of(value: Any) -> list[str]:
    """Those that a caller may name; none where Python does not tell."""
    try:
        taken = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return sorted(p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def _command(home: Path, folder: Path, *words: str) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(home), "HOME": str(home)}
    subprocess.run([sys.executable, "-m", "autotune", *words], cwd=folder, env=env, check=True)


_KEPT = (".onnx", ".atn", ".npz", ".jsonl", ".json", ".so", ".py", ".gz")
_ONE_FOR_ALL = "libautotune_provider.so"


def pack(folder: Path, path: Path) -> None:
    """One archive of them, the same for the same files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder)
            is_wanted = file.suffix in _KEPT and name.parts[0] != "home"
            if file.is_file() and is_wanted and file.name != _ONE_FOR_ALL:
                info = zipfile.ZipInfo(str(name), DATES)
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, file.read_bytes())


def main() -> None:
    """Write the archive of the version that is imported."""
    from autotune.version import __version__

    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    major, minor = map(int, __version__.split(".")[:2])
    path = HERE / f"{__version__}.zip"
    if path.exists():
        raise SystemExit(f"error: {path} is there: an archive of a released version never changes")
    with tempfile.TemporaryDirectory() as folder:
        make((major, minor), Path(folder))
        pack(Path(folder), path)
    archives = sorted(HERE.glob("*.zip"))
    sums = [f"{sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in archives]
    (HERE / "SHA256SUMS").write_text("".join(sums))
    print(path)


if __name__ == "__main__":
    main()
