"""`autotune report` in processes: pages, Markdown, JSON, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.records import read_log
from tests.forking import Cli, environment


def test_a_report_of_a_real_session(cli: Cli, tuned: Path, artifact: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="plots need vl-convert-python")
    page = tmp_path / "report.html"
    done = cli("report", tuned, artifact, "--against", tuned, "-o", page)
    assert (done.code, done.out, done.err) == (0, f"{page}\n", "")
    text = page.read_text(encoding="utf-8")
    for title in ("Result", "Compared", "Roofline", "Tasks", "The compiled network"):
        assert f">{title}</h2>" in text


def test_its_forms_agree_with_the_log(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    log = read_log(tuned)
    done = cli("report", tuned, "--format", "json")
    search = json.loads(done.out)["search"]
    assert search["n_trials"] == 16
    assert search["peaks"] == log.ends[-1].peaks
    assert search["peaks"]["flops_per_s"] > 1e9
    assert {t["key"]: t["bound_s"] for t in search["tasks"]} == log.ends[-1].bounds_s
    assert {t["binds"] for t in search["tasks"]} <= {"arithmetic", "weights", "activations"}
    path = tmp_path / "comment.md"
    assert cli("report", tuned, "-o", path).code == 0
    assert path.read_text() == cli("report", tuned, "--format", "md").out


def test_without_a_place_a_page_is_beside_its_log(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="plots need vl-convert-python")
    log = tmp_path / "a.jsonl"
    log.write_bytes(tuned.read_bytes()[:-20])  # as a kill leaves it
    done = cli("report", log)
    assert (done.code, done.out) == (0, f"{log.with_suffix('.html')}\n")
    assert "cut off" in log.with_suffix(".html").read_text()


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [("", 4, "is empty"), ("# nothing\n", 4, "is no autotune log"), (None, 2, "there is no file")],
)
def test_what_is_no_log_is_one_line(
    cli: Cli, tmp_path: Path, content: str | None, code: int, text: str
) -> None:
    log = tmp_path / "a.jsonl"
    if content is not None:
        log.write_text(content)
    done = cli("report", log, "--format", "md")
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert done.err.count("\n") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "more", "text"),
    [
        ('"$@" >/dev/full', [], "cannot write to stdout: No space left on device"),
        ('ulimit -f 0; "$@"', ["-o", "x.md"], "x.md: File too large"),
    ],
)
def test_no_room_is_one_line_and_leaves_nothing(
    tuned: Path, tmp_path: Path, script: str, more: list[str], text: str
) -> None:
    command = [sys.executable, "-m", "autotune", "report", str(tuned), "--format", "md", *more]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 2), done.stderr
    assert text in done.stderr
    assert list(tmp_path.iterdir()) == []
