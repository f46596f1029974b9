from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.codegen.memory import aligned
from autotune.errors import ArtifactError, ExitCode, UsageError
from autotune.extent import Length
from autotune.network.artifact import container, digests
from autotune.network.artifact.artifact import OF_SEVERAL_CPUS, Tuned
from autotune.network.artifact.work import Work
from autotune.network.runtime.loading import load, read_artifact
from tests.network.artifact_mutations import read_parts, write_parts
from tests.network.hand_made import reversing
from tests.network.sized_networks import sized_artifact


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    reversing(4).save(tmp_path / "net.atn")
    return tmp_path / "net.atn"


def rewrite(path: Path, without: Sequence[str] = (), **changes: Any) -> None:
    """Replace fields of the manifest, and drop some; its seal is that of the new one."""
    parts = read_parts(path)
    manifest = {**json.loads(parts["manifest.json"]), **changes}
    manifest = {name: value for name, value in manifest.items() if name not in without}
    write_parts(path, parts, manifest)


def test_what_is_saved_is_loaded(saved: Path) -> None:
    before, after = replace(reversing(4), max_error=1e-6), read_artifact(saved)
    assert after.manifest() == {**before.manifest(), "max_error": None}
    assert after.image == before.image
    assert np.array_equal(after.constants, before.constants)
    assert after.constants.ctypes.data % 64 == 0


def test_the_largest_error_of_the_check_is_kept(tmp_path: Path) -> None:
    replace(reversing(4), max_error=1e-6).save(tmp_path / "net.atn")
    assert read_artifact(tmp_path / "net.atn").max_error == 1e-6


def test_latencies_of_tasks_are_kept(tmp_path: Path) -> None:
    tuned = {"t": Tuned(1.25e-3, 2)}
    replace(reversing(4), tuned=tuned).save(tmp_path / "net.atn")
    assert read_artifact(tmp_path / "net.atn").tuned == tuned


def test_what_tasks_do_at_least_is_kept(tmp_path: Path) -> None:
    works = {"t": (Work(0, {"fma": 1024}, 512, 896),)}
    replace(reversing(4), works=works).save(tmp_path / "net.atn")
    assert read_artifact(tmp_path / "net.atn").works == works


def test_artifacts_from_before_digests_are_refused(saved: Path) -> None:
    parts = read_parts(saved)
    manifest = {**json.loads(parts["manifest.json"]), "version": 1, "autotune_version": "0.1"}
    del parts["seal"], manifest["parts"]
    with zipfile.ZipFile(saved, "w") as file:
        for name, data in parts.items():
            file.writestr(name, json.dumps(manifest) if name == "manifest.json" else data)
    with pytest.raises(ArtifactError, match="format version 1") as caught:
        read_artifact(saved)
    assert caught.value.hint.startswith("compile it anew")


def test_equal_artifacts_are_equal_bytes(saved: Path, tmp_path: Path) -> None:
    reversing(4).save(tmp_path / "again.atn")
    assert (tmp_path / "again.atn").read_bytes() == saved.read_bytes()


def test_constants_can_be_mapped(saved: Path) -> None:
    data = saved.read_bytes()
    name = data.rindex(b"constants.bin", 0, data.rindex(b"constants.bin"))
    extra = int.from_bytes(data[name - 2 : name], "little")
    start = name + len(b"constants.bin") + extra
    assert start % 64 == 0
    assert np.frombuffer(data, np.float32, 1, start)[0] == 1.0


def test_no_temporary_file_is_left(saved: Path) -> None:
    reversing(5).save(saved)
    assert [p.name for p in saved.parent.iterdir()] == ["net.atn"]
    assert len(read_artifact(saved).kernels) == 5


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write") as caught:
        reversing(1).save(tmp_path / "no" / "net.atn")
    assert caught.value.hint


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        read_artifact(tmp_path / "net.atn")


@pytest.mark.parametrize("data", [b"", b"PK", b"\x7fELF and so on", b"x" * 5000])
def test_a_foreign_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "net.atn").write_bytes(data)
    with pytest.raises(ArtifactError, match="not a network compiled by autotune") as caught:
        read_artifact(tmp_path / "net.atn")
    assert caught.value.exit_code is ExitCode.MISMATCH


