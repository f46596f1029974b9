"""The installed onnxruntime is found whatever a program has put under its name."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import numpy as np
import pytest
from onnx import TensorProto, helper

import autotune
from autotune.network.runtime.onnxruntime_package import onnxruntime_package

onnxruntime = pytest.importorskip("onnxruntime")
IMPOSTORS = (autotune, ModuleType("onnxruntime"))


def imported_names() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] == "onnxruntime"}


@pytest.mark.parametrize("impostor", IMPOSTORS, ids=lambda module: str(module.__name__))
@pytest.mark.parametrize("is_loaded", [True, False])
def test_the_installed_one_is_found_under_another(
    monkeypatch: pytest.MonkeyPatch, impostor: ModuleType, is_loaded: bool
) -> None:
    """Also where the modules of the installed one are imported no more."""
    for name in imported_names() if not is_loaded else ():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", impostor)
    before = imported_names()
    found: list[ModuleType] = []
    threads = [
        threading.Thread(target=lambda: found.append(onnxruntime_package())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 3
    assert len({id(module) for module in found}) == 1
    assert found[0].__version__ == onnxruntime.__version__
    assert sys.modules["onnxruntime"] is impostor
    assert imported_names() == before


def test_what_is_not_installed_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError):
        onnxruntime_package()


def test_session_in_the_place_of_onnxruntime_falls_back_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the check nor the segments that are not compiled run the session itself."""
    unique = helper.make_node("Unique", ["x"], ["y", "at", "n"], domain="com.microsoft")
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [4]), ("y", None))
    ]
    graph = helper.make_graph([unique], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    monkeypatch.setitem(sys.modules, "onnxruntime", autotune)
    session = autotune.InferenceSession(model.SerializeToString(), cache=False)
    (y,) = session.run(None, {"x": np.array([3, 1, 3, 2], "f")})
    assert y.tolist() == [3, 1, 2]
