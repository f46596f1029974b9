from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks import contention
from benchmarks.contention_page import tables
from benchmarks.contention_sides import cpu_s, stopped
from benchmarks.decoder import token
from benchmarks.results import read_rows


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    ports = [helper.make_tensor_value_info(name, 1, (4, 64)) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    initialisers = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph([node], "small", ports[:1], ports[1:], initialisers)
    path = tmp_path / "small.onnx"
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_every_section_fills_its_cells(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(contention, "RUNTIMES", ("autotune", "onnxruntime"))
    monkeypatch.delitem(contention.PROGRAMS, "openvino")
    monkeypatch.setattr(contention, "NEIGHBOURS", (0, 1))
    monkeypatch.setattr(contention, "QUOTAS", (0.5,))
    monkeypatch.setattr(contention, "CALLERS", (2,))
    path = tmp_path / "contention.csv"
    given = [str(model), "--machine", "T", "--time", "2s", "-o", str(path)]
    contention.main.main(given, standalone_mode=False)
    rows = read_rows(path)
    assert list(dict.fromkeys(row["section"] for row in rows)) == list(contention.SECTIONS)
    assert {row["model"] for row in rows} == {"small"}
    for row in rows:
        if row["section"] == "memory":
            assert 1 < float(row["one_mb"]) < float(row["four_mb"])
            continue
        assert int(row["runs"]) > 0
        assert 0 < float(row["p50_ms"]) <= float(row["p99_ms"])
        assert float(row["per_s"]) > 0
        assert bool(row["share_pct"]) == (row["section"] == "paced")
        assert bool(row["note"]) == (row["section"] == "quota")
    by_section = {
        row["section"]: {r["runtime"] for r in rows if r["section"] == row["section"]}
        for row in rows
    }
    assert by_section["callers"] == {"autotune", "onnxruntime", "onnxruntime:per-caller"}
    assert {"autotune", "autotune on 1", "onnxruntime"} <= by_section["quota"]
    assert "\n".join(tables(rows)).count("| small |") == 6


def test_a_stopped_process_gets_its_share_of_the_processor() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            time.sleep(0.2)
            before_s, start_s = cpu_s(process.pid), time.monotonic()
            with stopped(process.pid, 0.3):
                time.sleep(1.0)
            share = (cpu_s(process.pid) - before_s) / (time.monotonic() - start_s)
        finally:
            process.kill()
    assert share < 0.6


def test_the_table_compares_with_the_better_of_the_others() -> None:
    head = {"machine": "T", "model": "m", "section": "callers", "level": "2", "note": ""}
    figures = {
        "autotune": ("30", "2", "9"),
        "onnxruntime": ("20", "4", "3"),
        "openvino": ("15", "1", "4"),
    }
    rows = [
        head | {"runtime": name} | dict(zip(("per_s", "p50_ms", "p99_ms"), each, strict=True))
        for name, each in figures.items()
    ]
    last = list(tables(rows))[-1].splitlines()[-1]
    assert last == "| m | 2 | 30 / 2 / 9 | 20 / 4 / 3 | 15 / 1 / 4 | 0.67 / 2.00 / 3.00 |"
    assert list(tables([])) == ["Nothing is measured yet."]


def test_the_token_of_the_decoder_is_a_model() -> None:
    onnx.checker.check_model(token(1), full_check=True)
