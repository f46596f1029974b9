"""Programs in the user's cache folder: found again, never wrong, never needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from autotune.api.compile import selection
from autotune.cache import FileStore
from autotune.cli.main import run
from autotune.graph.network import build_network
from autotune.graph.reader import onnx_reader
from autotune.measure.processes.cached_map import cached_map
from autotune.network.compile import sharing
from autotune.network.runtime.loading import read_artifact
from autotune.ort.cached import key_of_request
from autotune.ort.request import SessionRequest
from autotune.records import Header, Log, MeasureRecord, Workload, write_log
from autotune.result import MeasureResult, MeasureStatus
from autotune.search.cost.ranker import Ranker
from autotune.search.policy import SketchPolicy
from autotune.target import host_target
from tests.cli.conftest import mlp


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder; hashes of files are kept at once, however new the files are."""
    monkeypatch.setattr(onnx_reader, "_SETTLED_S", -1.0)
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


@pytest.mark.slow
def test_programs_that_share_weights_among_lengths_are_sought_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[object] = []
    options = selection._options

    def noted(item: Any, **told: Any) -> list[sharing.Option]:
        sought.append(item)
        return options(item, **told)

    monkeypatch.setattr(sharing, "_SMALLEST_BYTES", 0)
    monkeypatch.setattr(selection, "_options", noted)
    onnx.save(mlp(batch="n"), tmp_path / "m.onnx")
    lengths = ("--dim", "n=4,24")
    without = compiled(tmp_path, "without.atn", "--no-cache", *lengths)
    assert compiled(tmp_path, "first.atn", *lengths) == without
    n_sought = len(sought)
    assert n_sought > 0
    assert compiled(tmp_path, "again.atn", *lengths) == without
    assert len(sought) == n_sought


def test_what_a_store_knows_is_not_computed_again(tmp_path: Path) -> None:
    store, computed = FileStore(tmp_path / "s", 1 << 20), list[int]()

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


def tuned_log(folder: Path, model: Path) -> Path:
    """A log in which another program than the default is the fastest for every task."""
    network, target = build_network(model), host_target()
    records: list[MeasureRecord] = []
    for key, dag in network.tasks.items():
        policy = SketchPolicy(dag, target, 1, Ranker(0), np.random.default_rng(0))
        for n, found in enumerate(policy.propose(3)):
            result = MeasureResult(MeasureStatus.OK, (1e-5 / (1 + n),) * 3, max_error=1e-6)
            record = MeasureRecord("r", len(records), key, target.key, 1, found.steps_json, result)
            records.append(record)
    tasks = tuple(network.weights.items())
    header = Header("r", "2026", str(model), network.model_hash, {}, target, 1, 0, {}, {}, tasks)
    workloads = {key: Workload(key, dag) for key, dag in network.tasks.items()}
    write_log(folder / "log.jsonl", Log((header,), workloads, tuple(records)))
    return folder / "log.jsonl"


@pytest.mark.slow
def test_records_in_the_cache_folder_are_compiled_without_naming_their_log(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    untuned = compiled(tmp_path, "untuned.atn")
    log = tuned_log(tmp_path, tmp_path / "m.onnx")
    tuned = compiled(tmp_path, "log.atn", "--log", str(log))
    assert tuned != untuned
    assert compiled(tmp_path, "before.atn") == untuned
    assert run(["distill", str(log), "-o", str(tmp_path / "best.jsonl"), "--store"]) == 0
    capsys.readouterr()
    compiled(tmp_path, "stored.atn")
    stored, of_log = (read_artifact(tmp_path / name) for name in ("stored.atn", "log.atn"))
    assert stored.stored
    assert replace(stored, stored=()).manifest() == of_log.manifest()
    assert f"2 of 2 tasks take records of {cache / 'store'}" in capsys.readouterr().err
    assert compiled(tmp_path, "no-cache.atn", "--no-cache") == untuned
    assert compiled(tmp_path, "exact.atn", "--max-error", "1e-7") == untuned
    for path in (cache / "store").rglob("*.gz"):
        path.write_bytes(b"damaged")
    assert compiled(tmp_path, "damaged.atn") == untuned


def test_sessions_compile_again_when_records_were_stored(tmp_path: Path, cache: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    request = SessionRequest(tmp_path / "m.onnx", threads=1)
    before = key_of_request(request)
    assert key_of_request(request) == before
    log = tuned_log(tmp_path, tmp_path / "m.onnx")
    assert run(["distill", str(log), "--store"]) == 0
    assert key_of_request(request) != before
