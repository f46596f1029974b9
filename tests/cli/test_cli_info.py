"""`autotune info`: facts as text and JSON, of this machine and of other CPUs."""

from __future__ import annotations

import json
import os

import pytest

from autotune.cli.main import run
from autotune.target import host_target, parse_target
from autotune.version import __version__


def test_facts_of_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AUTOTUNE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AUTOTUNE_THREADS", "2")
    assert run(["info", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == host_target().to_json()
    assert [p["n_threads"] for p in found["peaks"]][:1] == [1]
    for peaks in found["peaks"]:
        assert set(peaks["flops"]) == set(found["forms"])
        assert min(*peaks["flops"].values(), peaks["l2_bytes"], peaks["memory_bytes"]) > 1e8
        assert 0 <= peaks["spread"] < 1
    assert found["variables"] == {"AUTOTUNE_THREADS": "2"}
    assert {"autotune", "python", "numpy", "llvm"} <= set(found["versions"])


def test_another_cpu_is_described_and_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "--target", "neoverse-v1"]) == 0
    text = capsys.readouterr().out
    target = parse_target("neoverse-v1")
    assert f"{target.cpu}, aarch64, vectors of 256 bits" in text
    assert "GFLOP/s" not in text


def test_a_version_has_what_a_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"autotune {__version__}\n"
    assert run(["-V", "--verbose"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["autotune"] == __version__
    assert {"processor", "target", "system", "versions", "cache"} <= rows.keys()
    assert "thread" not in rows
    assert run(["--version", "tune"]) == 0
    assert capsys.readouterr().out == f"autotune {__version__}\n"
