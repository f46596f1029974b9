"""⑪ The first thing that runs: streams and signals in order before anything large is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `autotune` command."""
    from autotune.cli.signals import end_at_signals, ignore_signals

    end_at_signals()
    from autotune.cli.streams import prepare_streams, settle_streams

    prepare_streams()
    from autotune.cli.main import run

    code = run(sys.argv[1:])
    ignore_signals()  # everything is done, and Python does not expect them on its way out
    settle_streams()
    sys.exit(code)
