"""The recipes of docs/serving.md for other servers, run beside stand-ins of their packages."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import autotune

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `model.atn` is, and where the process is."""
    ports = [helper.make_tensor_value_info(name, 1, (2, 4)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    autotune.compile(model, check=False).artifact.save(tmp_path / "model.atn")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _recipe(monkeypatch: pytest.MonkeyPatch, package: str, **names: Any) -> dict[str, Any]:
    """What the block of code that imports `package` defines."""
    stand_in = ModuleType(package)
    vars(stand_in).update(names)
    monkeypatch.setitem(sys.modules, package, stand_in)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (text,) = (b for b in blocks if re.search(rf"^(import|from) {package}", b, re.MULTILINE))
    found: dict[str, Any] = {"__name__": "recipe"}
    exec(text.replace("/mnt/models/", ""), found)
    return found


def test_triton(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _recipe(
        monkeypatch,
        "triton_python_backend_utils",
        get_input_tensor_by_name=lambda request, name: SimpleNamespace(
            as_numpy=lambda: request[name]
        ),
        Tensor=lambda name, array: (name, array),
        InferenceResponse=dict,
    )
    model = found["TritonPythonModel"]()
    model.initialize({"model_repository": str(folder.parent), "model_version": folder.name})
    first, second = model.execute([{"x": X}, {"x": -X}])
    assert np.array_equal(first["y"], np.maximum(X, 0))
    assert np.array_equal(second["y"], np.maximum(-X, 0))


def test_kserve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        def __init__(self, name: str) -> None:
            self.name = name

    codec = SimpleNamespace(from_np_dtype=lambda dtype: {"float32": "FP32"}[dtype.name])
    monkeypatch.setitem(sys.modules, "kserve.utils.numpy_codec", codec)
    found = _recipe(
        monkeypatch,
        "kserve",
        Model=Model,
        ModelServer=None,
        InferOutput=lambda *given: given,
        InferResponse=lambda *given: given,
    )
    model = found["Compiled"]("model")
    model.load()
    given = SimpleNamespace(id=7, inputs=[SimpleNamespace(name="x", as_numpy=lambda: X)])
    number, name, (output,) = asyncio.run(model.predict(given))
    assert (number, name, model.ready) == (7, "model", True)
    assert output == ("y", [2, 4], "FP32", np.maximum(X, 0).ravel().tolist())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bentoml(folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    """Arrays of JSON are float64."""
    found = _recipe(
        monkeypatch, "bentoml", service=lambda **_: lambda made: made, api=lambda made: made
    )
    y = asyncio.run(found["Compiled"]().infer(X.astype(dtype)))
    assert np.array_equal(y, np.maximum(X, 0))
