"""`run_async` of both sessions: the one over onnxruntime, and the one that does without."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune as ort

TEXT = '<ir_version: 8, opset_import: ["" : 17]> m (float[2,3] x) => (float[2,3] y) { y = Abs (x) }'
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["over onnxruntime", "alone"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    if request.param == "alone":
        return ort.InferenceSession(path, fallback=False)
    pytest.importorskip("onnxruntime")
    return ort.InferenceSession(path, compile="wait")


def x_of(k: int) -> Any:
    return np.full((2, 3), -k, np.float32)


def test_many_calls_are_answered_with_their_own_outputs(session: Any) -> None:
    answers: queue.Queue[tuple[list[Any], int, str]] = queue.Queue()
    before = threading.active_count()
    for k in range(500):
        session.run_async(["y"], {"x": x_of(k)}, lambda *given: answers.put(given), k)
    found = {
        k: (outputs, told) for outputs, k, told in (answers.get(timeout=60) for _ in range(500))
    }
    assert len(found) == 500
    for k, (outputs, told) in found.items():
        assert told == ""
        assert np.array_equal(outputs[0], np.full((2, 3), k))
    assert threading.active_count() <= before + len(os.sched_getaffinity(0))


def answer(start: Callable[[Callable[..., None]], None]) -> tuple[Any, ...]:
    answers: queue.Queue[tuple[Any, ...]] = queue.Queue()
    start(lambda *given: answers.put(given))
    return answers.get(timeout=60)


def test_what_cannot_be_computed_is_told_to_the_callback(session: Any) -> None:
    """With an empty list, as ONNX Runtime does it."""
    outputs, data, told = answer(
        lambda callback: session.run_async(["none"], {"x": x_of(1)}, callback, "mine")
    )
    assert (outputs, data) == ([], "mine")
    assert "none" in told


def test_a_callback_that_fails_does_not_stop_the_others(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(sys, "unraisablehook", lost.put)

    def fails(*_: Any) -> None:
        raise KeyError("of the client")

    for _ in range(20):
        session.run_async(None, {"x": x_of(1)}, fails, None)
    assert all(lost.get(timeout=60).exc_type is KeyError for _ in range(20))
    assert answer(lambda c: session.run_async(None, {"x": x_of(2)}, c, None))[2] == ""


SCRIPT = """
import logging, os, sys, threading
import numpy as np
import autotune as ort
logging.getLogger("autotune").setLevel(logging.ERROR)  # a busy machine takes long to compile
session = ort.InferenceSession(sys.argv[1], fallback=False)
x = -np.ones((2, 3), np.float32)
def say(outputs, name, told):
    os.write(1, f"{name} {outputs[0].sum():g} {told}\\n".encode())
done = threading.Event()
session.run_async(None, {"x": x}, lambda *given: (say(*given), done.set()), "parent")
done.wait(60)
if os.fork() == 0:  # it leaves at once: ONNX Runtime, the oracle, does not end well in a child
    session.run_async(None, {"x": x}, lambda *given: (say(*given), os._exit(0)), "child")
    done.clear()
    done.wait(60)
os.wait()
session.run_async(None, {"x": x}, say, "last")
"""


@pytest.mark.slow
def test_calls_are_answered_in_a_forked_child_and_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["parent 6 ", "child 6 ", "last 6 "]
