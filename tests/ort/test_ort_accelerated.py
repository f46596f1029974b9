"""ONNX Runtime's session with compiled networks in its place: when, for which calls, how well."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import UsageError
from autotune.ort import background, cached
from autotune.ort.accelerated import accelerated
from autotune.ort.contest import OURS, THEIRS, Contest
from autotune.ort.request import SizesRefused
from autotune.ort.session import InferenceSession
from tests.ort.small_models import ATTENTION, DYNAMIC, LINE, SINGLE, STATIC, rows

onnxruntime = pytest.importorskip("onnxruntime")
Session: Any = accelerated(onnxruntime)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The background has its share of the processors, though other tests keep them busy."""
    monkeypatch.setattr(background, "_NICENESS", 0)
    background._background_of.cache_clear()
    yield
    background._background_of.cache_clear()


def waited(session: Any, call: Callable[[], object]) -> Any:
    """The status of a session that has nothing to compile any more, after calls."""
    for _ in range(2400):
        call()
        status = session.autotune_status()
        if status.shapes and not status.is_busy and all(s.state != "loaded" for s in status.shapes):
            return status
        time.sleep(0.1)
    raise AssertionError(str(session.autotune_status()))


@pytest.mark.usefixtures("_soon")
def test_calls_are_answered_before_and_after_a_network_is_compiled(
    saved: Callable[[str], Path],
) -> None:
    session = Session(saved(STATIC), threads=1)
    assert isinstance(session, onnxruntime.InferenceSession)
    n = np.array([4])

    def call() -> None:
        y, k = session.run(None, {"x": rows(2), "n": n})
        assert (y.tolist(), k.tolist()) == ((-rows(2)).tolist(), [-4])

    call()
    status = waited(session, call)
    assert [shape.state for shape in status.shapes] == ["compiled"]
    for _ in range(20):
        call()
    (shape,) = session.autotune_status().shapes
    assert shape.ratio is not None  # both have been timed


@pytest.mark.slow
@pytest.mark.usefixtures("_soon")
def test_of_further_shapes_those_that_come_again_are_compiled(saved: Callable[[str], Path]) -> None:
    """Where no network is for all sizes."""
    session = Session(saved(SINGLE), threads=1)
    session.run(None, {"x": rows(5)})
    waited(session, lambda: session.run(None, {"x": rows(9)}))
    session.run(None, {"x": rows(7)})
    waited(session, lambda: session.run(None, {"x": rows(9)}))
    states = {shape.shapes["x"][0]: shape.state for shape in session.autotune_status().shapes}
    assert states == {5: "compiled", 9: "compiled", 7: "waiting"}
    for n in (9, 5, 7, 11, 2):
        np.testing.assert_array_equal(session.run(None, {"x": rows(n)})[0], -rows(n)[:4])


