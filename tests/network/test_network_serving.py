"""Serving: forks share memory, drafts change no text, prefixes and parts of prompts neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import numpy_helper

import autotune
from autotune.errors import UsageError
from autotune.network.runtime.runtime import Model
from autotune.network.runtime.sampling import Sampler, sampler
from autotune.network.runtime.session import ModelSession
from autotune.network.runtime.speculation import Proposal
from autotune.network.serving.prefixes import Prefixes
from autotune.network.serving.scheduler import QueueFull, TextRequest, TurnScheduler
from tests.decoders import VOCABULARY, decoder

CAPACITY = 700
_TOLD = {"capacity": CAPACITY, "check": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return loaded(tmp_path_factory.mktemp("serving"), 1)


@pytest.fixture(scope="module")
def other() -> Model:
    """With the same tokens, and scores of the last one alone but in steps for drafts."""
    return autotune.Model(autotune.compile(decoder(seed=1), **_TOLD).artifact)


def loaded(folder: Path, layers: int) -> Model:
    compiled = autotune.compile(decoder(layers), scores="all", sessions=(3,), **_TOLD)
    compiled.artifact.save(folder / "decoder.atn")
    return autotune.load(folder / "decoder.atn")


def tokens_of(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCABULARY, n)]


def alone(model: Model, tokens: Sequence[int], n: int) -> list[int]:
    return list(model.session().generate([tokens], n))


def shared_bytes(session: ModelSession, other: ModelSession) -> int:
    """Bytes of the pages that two processes would have in common: of one file in memory."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = [line.split() for line in maps if "memfd:autotune" in line]
    spans = [(*(int(n, 16) for n in line[0].split("-")), line[4]) for line in files]

    def of(one: ModelSession) -> dict[tuple[str, str], int]:
        first = [one.rows(name, 0, 1).ctypes.data for name in one.all_buffers]
        end = max(first) + one.n_bytes
        return {
            (inode, str(begin - min(first))): stop - begin
            for begin, stop, inode in spans
            if min(first) <= begin < end
        }

    mine, its = of(session), of(other)
    return sum(n for key, n in mine.items() if its.get(key) == n)


def test_a_fork_reads_the_same_memory_and_writes_its_own(model: Model) -> None:
    session, prompt = model.session(), tokens_of(600)
    session.step([prompt])
    plain = {n: session.rows(n, 0, 600).copy() for n in session.all_buffers}
    forks = [session.fork() for _ in range(3)]
    forks.append(forks[0].fork())
    filled = sum(array.nbytes for array in plain.values())
    for fork in forks:
        assert shared_bytes(session, fork) > 0.7 * filled
    expected = [alone(model, [*prompt, k], 8) for k in range(5)]
    for k, one in enumerate([session, *forks]):  # each goes on in its own way
        assert list(one.generate([[k]], 8)) == expected[k]
    forks[1].truncate(3)
    forks[1].step([tokens_of(20, 1)])
    for one in (session, forks[0], forks[2].fork(), forks[3]):
        for name, rows in plain.items():
            np.testing.assert_array_equal(one.rows(name, 0, 600), rows)
    again = forks[1].fork()
    for name in again.all_buffers:
        np.testing.assert_array_equal(again.rows(name, 0, 23), forks[1].rows(name, 0, 23))


class Wrong:
    """Proposes what is right now and then, and anything else."""

    def __init__(self, text: Sequence[int], seed: int) -> None:
        self.text, self.rng = list(text), np.random.default_rng(seed)

    def propose(self, text: Sequence[int], k: int, choose: Sampler) -> Proposal:
        right = self.text[len(text) : len(text) + k]
        right += tokens_of(k - len(right))
        drawn = [int(t) if self.rng.random() < 0.7 else 3 for t in right]
        n = int(self.rng.integers(0, k + 1))
        return Proposal(drawn[:n], [None] * n)


