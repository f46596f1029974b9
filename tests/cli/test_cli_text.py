"""A small text transformer through the commands: integers in, numbers and integers out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from autotune.records import read_log
from tests.graph.onnx_models import onnxruntime_outputs
from tests.graph.text_models import LENGTH, N_WORDS, text_transformer

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.onnx"
    onnx.save(text_transformer(), path)
    return path


@pytest.fixture(scope="module")
def compiled(text: Path, cli: Cli) -> Path:
    done = cli("compile", text, "-o", text.with_suffix(".atn"), "--threads", 2)
    assert done.code == 0, done.err
    assert "outputs agree with ONNX Runtime" in done.err
    return text.with_suffix(".atn")


@pytest.mark.parametrize("n_words", [LENGTH, 5])
def test_run_on_words(cli: Cli, compiled: Path, tmp_path: Path, n_words: int) -> None:
    rng = np.random.default_rng(n_words)
    inputs = {"input_ids": rng.integers(0, N_WORDS, (1, LENGTH))}
    inputs["attention_mask"] = (np.arange(LENGTH)[None] < n_words).astype(np.int64)
    np.savez(tmp_path / "x.npz", **inputs)
    done = cli("run", compiled, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    assert done.code == 0, done.err
    expected = onnxruntime_outputs(text_transformer(), inputs)
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_allclose(
            found["hidden_state"], expected["hidden_state"], rtol=1e-4, atol=1e-5
        )
        assert found["best"].dtype == np.int64
        np.testing.assert_array_equal(found["best"], expected["best"])


def test_words_of_another_type_are_refused(cli: Cli, compiled: Path, tmp_path: Path) -> None:
    ones = np.ones((1, LENGTH), np.int64)
    np.savez(tmp_path / "x.npz", input_ids=ones.astype(np.float32), attention_mask=ones)
    done = cli("run", compiled, "--input", tmp_path / "x.npz")
    assert done.code == 2
    assert "error: input 'input_ids' has dtype float32, expected int64\n" in done.err
    assert "hint: convert it: array.astype('int64')\n" in done.err


def test_run_and_bench_make_up_words_that_exist(cli: Cli, compiled: Path) -> None:
    done = cli("run", compiled)
    assert done.code == 0, done.err
    assert "int64" in done.out
    done = cli("bench", compiled, "--against", "onnxruntime", "--time", "100ms", "--format", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["onnxruntime"]["max_error"] < 1e-5
    assert cli("bench", compiled, "--per-task", "--time", "100ms").code == 0


@pytest.mark.sampled(0)
def test_tune_then_compile(cli: Cli, text: Path, tmp_path: Path) -> None:
    log = tmp_path / "text.jsonl"
    done = cli("tune", text, "--log", log, "--trials", 16, "--threads", 1, "--preset", "ci")
    assert done.code == 0, done.err
    assert all(r.result.ok for r in read_log(log).records)
    done = cli("compile", "--log", log, "-o", tmp_path / "text.atn")
    assert done.code == 0, done.err
