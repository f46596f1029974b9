"""Caches that a caller feeds back stay in place, and results stay what they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import UsageError
from autotune.ort.binding import OrtValue
from autotune.ort.session import InferenceSession
from tests.decoders import VOCABULARY, decoder, merged
from tests.random_decoders import TWELVE, different

CAPACITY = 24
MODEL = decoder()
PASTS = [v.name for v in MODEL.graph.input if v.name.startswith("past")]


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    data = MODEL.SerializeToString()
    return autotune.InferenceSession(data, capacity=CAPACITY, threads=1)


@pytest.fixture(scope="module")
def plain() -> Any:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(MODEL.SerializeToString())


def feed_of(tokens: np.ndarray, past: list[np.ndarray]) -> dict[str, np.ndarray]:
    total = past[0].shape[2] + tokens.shape[1]
    mask = np.ones((1, total), np.int64)
    return {"input_ids": tokens, "attention_mask": mask, **dict(zip(PASTS, past, strict=True))}


def none() -> list[np.ndarray]:
    return [np.zeros((1, 2, 0, 8), np.float32) for _ in PASTS]


def in_place(found: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.shares_memory(a, b) for a, b in zip(found, others, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_calls_of_any_order_give_what_onnxruntime_gives(
    session: InferenceSession, plain: Any, seed: int
) -> None:
    """Goes on, goes back, begins again, and feeds copies, views and results of others."""
    rng = np.random.default_rng(seed)
    known = [(none(), none())]
    for _ in range(24):
        ours, theirs = known[rng.integers(max(0, len(known) - 3), len(known))]
        if rng.random() < 0.2 or ours[0].shape[2] > CAPACITY - 5:
            ours, theirs = known[0]
        if rng.random() < 0.3:
            ours = [past.copy() if rng.random() < 0.5 else past for past in ours]
        tokens = rng.integers(0, VOCABULARY, (1, rng.integers(1, 6)))
        found = session.run(None, feed_of(tokens, ours))
        expected = plain.run(None, feed_of(tokens, theirs))
        known.append((found[1:], expected[1:]))
        if rng.random() < 0.3:
            known.pop(0 if len(known) > 4 and rng.random() < 0.5 else -1)
            known[0] = (none(), none())
        np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
        for results, right in known:  # also those of former calls
            for result, one in zip(results, right, strict=True):
                np.testing.assert_allclose(result, one, atol=1e-5)


def test_what_is_fed_back_is_not_copied(session: InferenceSession) -> None:
    tokens = np.array([[3, 1, 4]])
    first = session.run(None, feed_of(tokens, none()))[1:]
    second = session.run(None, feed_of(tokens, first))[1:]
    third = session.run(None, feed_of(tokens[:, :1], second))[1:]
    assert in_place(first, second)
    assert in_place(second, third)
    again = session.run(None, feed_of(tokens, none()))[1:]  # results of the former are held
    assert not in_place(again, third)
    del first, second, third
    del tokens
    other = session.run(None, feed_of(np.array([[3, 1, 4]]), again))[1:]
    assert in_place(other, again)


def test_bindings_and_values_go_on_in_place(session: InferenceSession) -> None:
    tokens = np.array([[3, 1, 4]])
    names = [port.name for port in session.get_outputs()]
    values = {n: OrtValue(a) for n, a in feed_of(tokens, none()).items()}
    found = session.run_with_ort_values(names, values)
    binding = session.io_binding()
    for name, array in feed_of(tokens, [value.numpy() for value in found[1:]]).items():
        binding.bind_cpu_input(name, array)
    logits = np.empty((1, 3, VOCABULARY), np.float32)
    binding.bind_ortvalue_output("logits", OrtValue(logits))
    for name in names[1:]:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    bound = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(bound[0], logits)
    assert not np.shares_memory(bound[0], logits)
    assert in_place(bound[1:], [value.numpy() for value in found[1:]])
    expected = session.run(None, feed_of(np.array([[3, 1, 4, 3, 1, 4]]), none()))
    np.testing.assert_allclose(logits, expected[0][:, 3:], atol=1e-5)
    np.testing.assert_allclose(bound[1], expected[1], atol=1e-5)
    held = binding.get_outputs()[1]
    dense = held.data_ptr()
    assert held.numpy().flags.c_contiguous
    assert held.numpy().ctypes.data == dense


def test_masks_with_gaps_are_no_steps(session: InferenceSession, plain: Any) -> None:
    feed = feed_of(np.array([[3, 1, 4]]), none())
    feed["attention_mask"][0, 0] = 0
    for found, expected in zip(session.run(None, feed), plain.run(None, feed), strict=True):
        np.testing.assert_allclose(found[..., 1:, :], expected[..., 1:, :], atol=1e-5)


def test_caches_of_twelve_layers_are_paired_by_their_names(tmp_path: Path) -> None:
    """In files, caches of ONNX Runtime's go on here, and those from here there."""
    drawn = replace(TWELVE, capacity=8)
    path, rng = tmp_path / "decoder.onnx", np.random.default_rng(0)
    onnx.save(drawn.model(), path)
    plain, names = drawn.plain(), [o.name for o in drawn.model().graph.output]
    for cache in (True, True, False):  # compiled, then read from the cache; not kept
        session = autotune.InferenceSession(path, cache=cache, **drawn.arguments())
        plain.reset()
        ours = plain.caches
        for n in range(6):
            tokens = drawn.tokens(rng, 1)
            feed = drawn.feed(tokens, n) | (ours if n % 3 else plain.caches)
            found = dict(zip(names, session.run(names, feed), strict=True))
            assert not different(found, plain(tokens), 1e-5)
            ours = {name: found[output] for name, output in drawn.pairs.items()}


def test_caches_that_are_not_fed_back_are_refused() -> None:
    data = merged().SerializeToString()
    with pytest.raises(UsageError, match="not all fed back"):
        autotune.InferenceSession(data, capacity=CAPACITY, dims={"encoder": 6})
