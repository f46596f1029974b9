"""The session that does without onnxruntime: numbers, cache, shapes, errors."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune import threads as counting
from autotune.api.compile import compiling
from autotune.api.compile.compiling import compiled_anew
from autotune.api.request import CompileRequest
from autotune.cache import cache_folder
from autotune.errors import (
    AutotuneError,
    DynamicShape,
    ModelError,
    UnsupportedOperator,
    UsageError,
)
from autotune.ort import alone as ort
from autotune.ort import waits
from autotune.records import Log, read_log, write_log
from autotune.topology import Topology
from tests.ort.small_models import DYNAMIC, HEAD, SINGLE, STATIC, rows

EXAMPLE = Path(__file__).parents[2] / "examples/drop_in.py"


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by every compilation."""
    found: list[Any] = []

    def compile_noted(request: CompileRequest) -> Any:
        found.append(request.dims or request.shapes or None)
        return compiled_anew(request)

    monkeypatch.setattr(compiling, "compiled_anew", compile_noted)
    return found


def session_of(model: Path | bytes, **options: Any) -> ort.InferenceSession:
    return ort.InferenceSession(model, threads=1, **options)


def test_the_script_gives_what_it_gives_with_onnxruntime(tmp_path: Path) -> None:
    ours = EXAMPLE.read_text()
    theirs = ours.replace("import autotune as ort", "import onnxruntime as ort")
    assert ours != theirs
    told, found = [], []
    for name, text in (("ours", ours), ("theirs", theirs)):
        script, arrays = tmp_path / f"{name}.py", tmp_path / f"{name}.npz"
        script.write_text(text)
        command = [sys.executable, str(script), str(arrays)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
        found.append(np.load(arrays))
    assert told[0] == told[1]
    assert set(found[0]) == set(found[1])
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-4, atol=1e-5)


