"""Make the commit of a version: numbers, changelog, and the archive that later versions read.

    python -m release.prepare 0.3.0

Changes autotune/version.py, pyproject.toml, CHANGELOG.md and tests/compatibility, and commits it. A
tree with changes, or a version that is not the next patch, minor or major one, is refused.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from release.build import ROOT, git

_UNRELEASED = "## Unreleased\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Make the commit of a version.")
    parser.add_argument("version")
    version = parser.parse_args().version
    if git("status", "--porcelain").strip():
        raise SystemExit("error: the tree has changes\nhint: commit or stash them")
    before = _version()
    if version not in following(before):
        raise SystemExit(f"error: after {before} comes one of {', '.join(following(before))}")
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    _change("autotune/version.py", f'"{before}"', f'"{version}"')
    _change("pyproject.toml", f'version = "{before}"', f'version = "{version}"')
    log = ROOT / "CHANGELOG.md"
    log.write_text(released(log.read_text(encoding="utf-8"), version, today), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "tests.compatibility.make"], cwd=ROOT, check=True)
    git("add", "-A")
    git("commit", "-q", "-m", f"release: {version}")


def following(version: str) -> list[str]:
    """The versions that may come next."""
    major, minor, patch = map(int, version.split("."))
    return [f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 1}.0", f"{major + 1}.0.0"]


def released(changelog: str, version: str, date: str) -> str:
    """The changelog with what was unreleased under its version. Raises SystemExit for nothing."""
    head, found, rest = changelog.partition(_UNRELEASED)
    if not found or not re.match(r"\s*\S", rest.partition("\n## ")[0]):
        raise SystemExit("error: nothing is unreleased in CHANGELOG.md")
    return f"{head}{_UNRELEASED}\n## {version} ({date})\n{rest}"


def notes(changelog: str, version: str) -> str:
    """What the changelog says of a version: the text of its release."""
    match = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if match is None:
        raise SystemExit(f"error: CHANGELOG.md says nothing of {version}")
    return match[1].strip() + "\n"


def _version() -> str:
    from autotune.version import __version__

    return __version__


def _change(name: str, old: str, new: str) -> None:
    path = Path(ROOT, name)
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(f"error: {name} has no {old}")
    path.write_text(text.replace(old, new), encoding="utf-8")


if __name__ == "__main__":
    main()
