"""`autotune tasks --passes` and `--after PASS`: the graph between its passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from autotune.graph.passes.pipeline import PASSES
from tests.cli.conftest import mlp
from tests.graph.onnx_models import model, node, save

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("m") / "mlp.onnx"
    onnx.save(mlp(), found)
    return found


def test_passes_are_listed_in_order(cli: Cli, path: Path) -> None:
    done = cli("tasks", path, "--passes")
    assert done.code == 0, done.err
    first = [line.split()[0] for line in done.out.splitlines()]
    assert first == ["pass", "import", *(step.name for step in PASSES)]


def test_the_graph_behind_a_pass_is_printed(cli: Cli, path: Path) -> None:
    done = cli("tasks", path, "--after", "resolve")
    assert done.code == 0, done.err
    head, *nodes, last = done.out.splitlines()
    assert head.startswith("input x: float32[4, 8]")
    assert [line.split(" = ")[1].split("(")[0] for line in nodes] == ["MatMul", "Relu", "MatMul"]
    assert last == "output y"


def test_an_unknown_pass_is_an_error_with_their_names(cli: Cli, path: Path) -> None:
    done = cli("tasks", path, "--after", "nothing")
    assert done.code == 2
    assert done.err.splitlines()[0] == "error: there is no pass 'nothing'"
    assert "channels-last" in done.err.splitlines()[1]


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = {"w": np.ones((8, 4), np.float32), "b": np.ones(4, np.float32)}
    nodes = [node("Gemm", "x w b", "g"), node("Relu", "g", "y")]
    return save(model(nodes, {"x": (2, 8)}, weights), tmp_path_factory.mktemp("g"))


def test_rewrites_are_bisected(cli: Cli, gemm: Path) -> None:
    none, all_of_them = (
        cli("tasks", gemm, "--after", "fold-linear", "--rewrites", n) for n in (0, 10_000)
    )
    assert none.code == all_of_them.code == 0, none.err
    whole = cli("tasks", gemm, "--after", "fold-linear")
    assert all_of_them.out == whole.out
    assert "Gemm(" in none.out
    assert "Gemm(" not in whole.out


def test_all_stages_are_written_to_a_new_folder(cli: Cli, gemm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    done = cli("tasks", gemm, "--dump", folder)
    assert done.code == 0, done.err
    graphs = sorted(p.name for p in (folder / "graph").iterdir())
    names = ["import", *(step.name for step in PASSES)]
    assert graphs == [f"{n:02}-{name}.txt" for n, name in enumerate(names)]
    assert any("# rewrite 1: " in p.read_text() for p in (folder / "graph").iterdir())
    tasks = list((folder / "tasks").iterdir())
    assert len(tasks) == int(done.out.split(", ")[1].split()[0])
    for task in tasks:
        assert {p.stem for p in task.iterdir()} >= {"te", "loopir", "llvm", "asm"}
        assert all(p.read_text().strip() for p in task.iterdir())
    again = cli("tasks", gemm, "--dump", folder)
    assert (again.code, again.err.splitlines()[0]) == (2, f"error: '{folder}' is not empty")


def test_stages_of_a_model_whose_operators_write_lengths(cli: Cli, tmp_path: Path) -> None:
    proto = model(node("NonZero", "x", "y"), {"x": (2, 8)}, types={"y": "int64"})
    path = save(proto, tmp_path)
    folder = tmp_path / "stages"
    done = cli("tasks", path, "--dump", folder)
    assert done.code == 0, done.err
    (imported,) = (folder / "graph").glob("*-import.txt")
    assert "NonZero(" not in imported.read_text()
    assert any("length" in p.read_text() for p in (folder / "tasks").rglob("te.txt"))


def test_dumped_tasks_are_those_of_the_first_rewrites(cli: Cli, tmp_path: Path) -> None:
    weights = {name: np.arange(2, 6, dtype=np.float32) for name in ("s", "t")}
    nodes = [node("Mul", "x s", "a"), node("Mul", "a t", "y")]
    path = save(model(nodes, {"x": (2, 4)}, weights), tmp_path)
    n_scales = []
    for n in (0, 10_000):
        done = cli("tasks", path, "--rewrites", n, "--dump", tmp_path / str(n))
        assert done.code == 0, done.err
        (task,) = (tmp_path / str(n) / "tasks").iterdir()
        n_scales.append(len(set(re.findall(r"scale\d*", (task / "te.txt").read_text()))))
    assert n_scales == [2, 1]


def test_a_limit_that_leaves_an_operator_undefined_is_an_error_behind_the_graphs(
    cli: Cli, gemm: Path, tmp_path: Path
) -> None:
    done = cli("tasks", gemm, "--rewrites", 0, "--dump", tmp_path / "none")
    assert done.code == 1
    assert "'Gemm'" in done.err
    assert list((tmp_path / "none" / "graph").iterdir())


def test_a_limit_of_rewrites_alone_is_an_error(cli: Cli, gemm: Path) -> None:
    done = cli("tasks", gemm, "--rewrites", 1)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == "error: --rewrites stands alone"