def test_the_interface_is_written_as_onnxruntime_writes_it(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    text = """
      m (float[batch,3] x, float16[2] h, int64[batch] n, bool[1] b, double[] d, int8[?,4] i)
      => (float[unk__7,3] y, float16[2] g, unknown, double[] e, float[batch,m] z, int8[?,4] j) {
      y = Abs (x) g = Identity (h) k = Neg (n) unknown = Cast <to = 7> (b) e = Abs (d)
      z = Concat <axis = 1> (x, y) j = Abs (i) }"""
    model = onnx.parser.parse_model(HEAD + text.replace("unknown,", "int64[1] unknown,"))
    model.graph.output[2].type.tensor_type.ClearField("shape")
    model.producer_name, model.model_version, model.doc_string = "test", 3, "a model"
    model.metadata_props.add(key="labels", value="a,b")
    data = model.SerializeToString()
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    ours = session_of(data)
    for which in ("get_inputs", "get_outputs"):
        expected = [(a.name, a.type, a.shape) for a in getattr(theirs, which)()]
        assert [(a.name, a.type, a.shape) for a in getattr(ours, which)()] == expected
    names = ("producer_name", "graph_name", "version", "description", "custom_metadata_map")
    for name in names:
        assert getattr(ours.get_modelmeta(), name) == getattr(theirs.get_modelmeta(), name)
    assert ours.get_providers() == theirs.get_providers() == ["CPUExecutionProvider"]


def test_outputs_are_those_that_are_named_in_their_order(saved: Callable[[str], Path]) -> None:
    session = session_of(
        saved(STATIC), providers=["CUDAExecutionProvider", ("CPUExecutionProvider", {})]
    )
    feed = {"n": np.array([4]), "x": rows(2)}
    assert [a.tolist() for a in session.run(None, feed)] == [(-rows(2)).tolist(), [-4]]
    (k,) = session.run(["k"], feed, ort.RunOptions())
    assert k.tolist() == [-4]
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
    assert session.run_with_ort_values(["k"], values)[0].numpy().tolist() == [-4]
    with pytest.raises(UsageError, match="no output 'z'"):
        session.run(["z"], feed)
    with pytest.raises(UsageError, match="Required inputs"):
        session.run(None, {"x": rows(2)})
    with pytest.raises(UsageError, match="dtype float64"):
        session.run(None, feed | {"x": rows(2).astype(float)})


def test_lists_of_numbers_are_arrays_of_the_type_of_their_input(
    saved: Callable[[str], Path],
) -> None:
    for text in (STATIC, DYNAMIC.replace("float", "int8")):
        session = session_of(saved(text))
        listed = {"x": rows(2).tolist(), "n": (4,)}
        feed = {arg.name: listed[arg.name] for arg in session.get_inputs()}
        found = session.run(["y"], feed)[0]
        assert (found.dtype.name, found.tolist()) == (
            "float32" if text == STATIC else "int8",
            (-rows(2)).tolist(),
        )
    with pytest.raises(UsageError, match="a list is no array"):
        session.run(None, {"x": [[1, 2, 3], [4]]})


def test_what_no_oracle_can_run_on_random_inputs_is_checked_on_those_of_the_first_call(
    saved: Callable[[str], Path],
) -> None:
    """An input that decides a shape makes ONNX Runtime fail, unless somebody knows what it is."""
    pytest.importorskip("onnxruntime")
    text = """
      m (float[batch,4] x, int64[1] n) => (int64[2,k] where, float[batch,4] y) {
      where = NonZero (x) z = Reshape (x, n) y = Reshape (z, back) }"""
    model = onnx.parser.parse_model(HEAD + text)
    back = onnx.numpy_helper.from_array(np.array([-1, 4]), "back")
    model.graph.initializer.append(back)
    data = model.SerializeToString()
    x = np.ones((2, 4), np.float32)
    for session in (session_of(data), session_of(data, dims={"batch": 2})):  # stays unchecked
        where, y = session.run(None, {"x": x, "n": np.array([8])})  # a random n is 0 or 1
        assert (where.shape, y.tolist()) == ((2, 8), x.tolist())


def test_a_model_is_compiled_once_and_then_found(
    saved: Callable[[str], Path], compilations: list[Any]
) -> None:
    path = saved(STATIC)
    for model in (path, str(path), path.read_bytes()):
        session_of(model)
    assert len(compilations) == 1
    session_of(path, max_error=1e-6)  # another program may be chosen
    session_of(path, cache=False)
    assert len(compilations) == 3
    saved(STATIC.replace("Abs", "Exp"))
    assert session_of(path).run(["y"], {"x": 0 * rows(2), "n": np.array([1])})[0].max() == 1
    assert len(compilations) == 4


def test_what_is_damaged_in_the_cache_is_compiled_again(
    saved: Callable[[str], Path], compilations: list[Any]
) -> None:
    path = saved(STATIC)
    session_of(path)
    (entry,) = (cache_folder() / "artifacts").rglob("*.entry")
    entry.write_bytes(entry.read_bytes()[:-100])
    session_of(path)
    session_of(path)
    assert len(compilations) == 2


def test_a_long_compilation_is_told_once(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]

    path = saved(DYNAMIC)
    for after_s, n_told in ((60.0, 0), (0.0, 1)):
        monkeypatch.setattr(waits, "AFTER_S", after_s)
        session = session_of(path, cache=False)
        for n in (1, 2):
            session.run(None, {"x": rows(n)})
        assert len(told()) == n_told
    assert path.stem in told()[0]


def test_a_cache_that_cannot_be_written_is_no_error(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    session = session_of(saved(STATIC))
    assert session.run(["k"], {"x": rows(2), "n": np.array([1])})[0] == -1


def test_one_compilation_is_for_all_sizes_and_larger_ones_are_learned(
    saved: Callable[[str], Path], compilations: list[Any]
) -> None:
    session = session_of(saved(DYNAMIC))
    assert compilations == []
    for n in (*range(1, 17), 3):
        assert np.array_equal(session.run(None, {"x": rows(n)})[0], -rows(n))
    assert compilations == [{"batch": "..16"}]
    for n in (17, 32, 5, 0, 33):
        assert np.array_equal(session.run(None, {"x": rows(n)})[0], -rows(n))
    assert compilations[1:] == [{"batch": "..32"}, {"x": (0, 3)}, {"batch": "..64"}]
    assert [m.input_info[0].shape for m in session.models()] == [(0, 3), (64, 3)]
    wrong: list[dict[str, Any]] = [{"x": rows(1)[0]}, {"x": ["a"]}, {"x": None}, {"z": rows(1)}]
    for feed in (*wrong, {"x": rows(1)[:, :2]}, {"x": rows(7).astype(float)}):
        with pytest.raises(UsageError):
            session.run(None, feed)
    assert len(compilations) == 4


def test_sizes_are_compiled_one_by_one_where_no_network_is_for_all(
    saved: Callable[[str], Path], compilations: list[Any]
) -> None:
    session = session_of(saved(SINGLE), most_shapes=2)
    for n in (1, 2, 1, 2, 1):
        assert np.array_equal(session.run(None, {"x": rows(n)})[0], -rows(n))
    assert compilations[0] == {"rows": "..512"}
    assert [dims for dims in compilations if "x" in dims] == [{"x": (1, 3)}, {"x": (2, 3)}]
    session.run(None, {"x": rows(5)})
    assert len(session.models()) == 2  # that of the second shape, called before, has left
    session.run(None, {"x": rows(1)})
    assert [m.input_info[0].shape for m in session.models()] == [(1, 3), (5, 3)]
    n_compilations = len(compilations)
    session.run(None, {"x": rows(2)})  # it comes back from the cache
    assert len(compilations) == n_compilations


def test_the_bytes_of_all_shapes_are_bounded_and_the_newest_stays(
    saved: Callable[[str], Path],
) -> None:
    path = saved(SINGLE)
    session = session_of(path, most_bytes=1)
    for n in (1, 2, 3):
        assert np.array_equal(session.run(None, {"x": rows(n)})[0], -rows(n))
        assert [m.input_info[0].shape for m in session.models()] == [(n, 3)]
    size = session.models()[0].n_bytes
    session = session_of(path, most_bytes=2 * size + size // 2, memory="private")
    for n in (1, 2, 1, 3):
        session.run(None, {"x": rows(n)})
    assert [m.input_info[0].shape for m in session.models()] == [(1, 3), (3, 3)]


@pytest.mark.parametrize(
    ("option", "reason"),
    [({"most_bytes": 0}, "most_bytes is 1 or more"), ({"memory": "big"}, "shared, private")],
)
def test_no_room_is_refused(
    saved: Callable[[str], Path], option: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        session_of(saved(DYNAMIC), **option)
    assert reason in caught.value.hint


def test_dimensions_that_are_named_are_compiled_at_once_into_one_artifact(
    saved: Callable[[str], Path], compilations: list[Any]
) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    fixed = session_of(saved(DYNAMIC), sess_options=options)
    assert fixed.get_inputs()[0].shape == [2, 3]
    several = session_of(saved(DYNAMIC), dims={"batch": [1, 4]})
    assert len(compilations) == 2
    for session, n in ((fixed, 2), (several, 1), (several, 4)):
        assert np.array_equal(session.run(None, {"x": rows(n)})[0], -rows(n))
    assert len(compilations) == 2


def test_threads_that_need_a_model_at_once_wait_for_one_compilation(
    saved: Callable[[str], Path], compilations: list[Any]
) -> None:
    path = saved(DYNAMIC)
    shared = session_of(path)
    found: list[bool] = []

    def work(session: ort.InferenceSession) -> None:
        found.append(np.array_equal(session.run(None, {"x": rows(3)})[0], -rows(3)))

    sessions = [shared, shared, session_of(path), session_of(path)]
    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
    assert len(compilations) == 1


def test_a_session_is_pickled_by_path_or_by_bytes(saved: Callable[[str], Path]) -> None:
    path = saved(DYNAMIC)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for model in (path, path.read_bytes()):
        session = ort.InferenceSession(model, options)
        session.run(None, {"x": rows(2)})
        again = pickle.loads(pickle.dumps(session))
        assert again.get_session_options().intra_op_num_threads == 1
        assert np.array_equal(again.run(None, {"x": rows(2)})[0], -rows(2))


def test_a_bound_input_may_still_be_given_its_value(saved: Callable[[str], Path]) -> None:
    session = session_of(saved(STATIC), constants={"n": [5]})
    assert session.run(["k"], {"x": rows(2)})[0] == -5
    assert session.run(["k"], {"x": rows(2), "n": np.array([5])})[0] == -5
    with pytest.raises(UsageError, match="'n' is bound to another value"):
        session.run(["k"], {"x": rows(2), "n": np.array([6])})


def test_arrays_can_be_bound(saved: Callable[[str], Path]) -> None:
    session = session_of(saved(STATIC))
    x, y = rows(2), np.zeros((2, 3), np.float32)
    binding = session.io_binding()
    with pytest.raises(UsageError, match="no output is bound"):
        session.run_with_iobinding(binding)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_cpu_input("n", np.array([3]))
    binding.bind_output("k")
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for factor in (1, 2):
        x *= factor
        session.run_with_iobinding(binding)
        assert np.array_equal(y, -x)
        assert [a.tolist() for a in binding.copy_outputs_to_cpu()] == [[-3], y.tolist()]
    with pytest.raises(UsageError, match="no device 'cuda'"):
        binding.bind_output("y", "cuda")


def test_what_runs_in_onnxruntime_runs_here_too(saved: Callable[[str], Path]) -> None:
    pytest.importorskip("onnxruntime")
    ends = "m (float[batch] x) => (float[n] where, float[batch] y)"
    text = f"{ends} {{ y = Abs (x) where, at, n = com.microsoft.Unique (x) }}"
    session = session_of(saved(HEAD + text))
    where, y = session.run(None, {"x": np.array([0, -2, 3], np.float32)})
    assert (where.tolist(), y.tolist()) == ([0, -2, 3], [0, 2, 3])
    with pytest.raises(UnsupportedOperator):
        session_of(saved(HEAD + text), fallback=False).run(None, {"x": np.ones(3, np.float32)})


@pytest.mark.slow
def test_a_log_beside_the_model_is_used_if_it_fits(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(STATIC)
    logs: list[Path | None] = []

    def compile_noted(request: Any) -> Any:
        logs.append(request.log)
        return compiled_anew(request)

    monkeypatch.setattr(compiling, "compiled_anew", compile_noted)
    log = path.with_suffix(".jsonl")
    autotune.tune(path, log, trials=2, threads=1, compare=False)
    ort.InferenceSession(path)
    session_of(path, log=log)
    saved(STATIC.replace("Abs", "Exp"))
    session_of(path)  # is not the model of the log
    log.write_text("no log at all\n")
    session_of(path, cache=False)
    assert logs == [log, None, None]  # the second was found in the cache
    with pytest.raises(AutotuneError):
        session_of(path, log=log)


@pytest.mark.slow
def test_a_session_runs_as_many_threads_as_are_usable(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the caller asks for counts, then the environment, then the log and the machine."""
    path = saved(STATIC)
    options = ort.SessionOptions()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.setattr(counting, "cpu_quota", lambda root: 2.5)
    monkeypatch.setattr(counting, "read_cores", lambda root: Topology(()))

    def n_threads(log: Path | None = None) -> int:
        session = ort.InferenceSession(path, options, log=log, cache=False)
        assert session.run(["k"], {"x": rows(2), "n": np.array([3])})[0] == -3
        return session._threads

    assert n_threads() == 2
    monkeypatch.setenv("AUTOTUNE_THREADS", "1")
    assert n_threads() == 1
    options.intra_op_num_threads = 3
    assert n_threads() == 3
    options.intra_op_num_threads = 99
    assert n_threads() == 4
    options.intra_op_num_threads = 0
    monkeypatch.delenv("AUTOTUNE_THREADS")
    log = path.with_suffix(".jsonl")
    autotune.tune(path, log, trials=2, threads=1, compare=False)
    assert n_threads(log) == 1  # what was tuned, though more could run
    write_log(log, for_threads(read_log(log), 4))
    assert n_threads() == n_threads(log) == 2  # the programs of the log, on what is usable
    monkeypatch.setenv("AUTOTUNE_THREADS", "some")
    with pytest.raises(UsageError, match="AUTOTUNE_THREADS is 'some'"):
        n_threads()


def for_threads(log: Log, n_threads: int) -> Log:
    headers = tuple(replace(header, n_threads=n_threads) for header in log.headers)
    records = tuple(replace(record, n_threads=n_threads) for record in log.records)
    return replace(log, headers=headers, records=records)


def test_compiled_code_beside_a_model_is_not_run(
    saved: Callable[[str], Path], compilations: list[Any]
) -> None:
    """A folder with a model may come from anywhere; a compiled file in it is native code."""
    path = saved(STATIC)
    compiled_anew(CompileRequest(path, threads=1)).artifact.save(path.with_suffix(".atn"))
    session_of(path)
    assert len(compilations) == 1


def test_what_is_asked_for_and_not_done_is_refused(saved: Callable[[str], Path]) -> None:
    path = saved(STATIC)
    options = ort.SessionOptions()
    for method, arguments in (
        ("add_initializer", ("w", None)),
        ("register_custom_ops_library", ("lib.so",)),
        ("add_free_dimension_override_by_denotation", ("BATCH", 1)),
    ):
        with pytest.raises(UsageError):
            getattr(options, method)(*arguments)
    for name, value in (
        ("enable_profiling", True),
        ("intra_op_num_threads", -1),
    ):
        wrong = ort.SessionOptions()
        setattr(wrong, name, value)
        with pytest.raises(UsageError, match=name):
            ort.InferenceSession(path, wrong)
    with pytest.raises(AttributeError):
        options.intra_op_threads = 2  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no dimension 'batch'"):
        session_of(path, dims={"batch": 1})
    with pytest.raises(UsageError, match="session of a int"):
        ort.InferenceSession(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no model file"):
        ort.InferenceSession(path.with_name("none.onnx"))
    with pytest.raises(ModelError):
        ort.InferenceSession(b"this is no model")
    assert not issubclass(DynamicShape, ModelError)


@pytest.mark.slow
def test_other_threads_run_python_during_an_inference(saved: Callable[[str], Path]) -> None:
    """The machine code of a session holds no lock of the interpreter."""
    n = 768
    chain = " ".join(f"x{k + 1} = MatMul (x{k}, x)" for k in range(12))
    ends = f"m (float[{n},{n}] x) => (float[{n},{n}] y)"
    text = f"{ends} {{ x0 = Abs (x) {chain} y = Neg (x12) }}"
    session = session_of(saved(HEAD + text))
    feed = {"x": np.zeros((n, n), np.float32)}
    done = threading.Event()
    steps = 0

    def work() -> None:
        session.run(None, feed)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        steps += 1
    thread.join()
    assert steps > 100 * os.cpu_count()  # type: ignore[operator]  # not only while it starts and ends


@pytest.mark.parametrize("is_named", [True, False])
def test_external_data_of_bytes_are_found_where_onnxruntime_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """In the folder that an entry of the options names, or in the working folder."""
    weights = "m (float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}> { y = Mul (x, w) }"
    model, path = onnx.parser.parse_model(HEAD + weights), tmp_path / "m.onnx"
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    )
    onnx.save(model, path, **options)
    settings = ort.SessionOptions()
    if is_named:
        entry = "session.model_external_initializers_file_folder_path"
        settings.add_session_config_entry(entry, str(tmp_path))
    else:
        monkeypatch.chdir(tmp_path)
    session = ort.InferenceSession(path.read_bytes(), settings, cache=False)
    (y,) = session.run(None, {"x": rows(2)})
    assert np.array_equal(y, rows(2) * [1, 2, 3])
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match="external data"):
        ort.InferenceSession(path.read_bytes(), settings, cache=False)


def test_an_initialiser_that_is_an_input_may_be_given_its_value(
    saved: Callable[[str], Path],
) -> None:
    text = "m (float[2] x, float k) => (float[2] y) <float k = {3}> { y = Mul (x, k) }"
    session = session_of(saved(HEAD + text))
    x, k = np.ones(2, np.float32), np.float32(3)
    assert session.run(None, {"x": x, "k": np.array(k)})[0].tolist() == [3, 3]
    with pytest.raises(UsageError, match="'k' is an initialiser"):
        session.run(None, {"x": x, "k": np.array(k + 1)})
