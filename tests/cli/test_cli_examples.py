"""Examples in the help: every command has some, and they are commands."""

from __future__ import annotations

import shlex

import click
import pytest

from autotune.cli.examples import EXAMPLES
from autotune.cli.main import app, run


def commands() -> dict[str, click.Command]:
    with click.Context(app) as context:
        assert isinstance(app, click.Group)
        found = {name: app.get_command(context, name) for name in app.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


@pytest.mark.parametrize("name", commands())
def test_a_command_has_examples_that_parse(name: str) -> None:
    command = commands()[name]
    for text in EXAMPLES[name]:
        words = shlex.split(text)
        with command.make_context(name, list(words)) as context:
            if isinstance(command, click.Group):
                _, inner, rest = command.resolve_command(context, words)
                assert inner is not None
                inner.make_context(words[0], rest, parent=context)
    assert f"autotune {name}" in command.get_help(click.Context(command, info_name=name))


def test_a_command_that_is_misspelt_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bensh"]) == 2
    assert "there is no command 'bensh' (did you mean bench?)" in capsys.readouterr().err
    assert run(["zzz"]) == 2
    assert "there are: demo, tune, " in capsys.readouterr().err
