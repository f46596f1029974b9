"""Rules and operators of an installed package, found by entry points in a real process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from autotune.records import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = """
<ir_version: 9, opset_import: ["" : 17, "com.acme" : 1]>
g (float[4, 6] x) => (float[4, 6] y) { y = com.acme.Swish<beta = 2.0>(x) }
"""
ENTRIES = (
    "[autotune.rules]\nblocks = acme.rules:RULES\n[autotune.operators]\nall = acme.ops:OPERATORS\n"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as an installer leaves it: package `acme` and what its metadata says."""
    package, info = tmp_path / "site/acme", tmp_path / "site/acme-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(EXAMPLES / "rules.py", package / "rules.py")
    shutil.copy(EXAMPLES / "operators.py", package / "ops.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    shutil.copy(EXAMPLES / "workloads.py", tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "acme.onnx")
    return tmp_path / "site"


def autotune(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *words]
    env = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run(
        command, cwd=site.parent, env=env, capture_output=True, text=True, check=False
    )


def tune(site: Path) -> subprocess.CompletedProcess[str]:
    args = ["tune", "workloads.py:blur", "--args", "32,64", "--threads", "1"]
    return autotune(site, *args, "--trials", "6", "--log", "blur.jsonl")


@pytest.mark.slow
def test_an_installed_package_brings_rules_and_operators(site: Path) -> None:
    done = autotune(site, "tasks", "acme.onnx")
    assert (done.returncode, "Swish" in done.stdout) == (0, True), done.stderr
    assert tune(site).returncode == 0
    sketches = {r.sketch for r in read_log(site.parent / "blur.jsonl").records}
    assert "row-blocks" in sketches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RULES = 3\n", "RULES of acme.rules:RULES is no tuple of functions"),
        ("import nothing\n", "the sketch rules of 'acme.rules:RULES' cannot be loaded: No module"),
        ("def r(p, n, t):\n    return p.x\nRULES = (r,)\n", "acme/rules.py:2: AttributeError"),
    ],
)
def test_a_broken_package_is_named_in_one_line(site: Path, text: str, message: str) -> None:
    (site / "acme/rules.py").write_text(text)
    done = tune(site)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
