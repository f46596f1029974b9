"""States in bf16 and int8: numbers of the model's file, in half or a quarter of the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import UsageError, WrongNumbers
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.session import ModelSession
from tests.api.test_api_sessions import CAPACITY, plain_loop, tokens_of
from tests.decoders import SIZE, decoder
from tests.forking import Cli

MODELS = {
    "pairs": decoder(layers=2),
    "own keys": decoder(seed=3, shared=4, scaled_keys=True),
    "one head of keys": decoder(seed=4, shared=1),
    "window": decoder(mask=False, window=3, seed=1),
}
ALLOWED = {"bf16": 2e-2, "int8": 3e-2}
"""Of the largest score."""
BYTES = {"f32": 4 * SIZE, "bf16": 2 * SIZE, "int8": SIZE + 4}
"""Of a row; int8 has a step for each."""


def session_of(model: onnx.ModelProto, cache_type: str) -> ModelSession:
    made = autotune.compile(model, capacity=CAPACITY, cache_type=cache_type)
    return model_of(made.artifact).session()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "cache_type"),
    [
        ("pairs", "bf16"),
        ("pairs", "int8"),
        ("own keys", "bf16"),
        ("own keys", "int8"),
        ("one head of keys", "int8"),
        ("window", "int8"),
    ],
    ids=str,
)
def test_steps_give_what_the_file_gives(name: str, cache_type: str) -> None:
    """`compile` checks steps and prompts at four lengths as well."""
    session, expected = session_of(MODELS[name], cache_type), plain_loop(MODELS[name])
    for n in (13, 1, 1, 7, 1):
        scores = expected(tokens_of(n, n))[:, -1:]
        error = np.abs(session.step(tokens_of(n, n)) - scores).max() / np.abs(scores).max()
        assert 0 < error < ALLOWED[cache_type]


@pytest.fixture(scope="module")
def sessions() -> dict[str, ModelSession]:
    return {name: session_of(MODELS["pairs"], name) for name in BYTES}


@pytest.mark.parametrize("cache_type", BYTES)
def test_memory_of_a_place(sessions: dict[str, ModelSession], cache_type: str) -> None:
    n_bytes = 4 * 2 * CAPACITY * BYTES[cache_type]  # keys and values, two layers
    assert sessions[cache_type].n_bytes == n_bytes


@pytest.mark.parametrize("cache_type", ["bf16", "int8"])
def test_a_state_is_forked_cut_and_saved(
    sessions: dict[str, ModelSession], cache_type: str, tmp_path: Path
) -> None:
    session = sessions[cache_type]
    session.reset()
    session.step(tokens_of(9))
    session.save(tmp_path / "state.npz")
    fork = session.fork()
    expected = session.step(tokens_of(1, 4))
    np.testing.assert_array_equal(fork.step(tokens_of(1, 4)), expected)
    session.step(tokens_of(5, 9))
    session.truncate(9)
    np.testing.assert_array_equal(session.step(tokens_of(1, 4)), expected)
    session.reset()
    session.load(tmp_path / "state.npz")
    np.testing.assert_array_equal(session.step(tokens_of(1, 4)), expected)
    for other in sessions.keys() - {cache_type}:
        sessions[other].reset()
        with pytest.raises(UsageError, match="another type of elements"):
            sessions[other].load(tmp_path / "state.npz")
        assert sessions[other].length == 0


def test_an_error_that_is_too_large_is_told() -> None:
    told = {"cache_type": "int8", "max_error": 1e-4}
    with pytest.raises(WrongNumbers, match=r"allowed 1\.0e-04"):
        autotune.compile(MODELS["pairs"], capacity=CAPACITY, **told)


def test_a_cache_type_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="only states that grow can be kept in int8"):
        autotune.compile(MODELS["pairs"], cache_type="int8")
    with pytest.raises(UsageError, match="there is no `cache_type` 'int3'"):
        autotune.compile(MODELS["pairs"], capacity=8, cache_type="int3")


def test_the_command_line_takes_a_type(cli: Cli, tmp_path: Path) -> None:
    onnx.save(MODELS["pairs"], tmp_path / "m.onnx")
    told = ("--capacity", CAPACITY, "--cache", "int8")
    done = cli("compile", tmp_path / "m.onnx", *told, "-o", tmp_path / "m.atn")
    assert done.code == 0, done.err
    session = autotune.load(tmp_path / "m.atn").session()
    assert {session.rows(name, 0, 1).dtype for name in session.buffers} == {np.dtype("int8")}