class Calls:
    """Calls of a session of masked attention, each compared with ONNX Runtime's own."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.session = Session(path, threads=1, **options)
        self._reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._rng = np.random.default_rng(0)

    def __call__(self, batch: int, length: int) -> None:
        mask = np.ones((batch, length), np.int64)
        mask[-1, length // 2 :] = length == 1
        x = self._rng.standard_normal((batch, length, 8)).astype(np.float32)
        feed = {"x": x, "mask": mask}
        pairs = zip(self.session.run(None, feed), self._reference.run(None, feed), strict=True)
        for ours, theirs in pairs:
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

    def waited(self, batch: int, length: int) -> Any:
        """The status after calls of a size, when all that they ask for is compiled."""
        return waited(self.session, lambda: self(batch, length))


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("compile", ["wait", "background"])
@pytest.mark.usefixtures("_soon")
def test_one_compilation_is_for_all_sizes_and_larger_ones_are_learned(
    saved: Callable[[str], Path], compile: str
) -> None:
    call = Calls(saved(ATTENTION), compile=compile)
    call(1, 7)
    call.waited(3, 19)
    sizes = np.random.default_rng(1).integers((1, 1), (9, 513), (20, 2)).tolist()
    for batch, length in sizes:
        call(batch, length)
    status = call.session.autotune_status()
    assert status.n_compilations == 1
    assert [s.state for s in status.shapes] == ["compiled"]
    assert status.shapes[0].shapes == {"x": ("..8", "..512", 8), "mask": ("..8", "..512")}
    for _ in range(2):
        call(20, 33)  # more samples than were assumed
    status = call.waited(20, 33)
    for batch, length in (*sizes, (20, 512), (17, 1), (1, 1)):
        call(batch, length)
    assert call.session.autotune_status().n_compilations == 2
    assert [s.shapes["x"] for s in status.shapes] == [("..20", "..512", 8)]
    assert len(call.session.models()) == 1


@pytest.mark.parametrize("is_alone", [False, True])
def test_what_cannot_be_of_any_size_has_that_of_the_calls(
    saved: Callable[[str], Path], is_alone: bool
) -> None:
    """As the height of a line of text, in a file that leaves all open."""
    path = saved(LINE)
    column = np.arange(24, dtype=np.float32)[:, None]
    options: dict[str, Any] = {"fallback": False} if is_alone else {"compile": "wait"}
    session = Session(path, threads=1, **options)
    for batch, width in ((2, 40), (1, 7), (3, 300), (4, 640), (4, 1)):
        x = np.ones((batch, 3, 24, width), np.float32)
        (y,) = session.run(None, {"x": x, "rows": column})
        np.testing.assert_array_equal(y, x + column)
    assert len(session.models()) == 1
    if not is_alone:
        assert session.autotune_status().n_compilations == 1


@pytest.mark.slow
def test_a_size_that_is_lost_is_left_to_onnxruntime_and_others_are_not(
    saved: Callable[[str], Path],
) -> None:
    call = Calls(saved(ATTENTION), compile="wait")
    programs = call.session._programs
    for length in (20, 25, 300):
        call(1, length)

    def contest(length: int) -> Contest | None:
        x, mask = np.ones((1, length, 8), np.float32), np.ones((1, length), np.int64)
        found: Contest | None = programs.at({"x": x, "mask": mask})
        return found

    known = contest(20)
    assert known is not None
    assert contest(25) is known  # sizes that are alike
    assert contest(300) is not known
    programs.lose(known)
    assert contest(20) is contest(30) is None
    other = contest(300)
    assert other is not None
    assert [s.state for s in call.session.autotune_status().shapes] == ["compiled"]
    programs.lose(other)
    for length in (20, 300, 400):
        call(1, length)
    assert [s.state for s in call.session.autotune_status().shapes] == ["onnxruntime"]
    assert call.session.models() == ()


@pytest.mark.slow
def test_where_no_larger_network_is_possible_larger_calls_are_shapes_of_their_own(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Calls(saved(ATTENTION), compile="wait")
    call(1, 7)

    def refused(*arguments: object) -> None:
        raise SizesRefused("there is not enough memory")

    with monkeypatch.context() as patched:
        patched.setattr(cached, "_of_all_sizes", refused)
        call(9, 7)
    for batch in (1, 8, 9, 9):
        call(batch, 7)
    shapes = [s.shapes["x"] for s in call.session.autotune_status().shapes]
    assert shapes == [("..8", "..512", 8), (9, 7, 8)]
    assert call.session.autotune_status().n_compilations == 2


def test_the_least_recently_called_network_leaves_for_want_of_bytes(
    saved: Callable[[str], Path],
) -> None:
    path = saved(SINGLE)

    def lengths(most_bytes: int, calls: Sequence[int]) -> list[int]:
        """The shapes that are compiled in the end."""
        session = Session(path, threads=1, compile="wait", most_bytes=most_bytes)
        for n in calls:
            np.testing.assert_array_equal(session.run(None, {"x": rows(n)})[0], -rows(n)[:4])
        entries = [entry for entry in session._programs.entries() if entry.live]
        sizes.extend(entry.n_bytes for entry in entries)
        return [entry.shapes["x"][0] for entry in entries]

    sizes: list[int] = []
    assert lengths(1 << 40, (5, 6, 7)) == [5, 6, 7]
    assert min(sizes) > 0
    assert lengths(1, (5, 6, 7)) == [7]
    two = 2 * max(sizes) + min(sizes) // 2
    assert lengths(two, (5, 6, 5, 5, 7)) == [5, 7]
    assert lengths(two, (5, 6, 6, 7)) == [6, 7]


def test_a_session_that_waits_is_compiled_at_once(saved: Callable[[str], Path]) -> None:
    session = Session(saved(STATIC), compile="wait", threads=1)
    for n in (4, 5):
        assert session.run(["k"], {"x": rows(2), "n": np.array([n])})[0] == -n
    assert [shape.state for shape in session.autotune_status().shapes] == ["compiled"]
    assert len(session.models()) == 1
    with pytest.raises(UsageError, match="compile is 'now'"):
        Session(saved(STATIC), compile="now")


def test_a_session_that_never_compiles_is_onnxruntime_itself(saved: Callable[[str], Path]) -> None:
    session = Session(saved(STATIC), compile="never")
    assert session.run.__func__ is onnxruntime.InferenceSession.run
    assert session.run(["k"], {"x": rows(2), "n": np.array([1])})[0] == -1
    assert session.autotune_status().reason == "compile='never'"


@pytest.mark.parametrize("mode", ["wait", "background", "alone"])
@pytest.mark.parametrize("is_external", [False, True])
@pytest.mark.parametrize("change", ["removed", "replaced", "rewritten"])
def test_a_session_computes_with_the_weights_that_it_has_loaded(
    tmp_path: Path, change: str, is_external: bool, mode: str
) -> None:
    weights = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    path, data = tmp_path / "m.onnx", tmp_path / "w.bin"

    def save(scale: float, path: Path) -> None:
        ends = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k])
            for n, k in (("x", 8), ("y", 4))
        ]
        stored = [numpy_helper.from_array(weights * np.float32(scale), "w")]
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        graph = helper.make_graph([node], "g", ends[:1], ends[1:], stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options: dict[str, Any] = {"location": "w.bin", "size_threshold": 0}
        onnx.save(
            model, path, save_as_external_data=is_external, **(options if is_external else {})
        )

    save(1.0, path)
    session: Any = (
        InferenceSession(path, threads=1)
        if mode == "alone"
        else Session(path, compile=mode, threads=1)
    )
    session.run(None, {"x": np.ones((2, 8), np.float32)})
    changed = data if is_external else path
    if change == "removed":
        changed.unlink()
    elif change == "replaced":
        save(10.0, path.with_name("other.onnx"))
        os.replace(path.with_name("other.onnx"), path)
    else:
        save(10.0, path)
    for n in (2, 3, 3, 3):
        x = np.ones((n, 8), np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weights, rtol=1e-5)


@pytest.mark.slow
def test_an_input_that_decides_is_bound_by_its_value(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((64, 64)).astype(np.float32) / 8 for name in "te"}

    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"a{name}"]),
            helper.make_node("Tanh", [f"a{name}"], [f"y{name}"]),
        ]
        out = helper.make_tensor_value_info(f"y{name}", TensorProto.FLOAT, [8, 64])
        stored = [numpy_helper.from_array(weights[name], f"w{name}")]
        return helper.make_graph(nodes, name, [], [out], stored)

    nodes = [
        helper.make_node("Equal", ["sr", "c"], ["is"]),
        helper.make_node("If", ["is"], ["y"], then_branch=branch("t"), else_branch=branch("e")),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64]),
            helper.make_tensor_value_info("sr", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor("c", TensorProto.INT64, [], [16000])],
    )
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    session = Session(path, compile="wait", threads=1)
    x = rng.standard_normal((8, 64)).astype(np.float32)
    for rate, name in ((16000, "t"), (8000, "e"), (16000, "t"), (44100, "e")):
        (y,) = session.run(None, {"x": x, "sr": np.array(rate)})
        np.testing.assert_allclose(y, np.tanh(x @ weights[name]), rtol=1e-4, atol=1e-5)
    shapes = session.autotune_status().shapes
    assert [(s.values["sr"], s.state) for s in shapes] == [
        (16000, "compiled"),
        (8000, "compiled"),
        (44100, "compiled"),
    ]


def test_arrays_and_values_are_bound_in_place(saved: Callable[[str], Path]) -> None:
    session = Session(saved(STATIC), compile="wait", threads=1)
    x, y = rows(2), np.zeros((2, 3), np.float32)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([3]))
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_ortvalue_input("n", value)
    binding.bind_output("k")
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for factor in (1, 2):
        x *= factor
        session.run_with_iobinding(binding)
        assert binding.results is not None  # a compiled network's
        assert np.array_equal(y, -x)
        assert [a.tolist() for a in binding.copy_outputs_to_cpu()] == [[-3], y.tolist()]
        assert [v.numpy().tolist() for v in binding.get_outputs()] == [[-3], y.tolist()]
    values = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x), "n": value}
    assert session.run_with_ort_values(["k"], values)[0].numpy().tolist() == [-3]
    theirs = onnxruntime.IOBinding(session)  # made by somebody who does not know of this class
    theirs.bind_cpu_input("x", x)
    theirs.bind_cpu_input("n", np.array([5]))
    theirs.bind_output("k")
    session.run_with_iobinding(theirs)
    assert theirs.copy_outputs_to_cpu()[0].tolist() == [-5]


def test_errors_are_those_of_onnxruntime(saved: Callable[[str], Path]) -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

    session = Session(saved(STATIC), compile="wait", threads=1)
    n = np.array([1])
    with pytest.raises(ValueError, match="missing"):
        session.run(None, {"x": rows(2)})
    for x in (rows(3), rows(2).astype(np.float64), rows(2)[0]):
        with pytest.raises(InvalidArgument):
            session.run(None, {"x": x, "n": n})
    with pytest.raises(InvalidArgument):
        session.run(["z"], {"x": rows(2), "n": n})
    with pytest.raises(NoSuchFile):
        Session("there/is/none.onnx")
    assert session.run(["k"], {"x": rows(2).tolist(), "n": n})[0] == -1  # lists are taken there


def test_lists_of_numbers_are_arrays_of_the_type_of_their_input(
    saved: Callable[[str], Path],
) -> None:
    session = Session(saved(DYNAMIC), compile="wait", threads=1)
    for n in (2, 2, 3):
        assert np.array_equal(session.run(None, {"x": rows(n).tolist()})[0], -rows(n))
    assert [shape.state for shape in session.autotune_status().shapes] == ["compiled"]


def test_a_session_is_pickled_by_its_path_or_bytes(saved: Callable[[str], Path]) -> None:
    path = saved(DYNAMIC)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for model in (str(path), path.read_bytes()):
        session = Session(model, options, compile="wait")
        session.run(None, {"x": rows(2)})
        again = pickle.loads(pickle.dumps(session))
        assert again.get_session_options().intra_op_num_threads == 1
        assert np.array_equal(again.run(None, {"x": rows(2)})[0], -rows(2))


def test_an_environment_that_says_no_number_of_threads_is_refused_at_once(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the process in the background, where nobody looks."""
    path = saved(STATIC)
    monkeypatch.setenv("AUTOTUNE_THREADS", "all")
    with pytest.raises(UsageError, match="AUTOTUNE_THREADS is 'all'"):
        Session(path, compile="wait")
    assert Session(path, compile="wait", threads=1).autotune_status().threads == 1
    monkeypatch.setenv("AUTOTUNE_THREADS", "1")
    assert Session(path, compile="wait").autotune_status().threads == 1


