"""Workloads, schedules and rules in a user's Python files, by the real commands."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.cli.main import run
from autotune.records import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TUNE = ["tune", "workloads.py:matmul_add", "--args", "16,32,8", "--threads", "1"]


@pytest.mark.slow
def test_a_workload_from_tuning_to_an_artifact(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*TUNE, "--trials", "4", "--log", "m.jsonl"]) == 0
    header = read_log(Path("m.jsonl")).header
    assert header.model_path == f"{folder}/workloads.py:matmul_add(16, 32, 8)"
    capsys.readouterr()
    assert run(["explain", "m.jsonl", "--task", "0", "--stage", "steps"]) == 0
    Path("best.py").write_text(capsys.readouterr().out)
    assert run(["measure", "best.py", "--log", "m.jsonl", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["yours"]["latency_s"] > 0
    assert found["best of the log"]["latency_s"] > 0
    assert run(["resume", "m.jsonl", "--trials", "2"]) == 0
    assert run(["compile", "--log", "m.jsonl", "-o", "m.atn"]) == 0
    a, b, c = (np.ones(s, np.float32) for s in ((16, 8), (8, 32), (16, 32)))
    np.testing.assert_allclose(
        autotune.load("m.atn").run({"a": a, "b": b, "c": c})["out"], a @ b + c, rtol=1e-5
    )


def test_constants_of_a_workload(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("w.py").write_text(
        "from autotune import te\n"
        "def scaled(n):\n"
        "    x, s = te.placeholder(n, 'x'), te.placeholder(n, 's', constant=True)\n"
        "    return te.compute(n, lambda i: x[i] * s[i], 'y')\n"
    )
    assert run(["compile", "w.py:scaled(5)", "-o", "s.atn"]) == 2
    assert "the constants are none, the task has s" in capsys.readouterr().err
    np.savez("s.npz", s=np.arange(5, dtype=np.float32))
    assert run(["compile", "w.py:scaled(5)", "-o", "s.atn", "--constants", "s.npz"]) == 0
    found = autotune.load("s.atn").run({"x": np.full(5, 2, np.float32)})["y"]
    np.testing.assert_array_equal(found, [0, 2, 4, 6, 8])


def test_a_file_imports_the_files_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "sizes", raising=False)
    (folder / "inner").mkdir()
    Path("inner/sizes.py").write_text("N = 5\n")
    Path("inner/w.py").write_text(
        "from sizes import N\nfrom autotune import te\ndef f():\n"
        "    x = te.placeholder(N, 'x')\n    return te.compute(N, lambda i: x[i] + 1, 'y')\n"
    )
    assert run(["tasks", "inner/w.py:f"]) == 0
    assert "5 -> 5" in capsys.readouterr().out


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_a_rule_from_a_file_is_in_the_log_and_can_win(folder: Path) -> None:
    args = ["tune", "workloads.py:blur", "--args", "64,128", "--threads", "1"]
    args += ["--rules", "rules.py", "--trials", "12", "--log", "r.jsonl"]
    assert run(args) == 0
    log = read_log(Path("r.jsonl"))
    mine = [r for r in log.records if r.sketch == "row-blocks"]
    assert mine
    assert all(r.result.ok for r in mine)
    assert log.header.config["rules"] == [f"{folder}/rules.py"]
    n_before = len(mine)
    assert run(["resume", "r.jsonl", "--trials", "4"]) == 0
    again = [r for r in read_log(Path("r.jsonl")).records if r.sketch == "row-blocks"]
    assert len(again) >= n_before


BROKEN = {
    "missing": ("nowhere.py:f", "there is no file nowhere.py"),
    "syntax": ("syntax.py:f", "syntax.py:1: SyntaxError"),
    "raises": ("raises.py:f", "raises.py:2: ZeroDivisionError: division by zero"),
    "no_name": ("workloads.py:g", "workloads.py has no 'g'"),
    "no_tensor": ("nothing.py:f", "needs its outputs"),
    "definition": ("wrong.py:f", "wrong.py:4: x has 1 dimensions and is read with 2 indices"),
}
FILES = {
    "syntax.py": "def f(:\n",
    "raises.py": "def f():\n    return 1 / 0\n",
    "nothing.py": "def f():\n    return ()\n",
    "wrong.py": "from autotune import te\ndef f():\n    x = te.placeholder(3, 'x')\n"
    "    return te.compute(3, lambda i: x[i, i], 'y')\n",
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_in_a_file_is_one_line(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)
    source, message = BROKEN[case]
    assert run(["tasks", source]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RULES = 3\n", "is no tuple of functions"),
        ("def rule(p, name, target):\n    return None\n", "has no 'RULES'"),
        ("def rule(p, name, target):\n    raise KeyError(name)\nRULES = (rule,)\n", "x.py:2: KeyE"),
        (
            "from autotune.rules import Parallel\ndef rule(p, name, target):\n"
            "    return [p.add(Parallel(name, 9))]\nRULES = (rule,)\n",
            "x.py:3: ",
        ),
    ],
)
def test_broken_rules(
    text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.py").write_text(text)
    assert run([*TUNE, "--rules", "x.py", "--trials", "1", "--log", "b.jsonl"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_a_schedule_that_cannot_be_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*TUNE, "--trials", "1", "--log", "m.jsonl"]) == 0
    Path("bad.py").write_text('def schedule(s):\n    s["out"].split("q", 2)\n')
    assert run(["measure", "bad.py", "--log", "m.jsonl"]) == 2
    assert 'bad.py:2: s["out"].split("q", 2): stage out has no loop' in capsys.readouterr().err
    Path("bad.py").write_text('def schedule(s):\n    s["product"].split("r", 3)\n')
    assert run(["measure", "bad.py", "--log", "m.jsonl"]) == 3
    assert "a reduction over r must not overlap" in capsys.readouterr().err
    assert run(["measure", "bad.txt", "--log", "m.jsonl"]) == 2
