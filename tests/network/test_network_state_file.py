"""Files of states that are broken, foreign or made to be large are refused in one line."""

from __future__ import annotations

import io
import json
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune.errors import UsageError
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.session import ModelSession
from tests.random_decoders import Decoder

DRAWN = Decoder(capacity=8)


@pytest.fixture(scope="module")
def session() -> ModelSession:
    told = {**DRAWN.arguments(), "check": False}
    return model_of(autotune.compile(DRAWN.model(), **told).artifact).session()


@pytest.fixture
def arrays(session: ModelSession, tmp_path: Path) -> dict[str, np.ndarray]:
    session.reset()
    session.step([[1, 2, 3]])
    session.save(tmp_path / "state.npz")
    with np.load(tmp_path / "state.npz") as found:
        return {name: found[name] for name in found.files}


def refused(session: ModelSession, path: Path) -> None:
    before = session.length
    with pytest.raises(UsageError) as error:
        session.load(path)
    assert "\n" not in error.value.message
    assert session.length == before


@pytest.mark.parametrize("length", ["5", None, 2.5, [5], {}, True, -1, 9, 2, 1 << 70], ids=str)
def test_lengths_that_cannot_be(
    session: ModelSession, arrays: dict[str, np.ndarray], tmp_path: Path, length: Any
) -> None:
    digest, _ = json.loads(str(arrays["state_of"]))
    told = np.array(json.dumps([digest, length]))
    np.savez(tmp_path / "other.npz", **{**arrays, "state_of": told})
    refused(session, tmp_path / "other.npz")


def test_arrays_that_are_others(
    session: ModelSession, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    name = next(name for name in arrays if name.startswith("state/"))
    whole = {**arrays, "state_of": arrays["state_of"]}
    others: list[dict[str, Any]] = [
        {**whole, "more": np.zeros(3)},
        {n: a for n, a in whole.items() if n != name},
        {**whole, name: whole[name][..., :1]},
        {**whole, name: whole[name].astype(np.float64)},
        {**whole, name: np.array([{}], object)},
        {**whole, "state_of": np.array("[" * 9000)},
        {**whole, "state_of": np.array(["a", "b"])},
        {n: a for n, a in whole.items() if n != "state_of"},
    ]
    for k, one in enumerate(others):
        np.savez(tmp_path / f"{k}.npz", **one)
        refused(session, tmp_path / f"{k}.npz")
    turned = {n: np.asfortranarray(a) if a.ndim else a for n, a in whole.items()}
    np.savez_compressed(tmp_path / "turned.npz", **turned)
    expected = session.step([[1]])
    session.load(tmp_path / "turned.npz")
    np.testing.assert_array_equal(session.step([[1]]), expected)


def test_files_with_bytes_changed(
    session: ModelSession, arrays: dict[str, np.ndarray], tmp_path: Path, rng: np.random.Generator
) -> None:
    """Each is refused, or has the state as it was (a byte that says nothing)."""
    np.savez_compressed(tmp_path / "whole.npz", **arrays)
    whole = (tmp_path / "whole.npz").read_bytes()
    for _ in range(150):
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        path = tmp_path / "changed.npz"
        path.write_bytes(data if rng.random() < 0.8 else data[: rng.integers(len(data))])
        try:
            session.load(path)
        except UsageError:
            continue
        assert session.length == 3


def test_a_small_file_of_gigabytes_takes_none(
    session: ModelSession, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    name = next(name for name in arrays if name.startswith("state/"))
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (805306368,), }"
    head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for large in ("more", name, "state_of"):
        path = tmp_path / "bomb.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for one, array in arrays.items():
                if one != large:
                    data = io.BytesIO()
                    np.lib.format.write_array(data, array)
                    file.writestr(f"{one}.npy", data.getvalue())
            with file.open(f"{large}.npy", "w", force_zip64=True) as entry:
                entry.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
                for _ in range(12):  # as if it were 3 GB
                    entry.write(bytes(1 << 24))
        refused(session, path)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 100 << 10
