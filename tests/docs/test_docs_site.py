"""The site as Sphinx makes it: options of the command reference can be copied."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = """
Commands
========

`plain` --option

.. click:: autotune.cli.main:app
   :prog: autotune
   :nested: full
"""


@pytest.mark.slow
def test_options_of_the_command_reference_keep_their_dashes(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_click")
    source, site = tmp_path / "docs", tmp_path / "site"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    shutil.copytree(DOCS / "_static", source / "_static")
    (source / "index.rst").write_text(PAGE)
    command = [sys.executable, "-m", "sphinx", "-q", str(source), str(site)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "With --against, all run" in text
    assert re.findall(r"[–—]\w+", text) == []
    assert '<span class="pre">plain</span>' in text