@pytest.mark.parametrize("scores", ["last", "all"])
def test_drafts_change_no_greedy_text(model: Model, other: Model, scores: str) -> None:
    model, other = (model, other) if scores == "all" else (other, model)
    prompt, n = tokens_of(40), 100
    expected = alone(model, prompt, n)
    for draft in ("ngrams", other.session(), Wrong(prompt + expected, 1)):
        session = model.session()
        assert list(session.generate([prompt], n, draft=draft, k=5)) == expected
        assert session.length == 40 + n - 1
    stop = expected[60]
    ended = expected[: expected.index(stop) + 1]
    found = model.session().generate([prompt], n, {stop}, draft=Wrong(prompt + expected, 2))
    assert list(found) == ended
    full = model.session().generate([tokens_of(CAPACITY - 20)], draft="ngrams")
    assert len(list(full)) == 21


def test_a_draft_of_the_same_model_is_taken_whole(model: Model) -> None:
    session, steps = model.session(), []
    step = session.run
    session.run = lambda *a, **k: steps.append(1) or step(*a, **k)  # type: ignore[method-assign]
    draft = model.session()
    assert list(session.generate([tokens_of(30)], 61, draft=draft, k=5)) == alone(
        model, tokens_of(30), 61
    )
    assert len(steps) == 1 + 60 // 6


class Scores:
    """In the place of a session: the scores of a token depend on the one before.

    `goes_back`: to any length, else by one step alone.
    """

    def __init__(self, seed: int, goes_back: bool = True) -> None:
        self.table = np.random.default_rng(seed).normal(size=(4, 4)) * 1.5
        self.length, self.capacity, self.most_rows = 0, 10**6, 16
        self.goes_back, self.former = goes_back, -1

    def truncate(self, length: int) -> None:
        assert length in (self.length, self.former) or self.goes_back
        self.length = length

    def scores_behind(self, tokens: Sequence[int]) -> np.ndarray:
        self.former, self.length = self.length, self.length + len(tokens)
        return self.table[list(tokens)]

    def verified(self, tokens: Sequence[int]) -> np.ndarray:
        assert len(tokens) <= self.most_rows
        return self.scores_behind(tokens)


@pytest.mark.parametrize("sample", ["top_p", "top_k"])
@pytest.mark.parametrize("draft", ["another model", "always 2"])
@pytest.mark.parametrize("goes_back", [True, False])
def test_drafts_do_not_change_how_tokens_are_distributed(
    sample: str, draft: str, goes_back: bool
) -> None:
    from autotune.network.runtime.speculation import SessionDraft, Wanted, speculated

    class Two:
        def propose(self, text: Sequence[int], k: int, choose: Sampler) -> Proposal:
            return Proposal([2] * k, [None] * k)

    model, other = Scores(0, goes_back), Scores(1)
    choose = sampler(sample, top_p=0.9, top_k=3, seed=5)
    proposes = SessionDraft(other) if draft == "another model" else Two()  # type: ignore[arg-type]
    found = speculated(model, [0], proposes, choose, Wanted(5_000))  # type: ignore[arg-type]
    text = [0, *found]
    assert model.length == 5_000
    counts = np.zeros((4, 4))
    np.add.at(counts, (text[:-1], text[1:]), 1)
    for row, scores in zip(counts, model.table, strict=True):
        n, shares = row.sum(), choose.shares(scores)
        bound = 4.5 * np.sqrt(shares * (1 - shares) / n) + 1e-12  # of a count that is binomial
        assert n > 200
        assert (abs(row / n - shares) <= bound).all()


def test_what_no_draft_is_for_is_told(model: Model, other: Model) -> None:
    with pytest.raises(UsageError, match="a draft is no int"):
        model.session().generate([[1]], 5, draft=7)
    for k in (0, 16):
        with pytest.raises(UsageError, match=f"a step of {k + 1}: the model has one of 2 to 16"):
            other.session().generate([[1]], 5, draft="ngrams", k=k)
    with pytest.raises(UsageError, match="for each of 16 at most"):
        other.session().run({"input_ids": [tokens_of(17)]}, has_all=True)
    first, *variants = other.artifact.variants
    former = [one for one in variants if not one.state.verifies]  # as of before there were such
    session = autotune.Model(replace(first, others=tuple(former))).session()
    with pytest.raises(UsageError, match="scores of all its tokens"):
        session.generate([[1]], 5, draft="ngrams")


