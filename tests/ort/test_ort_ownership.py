"""Arrays that outlive what gave them: after their owners are gone and memory is used again."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.ort.accelerated import accelerated
from autotune.ort.binding import OrtValue
from autotune.ort.session import InferenceSession as Alone

onnxruntime = pytest.importorskip("onnxruntime")
Session: Any = accelerated(onnxruntime)

_M_PERTURB, _PATTERN = -6, 0x5A
WIDTH = 512
"""Rows of 2 KiB: NumPy has smaller memory of its own, which malloc does not see."""


@pytest.fixture(autouse=True)
def _poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`free` overwrites what it is given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ctypes.CDLL(None).mallopt(_M_PERTURB, _PATTERN)
    yield
    ctypes.CDLL(None).mallopt(_M_PERTURB, 0)


def model() -> onnx.ModelProto:
    """Outputs of every kind: computed, twice the same, the input, a constant, halves, flags."""
    value, node = helper.make_tensor_value_info, helper.make_node
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)) / 20
    constants = {"w": weights.astype("f4"), "k": weights[:2].astype("f4"), "zero": np.float32(0)}
    nodes = [
        node("MatMul", ["x", "w"], ["t"]),
        node("Relu", ["t"], ["y"]),
        node("Identity", ["y"], ["again"]),
        node("Identity", ["x"], ["same"]),
        node("Identity", ["k"], ["constant"]),
        node("Cast", ["t"], ["half"], to=TensorProto.FLOAT16),
        node("Greater", ["t", "zero"], ["flags"]),
        node("Reshape", ["x", "turned"], ["flat"]),
    ]
    initialisers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    initialisers.append(numpy_helper.from_array(np.array([WIDTH, 2]), "turned"))
    rows, half, flags = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL
    kinds = dict.fromkeys(("y", "again", "same", "constant"), rows) | {"half": half, "flags": flags}
    outputs = [value(name, kind, [2, WIDTH]) for name, kind in kinds.items()]
    outputs.append(value("flat", rows, [WIDTH, 2]))
    graph = helper.make_graph(nodes, "g", [value("x", rows, [2, WIDTH])], outputs, initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NAMES = ("y", "again", "same", "constant", "half", "flags", "flat")

SESSIONS: dict[str, Callable[[bytes], Any]] = {
    "compiled": lambda data: Session(data, threads=1, compile="wait"),
    "onnxruntime": lambda data: Session(data, threads=1, compile="never"),
    "alone": lambda data: Alone(data, threads=1),
}
DOORS = ("run", "values", "binding", "copies", "own memory", "own value")
VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda array: array,
    "part": lambda array: array[1:],
    "transposed": lambda array: array.T,
    "memory": memoryview,
    "capsule": lambda a: a if a.dtype == bool or not a.flags.writeable else np.from_dlpack(a),
}


def results(session: Any, door: str, x: Any) -> list[Any]:
    """Arrays of all outputs; nothing else is kept but what they keep."""
    value = OrtValue if isinstance(session, Alone) else onnxruntime.OrtValue
    if door == "run":
        return list(session.run(None, {"x": x}))
    if door == "values":
        found = session.run_with_ort_values(None, {"x": value.ortvalue_from_numpy(x)})
        return [np.asarray(one) if n % 2 else one.numpy() for n, one in enumerate(found)]
    binding = session.io_binding()
    given = value.ortvalue_from_numpy(x)
    binding.bind_ortvalue_input("x", given)
    del given
    for name in NAMES:
        shape, kind = [2, WIDTH], {"half": np.float16, "flags": np.bool_}.get(name, np.float32)
        if name == "flat":
            shape = [WIDTH, 2]
        if door == "own value":
            binding.bind_ortvalue_output(name, value.ortvalue_from_shape_and_type(shape, kind))
        elif door == "own memory":
            memory = np.empty(shape, kind)
            binding.bind_output(name, "cpu", 0, kind, shape, memory.ctypes.data)
            binding.__dict__.setdefault("memories", []).append(memory)  # goes with the binding
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    if door in ("copies", "own memory"):
        first = binding.copy_outputs_to_cpu()
        if not isinstance(session, Alone) or door == "own memory":
            assert not any(map(np.shares_memory, first, binding.copy_outputs_to_cpu()))
        return list(first)
    session.run_with_iobinding(binding)
    return [
        np.from_dlpack(one) if n % 3 == 2 and hasattr(one, "__dlpack__") else one.numpy()
        for n, one in enumerate(binding.get_outputs())
    ]


@pytest.mark.parametrize("kind", SESSIONS)
def test_arrays_stay_what_they_were_when_their_owners_are_gone(
    kind: str, rng: np.random.Generator
) -> None:
    """Random doors, lifetimes and views; freed memory is overwritten, by malloc and by others."""
    data = model().SerializeToString()
    session = SESSIONS[kind](data)
    reference = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    kept: list[tuple[str, Any, Any]] = []
    for _ in range(60):
        door = str(rng.choice(DOORS))
        x = rng.standard_normal((2, WIDTH)).astype("f4")
        right = reference.run(None, {"x": x})
        for n, array in enumerate(results(session, door, x)):
            view = str(rng.choice(list(VIEWS)))
            shown = VIEWS[view](array)
            if NAMES[n] in ("same", "flat"):
                assert not np.shares_memory(array, x)
            kept.append((f"{door} {NAMES[n]} {view}", shown, VIEWS[view](right[n])))
        del x, array, shown, right
        kept = [known for known in kept if rng.random() < 0.9]
        if rng.random() < 0.2:
            session = SESSIONS[kind](data)
        if rng.random() < 0.3:
            gc.collect()
        garbage = [np.full((2, WIDTH), 7, dtype) for dtype in ("f4", "f2", "?") for _ in range(5)]
        del garbage
    del session
    gc.collect()
    others = [np.full((2, WIDTH), 9, dtype) for dtype in ("f4", "f2", "?") for _ in range(50)]
    for told, shown, expected in kept:
        np.testing.assert_allclose(np.asarray(shown), expected, 1e-2, 1e-3, err_msg=told)
    assert others


@pytest.mark.parametrize("kind", SESSIONS)
def test_writing_to_one_result_changes_no_other(kind: str, rng: np.random.Generator) -> None:
    session = SESSIONS[kind](model().SerializeToString())
    x = rng.standard_normal((2, WIDTH)).astype("f4")
    expected = session.run(None, {"x": x})
    for door in DOORS[:-1]:
        found = results(session, door, x)
        for n, array in enumerate(found):
            if array.flags.writeable:  # arrays of capsules are not
                array[...] = 0
            for other, right in zip(found[n + 1 :], expected[n + 1 :], strict=True):
                np.testing.assert_array_equal(other, right, door)
    again = session.run(None, {"x": x})
    for other, right in zip(again, expected, strict=True):
        np.testing.assert_array_equal(other, right)


@pytest.mark.parametrize("turn", ["ours", "theirs", "both"])
def test_values_of_a_binding_are_written_by_every_run(turn: str, rng: np.random.Generator) -> None:
    """As with ONNX Runtime: until outputs are bound anew, whichever side computes them."""
    data = model().SerializeToString()
    session = SESSIONS["compiled"](data)
    reference = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((2, WIDTH), "f4")})
    contest = session._programs._calls.only
    for _ in range(6):
        binding = session.io_binding()
        for name in NAMES:
            binding.bind_output(name)
        held: list[Any] = []
        for _ in range(4):
            contest.is_ours = turn == "ours" or (turn == "both" and rng.random() < 0.5)
            x = rng.standard_normal((WIDTH, 2)).astype("f4").T  # which is copied when it is bound
            binding.bind_cpu_input("x", x)
            expected = reference.run(None, {"x": x})
            x[...] = 0
            session.run_with_iobinding(binding)
            held = held or [(value, value.numpy()) for value in binding.get_outputs()]
            for (value, array), right in zip(held, expected, strict=True):
                np.testing.assert_allclose(value.numpy(), right, 1e-2, 1e-3)
                np.testing.assert_allclose(array, right, 1e-2, 1e-3)


def test_results_of_a_model_are_the_callers(tmp_path: Path, rng: np.random.Generator) -> None:
    """Of a loaded artifact whose file and model are gone; constants are copied to be results."""
    onnx.save(model(), tmp_path / "m.onnx")
    autotune.compile(tmp_path / "m.onnx", threads=1).artifact.save(tmp_path / "m.atn")
    loaded = autotune.load(tmp_path / "m.atn")
    kept = []
    for _ in range(10):
        x = rng.standard_normal((2, WIDTH)).astype("f4")
        found = loaded.run({"x": x})
        for name, array in found.items():
            assert array.flags.writeable, name
            assert not np.shares_memory(array, x)
            kept.append((name, array[::-1], array[::-1].copy()))
    loaded = None  # type: ignore[assignment]
    (tmp_path / "m.atn").unlink()
    gc.collect()
    garbage = [np.full((2, WIDTH), 7, dtype) for dtype in ("f4", "f2", "?") for _ in range(50)]
    for name, array, expected in kept:
        np.testing.assert_array_equal(array, expected, name)
    assert garbage
