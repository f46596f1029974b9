"""The `autotune` command: a platform on which the package cannot be imported is one line."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point."""
    try:
        from autotune.cli.start import main as start
    except ImportError as error:
        hint = getattr(error, "hint", None)
        if hint is None:  # a fault of the installation, not UnsupportedPlatform
            raise
        print(f"error: {error}", f"hint: {hint}", sep="\n", file=sys.stderr)
        sys.exit(1)
    start()
