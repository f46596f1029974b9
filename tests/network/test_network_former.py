"""Artifacts of former versions run, and are as strictly looked at as those of today."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.errors import ArtifactError
from autotune.network.artifact.artifact import VERSION
from autotune.network.runtime.loading import load, model_of, read_artifact
from autotune.network.runtime.runtime import Model, random_inputs
from tests.network.artifact_mutations import read_parts, write_parts

ASSETS = Path(__file__).parent.parent / "assets" / "former-artifacts.zip"
"""Written by the last version before code was linked, for AVX2: `format2.atn` to `format5.atn`."""
VERSIONS = (2, 3, 4, 5)
W = (np.arange(64).reshape(8, 8) % 5 - 2) / 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("former")
    with zipfile.ZipFile(ASSETS) as archive:
        archive.extractall(found)
    return found


def plain(x: NDArray[Any]) -> NDArray[Any]:
    """What versions 2 and 3 have: one product, Relu, Exp."""
    return np.exp(np.maximum(x.astype(float) @ W, 0))


def branch(x: NDArray[Any]) -> NDArray[Any]:
    """What version 5 has: the sum of a product decides."""
    a = x.astype(float) @ W
    return np.maximum((a * a if a.sum() > 0 else -a) @ W, 0)


def require_right(model: Model, version: int) -> None:
    for seed in range(4):
        inputs = random_inputs(model.input_info, seed)
        found = model.run(inputs)
        if version == 4:
            is_picked = found["selected"].shape[0] == found["picked"].shape[1] > 0
            assert is_picked
            assert np.isfinite(found["picked"]).all()
        else:
            right = (branch if version == 5 else plain)(inputs["x"])
            np.testing.assert_allclose(found["y"], right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("memory", ["shared", "private"])
def test_files_of_every_former_version_run(folder: Path, version: int, memory: str) -> None:
    model = load(folder / f"format{version}.atn", 1, memory)
    assert len(model.variants) == (2 if version == 3 else 1)
    require_right(model, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_loaded_from_one_is_saved_as_one_of_today(
    folder: Path, version: int, tmp_path: Path
) -> None:
    before = read_artifact(folder / f"format{version}.atn")
    before.save(tmp_path / "now.atn")
    assert json.loads(read_parts(tmp_path / "now.atn")["manifest.json"])["version"] == VERSION
    after = read_artifact(tmp_path / "now.atn")
    assert after.manifest() == before.manifest()
    one, other = model_of(before, 1), model_of(after, 1)
    inputs = random_inputs(one.input_info)
    found, expected = other.run(inputs), one.run(inputs)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


CHANGES: dict[str, Any] = {
    "fewer objects": lambda m: m.update(n_objects=m["n_objects"] - 1),
    "no number of objects": lambda m: m.pop("n_objects"),
    "no parts": lambda m: m.pop("parts"),
    "parts without sizes": lambda m: m.update(parts=dict.fromkeys(m["parts"])),
    "another arena": lambda m: networks(m)[0].update(arena_bytes=1 << 20),
    "another kernel": lambda m: networks(m)[0]["kernels"][0].update(symbol="other"),
    "no target": lambda m: m.pop("target"),
    "a target of no CPU": lambda m: m.update(target=7),
    "wild networks": lambda m: m.update(variants=7, networks=7, inputs=7),
    "wild objects": lambda m: networks(m)[0].update(objects=[1 << 40], n_objects={}),
    "no kernels": lambda m: networks(m)[0].pop("kernels"),
}


def networks(manifest: Any) -> Any:
    return manifest.get("networks") or manifest.get("variants") or [manifest]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_manifests_that_cannot_be_are_refused(
    folder: Path, version: int, change: str, tmp_path: Path
) -> None:
    parts = read_parts(folder / f"format{version}.atn")
    manifest = json.loads(parts["manifest.json"])
    CHANGES[change](manifest)
    write_parts(tmp_path / "a.atn", parts, manifest)
    with pytest.raises(ArtifactError, match="damaged"):
        read_artifact(tmp_path / "a.atn")


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_that_were_compiled_for_another_manifest_are_refused(
    folder: Path, version: int, tmp_path: Path
) -> None:
    """Also where the digest of the part is right."""
    import hashlib

    parts = read_parts(folder / f"format{version}.atn")
    manifest = json.loads(parts["manifest.json"])
    for name in [name for name in parts if name.startswith("objects/")]:
        data = bytearray(parts[name])
        data[70] ^= 1
        other = {**parts, name: bytes(data)}
        described = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        changed = {**manifest, "parts": {**manifest["parts"], name: described}}
        write_parts(tmp_path / "a.atn", other, changed)
        with pytest.raises(ArtifactError, match="compiled for another manifest"):
            read_artifact(tmp_path / "a.atn")
