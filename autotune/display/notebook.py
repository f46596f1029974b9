"""⑨ The table of a search in a notebook: one output of its cell, which is drawn anew."""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rich.console import Console

from autotune.display.lines import display
from autotune.display.renderers import Renderer
from autotune.display.view import View
from autotune.printable import one_line
from autotune.tuner import Event, of_target

_WIDTH, _HEIGHT = 110, 40
_BETWEEN_S = 0.5
"""At least, between two drawings: each is sent to the browser."""
_CODE = '<pre style="line-height:1.2;font-family:monospace">{code}</pre>'

Put = Callable[[str], None]
"""Shows HTML in the place of what it has shown before."""


def kernel_output() -> Put | None:
    """What draws in the cell of a notebook that runs now; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from importlib import import_module

    shown: Any = import_module("IPython.display")
    handle = shown.display(shown.HTML(""), display_id=True)
    return lambda text: handle.update(shown.HTML(text))


class NotebookTable(Renderer):
    """Draws the table with `put`, at most twice a second and at the end."""

    def __init__(self, put: Put, clock: Callable[[], float]) -> None:
        self._put, self._clock = put, clock
        self._views: defaultdict[str, View] = defaultdict(View)
        self._notes: list[str] = []
        self._drawn_at = -_BETWEEN_S

    def __exit__(self, *_: object) -> None:
        self._draw()

    def note(self, text: str) -> bool:
        """Show a note above the table."""
        self._notes.append(text)
        return True

    def show(self, event: Event) -> None:
        """Remember, and draw unless it was drawn just now."""
        target, event = of_target(event)
        view = self._views[target]
        view.apply(event)
        view.notes[:0], self._notes = self._notes, []
        if self._clock() - self._drawn_at >= _BETWEEN_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        console = Console(file=io.StringIO(), width=_WIDTH, record=True, force_terminal=True)
        for target, view in self._views.items():
            if target:
                console.print(one_line(target), markup=False)
            console.print(display(view, view.elapsed_s, _WIDTH, _HEIGHT))
        self._put(console.export_html(inline_styles=True, code_format=_CODE))
