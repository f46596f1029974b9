"""What killed processes leave is removed by the next that writes there, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autotune.files import replacing
from autotune.work_folders import work_folder

LEFT = """
import os, sys, time
from pathlib import Path
from typing import Any

import pytest
import autotune.files as files
from autotune.work_folders import work_folder
place = Path(sys.argv[1])
files._unnamed = lambda folder: None  # as on a file system that cannot do that
with work_folder(place, ".made-") as folder, files.replacing(place / "x") as out:
    (folder / "half").write_text("half")
    out.write(b"half")
    print("there", flush=True)
    time.sleep(60)
"""


def test_leftovers_of_kills_go_with_the_next_write(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEFT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"there\n"
        (tmp_path / ".autotune-notes.tmp").write_text("mine")
        (tmp_path / ".made-by-me").mkdir(mode=0o755)
        before = set(os.listdir(tmp_path))
        assert len(before) == 4
        age(tmp_path)
        write(tmp_path)
        assert set(os.listdir(tmp_path)) == before | {"y"}  # the writer lives
        writer.send_signal(signal.SIGKILL)
    write(tmp_path)
    assert set(os.listdir(tmp_path)) == {"y", ".autotune-notes.tmp", ".made-by-me"}


def age(place: Path) -> None:
    """Wait until what is new counts as left, where nobody holds it."""
    time.sleep(2.1)
    assert time.time() - max(p.stat().st_ctime for p in place.iterdir()) > 2


def write(place: Path) -> None:
    with work_folder(place, ".made-"), replacing(place / "y") as out:
        out.write(b"new")


@pytest.mark.parametrize("nth", range(6))
def test_an_open_that_fails_once_leaves_no_folder(
    nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder goes whichever of its opens fails: that of its lock, or one that removes it."""
    real, count = os.open, iter(range(1000))

    def failing(*args: Any, **told: Any) -> int:
        if next(count) == nth:
            raise OSError(24, "too many open files")
        return real(*args, **told)

    monkeypatch.setattr(os, "open", failing)
    with suppress(OSError), work_folder(tmp_path, ".made-") as folder:
        (folder / "half").write_text("half")
    assert not list(tmp_path.iterdir())
