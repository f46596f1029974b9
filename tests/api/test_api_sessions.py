"""Sessions: steps of any length give what the model's file gives with its past fed back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.parser
import pytest

import autotune
from autotune.errors import NotCompilable, UsageError
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.sampling import sampler
from autotune.network.runtime.session import ModelSession
from autotune.records import read_log
from tests.decoders import CACHE, VOCABULARY, WIDTH, decoder

CAPACITY = 24


def plain_loop(model: onnx.ModelProto) -> Callable[[np.ndarray], np.ndarray]:
    """Logits of more tokens, by ONNX Runtime with its past fed back."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    state = {
        i.name: np.zeros((1, i.shape[1], 0, 8), np.float32)
        for i in session.get_inputs()
        if i.name.startswith("past")
    }
    n_tokens = [0]

    def more(tokens: np.ndarray) -> np.ndarray:
        n_tokens[0] += tokens.shape[1]
        feed: dict[str, Any] = {"input_ids": tokens, **state}
        if any(i.name == "attention_mask" for i in session.get_inputs()):
            feed["attention_mask"] = np.ones((1, n_tokens[0]), np.int64)
        found = dict(zip(names, session.run(None, feed), strict=True))
        for name in state:
            state[name] = found[name.replace("past_key_values", "present")]
        return np.asarray(found["logits"])

    return more


def tokens_of(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (1, n))


MODEL, OTHER = decoder(), decoder(mask=False, window=3, seed=1)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(MODEL, tmp_path_factory.mktemp("decoder") / "decoder.atn")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(OTHER, tmp_path_factory.mktemp("other") / "other.atn")


def saved(model: onnx.ModelProto, path: Path) -> Path:
    autotune.compile(model, capacity=CAPACITY).artifact.save(path)
    return path


@pytest.fixture
def session(compiled: Path) -> ModelSession:
    return autotune.load(compiled).session()


@pytest.mark.parametrize("steps", [(1,) * 6, (5, 1, 1), (4, 4, 1, 9, 6)], ids=str)
def test_steps_give_what_the_file_gives(session: ModelSession, steps: tuple[int, ...]) -> None:
    expected = plain_loop(MODEL)
    for n, seed in zip(steps, range(9), strict=False):
        tokens = tokens_of(n, seed)
        np.testing.assert_allclose(session.step(tokens), expected(tokens)[:, -1:], atol=1e-5)
    assert session.length == sum(steps)


def test_a_window_follows_the_length(other: Path) -> None:
    """The masks of a model that has no input for one."""
    session, expected = autotune.load(other).session(), plain_loop(OTHER)
    for n in (3, 1, 4, 9, 1):
        tokens = tokens_of(n, n)
        np.testing.assert_allclose(session.step(tokens), expected(tokens)[:, -1:], atol=1e-5)


def test_tokens_are_generated_one_by_one(session: ModelSession) -> None:
    expected, tokens = plain_loop(MODEL), tokens_of(5)
    greedy = []
    for _ in range(9):
        greedy.append(int(expected(tokens)[0, -1].argmax()))
        tokens = np.array([[greedy[-1]]])
    assert list(session.generate(tokens_of(5), 9)) == greedy
    assert session.length == 5 + 8
    session.reset()
    assert (
        list(session.generate(tokens_of(5), stop={greedy[3]}))
        == greedy[: greedy.index(greedy[3]) + 1]
    )
    session.reset()
    assert len(list(session.generate(tokens_of(5)))) == CAPACITY - 5 + 1


@pytest.mark.parametrize(
    "sampling", [{"sample": "top_p", "top_p": 0.6}, {"sample": "top_k", "top_k": 3}]
)
def test_samples_have_the_shares_of_their_scores(sampling: dict[str, Any]) -> None:
    scores = np.log(np.array([0.4, 0.1, 0.3, 0.05, 0.15]))
    choose = sampler(**sampling, seed=0)
    found = np.bincount([choose(scores) for _ in range(4000)], minlength=5) / 4000
    kept = np.array([0.4, 0, 0.3, 0, 0.15 if sampling["sample"] == "top_k" else 0])
    np.testing.assert_allclose(found, kept / kept.sum(), atol=0.03)
    again, other = (sampler(**sampling, seed=1) for _ in range(2))
    assert [again(scores) for _ in range(9)] == [other(scores) for _ in range(9)]
    with pytest.raises(UsageError, match="no sampling 'best'"):
        sampler("best")
    with pytest.raises(UsageError, match="temperature"):
        sampler("top_p", temperature=0)


