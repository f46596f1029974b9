"""In a notebook: a table that is drawn anew in one output, and errors of a few lines."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autotune
from autotune import te
from autotune.api.showing import showing
from autotune.display.notebook import NotebookTable
from autotune.errors import AutotuneError
from autotune.target import host_target


class Notebook:
    """As much of IPython as is asked for: what a cell shows, by the number of its output."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def display(self, text: str, display_id: bool) -> SimpleNamespace:
        assert display_id
        self.outputs.append([text])
        return SimpleNamespace(update=self.outputs[-1].append)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    shell = SimpleNamespace(kernel=object())
    ipython: Any = SimpleNamespace(get_ipython=lambda: shell)
    shown: Any = SimpleNamespace(display=made.display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return made


def double(x: Any) -> Any:
    return te.compute(x.shape, lambda i: x[i] * 2.0)


def test_a_search_is_one_table_that_changes(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    task = autotune.Task(double, (te.placeholder(256, "x"),), target=host_target())
    task.tune(trials=4)
    (drawn,) = notebook.outputs
    assert len(drawn) > 2
    assert drawn[-1].startswith("<pre ")
    assert re.search(r"\b4\b[^<]*trials", re.sub(r"<[^>]*>", "", drawn[-1])), drawn[-1]
    assert "\x1b" not in drawn[-1]
    assert "\x1b[" not in capsys.readouterr().err


def test_lines_and_nothing_stay_what_they_are(notebook: Notebook) -> None:
    for show in ("lines", "nothing"):
        with showing(show):
            pass
    assert notebook.outputs == []


def test_it_is_drawn_twice_a_second_and_at_the_end() -> None:
    from autotune.tuner import NoiseNoticed

    drawn: list[str] = []
    now = [0.0]
    noticed = NoiseNoticed(None)  # type: ignore[arg-type]
    with NotebookTable(drawn.append, lambda: now[0]) as table:
        for now[0] in np.arange(0.0, 2.0, 0.1):
            table.show(noticed)
        assert 4 <= len(drawn) <= 5
        before = len(drawn)
    assert len(drawn) == before + 1


def test_an_error_shows_the_line_of_the_user_its_message_and_hint() -> None:
    with pytest.raises(AutotuneError) as caught:
        autotune.compile("none.onnx", theads=2)  # type: ignore[call-overload]
    shown = caught.value._render_traceback_()
    assert "autotune.compile" in shown[0]
    assert shown[0].startswith("line ")
    assert shown[1] == f"{type(caught.value).__name__}: {caught.value.message}"
    assert shown[2] == f"hint: {caught.value.hint}"
    assert len(shown) == 3