@pytest.mark.parametrize("manifest", [None, b"{}", b"[]", b"not json"])
def test_a_foreign_zip(tmp_path: Path, manifest: bytes | None) -> None:
    with zipfile.ZipFile(tmp_path / "net.atn", "w") as file:
        file.writestr("something", b"else")
        if manifest is not None:
            file.writestr("manifest.json", manifest)
    with pytest.raises(ArtifactError, match="not a network compiled by autotune"):
        read_artifact(tmp_path / "net.atn")


def test_every_truncation_is_noticed(saved: Path) -> None:
    data = saved.read_bytes()
    for length in (4, 30, len(data) // 2, len(data) - 100, len(data) - 1):
        saved.write_bytes(data[:length])
        with pytest.raises(ArtifactError, match="damaged or truncated"):
            read_artifact(saved)


def test_flipped_bits_of_the_constants_are_noticed(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    at = data.index(b"\x00\x00\x80\x3f" + bytes(60))
    data[at] ^= 1
    saved.write_bytes(data)
    with pytest.raises(ArtifactError, match="damaged"):
        read_artifact(saved)


def test_a_newer_format_is_refused(saved: Path) -> None:
    rewrite(saved, version=OF_SEVERAL_CPUS + 1, autotune_version="9.9")
    with pytest.raises(ArtifactError, match=f"version {OF_SEVERAL_CPUS + 1}") as caught:
        read_artifact(saved)
    assert "9.9" in caught.value.hint


def test_a_cpu_without_the_features_is_refused(tmp_path: Path) -> None:
    target = replace(reversing(1).target, cpu="future", features="+sse2,+avx4096")
    saved = tmp_path / "net.atn"
    replace(reversing(1), target=target).save(saved)
    assert read_artifact(saved).target == target  # `export` writes a library of it
    with pytest.raises(ArtifactError, match="is compiled for future; this CPU") as caught:
        load(saved)
    assert caught.value.exit_code is ExitCode.MISMATCH
    assert caught.value.hint


@pytest.mark.parametrize("field", ["target", "kernels", "inputs", "image", "tuned", "parts"])
def test_a_manifest_that_lost_a_field(saved: Path, field: str) -> None:
    rewrite(saved, without=(field,))
    with pytest.raises(ArtifactError, match=f"has no '{field}'"):
        read_artifact(saved)


def test_every_part_is_known_by_its_digest(saved: Path) -> None:
    """A byte of each part is changed, and its CRC with it."""
    parts = read_parts(saved)
    assert set(parts) == {"manifest.json", "seal", "constants.bin", "image.bin", "image.seal"}
    for name, data in parts.items():
        for at in {0, len(data) // 2, len(data) - 1}:
            flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            with zipfile.ZipFile(saved, "w") as file:
                for other, old in parts.items():
                    file.writestr(other, flipped if other == name else old)
            with pytest.raises(ArtifactError, match="is damaged or truncated: "):
                read_artifact(saved)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("n_bytes", [(40 << 20) + 5, 17 << 20, (16 << 20) + 1])
@pytest.mark.parametrize("kind", digests.KINDS)
def test_large_parts_are_digested_in_pieces(tmp_path: Path, n_bytes: int, kind: str) -> None:
    constants = aligned((n_bytes,), "uint8")
    constants[:] = np.arange(constants.size, dtype=np.uint8)
    described = digests.described(constants, kind)
    path = tmp_path / "x"
    with path.open("w+b") as file:
        container.write(file, b"{}", b"", "", constants)
        parts = container.Container(file)
        for found in (
            parts.part("constants.bin", described),
            parts.mapped("constants.bin", described),
        ):
            assert np.array_equal(found, constants)
    start = path.read_bytes().index(constants[: 1 << 16].tobytes())
    for at in (0, 4095, 16 << 20, constants.size - 1):
        for change in (1, 128):
            with path.open("r+b") as file:
                file.seek(start + at)
                file.write(bytes([constants[at] ^ change]))
                file.flush()
                for way in (container.Container.part, container.Container.mapped):
                    with pytest.raises(container.Damaged, match="has another digest"):
                        way(container.Container(file), "constants.bin", described)
                file.seek(start + at)
                file.write(constants[at].tobytes())


WILD = {
    "n_bases": 1 << 40,
    "arena_bytes": -64,
    "n_threads": 0,
    "entry": -1,
    "image": {"machine": "vax"},
    "constant_bytes": 128,
    "max_error": "no",
    "kernels": [{"task": "t", "label": "l", "symbol": "s", "extent": -1}],
    "tasks": {"a": 1},
    "name": "\ud800",
    "tuned": {"t": {"latency_s": float("nan"), "n_threads": 1}},
}


@pytest.mark.parametrize("field", WILD)
def test_wild_fields_are_refused(saved: Path, field: str) -> None:
    rewrite(saved, **{field: WILD[field]})
    with pytest.raises(ArtifactError, match="is damaged or truncated: "):
        read_artifact(saved)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": [3, 48]}, "another manifest"),
        ({"shape": [1 << 50]}, "'inputs' in its manifest cannot be"),
        ({"shape": [2.0, 48]}, "'inputs' in its manifest cannot be"),
        ({"dtype": "float128"}, "'inputs' in its manifest cannot be"),
        ({"base": 3}, "lie nowhere"),
        ({"base": 0}, "lie nowhere"),
        ({"window": [[96], [1]], "base": 9}, "lie nowhere"),
        ({"window": [[95], [1]], "base": 3}, "lie nowhere"),
        ({"offset": 4}, "another manifest"),
    ],
)
def test_wild_inputs_are_refused(saved: Path, change: dict[str, Any], reason: str) -> None:
    manifest = reversing(4).manifest()
    rewrite(saved, inputs=[{**manifest["inputs"][0], **change}])
    with pytest.raises(ArtifactError, match=reason):
        read_artifact(saved)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window": [[96], [1]]}, "another manifest"),
        ({"window": [[95], [1]]}, "another number of elements"),
        ({"window": [[96], [3]]}, "outside of its memory"),
        ({"window": [[96], [-1]]}, "cannot be"),
        ({"window": [[96], [1]], "offset": 768 - 380}, "outside of its memory"),
        ({"window": [[96], [1]], "offset": 2}, "outside of its memory"),
        ({"window": [[96], [1], [2]]}, "cannot be"),
        ({"window": [[96], [1]], "base": 1}, "lies nowhere"),
        ({"name": "y"}, "two of its outputs have one name"),
    ],
)
def test_windows_lie_inside_of_the_arena(saved: Path, change: dict[str, Any], reason: str) -> None:
    manifest = reversing(4).manifest()
    inside = {**manifest["outputs"][0], "base": 0, "name": "z", "window": [[96], [1]], **change}
    rewrite(saved, outputs=[manifest["outputs"][0], inside])
    with pytest.raises(ArtifactError, match=reason):
        read_artifact(saved)