def test_two_thousand_steps_take_no_more_memory(session: ModelSession) -> None:
    pages: list[int] = []
    for n in range(2000):
        if session.length == CAPACITY:
            session.truncate(CAPACITY // 2)
        session.step(tokens_of(1, n))
        if n % 500 == 499:
            pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
    assert pages[-1] - pages[0] < 64  # 256 KiB of 1,500 steps


def test_rows_are_written_in_place(session: ModelSession) -> None:
    before = {name: session.rows(name, 0, CAPACITY) for name in session.buffers}
    assert len(before) == 2
    session.step(tokens_of(5))
    for name, buffer in before.items():
        assert np.shares_memory(buffer, session.rows(name, 0, CAPACITY))
        assert np.all(np.any(buffer[0, :, :5] != 0, axis=-1)), name
        assert not buffer[0, :, 5:].any(), name


def test_a_fork_goes_its_own_way(session: ModelSession) -> None:
    session.step(tokens_of(5))
    other = session.fork()
    same = session.step(tokens_of(1, 1)), other.step(tokens_of(1, 1))
    np.testing.assert_array_equal(*same)
    session.step(tokens_of(1, 2))
    np.testing.assert_array_equal(other.fork().step(tokens_of(1, 3)), other.step(tokens_of(1, 3)))
    assert (session.length, other.length) == (7, 7)


def test_a_state_is_saved_and_cut(session: ModelSession, tmp_path: Path) -> None:
    session.step(tokens_of(6))
    session.save(tmp_path / "state.npz")
    expected = session.step(tokens_of(1, 4))
    session.reset()
    assert session.length == 0
    session.load(tmp_path / "state.npz")
    session.step(tokens_of(3, 9))
    session.truncate(6)
    np.testing.assert_array_equal(session.step(tokens_of(1, 4)), expected)


def test_a_state_of_another_model_is_refused(
    session: ModelSession, other: Path, tmp_path: Path
) -> None:
    foreign = autotune.load(other).session()
    foreign.step(tokens_of(2))
    foreign.save(tmp_path / "state.npz")
    session.step(tokens_of(3))
    with pytest.raises(UsageError, match="another model"):
        session.load(tmp_path / "state.npz")
    (tmp_path / "text.npz").write_text("no state")
    cut = (tmp_path / "state.npz").read_bytes()[:200]
    (tmp_path / "cut.npz").write_bytes(cut)
    for name, text in (
        ("text.npz", "is no state"),
        ("cut.npz", "is no state"),
        ("none.npz", "no file"),
    ):
        with pytest.raises(UsageError, match=text):
            session.load(tmp_path / name)
    assert session.length == 3


def test_a_prompt_beyond_the_capacity_changes_nothing(session: ModelSession) -> None:
    session.step(tokens_of(3))
    with pytest.raises(UsageError, match="22 more places do not fit"):
        session.step(tokens_of(22))
    with pytest.raises(UsageError, match=r"dtype|shape"):
        session.step(np.zeros((1, 2, 3), np.int64))
    with pytest.raises(UsageError, match="2 arrays are given, expected 1"):
        session.step(tokens_of(1), tokens_of(1))
    with pytest.raises(UsageError, match="there is no input 'words'"):
        session.run({"words": tokens_of(1)})
    assert session.length == 3


def test_two_threads_do_not_share_a_session(session: ModelSession) -> None:
    found: list[Exception] = []
    begun, go_on = threading.Event(), threading.Event()

    class Slow(dict[str, np.ndarray]):
        def keys(self) -> Any:
            begun.set()
            go_on.wait(30)
            return super().keys()

    thread = threading.Thread(target=lambda: session.run(Slow(input_ids=tokens_of(1))))
    thread.start()
    assert begun.wait(30)
    try:
        session.step(tokens_of(1))
    except UsageError as error:
        found.append(error)
    go_on.set()
    thread.join()
    assert "another thread" in str(found[0])
    assert session.length == 1


def test_sessions_of_one_model_run_in_threads(compiled: Path) -> None:
    loaded = autotune.load(compiled)
    results: dict[int, np.ndarray] = {}

    def run(n: int) -> None:
        session = loaded.session()
        results[n] = np.concatenate([session.step(tokens_of(1, n + k)) for k in range(9)])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, found in results.items():
        expected = plain_loop(MODEL)
        np.testing.assert_allclose(
            found, np.concatenate([expected(tokens_of(1, n + k)) for k in range(9)]), atol=1e-5
        )


def test_weights_of_all_steps_and_a_tied_table_are_there_once() -> None:
    model, n = decoder(), 768
    graph = model.graph
    table = next(node.input[0] for node in graph.node if "input_ids" in node.input[1:])
    head = next(node for node in graph.node if node.output[0] == "logits")
    unused = next(w for w in graph.initializer if w.name == head.input[1])
    graph.initializer.remove(unused)
    rows = np.random.default_rng(0).normal(size=(n, WIDTH)).astype(np.float32)
    kept = next(w for w in graph.initializer if w.name == table)
    kept.CopyFrom(onnx.numpy_helper.from_array(rows, table))
    turned = oh.make_node("Transpose", [table], [unused.name], perm=[1, 0])
    graph.node.insert(0, turned)
    graph.output[0].type.tensor_type.shape.dim[2].dim_value = n
    found = autotune.compile(model, capacity=CAPACITY).artifact
    assert found.constants.nbytes <= 1.1 * sum(len(w.raw_data) for w in graph.initializer)


def test_a_model_with_a_state_is_not_run_without_a_session(compiled: Path) -> None:
    loaded = autotune.load(compiled)
    inputs = {end.name: np.zeros(end.shape, end.numpy_dtype) for end in loaded.input_info}
    for run in (loaded.run, loaded.profile):
        with pytest.raises(UsageError, match="has a state"):
            run(inputs)


def test_a_recurrent_state_is_replaced() -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1,4] x, float[1,4] h) => (float[1,4] y, float[1,4] hn) {
            s = Add (x, h)
            hn = Tanh (s)
            y = Mul (hn, x)
        }"""
    )
    compiled = autotune.compile(made, state={"h": "hn"}, check=False).artifact
    session = model_of(compiled).session()
    state = np.zeros((1, 4), np.float32)
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(1, 4)).astype(np.float32)
        state = np.tanh(x + state)
        np.testing.assert_allclose(session.step(x), state * x, rtol=1e-5)
    other = session.fork()
    np.testing.assert_array_equal(other.step(state), session.step(state))
    with pytest.raises(UsageError, match="no output 'hm'"):
        autotune.compile(made, state={"h": "hm"})


def test_a_model_without_a_state_is_refused() -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1,4] x) => (float[1,4] y) { y = Tanh (x) }"""
    )
    with pytest.raises(UsageError, match="no state that grows"):
        autotune.compile(made, capacity=64)
    with pytest.raises(UsageError, match="has no state"):
        model_of(autotune.compile(made, check=False).artifact).session()


