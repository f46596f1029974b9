"""⑪ The first thing that runs: streams and signals in order before anything large is imported."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Entry point of the `autotune` command."""
    from autotune.cli.signals import end_at_signals, ignore_signals

    end_at_signals()
    from autotune.cli.streams import prepare_streams, settle_streams

    prepare_streams()
    _require_click()
    from autotune.cli.main import run

    code = run(sys.argv[1:])
    ignore_signals()  # everything is done, and Python does not expect them on its way out
    settle_streams()
    sys.exit(code)


def _require_click() -> None:
    """End with one line where only what artifacts need is installed."""
    if find_spec("click") is None:
        print(
            "error: the command needs click, which is not installed",
            _HINT,
            sep="\n",
            file=sys.stderr,
        )
        sys.exit(1)


_HINT = (
    "hint: install the package with its dependencies; `autotune.load` in Python needs NumPy alone"
)
