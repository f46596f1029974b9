"""Scripts in Node, with the features that modules of WebAssembly need."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

FLAG = "--experimental-wasm-relaxed-simd"
"""Of Node 20, and of no other."""


@cache
def node() -> tuple[str, ...]:
    """The command; skips where there is no Node that runs relaxed SIMD."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    version = int(done.stdout.strip().lstrip("v").split(".")[0])
    if version < 20:
        pytest.skip(f"node {version} has no relaxed SIMD")
    return ("node", FLAG) if version == 20 else ("node",)


def run_script(text: str, folder: Path | None = None) -> str:
    """What a script, a module of JavaScript, writes to stdout; it is in `folder` while it runs."""
    with TemporaryDirectory() as other:
        where = folder or Path(other)
        path = where / "script.mjs"
        path.write_text(text)
        command = [*node(), path.name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=where)
    assert done.returncode == 0, done.stderr
    return done.stdout
