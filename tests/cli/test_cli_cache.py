"""Programs in the user's cache folder: found again, never wrong, never needed."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from autotune.cache import Store
from autotune.cli.main import run
from autotune.measure.cached_map import cached_map
from tests.cli.conftest import mlp


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autotune"


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


def compiled(folder: Path, name: str, *options: str) -> bytes:
    out = folder / name
    command = ["compile", str(folder / "m.onnx"), "-o", str(out), "--threads", "1", "--no-check"]
    assert run([*command, *options]) == 0
    return out.read_bytes()


def test_compiling_again_gives_the_same_file_from_any_state_of_the_cache(
    tmp_path: Path, cache: Path
) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    without = compiled(tmp_path, "without.atn", "--no-cache")
    assert not entries(cache)
    assert compiled(tmp_path, "first.atn") == without
    kept = {path: path.stat().st_ino for path in entries(cache)}
    assert kept
    assert compiled(tmp_path, "again.atn") == without
    assert {path: path.stat().st_ino for path in entries(cache)} == kept  # nothing was written
    for n, path in enumerate(kept):  # cut, changed, empty
        data = path.read_bytes()
        path.write_bytes([data[:-1], data[:-1] + b"?", b""][n % 3])
    assert compiled(tmp_path, "damaged.atn") == without


def test_what_a_store_knows_is_not_computed_again(tmp_path: Path) -> None:
    store, computed = Store(tmp_path / "s", 1 << 20), list[int]()

    def square(n: int) -> int:
        computed.append(n)
        return n * n

    def squares(*numbers: int) -> list[int]:
        keys = [f"{n:064x}" for n in numbers]
        return cached_map(square, numbers, keys, store, lambda n: b"%d" % n, int)

    assert squares(2, 3) == [4, 9]
    assert squares(3, 4, 2) == [9, 16, 4]
    assert computed == [2, 3, 4]
    store.put(f"{3:064x}", b"of another format")
    assert squares(3) == [9]
    assert computed == [2, 3, 4, 3]
