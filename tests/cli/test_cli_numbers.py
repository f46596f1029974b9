"""What `compile` says of numbers that kernels do not keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cli.conftest import Cli
from tests.graph.onnx_models import model, node, save


def test_compile_says_that_denormal_weights_count_as_zero(cli: Cli, tmp_path: Path) -> None:
    for w, is_said in (([1e-40, 0, 2, -1e-39], True), ([1e-30, 0, 2, -1], False)):
        proto = model(node("Mul", "x w"), {"x": (3, 4)}, {"w": np.array(w, np.float32)})
        done = cli("compile", save(proto, tmp_path), "-o", tmp_path / "m.atn")
        assert done.code == 0, done.err
        assert ("note: weights below 1.2e-38 count as zero (2 here)" in done.err) is is_said
