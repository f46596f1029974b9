"""Other runtimes are imported without their telemetry, but where a program imports them itself."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.forking import ROOT

_PACKAGE = "from autotune.network.runtime.onnxruntime_package import onnxruntime_package\n"
OURS = {
    "package": f"{_PACKAGE}onnxruntime_package()",
    "stood for": f"{_PACKAGE}import sys, autotune\nsys.modules['onnxruntime'] = autotune\n"
    "onnxruntime_package()",
    "quantiser": "import autotune.network.quantise.quantiser as q\nq.quantisation_package()",
    "drop-in": "import autotune\nautotune.OrtValue",
    "OpenVINO": "from autotune.telemetry import imported\nimported('openvino')",
}
THEIRS = {
    "import": "import onnxruntime, autotune\nautotune.OrtValue",
    "install": "import autotune\nautotune.install()\nimport onnxruntime\nonnxruntime.OrtValue",
}
"""Programs that import a runtime by our functions, and by themselves."""
_ALL = """
import os, sys, time
events = []
sys.addaudithook(lambda name, _: name.startswith("socket.") and events.append(name))
%s
time.sleep(0.2)
print(os.environ.get("ORT_DISABLE_TELEMETRY"), events, "openvino_telemetry" in sys.modules)
"""


def said(program: str, folder: Path, **variables: str) -> str:
    """The variable of ONNX Runtime, sockets, and whether OpenVINO's telemetry is imported.

    `folder` is the home and the folder for temporary files.
    """
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(folder))
    done = subprocess.run(
        [sys.executable, "-c", _ALL % program],
        env=known | places | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", OURS)
def test_what_autotune_imports_sends_nothing_and_writes_nothing(name: str, tmp_path: Path) -> None:
    if find_spec(name.lower() if name == "OpenVINO" else "onnxruntime") is None:
        pytest.skip("not installed")
    assert said(OURS[name], tmp_path) == "1 [] False"
    assert [*tmp_path.iterdir()] == []


def test_what_the_user_has_told_onnxruntime_stays(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert said(OURS["package"], tmp_path, ORT_DISABLE_TELEMETRY="0").startswith("0 ")


@pytest.mark.parametrize("name", THEIRS)
def test_a_program_that_imports_onnxruntime_decides_itself(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert said(THEIRS[name], tmp_path).startswith("None ")
    (tmp_path / "silent").mkdir()
    assert said(THEIRS[name], tmp_path / "silent", ORT_DISABLE_TELEMETRY="1") == "1 [] False"
    assert [*(tmp_path / "silent").iterdir()] == []