def test_prefixes_are_found_kept_and_forgotten(model: Model, other: Model) -> None:
    prefixes, head = Prefixes(block=16), tokens_of(300, 9)
    texts = [head + tokens_of(40, seed) for seed in range(4)]
    for n, text in enumerate(texts):
        session = model.session()
        known = prefixes.begin(session, text)
        assert known == (288 if n else 0)
        scores = session.step([text[known:]])
        assert scores[0, -1].argmax() == alone(model, text, 1)[0]
        prefixes.keep(session, text)
    one_text = len(texts[0]) // 16 * 16
    rows = sum(session.rows(n, 0, 1).nbytes for n in session.all_buffers)
    assert prefixes.n_bytes == rows * (one_text + 3 * (one_text - 288))
    assert prefixes.begin(model.session(), texts[0][:64]) == 48  # one is left to be computed
    prefixes.most_bytes = rows * 400
    prefixes.keep(session, texts[3])
    assert prefixes.n_bytes <= prefixes.most_bytes
    assert prefixes.begin(model.session(), texts[3]) == one_text  # was used last
    assert prefixes.begin(model.session(), texts[0]) < one_text
    with pytest.raises(UsageError, match="has read 340 tokens"):
        prefixes.begin(session, head)
    with pytest.raises(UsageError, match="another model"):
        prefixes.begin(other.session(), head)


def test_requests_together_are_as_each_alone(model: Model) -> None:
    _together(model)


@pytest.mark.slow
def test_requests_of_twelve_layers_are_as_each_alone(tmp_path: Path) -> None:
    """Their names sort in another order than they come."""
    _together(loaded(tmp_path, 12))


def _together(model: Model) -> None:
    rng = np.random.default_rng(0)
    head = tokens_of(100, 3)
    texts = [head[: int(n)] + tokens_of(int(m), int(m)) for n, m in rng.integers(5, 100, (12, 2))]
    sizes = [int(n) for n in rng.integers(1, 40, 12)]
    expected = [alone(model, text, n) for text, n in zip(texts, sizes, strict=True)]
    scheduler = TurnScheduler(model, sessions=5, part=32, prefixes=Prefixes(block=8))
    told = [list[int | None]() for _ in texts]
    requests = [
        TextRequest(text, n, tell=tell.append)
        for text, n, tell in zip(texts, sizes, told, strict=True)
    ]
    later = list(requests)
    is_busy = True
    while is_busy or later:  # some come while others are computed
        for request in later[:2]:
            scheduler.submit(request)
        del later[:2]
        is_busy = scheduler.turn()
    assert [request.found for request in requests] == expected
    assert told == [[*text, None] for text in expected]
    assert {request.end for request in requests} == {"length"}
    assert (scheduler.n_waiting, scheduler.n_running) == (0, 0)


def test_requests_end_one_by_one(model: Model) -> None:
    scheduler = TurnScheduler(model, sessions=2, waiting=2)
    expected = alone(model, tokens_of(30, 1), 30)

    def choose(scores: np.ndarray) -> int:
        raise ValueError("no token fits")

    stopped = TextRequest(tokens_of(30, 1), 30, stop={expected[7]})
    failed = TextRequest(tokens_of(9), 5, choose=choose)
    cancelled = TextRequest(tokens_of(600), 20)
    full = TextRequest(tokens_of(CAPACITY - 3), 20)
    for request in (stopped, failed):
        scheduler.submit(request)
    for _ in range(2):  # a prompt in each
        scheduler.turn()
    for request in (cancelled, full, TextRequest([1], 1)):
        scheduler.submit(request)
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        scheduler.submit(TextRequest([1], 1))
    scheduler.turn()
    cancelled.cancel()
    while scheduler.turn():
        pass
    assert stopped.found == expected[: expected.index(expected[7]) + 1]
    assert [r.end for r in (stopped, failed, cancelled, full)] == [
        "stop",
        "failed",
        "cancelled",
        "length",
    ]
    assert str(failed.error) == "no token fits"
    assert len(full.found) == 4
    for tokens in ([], tokens_of(CAPACITY)):
        with pytest.raises(UsageError, match="do not fit"):
            scheduler.submit(TextRequest(tokens, 1))


