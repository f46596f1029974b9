"""CI reads the subjects of pushes and of pull requests with one script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "subjects"
UNKNOWN = "0" * 40
LONG = "docs: " + "x" * 67


@pytest.mark.parametrize(
    ("subjects", "base", "refused"),
    [
        (["a: first", "b: " + "x" * 69], "HEAD~1", []),
        (["a: first", LONG, "c: last"], "HEAD~2", [LONG]),
        (["a: first", LONG, "c: last"], "HEAD~1", []),
        (["a: first", LONG], UNKNOWN, [LONG]),
        ([LONG, "b: last"], UNKNOWN, []),
    ],
)
def test_a_long_subject_is_named(
    tmp_path: Path, subjects: list[str], base: str, refused: list[str]
) -> None:
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": "somebody", f"GIT_{role}_EMAIL": "somebody@example.org"}
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True, env=env)
    for subject in subjects:
        command = [*git, "commit", "-q", "--allow-empty", "-m", subject]
        subprocess.run(command, check=True, env=env)
    told = subprocess.run(
        [SCRIPT, base, "HEAD"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert told.stdout.splitlines() == refused
    assert told.returncode == bool(refused)