def test_a_mean_over_all_places_leaves_out_unused_ones() -> None:
    """It is divided by the number of places, which is another one in each step."""
    made = decoder()
    keys = next(n for n in made.graph.node if n.op_type == "Concat" and "past" in n.input[0])
    made.graph.node.append(oh.make_node("ReduceMean", [keys.output[0]], ["mean"], axes=[2]))
    made.graph.output.append(oh.make_tensor_value_info("mean", 1, None))
    session, tokens = model_of(autotune.compile(made, capacity=24).artifact).session(), tokens_of(7)
    steps = [session.run({"input_ids": part}) for part in np.split(tokens, [4, 5], axis=1)]
    runtime = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString())
    empty = {f"past_key_values.0.{kind}": np.zeros((1, 2, 0, 8), np.float32) for kind in CACHE}
    for n, found in zip((4, 5, 7), steps, strict=True):
        given = {"input_ids": tokens[:, :n], "attention_mask": np.ones((1, n), np.int64)}
        (expected,) = runtime.run(["mean"], given | empty)
        np.testing.assert_allclose(found["mean"], expected, rtol=1e-5)


def test_a_state_is_not_lost_where_data_decide_the_computation() -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (bool c, float[1,4] x, float[1,4] h) => (float[1,4] y, float[1,4] hn) {
            hn = If (c) <then_branch = t () => (float[1,4] a) { a = Add (x, h) },
                         else_branch = e () => (float[1,4] b) { b = Sub (x, h) }>
            y = Tanh (hn)
        }"""
    )
    with pytest.raises(NotCompilable, match="keeps no state"):
        autotune.compile(made, state={"h": "hn"}, check=False)


def test_a_model_with_a_state_is_tuned(tmp_path: Path) -> None:
    """Its log knows the state, so compiling it needs no capacity again."""
    path, log = tmp_path / "decoder.onnx", tmp_path / "log.jsonl"
    onnx.save(MODEL, path)
    told = {"capacity": CAPACITY, "cache_type": "bf16"}
    autotune.tune(path, log, trials=8, threads=1, show="nothing", compare=False, **told)
    found = read_log(log)
    assert found.header.state == told
    assert any(r.result.ok for r in found.records)
    session = model_of(autotune.compile(log=log).artifact).session()
    assert {session.rows(name, 0, 1).dtype.name for name in session.buffers} == {"bfloat16"}
    expected = plain_loop(MODEL)
    for n in (5, 1):
        np.testing.assert_allclose(
            session.step(tokens_of(n, n)), expected(tokens_of(n, n))[:, -1:], atol=0.05
        )
