"""The GitHub action: its steps tune, compile and gate a small model, as a runner would do them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from tests.cli.conftest import mlp
from tests.forking import ROOT, environment

pytestmark = pytest.mark.slow


def run_action(folder: Path, **given: str) -> int:
    """The exit code of the first step that fails; what other actions do is left out."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {f"inputs.{k}": str(v.get("default", "")) for k, v in action["inputs"].items()}
    values |= {f"inputs.{name.replace('_', '-')}": text for name, text in given.items()}
    for name, words in {"autotune": "-m autotune ", "python": ""}.items():
        command = folder / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        command.chmod(0o755)
    for step in action["runs"]["steps"]:
        if "run" not in step or not is_wanted(step.get("if"), values):
            continue
        output = folder / "output"
        output.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env=environment()
            | {name: filled(text, values) for name, text in step.get("env", {}).items()}
            | {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
            | {"PATH": f"{command.parent}:/usr/bin:/bin", "AUTOTUNE_BENCH_TIME_S": "0.1s"},
            timeout=300,
            check=False,
        )
        if done.returncode:
            return done.returncode
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{name}"] = value
    return 0


def is_wanted(condition: str | None, values: dict[str, str]) -> bool:
    """Conditions are of the form `inputs.NAME != ''`."""
    return condition is None or bool(values[condition.removesuffix(" != ''")])


def filled(text: Any, values: dict[str, str]) -> str:
    """Text with its `${{ … }}`; a KeyError names what there is not."""
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda match: values[match[1]], str(text))


def test_the_action_tunes_compiles_and_fails_where_it_is_slower(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "mlp.onnx")
    given = {"model": "mlp.onnx", "options": "--trials 4 --preset ci --threads 1", "package": ""}
    assert run_action(tmp_path, **given) == 0
    folder = tmp_path / "autotune-results"
    (log,) = folder.glob("*.jsonl")
    before = log.read_bytes()
    artifact = folder / "mlp.atn"
    assert (tmp_path / "summary.md").read_text()
    assert not (folder / "gate.json").exists()
    artifact.rename(tmp_path / "base.atn")
    assert run_action(tmp_path, **given, compare="base.atn", fail_above="0.01") == 6
    assert log.read_bytes().startswith(before)
    verdict = json.loads((folder / "gate.json").read_text())
    assert verdict["variants"][0]["fails"]
    summary = (tmp_path / "summary.md").read_text()
    assert "## Gate: fails\n" in summary
    assert f"| {verdict['ratio']:.3f} | " in summary
    assert summary.rstrip().endswith("| fails |")
