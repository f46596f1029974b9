"""Install a wheel into an empty environment, and go the whole way of a model there.

    python -m release.walk dist/*.whl --python python3.12 --python python3.13

tune → resume → distill → compile → run → export → call the library, from Python and as a node of
ONNX Runtime by the provider that the wheel brings, in a folder of their own; a row
says how long each took and what the environment weighs. The packages that the wheel needs come from
where pip takes them: the only step of a release that needs a network.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXTRAS = "tune,export,fallback"
_MODEL = """
import numpy as np, onnx
from onnx import helper as oh, numpy_helper as nh
w = nh.from_array(np.linspace(-1, 1, 16 * 27, dtype=np.float32).reshape(16, 3, 3, 3), "w")
value = oh.make_tensor_value_info
ends = [value("x", 1, (1, 3, 16, 16))], [value("y", 1, None)]
nodes = [oh.make_node("Conv", ["x", "w"], ["a"]), oh.make_node("Relu", ["a"], ["y"])]
made = oh.make_model(oh.make_graph(nodes, "g", *ends, [w]), ir_version=9,
                     opset_imports=[oh.make_opsetid("", 17)])
onnx.save(made, "model.onnx")
np.save("x.npy", np.ones((1, 3, 16, 16), np.float32))
"""
_SAME = """
import numpy as np, autotune
x = np.load("x.npy")
one, other = autotune.load("model.atn"), autotune.ExportedModel("model/libmodel.so")
assert np.array_equal(one.run({"x": x})["y"], other.run({"x": x})["y"])
assert np.array_equal(np.load("y.npz")["y"], one.run({"x": x})["y"])
"""
_CONTEXT = """
import numpy as np, onnxruntime, autotune
place = autotune.onnxruntime_provider()
assert place.parent.parent.parent == __import__("pathlib").Path(autotune.__file__).parent, place
onnxruntime.register_execution_provider_library("autotune", str(place))
ours = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "AutotuneExecutionProvider"]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(ours, {})
session = onnxruntime.InferenceSession("model/model_ctx.onnx", options)
(found,) = session.run(None, {"x": np.load("x.npy")})
assert np.array_equal(np.load("y.npz")["y"], found)
"""
_STEPS = (
    ("tune", ("tune", "model.onnx", "--trials", "8", "--log", "model.jsonl")),
    ("resume", ("resume", "model.jsonl", "--trials", "4")),
    ("distill", ("distill", "model.jsonl", "-o", "best.jsonl")),
    ("compile", ("compile", "--log", "best.jsonl", "-o", "model.atn")),
    ("run", ("run", "model.atn", "--input", "x=x.npy", "-o", "y.npz")),
    ("export", ("export", "model.atn", "-o", "model", "--onnx")),
)


def walk(python: str, package: str, find_links: str | None = None) -> dict[str, float]:
    """Seconds of each step, and the megabytes of the environment. Raises SystemExit."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        found = {}
        begun = time.monotonic()
        _run([python, "-m", "venv", "venv"], home)
        own = str(home / "venv" / "bin" / "python")
        links = ["--find-links", find_links, "--no-index"] if find_links else []
        _run([own, "-m", "pip", "install", "-q", "--no-compile", *links, package], home)
        found["install"] = time.monotonic() - begun
        packages = next((home / "venv" / "lib").glob("python*")) / "site-packages"
        found["MB"] = sum(p.stat().st_size for p in packages.rglob("*") if p.is_file()) / 1e6
        _run([own, "-c", _MODEL], home)
        for name, words in _STEPS:
            begun = time.monotonic()
            _run([own, "-m", "autotune", *words], home)
            found[name] = time.monotonic() - begun
        for script in (_SAME, _CONTEXT):
            _run([own, "-c", script], home)
        return found


def _run(command: list[str], folder: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE", "PYTHON"))}
    env |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    env |= {"PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}\n{done.stdout}{done.stderr}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="The whole way of a model in empty environments.")
    parser.add_argument("package", help="A wheel, or a source distribution.")
    parser.add_argument("--python", action="append", help="Pythons to try.  [this one]")
    parser.add_argument("--extras", default=EXTRAS)
    parser.add_argument("--find-links", help="A folder of wheels; then no network is used.")
    given = parser.parse_args()
    package = f"{Path(given.package).resolve()}[{given.extras}]"
    for python in given.python or [sys.executable]:
        found = walk(python, package, given.find_links)
        figures = " ".join(
            f"{name} {value:.0f} {'' if name == 'MB' else 's'}".strip() + ","
            for name, value in found.items()
        )
        print(f"{python}: {figures.rstrip(',')}", flush=True)


if __name__ == "__main__":
    main()
