"""Print what CHANGELOG.md says of a version: `python -m release.notes 0.3.0`."""

from __future__ import annotations

import sys

from release.build import ROOT
from release.prepare import notes

if __name__ == "__main__":
    print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), sys.argv[1]), end="")