def test_parts_have_to_be_where_the_directory_says(saved: Path) -> None:
    data = saved.read_bytes()
    entry = data.index(b"PK\x01\x02")
    for offset, value in ((42, 0xFFFFFFF0), (20, 1), (24, 0xFFFFFFF0), (10, 8), (8, 1)):
        changed = bytearray(data)
        changed[entry + offset : entry + offset + 2] = (value & 0xFFFF).to_bytes(2, "little")
        saved.write_bytes(changed)
        with pytest.raises(ArtifactError, match="damaged"):
            read_artifact(saved)


def test_one_more_part_is_refused(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as file:
        file.writestr("more.bin", b"more")
    with pytest.raises(ArtifactError, match="parts that are not its own"):
        read_artifact(saved)


def test_two_parts_of_one_name_are_refused(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("image.bin", b"another")
    with pytest.raises(ArtifactError, match="one name"):
        read_artifact(saved)


@pytest.mark.parametrize(("seed", "is_sized"), [(0, False), (1, False), (2, True)])
def test_no_rebuilt_archive_crashes_the_process(saved: Path, seed: int, is_sized: bool) -> None:
    """Hundreds of damaged files with right digests: each gives a typed error or right numbers."""
    if is_sized:
        sized_artifact((Length("batch", 4), Length("rows", 40))).save(saved)
    command = [sys.executable, "-m", "tests.network.artifact_mutations", saved, str(seed), "250"]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-2000:])
    counts = json.loads(done.stdout.splitlines()[-1])
    assert sum(counts.values()) == 250
    assert set(counts) <= {"ArtifactError", "right"}, counts
    assert counts["ArtifactError"] > 200