def test_a_bound_input_may_be_left_out(saved: Callable[[str], Path]) -> None:
    for mode in ("wait", "never"):
        session = Session(saved(STATIC), compile=mode, constants={"n": [5]}, threads=1)
        assert session.run(["k"], {"x": rows(2)})[0] == -5


def test_dimensions_that_are_named_are_compiled_when_the_session_is_made(
    saved: Callable[[str], Path],
) -> None:
    session = Session(saved(DYNAMIC), compile="wait", dims={"batch": [1, 4]}, threads=1)
    for n in (1, 4, 1):
        assert np.array_equal(session.run(None, {"x": rows(n)})[0], -rows(n))
    assert [s.state for s in session.autotune_status().shapes] == ["compiled"] * 2


def test_the_faster_one_answers_and_the_slower_one_gets_a_hundredth() -> None:
    def calls(contest: Contest, n: int, times_s: tuple[float, float]) -> list[int]:
        sides = []
        for _ in range(n):
            contest.left -= 1
            if contest.left < 0:
                side = contest.turn()
                contest.add(side, times_s[side])
            else:
                side = OURS if contest.is_ours else THEIRS
            sides.append(side)
        return sides

    contest = Contest(lambda feed: {})
    ours = calls(contest, 4000, (1.0, 2.0))
    assert ours[10:20] == [OURS] * 10
    assert 2.0 * ours[8:].count(THEIRS) <= 0.011 * 4000
    theirs = calls(contest, 6000, (3.0, 2.0))  # others keep the cores busy
    assert theirs.count(OURS) < 0.2 * 6000
    assert theirs[-100:].count(OURS) <= 2
    assert contest.is_lost or calls(contest, 6000, (1.0, 2.0))[-100:].count(OURS) > 90
