"""Compilations of sessions that fail: one line says why, and they are not tried for ever."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import OutputError
from autotune.ort import background, failures, preparing
from autotune.ort.accelerated import accelerated
from autotune.ort.request import ARTIFACT, FACTS, BackgroundJob, Failure, SessionRequest
from tests.ort.small_models import HEAD, rows

onnxruntime = pytest.importorskip("onnxruntime")
Session: Any = accelerated(onnxruntime)
MODEL = HEAD + "m (float[2,3] x) => (float[2,3] y) { y = Neg (x) }"


@pytest.fixture(autouse=True)
def _new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known: no cache, no failure, a background that takes its share of time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(background, "_NICENESS", 0)
    monkeypatch.setattr(failures, "_OF_THIS_PROCESS", {})
    background._background_of.cache_clear()
    yield
    background._background_of.cache_clear()


def ended(session: Any, feed: dict[str, Any]) -> Any:
    """The status of a session when nothing is compiled any more."""
    for _ in range(600):
        session.run(None, feed)
        status = session.autotune_status()
        if status.shapes and not status.is_busy and all(s.state != "loaded" for s in status.shapes):
            return status
        time.sleep(0.1)
    raise AssertionError(str(session.autotune_status()))


@pytest.mark.slow
def test_models_above_64_mib_are_compiled_beside_the_calls(tmp_path: Path) -> None:
    """The limit of what a measured program may write is none of an artifact's."""
    path = tmp_path / "large.onnx"
    table = np.arange(1 << 16, dtype=np.float32)[:, None] + np.arange(288, dtype=np.float32)
    assert table.nbytes > 64 << 20
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "large",
        [value("ids", TensorProto.INT64, [4])],
        [value("y", TensorProto.FLOAT, [4, 288])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    ids = np.array([0, 7, 65535, 300])
    for source in (path, path.read_bytes()):
        session = Session(source, threads=1)
        (shape,) = ended(session, {"ids": ids}).shapes
        assert (shape.state, shape.reason) == ("compiled", "")
        np.testing.assert_array_equal(session.run(None, {"ids": ids})[0], table[ids])


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exits", "the process that compiles has failed: exit code 3: about to fail"),
        ("raises", "ValueError: first line"),
        ("memory", "there is not enough memory to compile it"),
        ("killed", "the process that compiles has failed: killed by SIGKILL: about to fail"),
    ],
)
def test_what_a_compilation_dies_of_is_told_once_and_not_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    reason: str,
) -> None:
    path = tmp_path / f"{name}.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    monkeypatch.setattr(background, "_SERVE", "tests.ort.failing:serve")
    for _ in range(3):
        session = Session(path, threads=1)
        status = ended(session, {"x": rows(2)})
        assert [shape.state for shape in status.shapes] == ["onnxruntime"]
        assert status.shapes[0].reason == status.reason == reason
        assert np.array_equal(session.run(None, {"x": rows(2)})[0], -rows(2))
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == [f"{name} is not compiled: {reason}"]
    # another process remembers it too, also where it could compile
    failures._OF_THIS_PROCESS.clear()
    monkeypatch.setattr(background, "_SERVE", "autotune.ort.preparing:serve")
    background._background_of.cache_clear()
    status = ended(Session(path, threads=1), {"x": rows(2)})
    assert status.reason == f"{reason} (it failed so before, and is tried again after a day)"


def test_a_failed_compilation_of_a_session_that_waits_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    tried = []

    def full(*arguments: object) -> None:
        tried.append(arguments)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(preparing, "prepare", full)
        for _ in range(3):
            session = Session(path, threads=1, compile="wait", cache=False)
            np.testing.assert_array_equal(session.run(None, {"x": rows(2)})[0], -rows(2))
            assert session.autotune_status().reason == "OSError: [Errno 28] No space left on device"
    assert len(tried) == 1
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    failures._OF_THIS_PROCESS.clear()  # without a cache, another process tries
    session = Session(path, threads=1, compile="wait", cache=False)
    assert session.autotune_status().shapes[0].state == "loaded"


def test_what_memory_is_too_small_for_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    monkeypatch.setattr(preparing, "_limit_memory", lambda room: None)
    for source in (path, path.read_bytes()):
        message = BackgroundJob(ARTIFACT, SessionRequest(source, threads=1)).message()
        assert preparing._reply(message).kind == ARTIFACT
        with monkeypatch.context() as patched:
            patched.setattr(preparing, "available_bytes", lambda: 100)
            reply = preparing._reply(message)
        assert "of memory, 75 B may be used" in reply.fields["text"]
        assert not reply.fields["is_kept"]


def test_failures_of_other_processes_are_known_for_a_day(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    job = BackgroundJob(FACTS, SessionRequest(path), store_bytes=1 << 20)
    assert failures.former_failure(job) is None
    failures.remembered(job, lambda: Failure.of(OutputError("the disk is full", "make room")))
    known = failures.former_failure(job)
    assert known is not None
    assert known.line.startswith("the disk is full (it failed so before")
    assert known.line.endswith("(make room)")
    assert failures.former_failure(job, time.time() + 25 * 3600) is None
    assert failures.former_failure(BackgroundJob(FACTS, SessionRequest(path), None)) is None
    onnx.save(onnx.parser.parse_model(MODEL.replace("Neg", "Abs")), path)
    assert failures.former_failure(job) is None
