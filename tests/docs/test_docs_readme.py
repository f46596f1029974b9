"""The commands of README.md: all are commands, and those of its start work in an empty folder."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import click
import onnx
import pytest

from autotune.cli.main import app
from tests.forking import Cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
START = README.partition("\n## Start\n")[2].partition("\n## ")[0]
SMALLER = {"10m": ("--trials", "4"), "1s": ()}
QUICK = {"bench": ("--time", "0.1s"), "demo": ("--time", "0.1s")}
MOST_WORDS = 800


def commands(text: str) -> list[list[str]]:
    lines = re.findall(r"^    autotune (.+)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize("words", commands(README), ids=" ".join)
def test_a_command_of_the_readme_parses(words: list[str]) -> None:
    name, *arguments = words
    with click.Context(app) as context:
        command = app.get_command(context, name)
        assert command is not None
        command.make_context(name, arguments, parent=context)


@pytest.mark.slow
def test_the_start_of_the_readme_works_in_an_empty_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "network", raising=False)
    from network import network

    onnx.save(network(1, 8), tmp_path / "model.onnx")
    words = commands(START)
    assert [w[0] for w in words] == ["demo", "bench", "tune", "compile", "bench"]
    for name, *arguments in words:
        given = [w for a in arguments for w in SMALLER.get(a, (a,)) if w != "--time"]
        done = cli(name, *given, *QUICK.get(name, ()), cwd=tmp_path)
        assert done.code == 0, done.err
        if name == "bench":
            assert "ratio of medians: " in done.out
