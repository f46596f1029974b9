"""`autotune tasks --passes` and `--after PASS`: the graph between its passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from autotune.graph.passes.pipeline import PASSES
from tests.cli.conftest import mlp

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
