"""The cases of the benchmark of low precision, and a row of each kind."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from autotune.target import host_target
from benchmarks import low_precision

pytestmark = pytest.mark.target

HAS_DOTS = any(f.operands == ("uint8", "int8") for f in host_target().isa.forms)


def run(out: Path, *words: str) -> list[dict[str, str]]:
    options = ["--machine", "T", "--time", "0.01s", "--out", str(out)]
    result = CliRunner().invoke(low_precision.main, [*options, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.sampled(0)
@pytest.mark.slow
@pytest.mark.skipif(not HAS_DOTS, reason="no dot products of bytes")
def test_a_kernel_is_measured_once_as_a_share_of_the_peak_of_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_precision, "GEMMS", ((32, 64, 64),))
    monkeypatch.setattr(low_precision, "CONVOLUTIONS", ())
    out = tmp_path / "rows.csv"
    rows = run(out, "--trials", "2", "--only", "kernel")
    bytes_only = [r for r in rows if r["form"] == "vpdpbusd"]
    assert [r["case"] for r in bytes_only] == ["GEMM 32x64x64"]
    assert all(0 < float(r["share_pct"]) < 150 for r in rows)
    assert run(out, "--trials", "2", "--only", "kernel") == rows


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_weights_and_a_model_file_are_measured_beside_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_precision, "WEIGHTS_K", 64)
    monkeypatch.setattr(low_precision, "WEIGHTS_N", 32)
    monkeypatch.setattr(low_precision, "ROWS", (1,))
    weights = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    ports = [helper.make_tensor_value_info(n, 1, (2, 8)) for n in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "mine", ports[:1], ports[1:], [weights])
    imports = [helper.make_opsetid("", 20)]
    path = tmp_path / "mine.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    monkeypatch.setattr(low_precision, "NETWORKS", ())
    monkeypatch.setattr(low_precision, "BASELINES", ("onnxruntime",))
    run(tmp_path / "rows.csv", "--trials", "0", "--only", "weights")
    rows = run(tmp_path / "rows.csv", "--trials", "0", "--model", str(path), "--only", "mine")
    assert [r["case"] for r in rows] == ["1x64->32", "1x64->32", "mine"]
    assert all(float(r["ratio"]) > 0 for r in rows)
    *_, last = run(tmp_path / "rows.csv", "--trials", "0", "--bf16", str(path), "--only", "in bf16")
    assert (last["case"], last["form"]) == ("mine", "in bf16")
    assert float(last["autotune_us"]) > 0
