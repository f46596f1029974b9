"""What `compile` says of numbers that kernels do not keep."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Cli
from tests.graph.onnx_models import model, node, save


def test_compile_says_that_denormal_weights_count_as_zero(cli: Cli, tmp_path: Path) -> None:
    for w, is_said in (([1e-40, 0, 2, -1e-39], True), ([1e-30, 0, 2, -1], False)):
        proto = model(node("Mul", "x w"), {"x": (3, 4)}, {"w": np.array(w, np.float32)})
        done = cli("compile", save(proto, tmp_path), "-o", tmp_path / "m.atn")
        assert done.code == 0, done.err
        assert ("note: weights below 1.2e-38 count as zero (2 here)" in done.err) is is_said


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2), (ml_dtypes.int4, TensorProto.INT4)],
)
def test_run_takes_and_gives_files_of_small_types(
    dtype: type, number: int, cli: Cli, tmp_path: Path
) -> None:
    nodes = [node("Cast", "q", "w", to=TensorProto.FLOAT), node("Cast", "w", "y", to=number)]
    ports = [helper.make_tensor_value_info(n, number, (2, 8)) for n in "qy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    imports = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "m.onnx")
    q = np.arange(-8, 8).astype(dtype).reshape(2, 8)
    np.save(tmp_path / "q.npy", q.view("V1"))
    done = cli("compile", tmp_path / "m.onnx", "--no-cache", "-o", tmp_path / "m.atn")
    assert done.code == 0, done.err
    files = (f"q={tmp_path}/q.npy", "-o", tmp_path / "y.npz")
    done = cli("run", tmp_path / "m.atn", "--input", *files)
    assert done.code == 0, done.err
    with np.load(tmp_path / "y.npz") as found:
        assert np.array_equal(found["y"].view(dtype).astype(np.float32), q.astype(np.float32))
