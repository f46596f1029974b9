"""Decoders token by token: ONNX Runtime's plain loop, and `bench --tokens` beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import UsageError
from autotune.network.bench.tokens import random_prompt
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import random_inputs
from autotune.network.runtime.token_loops import plain_loop
from tests.decoders import VOCABULARY, decoder, merged
from tests.forking import Cli

pytest.importorskip("onnxruntime")


def test_each_sequence_begins_without_places(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    begin = plain_loop(tmp_path / "m.onnx", 1)
    first, second = begin(), begin()
    tokens = np.array([[1, 2, 3]])
    once, again, more = (step(tokens)["logits"] for step in (first, second, first))
    np.testing.assert_array_equal(once, again)
    assert np.abs(more - once).max() > 1e-3


def test_prompts_and_tokens_are_timed_beside_others(tmp_path: Path, cli: Cli) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    line = ("bench", "m.onnx", "--tokens", "6+3", "--against", "onnxruntime", "--time", "0.1s")
    done = cli(*line, "--format", "json", cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    for name in ("autotune", "onnxruntime"):
        assert found[name]["prompt_tokens"] == 6
        assert found[name]["rounds"] >= 3
        assert min(found[name]["prompt_s"], found[name]["token_s"]) > 0
    assert found["ratio"] == found["autotune"]["token_s"] / found["onnxruntime"]["token_s"]
    done = cli("bench", "m.onnx", "--tokens", "6", cwd=tmp_path)
    assert (done.code, "128+64" in done.err) == (2, True)
    done = cli("bench", "m.onnx", "--tokens", "6+3", "--callers", "2", cwd=tmp_path)
    assert (done.code, "leave --callers, --input" in done.err) == (2, True)


def test_tasks_of_prompts_and_tokens_are_shown_beside_their_limits(
    tmp_path: Path, cli: Cli
) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    line = ("bench", "m.onnx", "--tokens", "6+3", "--per-task", "--time", "0.05s")
    done = cli(*line, "--format", "json", cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert list(found) == ["prompt", "token"]
    for profile in found.values():
        shares = [t["limit_share"] for t in profile["tasks"]]
        assert any(share is not None and 0 < share < 2 for share in shares)


@pytest.mark.parametrize("kind", ["hidden", "caches", "merged"])
def test_sequences_beside_an_encoder_are_equal(tmp_path: Path, kind: str) -> None:
    """What stays for a sequence is given to ONNX Runtime as well, and computed where it is."""
    made = merged() if kind == "merged" else decoder(cross=kind)
    told = {"capacity": 12, "dims": {"encoder": 6}, "check": False}
    onnx.save(made, tmp_path / "m.onnx")
    session = model_of(autotune.compile(tmp_path / "m.onnx", **told).artifact).session()
    begun = random_inputs(session.begin_info)
    session.begin(begun)
    step = plain_loop(tmp_path / "m.onnx", 1, begun=begun)()
    for n in (3, 1, 2):
        tokens = random_prompt(n, VOCABULARY, seed=n)
        np.testing.assert_allclose(session.step(tokens), step(tokens)["logits"][:, -1:], atol=1e-5)
    found = autotune.bench_tokens(session.model, 3, 2, "onnxruntime", time_s=0.0)
    assert min(found.ratios["onnxruntime"], found.prompt_ratios["onnxruntime"]) > 0
    with pytest.raises(UsageError, match="not timed beside an encoder"):
        autotune.bench_tokens(session.model, 3, 2, "onnxruntime-genai", time_s=0.0)


def test_more_tokens_than_the_capacity_are_refused() -> None:
    model = model_of(autotune.compile(decoder(), capacity=8, check=False).artifact)
    with pytest.raises(UsageError, match="not within the capacity of 8"):
        autotune.bench_tokens(model, 6, 3)
