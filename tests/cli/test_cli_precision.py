"""`--precision` and quantised models on the command line: notes, errors, exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.api.test_api_mixed_precision import two_products
from tests.cli.conftest import Cli
from tests.graph.test_graph_bad_scales import REFUSED
from tests.network.test_network_accuracy import far_apart


def test_auto_names_the_precision_of_each_task(
    rng: np.random.Generator, cli: Cli, tmp_path: Path
) -> None:
    path, out = tmp_path / "two.onnx", tmp_path / "two.atn"
    onnx.save(two_products(rng), path)
    done = cli("tasks", path, "--precision", "auto")
    assert done.code == 0, done.err
    assert "products in f32\n" in done.out
    assert "products in bf16" in done.out
    assert "MatMul, bf16" in done.out
    samples = tmp_path / "x.npz"
    np.savez(samples, x=np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32))
    options = ("--precision", "auto", "--max-error", "1e-6", "--check-input", samples)
    done = cli("compile", path, "-o", out, "--threads", "1", *options)
    assert done.code == 0, done.err
    assert "note: precision auto: " in done.err
    assert "on 3 given, normal, uniform inputs" in done.err
    assert "RMS " in done.err


def test_what_a_precision_or_a_scale_cannot_be_is_one_line(
    rng: np.random.Generator, cli: Cli, tmp_path: Path
) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "m.atn"
    onnx.save(far_apart(rng, 1e5), path)
    done = cli("compile", path, "-o", out, "--precision", "f16")
    assert done.code == 5
    assert "error: precision f16 is too narrow for this model: output 'y'" in done.err
    assert "hint: compile it with --precision bf16" in done.err
    assert not out.exists()
    onnx.save(REFUSED["zero"][0], path)
    done = cli("compile", path, "-o", out)
    assert done.code == 1
    assert "error: operator 'QuantizeLinear' (node 'the q') has a scale of 0" in done.err
    assert len([line for line in done.err.splitlines() if line.startswith(("error", "hint"))]) == 2
    done = cli("compile", path, "-o", out, "--precision", "fp8")
    assert done.code == 2
    assert "bf16" in done.err
