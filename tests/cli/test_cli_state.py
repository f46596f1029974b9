"""A folder of onnxruntime-genai from the command line to steps in Python, and to a library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import autotune
from tests.decoders import WIDTH, merged
from tests.forking import Cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("genai")
    onnx.save(merged(), path / "decoder.onnx")
    told = {"context_length": 12, "decoder": {"filename": "decoder.onnx"}}
    (path / "genai_config.json").write_text(json.dumps({"model": told}))
    return path


def test_a_length_that_is_missing_is_named(cli: Cli, folder: Path) -> None:
    done = cli("compile", folder, "--chunks", "1")
    assert (done.code, done.out) == (2, "")
    assert "error: there are no chunks any more: a prompt of any number of tokens" in done.err
    assert "hint: leave the option out" in done.err
    done = cli("compile", folder)
    assert (done.code, done.out) == (2, "")
    assert "error: dimensions of the inputs have no value: encoder (" in done.err
    assert "--dim encoder=" in done.err


def test_a_folder_becomes_a_decoder_and_a_library(cli: Cli, folder: Path) -> None:
    path = folder / "decoder.atn"
    told = ("--dim", "encoder=6", "--threads", "1", "-o", path)
    done = cli("compile", folder, *told)
    assert done.code == 0, done.err
    assert "decoder.onnx with a state of 12 places" in done.err
    assert "outputs agree with ONNX Runtime on 8 behind 0" in done.err
    session = autotune.load(path).session()
    states = np.random.default_rng(0).normal(size=(1, 6, WIDTH)).astype(np.float32)
    session.begin(encoder_hidden_states=states, encoder_attention_mask=np.ones((1, 6), int))
    assert len(list(session.generate([[3, 1, 4]]))) == 12 - 3 + 1
    done = cli("export", path, "-o", folder / "library")
    if "--cc" in done.err and done.code:
        pytest.skip("no compiler of C is here")
    assert done.code == 0, done.err
    header = (folder / "library" / "decoder.h").read_text()
    assert "int decoder_begin(decoder_session *session" in header
    assert "decoder_run" not in header
