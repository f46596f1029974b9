"""Names, submodules and exceptions of onnxruntime: where it is installed, and where it is not."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest

import autotune
from autotune.ort import alone
from autotune.ort.exceptions import NAMES

MODEL = 'ir_version: 8, opset_import: ["" : 17]'
TEXT = f"<{MODEL}> m (float[2,3] x) => (float[2,3] y) {{ y = Abs (x) }}"
BLOCKED = "import sys; sys.modules['onnxruntime'] = None\n"
"""What makes importing onnxruntime fail, as where it is not installed."""
PARTS = ("blocked", "installed")

CLIENT = """
import importlib, pickle, numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession, SessionOptions, OrtValue, get_available_providers
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile
import onnxruntime.capi.onnxruntime_inference_collection as collection

def caught(kind, action):
    try:
        action()
    except kind as error:
        pickle.loads(pickle.dumps(error))
        return kind.__name__

session = InferenceSession(sys.argv[1], SessionOptions(), providers=["CPUExecutionProvider"])
x = -np.ones((2, 3), np.float32)
value = OrtValue.ortvalue_from_numpy(x)
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
assert session.run(None, {"x": x})[0].min() == binding.copy_outputs_to_cpu()[0].max() == 1
answered = []
session.run_async(["y"], {"x": x}, lambda *given: answered.append(given), 7)
while not answered:
    pass
assert answered[0][1:] == (7, "") and answered[0][0][0].min() == 1, answered
words = [
    caught(ValueError, lambda: session.run(None, {})),
    caught(InvalidArgument, lambda: session.run(None, {"x": x[0]})),
    caught(InvalidArgument, lambda: session.run(None, {"x": x.astype("f8")})),
    caught(InvalidArgument, lambda: session.run(None, {"x": x, "q": x})),
    caught(ort.capi.onnxruntime_pybind11_state.Fail, lambda: (_ for _ in ()).throw(Fail())),
    caught(C.InvalidArgument, lambda: session.run(["q"], {"x": x})),
    caught(NoSuchFile, lambda: InferenceSession("none.onnx")),
    caught(C.InvalidProtobuf, lambda: InferenceSession(b"no model at all")),
    caught(TypeError, lambda: InferenceSession(3)),
    caught(RuntimeError, lambda: SessionOptions().get_session_config_entry("none")),
    value.element_type(), value.data_type(), value.shape(), value.is_tensor(),
    value.is_tensor_sequence(), value.tensor_size_in_bytes(), value.device_name(),
    OrtValue.ortvalue_from_shape_and_type([2, 3], 1).data_type(),
    OrtValue.ortvalue_from_shape_and_type([2], np.int64).element_type(),
    *(OrtValue.ortvalue_from_numpy_with_onnx_type(np.ones(2, dtype), number).data_type()
      for dtype, number in (("u2", 16), ("u1", 17), ("u1", 18), ("u1", 19), ("u1", 20))),
    int(ort.__version__.split(".")[0]), ort.get_device(), session.get_inputs()[0].type,
    "CPUExecutionProvider" in C.get_available_providers(),
    ort.OrtDevice.make("cpu", 0).device_type(),
    session._providers, session._model_path == sys.argv[1], ort.preload_dlls(),
    collection.OrtValue is OrtValue, isinstance(ort.get_build_info(), str),
    type(ort.get_ep_devices()),
    caught(RuntimeError, lambda: session.set_providers(["NoSuchProvider"])),
]
print(words)
print(type(session).__module__)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def run_python(tmp_path: Path, *arguments: str) -> list[str]:
    command = [sys.executable, *arguments]
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("blocked", [BLOCKED, "import sys\n"], ids=PARTS)
def test_a_client_gets_of_autotune_what_it_gets_of_onnxruntime(
    tmp_path: Path, model: Path, blocked: str
) -> None:
    """Unchanged, it is answered the same; without onnxruntime as well."""
    pytest.importorskip("onnxruntime")
    installing = blocked + "import autotune\nautotune.install()\n"
    theirs = run_python(tmp_path, "-c", "import sys\n" + CLIENT, str(model))
    ours = run_python(tmp_path, "-c", installing + CLIENT, str(model))
    assert ours[0] == theirs[0]
    assert ours[1].startswith("autotune.ort")
    assert not theirs[1].startswith("autotune")


