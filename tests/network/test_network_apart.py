"""Models of others in a process of its own: what it dies of, and what comes back from it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper, parser, save

import autotune
from autotune.errors import ModelError
from autotune.network.runtime import apart as module
from autotune.network.runtime.apart import ApartProcess, ApartSession, Died, Failed, apart
from autotune.network.runtime.baselines import require_alive
from autotune.network.runtime.ort_sessions import NONE, SessionSetting
from autotune.network.runtime.plain_values import packed, unpacked
from tests import hybrid_models as models
from tests.forking import Cli

DOUBLED = """<ir_version: 8, opset_import: ["": 17]>
g (float[n] x) => (float[n] y) { y = Add (x, x) }"""
ONES = {"x": np.ones(2, np.float32)}
WAYS = [(os.abort, "SIGABRT"), (signal.raise_signal, "SIGSEGV"), (os._exit, "exit code 7")]
ARGUMENTS: dict[Any, list[int]] = {signal.raise_signal: [signal.SIGSEGV], os._exit: [7]}


@pytest.fixture
def process() -> Iterator[ApartProcess]:
    """One that no other test uses."""
    yield ApartProcess()
    gc.collect()


def doubled(process: ApartProcess) -> ApartSession:
    return process.session(parser.parse_model(DOUBLED).SerializeToString(), SessionSetting(1))


@pytest.mark.parametrize(("function", "how"), WAYS)
def test_what_it_dies_of_is_told_and_the_next_request_is_answered(
    process: ApartProcess, function: Any, how: str
) -> None:
    session = doubled(process)
    with pytest.raises(Died, match=how):
        process.call(function, *ARGUMENTS.get(function, []))
    (y,) = session.run(None, ONES)
    assert y.tolist() == [2, 2]


def test_it_ends_with_the_last_that_holds_it() -> None:
    process = ApartProcess()
    session = doubled(process)
    pid = process.call(os.getpid)
    del process
    assert Path(f"/proc/{pid}").exists()
    del session
    assert not Path(f"/proc/{pid}").exists()


def test_sessions_that_nothing_holds_are_freed(process: ApartProcess) -> None:
    kept = doubled(process)
    for _ in range(3):
        doubled(process).run(None, ONES)
    assert kept.run(None, ONES)[0].tolist() == [2, 2]
    assert len(process._taken(1)) <= 1  # the last one alone waits for a request


def test_what_it_refuses_is_told_as_onnxruntime_does(process: ApartProcess) -> None:
    with pytest.raises(Failed, match="INVALID_PROTOBUF"):
        process.session(b"no model", SessionSetting())
    with pytest.raises(Failed, match="x"):
        doubled(process).run(None, {})


def test_errors_of_ours_come_back(process: ApartProcess) -> None:
    with pytest.raises(ModelError, match="because") as caught:
        process.call(_refuse)
    assert caught.value.hint == "do this"


def _refuse() -> None:
    raise ModelError("because", "do this")


def test_paths_are_those_of_the_session_after_it_has_gone_elsewhere(
    process: ApartProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled(process)
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(parser.parse_model(DOUBLED).SerializeToString())
    assert process.session("m.onnx", SessionSetting(1)).run(None, ONES)[0].tolist() == [2, 2]
    assert process.call(_exists, Path("m.onnx"))


def _exists(path: Path) -> bool:
    return path.exists()


def test_a_forked_child_has_another() -> None:
    mine = apart()
    read, write = os.pipe()
    if not (pid := os.fork()):
        os.write(write, b"other" if apart() is not mine else b"same")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 8) == b"other"
    assert mine.call(_number) == 1  # the fork has not closed what is its own


def _number() -> int:
    return 1


def test_a_process_that_cannot_start_is_a_reason(
    process: ApartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any, **options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    process.start()
    with pytest.raises(Died, match="temporarily unavailable"):
        process.call(_number)


DTYPES = ("f2", ">f4", "f8", "c8", "?", "i1", "u8", "S3", "bfloat16", "int4", "float8_e5m2")


@pytest.mark.parametrize("seed", range(20))
def test_values_come_back_as_they_were(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [_value(rng, 2) for _ in range(rng.integers(1, 6))]
    told, blob = packed(values)
    found = unpacked(told, blob)
    assert len(found) == len(values)
    for one, other in zip(values, found, strict=True):
        _require_same(one, other)


def _value(rng: np.random.Generator, depth: int) -> Any:
    kind = rng.integers(6 if depth else 3)
    shape = tuple(rng.integers(0, 4, rng.integers(0, 4)).tolist())
    if kind == 0:
        texts = ["", "ü", "a\0b", "\ud800", "no"]
        return np.array(rng.choice(texts, int(np.prod(shape, dtype=int))), object).reshape(shape)
    if kind < 3:
        dtype = np.dtype(str(rng.choice(DTYPES)))
        return rng.integers(0, 2, shape).astype(np.int8).astype(dtype)
    if kind == 3:
        return {int(rng.integers(9)): float(rng.choice([0.5, np.nan, np.inf]))}
    return [_value(rng, depth - 1) for _ in range(rng.integers(4))] if kind == 4 else None


def _require_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            _require_same(*pair)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tolist() == other.tolist()
    else:
        assert repr(one) == repr(other)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, object])
def test_elements_of_every_type_go_through_onnxruntime(process: ApartProcess, dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    port = [helper.make_tensor_value_info(n, kind, [3]) for n in "xy"]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", port[:1], port[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = process.session(model.SerializeToString(), SessionSetting(1, NONE))
    x = np.array(["a", "b", "c"], object) if dtype is object else np.array([1, 2, 3], dtype)
    assert session.run(["y"], {"x": x})[0].tolist() == x.tolist()


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_model_that_ends_onnxruntime_is_checked_by_the_reference(
    op: str, gates: int, cli: Cli, tmp_path: Path
) -> None:
    """Without samples, of which ONNX Runtime aborts (1.32: GRU and LSTM)."""
    path = tmp_path / "cell.onnx"
    value, rng = helper.make_tensor_value_info, np.random.default_rng(0)
    sizes = {"w": (1, gates * 2, 4), "r": (1, gates * 2, 2)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype("f"), n) for n, s in sizes.items()
    ]
    node = helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=2)
    ports = [value("x", 1, [3, 0, 4])], [value("y", 1, [3, 1, 0, 2])]
    graph = helper.make_graph([node], "g", *ports, weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    done = cli("compile", path, "-o", "cell.atn", cwd=tmp_path)
    assert done.code == 0, done.err
    has_died = "ONNX Runtime cannot run the model: its process has ended: killed by" in done.err
    assert ("outputs agree with onnx.reference" in done.err) == has_died
    if has_died:
        with pytest.raises(ModelError, match="onnxruntime cannot run the model: its process has"):
            require_alive("onnxruntime", path, 1, {"x": np.zeros((3, 0, 4), np.float32)})


def test_a_part_that_ends_onnxruntime_is_loaded_in_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, asked = ApartProcess.session, []

    def session(self: ApartProcess, model: str | bytes, setting: SessionSetting) -> ApartSession:
        asked.append(setting)
        if len(asked) == 1:
            self.call(os.abort)
        return usual(self, model, setting)

    monkeypatch.setattr(module.ApartProcess, "session", session)
    path = models.saved(models.TREES, tmp_path)
    assert autotune.compile(path, check=False, keep_cut=True).artifact.segments  # type: ignore[attr-defined]
    assert len(asked) > 1
