"""Compiling for another machine: its name, or the file that describes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from autotune.cli.main import run
from autotune.errors import MissingDependency
from autotune.network.runtime.loading import read_artifact
from autotune.target import parse_target, runs_here, target_names
from autotune.toolchain import toolchain

ELSEWHERE = "diamondrapids"
WORKLOAD = """
from autotune import te
def double(n):
    x = te.placeholder((n,), "x")
    return te.compute((n,), lambda i: x[i] + x[i], "y")
"""

Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


@pytest.fixture
def product(tmp_path: Path) -> Path:
    path = tmp_path / "product.onnx"
    text = "f (float[16, 64] x, float[64, 32] w) => (float[16, 32] y) { y = MatMul(x, w) }"
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    onnx.save(onnx.parser.parse_model(f"{head} {text}"), path)
    return path


def described(here: Here, path: Path, **changes: object) -> Path:
    """The file of this machine, as if some of it were different."""
    assert here("target", "-o", path)[0] == 0
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def require_compiler() -> None:
    try:
        toolchain(None, "x86_64")
    except MissingDependency as error:
        pytest.skip(str(error))


def test_a_machine_is_printed_as_its_file_has_it(here: Here, tmp_path: Path) -> None:
    path = described(here, tmp_path / "machine.json")
    code, out, _ = here("target")
    assert (code, json.loads(out)) == (0, json.loads(path.read_text()))
    assert parse_target(str(path)) == parse_target("native")
    assert json.loads(here("target", "znver5")[1]) == parse_target("znver5").to_json()
    listed = here("target", "--list")[1].splitlines()
    assert [line.split()[0] for line in listed[1:]] == target_names()


def test_a_machine_behind_a_command_is_described_from_here(here: Here) -> None:
    require_compiler()
    assert json.loads(here("target", "--runner", "nice")[1]) == json.loads(here("target")[1])


@pytest.mark.slow
def test_a_log_of_another_machine_compiles_by_its_file(
    here: Here, product: Path, tmp_path: Path
) -> None:
    there = described(here, tmp_path / "there.json", l2_bytes=3 << 20, n_cores=1)
    log, out = tmp_path / "there.jsonl", tmp_path / "out.atn"
    budget = ("--trials", 4, "--threads", 1, "--preset", "ci")
    assert here("tune", product, "--target-file", there, *budget, "--log", log)[0] == 0
    assert here("compile", "--log", log, "--target-file", there, "-o", out)[0] == 0
    assert read_artifact(out).tuned
    assert here("resume", log, "--trials", 1)[0] == 0
    code, _, err = here("compile", "--log", log, "-o", out)
    assert code == 4
    assert "l2_bytes is 3145728 there" in err


def test_threads_are_the_cores_of_the_file(here: Here, product: Path, tmp_path: Path) -> None:
    there, out = described(here, tmp_path / "there.json", n_cores=7), tmp_path / "out.atn"
    options = ("--target-file", there, "--no-check", "--no-cache")
    assert here("compile", product, *options, "-o", out)[0] == 0
    assert read_artifact(out).n_threads == 7


@pytest.mark.parametrize("precision", ["f32", "bf16", "auto"])
def test_code_that_cannot_run_here_is_not_checked_and_exported_all_the_same(
    here: Here, product: Path, tmp_path: Path, precision: str
) -> None:
    if runs_here(parse_target(ELSEWHERE)):
        pytest.skip("this CPU runs all that can be named")
    out, folder = tmp_path / "out.atn", tmp_path / "out"
    options = ("--target", ELSEWHERE, "--precision", precision, "--no-cache")
    code, _, err = here("compile", product, *options, "-o", out)
    assert (code, err.count("not checked")) == (0, 1)
    assert f"note: not checked: this CPU cannot run code for {ELSEWHERE}" in err
    code, _, err = here("run", out)
    assert code == 4
    assert f"is compiled for {ELSEWHERE}; this CPU lacks" in err
    require_compiler()
    assert here("export", out, "-o", folder)[0] == 0
    assert (folder / "libout.so").exists()


def test_a_workload_is_compiled_for_another_cpu(here: Here, tmp_path: Path) -> None:
    file, out = tmp_path / "work.py", tmp_path / "out.atn"
    file.write_text(WORKLOAD)
    arguments = ("compile", f"{file}:double", "--args", 64, "-o", out)
    code, _, err = here(*arguments, "--target", ELSEWHERE)
    assert code == 0
    assert read_artifact(out).target == parse_target(ELSEWHERE)
    assert ("not checked" in err) != runs_here(parse_target(ELSEWHERE))


@pytest.mark.parametrize("command", ["compile", "tune"])
def test_what_is_no_target_is_one_line(
    here: Here, product: Path, tmp_path: Path, command: str
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"cpu": "znver5"}')
    cases = {
        "znver55": "did you mean znver5",
        str(broken): "describes no target",
        str(tmp_path / "missing.json"): "there is no file",
    }
    for target, text in cases.items():
        code, _, err = here(command, product, "--target-file", target)
        assert code == 2
        assert text in err
        assert "Traceback" not in err


def test_names_are_completed_in_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    from autotune.cli.main import app

    found = ShellComplete(app, {}, "autotune", "_AUTOTUNE_COMPLETE")
    values = [item.value for item in found.get_completions(["compile", "--target"], "znver")]
    assert values == ["znver1", "znver2", "znver3", "znver4", "znver5"]
    files = found.get_completions(["compile", "--target-file"], "./mach")
    assert [item.type for item in files] == ["file"]