@pytest.mark.parametrize("form", ["script", "-m", "-c"])
def test_a_program_is_run_with_autotune_in_the_place_of_onnxruntime(
    tmp_path: Path, form: str
) -> None:
    text = "import sys, onnxruntime as o\nif __name__ == '__main__': print(sys.argv[1:], o.install)"
    program = tmp_path / "program_under_test.py"
    program.write_text(f"import beside\n{text}" if form == "script" else text)
    (tmp_path / "beside.py").touch()
    what = {"script": [str(program)], "-m": ["-m", program.stem], "-c": ["-c", text]}[form]
    command = [sys.executable, "-m", "autotune.ort", *what, "--flag", "2"]
    env = {"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.stdout.startswith("['--flag', '2'] <function install"), done.stderr


STARRED = """
import sys, pickle, dataclasses, copy
from onnxruntime import *
from onnxruntime.capi.onnxruntime_pybind11_state import *
from onnxruntime.capi.onnxruntime_inference_collection import *
import onnxruntime, onnxruntime.capi.onnxruntime_pybind11_state as state
WANTED = ("InferenceSession", "SessionOptions", "OrtValue", "IOBinding", "GraphOptimizationLevel",
          "get_available_providers", "capi", "install", "InvalidArgument", "Fail")

@dataclasses.dataclass
class Point:
    x: int = 1

names = {n: n in globals() for n in WANTED}
same = [type(pickle.loads(pickle.dumps(Point()))) is Point, hasattr(onnxruntime, "__author__"),
        onnxruntime.__name__, onnxruntime.__package__, hasattr(onnxruntime, "no_such_name")]
for name in ("InferenceSession", "SessionOptions", "IOBinding", "OrtValue"):
    kind = getattr(onnxruntime, name)
    same += [pickle.loads(pickle.dumps(kind)) is kind, copy.deepcopy(kind) is kind, kind.__name__]
    same += [name in dir(onnxruntime)]
same += [pickle.loads(pickle.dumps(Fail)) is Fail, {"Fail", "InvalidArgument"} <= set(dir(state))]
level = GraphOptimizationLevel.ORT_ENABLE_ALL
same += [str(pickle.loads(pickle.dumps(level))) == str(level)]
print(names, same)
"""


@pytest.mark.parametrize("form", ["script", "-c", "install", "autotune.ort"])
def test_star_imports_and_pickles_find_the_names_of_onnxruntime(tmp_path: Path, form: str) -> None:
    pytest.importorskip("onnxruntime")
    program = tmp_path / "program.py"
    program.write_text(STARRED)
    theirs = run_python(tmp_path, str(program))
    if form == "install":
        program.write_text(f"import autotune\nautotune.install()\n{STARRED}")
        arguments = [str(program)]
    elif form == "autotune.ort":
        theirs = [line.replace("'install': False", "'install': True") for line in theirs]
        text = STARRED.replace("from onnxruntime import *", "from autotune.ort import *")
        program.write_text(f"import autotune\nautotune.install()\n{text}")
        arguments = [str(program)]
    else:
        what = [str(program)] if form == "script" else ["-c", STARRED]
        arguments = ["-m", "autotune.ort", *what]
    assert run_python(tmp_path, *arguments) == theirs


def test_star_imports_without_onnxruntime_give_what_there_is(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    installing = f"{BLOCKED}import autotune\nautotune.install()\n"
    program.write_text(installing + STARRED.replace(', "capi", "install"', ""))
    (line,) = run_python(tmp_path, str(program))
    names, _, same = line.partition("} ")
    assert "False" not in names, line
    assert same.count("False") == 2, line  # there is no author, and no such name


@pytest.mark.parametrize("arguments", [[], ["none.py"], ["-x"]], ids=str)
def test_what_cannot_be_run_is_a_line_and_a_code(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "autotune.ort", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_the_package_is_there_again_when_autotune_is_taken_away() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    autotune.install()
    autotune.install()
    try:
        ours = import_module("onnxruntime")
        import_module("onnxruntime.datasets")
        assert ours is not onnxruntime
        assert ours.InferenceSession is autotune.InferenceSession
        assert ours.datasets.__name__ == "onnxruntime.datasets"
        assert ours.__version__ == onnxruntime.__version__ != autotune.__version__
        assert {"InferenceSession", "install", "capi"} <= set(dir(ours))
        with pytest.raises(AttributeError):
            ours.no_such_name  # noqa: B018
    finally:
        autotune.uninstall()
    assert sys.modules["onnxruntime"] is onnxruntime
    assert onnxruntime.datasets.__name__ == "onnxruntime.datasets"
    assert issubclass(autotune.InferenceSession, onnxruntime.InferenceSession)


def test_modules_of_the_package_keep_the_session_of_the_package() -> None:
    """So `onnxruntime.quantization` calibrates with ONNX Runtime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    autotune.install()
    try:
        names = {"__name__": "onnxruntime.somewhere"}
        exec("import onnxruntime\nfrom onnxruntime import InferenceSession as found", names)
        assert names["found"] is onnxruntime.InferenceSession
    finally:
        autotune.uninstall()


def test_every_name_without_onnxruntime_is_one_that_it_has() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    state = onnxruntime.capi.onnxruntime_pybind11_state
    assert {name for name in dir(alone) if not hasattr(onnxruntime, name)} == set()
    assert all(getattr(alone, name) is not None for name in dir(alone))
    assert {name for name in NAMES if not hasattr(state, name)} == set()
    assert {name for name in dir(state) if _is_exception(getattr(state, name))} >= set(NAMES)


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def test_a_session_without_fallback_takes_options_of_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "open.onnx"
    onnx.save(onnx.parser.parse_model(TEXT.replace("[2,3]", "[n,3]")), path)
    options = autotune.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("n", 2)
    session = autotune.InferenceSession(path, options, fallback=False, cache=False)
    assert isinstance(session, alone.InferenceSession)
    assert session.get_inputs()[0].shape == [2, 3]
    x = -np.ones((2, 3), np.float32)
    (y,) = session.run(None, {"x": x}, autotune.RunOptions())
    assert (y == 1).all()
    options.replaces_model = True
    with pytest.raises(autotune.UsageError, match="weights or operators"):
        autotune.InferenceSession(path, options, fallback=False)


def test_options_that_replace_weights_say_so() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = autotune.SessionOptions()
    assert isinstance(options, onnxruntime.SessionOptions)
    assert not options.replaces_model
    with pytest.raises(AttributeError):
        options.intra_op_threads = 2
    value = autotune.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    options.add_initializer("w", value)
    assert options.replaces_model
