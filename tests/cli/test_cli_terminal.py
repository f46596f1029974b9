"""Names in a model and in a log are whatever their author wrote: a terminal never obeys them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from autotune.cli.bench import command  # noqa: F401  (the commands are there before a test begins)
from tests.forking import Cli, Outcome
from tests.test_printable import controls

WILD = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e[/red]\nFORGED: line\r"
"""Sets the title, clears the screen, colours, turns the direction, forges a line; wrong markup."""


def harmless(outcome: Outcome) -> Outcome:
    for text in (outcome.out, outcome.err):
        assert controls(text) <= {"\n", "\t"}, ascii(text)
        assert not any(line.startswith("FORGED") for line in text.splitlines()), text
    return outcome


@pytest.fixture
def wild_model(tmp_path: Path) -> Path:
    """Names of a graph, a node, tensors, and of a function's operator."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8])
        for name in (f"x{WILD}", f"y{WILD}")
    )
    nodes = [
        helper.make_node("Relu", [x.name], [f"a{WILD}"], name=f"n{WILD}"),
        helper.make_node("Exp", [f"a{WILD}"], [y.name], name=f"m{WILD}"),
    ]
    graph = helper.make_graph(nodes, f"g{WILD}", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.slow
def test_names_of_a_model_are_shown_and_not_obeyed(
    here: Cli, wild_model: Path, tmp_path: Path
) -> None:
    made = tmp_path / "m.atn"
    for arguments in (
        ("compile", wild_model, "-o", made, "--threads", 1, "--no-cache"),
        ("run", made),
        ("run", made, "--format", "json"),
        ("tasks", wild_model),
        ("tasks", wild_model, "--dag"),
        ("tasks", wild_model, "--format", "json"),
        ("bench", made, "--time", "0.05s", "--per-task"),
    ):
        assert harmless(here(*arguments)).code == 0, arguments
    for arguments in (
        ("run", made, "--input", f"z{WILD}={wild_model}"),
        ("compile", wild_model, "-o", made, "--shape", f"z{WILD}=1,2"),
        ("tasks", tmp_path / "none\x1b[2J.onnx"),
    ):
        assert harmless(here(*arguments)).code == 2, arguments


def changed(log: Path, tmp_path: Path, change: Callable[[dict[str, object]], None]) -> Path:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        change(line)
    (tmp_path / "wild.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path / "wild.jsonl"


def with_wild_names(line: dict[str, object]) -> None:
    for name in ("label", "sketch", "model_path", "reason"):
        if name in line:
            line[name] = f"{line[name]}{WILD}"
    if "result" in line:
        line["result"]["error"] = WILD  # type: ignore[index]


def test_names_of_a_log_are_shown_and_not_obeyed(
    here: Cli, tuned: Path, model: Path, tmp_path: Path
) -> None:
    log = changed(tuned, tmp_path, with_wild_names)
    pages = [tmp_path / "page.html", tmp_path / "page.md"]
    for arguments in (
        ("explain", log),
        ("explain", log, "--task", 0),
        ("distill", log, "-o", tmp_path / "best.jsonl"),
        ("compile", model, "--log", log, "-o", tmp_path / "m.atn"),
        ("report", log, "-o", pages[0]),
        ("report", log, "-o", pages[1], "--format", "md"),
        ("report", log, "--format", "json"),
        ("resume", log, "--trials", 4, "--no-compare"),
    ):
        harmless(here(*arguments))
    for page in pages:
        assert controls(page.read_text()) <= {"\n", "\t"}
