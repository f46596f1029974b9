"""Models as contexts of ONNX Runtime, and a process that runs them by the provider."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

import autotune

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'
MODELS = {
    "lengths": (
        """f (float[b, 64] x, float[b] s) => (float[b, 64] y, float[b] z) {
            y = Relu(x)  a = Constant<value_ints = [-1]>()
            t = ReduceSum<keepdims = 0>(y, a)  z = Add(t, s) }""",
        {"b": "..16"},
    ),
    "halves": (
        "f (float16[5, 33] x, bool[4] m) => (float16[5, 33] y, bool[4] n) "
        "{ y = Softmax(x) n = Not(m) }",
        None,
    ),
    "cache": (  # a decoder's step whose cache is an input and an output
        """f (float[1, 1, 8] x, float[1, past, 8] past_key) => (float[1, 1, 8] y,
                float[1, total, 8] present_key) {
            present_key = Concat<axis = 1>(past_key, x)
            t = Transpose<perm = [0, 2, 1]>(present_key)
            s = MatMul(x, t)  p = Softmax(s)  y = MatMul(p, present_key) }""",
        {"past": "..32"},
    ),
    "halved": (  # lengths that the network computes, and such that data decide
        """f (float[1, 2, w] x) => (float[1, 2, v] y) {
            y = MaxPool<kernel_shape = [3], strides = [2], pads = [1, 1]>(x) }""",
        {"w": "..32"},
    ),
    "chosen": (
        """f (float[2, 9] x) => (int64[2, k] y) {
            g = Constant<value_float = 0.0>()  b = Greater(x, g)  y = NonZero(b) }""",
        None,
    ),
}
_CHILD = """
import json, sys
import numpy as np, onnxruntime as ort

ort.set_default_logger_severity(4)
ort.register_execution_provider_library("autotune", sys.argv[1])
devices = [d for d in ort.get_ep_devices() if d.ep_name == "AutotuneExecutionProvider"]
for line in sys.stdin:
    path, options, feeds = json.loads(line)
    is_told = options.pop("told", "")
    try:
        settings = ort.SessionOptions()
        settings.enable_profiling, settings.profile_file_prefix = bool(is_told), is_told
        settings.add_provider_for_devices(devices, options)
        session = ort.InferenceSession(path, settings)
        given = {n: np.array(v, d).reshape(s) for n, v, d, s in feeds}
        found = [x.tolist() for x in session.run(None, given)]
        if is_told:
            found.append("AutotuneExecutionProvider" in open(session.end_profiling()).read())
    except Exception as error:
        found = str(error)
    print("\\nanswer", json.dumps(found), flush=True)  # ONNX Runtime prints as well
"""


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} {text}")


def exported(name: str, folder: Path, threads: int = 2, target: str = "native") -> Path:
    """The folder of a model's library, with the model beside it."""
    text, dims = MODELS[name]
    model = folder / f"{name}.onnx"
    onnx.save(parsed(text), model)
    done = autotune.compile(model, dims=dims, check=False, threads=threads, target=target)
    out = folder / "out"
    autotune.export(done.artifact, out, "net", onnx=True, original=model)
    return out


def inputs_of(name: str, n: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(n)
    if name == "halves":
        return {"x": rng.standard_normal((5, 33)).astype(np.float16), "m": rng.random(4) > 0.5}
    if name == "cache":
        past, x = ((1, n, 8), (1, 1, 8))
        return {
            "x": rng.standard_normal(x).astype(np.float32),
            "past_key": rng.standard_normal(past).astype(np.float32),
        }
    if name in ("halved", "chosen"):
        shape = (1, 2, n) if name == "halved" else (2, 9)
        return {"x": rng.standard_normal(shape).astype(np.float32)}
    return {
        "x": rng.standard_normal((n, 64)).astype(np.float32),
        "s": rng.standard_normal(n).astype(np.float32),
    }


class Client:
    """A process that ONNX Runtime and the provider live in; asked by lines."""

    def __init__(self, provider: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(provider)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def __call__(
        self, folder: Path, feeds: dict[str, Any], model: str = "net_ctx.onnx", **options: str
    ) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        given = [(n, x.tolist(), str(x.dtype), x.shape) for n, x in feeds.items()]
        print(
            json.dumps([str(folder / model), options, given]), file=self.process.stdin, flush=True
        )
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError("the host process is gone")


def changed(folder: Path, to: Path, **attributes: str) -> Path:
    """A copy of an export whose node has other attributes."""
    shutil.copytree(folder, to)
    model = onnx.load(to / "net_ctx.onnx")
    for a in model.graph.node[0].attribute:
        if a.name in attributes:
            a.s = attributes[a.name].encode()
    onnx.save(model, to / "net_ctx.onnx")
    return to
