from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ArtifactError, AutotuneError, ExitCode, UsageError
from autotune.network.artifact import VERSION, Artifact, Tuned
from tests.network.hand_made import reversing


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    reversing(4).save(tmp_path / "net.atn")
    return tmp_path / "net.atn"


def rewrite(path: Path, without: Sequence[str] = (), **changes: Any) -> None:
    """Replace fields of the manifest, and drop some."""
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    manifest = {**json.loads(parts["manifest.json"]), **changes}
    manifest = {name: value for name, value in manifest.items() if name not in without}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in parts.items():
            new.writestr(name, json.dumps(manifest) if name == "manifest.json" else data)


def test_what_is_saved_is_loaded(saved: Path) -> None:
    before, after = replace(reversing(4), max_error=1e-6), Artifact.load(saved)
    assert after.manifest() == {**before.manifest(), "max_error": None}
    assert after.objects == before.objects
    assert np.array_equal(after.constants, before.constants)
    assert after.constants.ctypes.data % 64 == 0


def test_the_largest_error_of_the_check_is_kept(tmp_path: Path) -> None:
    replace(reversing(4), max_error=1e-6).save(tmp_path / "net.atn")
    assert Artifact.load(tmp_path / "net.atn").max_error == 1e-6


def test_latencies_of_tasks_are_kept(tmp_path: Path) -> None:
    tuned = {"t": Tuned(1.25e-3, 2)}
    replace(reversing(4), tuned=tuned).save(tmp_path / "net.atn")
    assert Artifact.load(tmp_path / "net.atn").tuned == tuned


def test_artifacts_from_before_latencies_were_kept(saved: Path) -> None:
    rewrite(saved, without=("tuned",))
    assert Artifact.load(saved).tuned == {}


def test_equal_artifacts_are_equal_bytes(saved: Path, tmp_path: Path) -> None:
    reversing(4).save(tmp_path / "again.atn")
    assert (tmp_path / "again.atn").read_bytes() == saved.read_bytes()


def test_constants_can_be_mapped(saved: Path) -> None:
    data = saved.read_bytes()
    assert data.count(b"constants.bin") == 2
    name = data.index(b"constants.bin")
    extra = int.from_bytes(data[name - 2 : name], "little")
    start = name + len(b"constants.bin") + extra
    assert start % 64 == 0
    assert np.frombuffer(data, np.float32, 1, start)[0] == 1.0


def test_no_temporary_file_is_left(saved: Path) -> None:
    reversing(5).save(saved)
    assert [p.name for p in saved.parent.iterdir()] == ["net.atn"]
    assert len(Artifact.load(saved).kernels) == 5


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write") as caught:
        reversing(1).save(tmp_path / "no" / "net.atn")
    assert caught.value.hint


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        Artifact.load(tmp_path / "net.atn")


@pytest.mark.parametrize("data", [b"", b"PK", b"\x7fELF and so on", b"x" * 5000])
def test_a_foreign_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "net.atn").write_bytes(data)
    with pytest.raises(ArtifactError, match="not a network compiled by autotune") as caught:
        Artifact.load(tmp_path / "net.atn")
    assert caught.value.exit_code is ExitCode.MISMATCH


@pytest.mark.parametrize("manifest", [None, b"{}", b"[]", b"not json"])
def test_a_foreign_zip(tmp_path: Path, manifest: bytes | None) -> None:
    with zipfile.ZipFile(tmp_path / "net.atn", "w") as file:
        file.writestr("something", b"else")
        if manifest is not None:
            file.writestr("manifest.json", manifest)
    with pytest.raises(ArtifactError, match="not a network compiled by autotune"):
        Artifact.load(tmp_path / "net.atn")


def test_every_truncation_is_noticed(saved: Path) -> None:
    data = saved.read_bytes()
    for length in (4, 30, len(data) // 2, len(data) - 100, len(data) - 1):
        saved.write_bytes(data[:length])
        with pytest.raises(ArtifactError, match="damaged or truncated"):
            Artifact.load(saved)


def test_flipped_bits_of_the_constants_are_noticed(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    at = data.index(b"\x00\x00\x80\x3f" + bytes(60))
    data[at] ^= 1
    saved.write_bytes(data)
    with pytest.raises(ArtifactError, match="damaged"):
        Artifact.load(saved)


def test_a_newer_format_is_refused(saved: Path) -> None:
    rewrite(saved, version=VERSION + 1, autotune_version="9.9")
    with pytest.raises(ArtifactError, match=f"version {VERSION + 1}") as caught:
        Artifact.load(saved)
    assert "9.9" in caught.value.hint


def test_a_cpu_without_the_features_is_refused(saved: Path) -> None:
    target = replace(reversing(1).target, cpu="future", features="+sse2,+avx4096")
    rewrite(saved, target=target.to_json())
    with pytest.raises(ArtifactError, match="future; this CPU lacks avx4096") as caught:
        Artifact.load(saved)
    assert caught.value.exit_code is ExitCode.MISMATCH
    assert caught.value.hint


@pytest.mark.parametrize(
    "field", ["target", "kernels", "inputs", "n_objects", "constant_bytes", "tuned"]
)
def test_a_manifest_that_lost_a_field(saved: Path, field: str) -> None:
    rewrite(saved, **{field: {"no": "such"}})
    with pytest.raises(AutotuneError, match="damaged"):
        Artifact.load(saved)