def with_recurrent_state(source: onnx.ModelProto) -> onnx.ModelProto:
    """A decoder whose scores are moved by those of the token before, as by a short convolution."""
    graph = source.graph
    scores = next(n for n in graph.node if "logits" in n.output)
    scores.output[0] = "bare"
    shape = [1, 1, VOCABULARY]
    for name, value in (("first", 0), ("last", -1), ("end", np.iinfo(np.int64).max), ("along", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    graph.node.append(oh.make_node("Concat", ["past_last", "bare"], ["all_scores"], axis=1))
    before = oh.make_node("Slice", ["all_scores", "first", "last", "along"], ["before"])
    last = oh.make_node("Slice", ["all_scores", "last", "end", "along"], ["present_last"])
    graph.node.extend([before, oh.make_node("Add", ["bare", "before"], ["logits"]), last])
    graph.input.append(oh.make_tensor_value_info("past_last", onnx.TensorProto.FLOAT, shape))
    graph.output.append(oh.make_tensor_value_info("present_last", onnx.TensorProto.FLOAT, shape))
    return source


@pytest.mark.slow
def test_states_of_a_fixed_shape_go_back_and_are_kept_with_prefixes() -> None:
    model = autotune.Model(autotune.compile(with_recurrent_state(decoder()), **_TOLD).artifact)
    _is_served(model, Prefixes(block=8))
    _is_served(model, Prefixes(block=8, most_bytes=20_000))  # some are forgotten
    prompt = tokens_of(40)
    expected = alone(model, prompt, 60)
    for draft in ("ngrams", Wrong(prompt + expected, 1)):
        session = model.session()
        assert list(session.generate([prompt], 60, draft=draft, k=5)) == expected
        assert session.length == 40 + 59
        assert list(session.generate([expected[-1:]], 5)) == alone(model, prompt, 65)[60:]
    with pytest.raises(UsageError, match="its state of a fixed shape cannot"):
        model.session().generate([prompt], 5, draft=model.session())
    session = model.session()
    session.step([prompt])
    before = [array.copy() for array in session.replaced_arrays().values()]
    session.step([[3, 4, 5]])
    with pytest.raises(UsageError, match="cannot be cut to 41"):
        session.truncate(41)
    session.truncate(40)
    for old, array in zip(before, session.replaced_arrays().values(), strict=True):
        np.testing.assert_array_equal(old, array)
    with pytest.raises(UsageError, match="cannot be cut to 39"):
        session.truncate(39)


def _is_served(model: Model, prefixes: Prefixes) -> None:
    head = tokens_of(100, 3)
    texts = [head[:n] + tokens_of(m, m) for n, m in ((90, 9), (90, 30), (70, 5), (70, 40), (90, 6))]
    texts += [tokens_of(3), tokens_of(70, 2)]
    expected = [alone(model, text, 12) for text in texts]
    scheduler, known = TurnScheduler(model, sessions=2, part=32, prefixes=prefixes), list[int]()
    for text, found in zip(texts, expected, strict=True):
        before, request = prefixes.n_known, TextRequest(text, 12)
        scheduler.submit(request)
        while scheduler.turn():
            pass
        assert request.found == found
        known.append(prefixes.n_known - before)
        assert prefixes.n_bytes <= prefixes.most_bytes
    if prefixes.most_bytes > 1 << 20:  # in the second text the parts end where it is another one
        assert known == [0, 64, 64, 64, 88, 0, 0]
