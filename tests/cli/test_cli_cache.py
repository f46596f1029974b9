"""Programs in the user's cache folder: found again, never wrong, never needed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.api import quantising
from autotune.api.compile import compiling, kept, selection
from autotune.api.request import CompileRequest
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
from tests import hybrid_models
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


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models that were read to be compiled."""
    found: list[str] = []
    plan = compiling.plan

    def noted(request: CompileRequest) -> Any:
        found.append(str(request.model))
        return plan(request)

    monkeypatch.setattr(compiling, "plan", noted)
    return found


def test_what_was_compiled_is_not_read_again_and_its_notes_and_check_are_told(
    tmp_path: Path, cache: Path, plans: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    command = ["compile", str(tmp_path / "m.onnx"), "--threads", "1", "-o"]
    told, files = [], []
    for name in ("first.atn", "again.atn"):
        assert run([*command, str(tmp_path / name)]) == 0
        told.append(capsys.readouterr().err.splitlines())
        files.append((tmp_path / name).read_bytes())
    assert len(plans) == 1, "the model was compiled twice"
    assert files[0] == files[1]
    added = [line for line in told[1] if line not in told[0]]
    assert len(added) == 1
    assert "found in the cache" in added[0]
    assert [line for line in told[1] if line not in added] == told[0]
    again = autotune.compile(tmp_path / "m.onnx", threads=1)
    assert len(plans) == 1
    assert again.is_kept
    assert again.error is not None
    assert again.artifact.model_path == str(tmp_path / "m.onnx")
    (y,) = again.run({"x": np.ones((4, 8), np.float32)}).values()
    assert np.isfinite(y).all()


def test_bench_takes_what_was_compiled_with_the_same_settings(
    tmp_path: Path, cache: Path, plans: list[str]
) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    for _ in range(2):
        given = [str(tmp_path / "m.onnx"), "--threads", "1", "--time", "0.01s"]
        assert run(["bench", *given]) == 0
    assert len(plans) == 1, "the model was compiled twice"
    assert run(["compile", *given[:3], "-o", str(tmp_path / "m.atn")]) == 0
    assert len(plans) == 1, "compile did not take what bench had compiled"
    assert run(["bench", *given, "--precision", "bf16"]) == 0
    assert len(plans) == 2


def test_quantise_takes_the_networks_that_it_compiled_before(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its models are files in a folder that goes, so nothing may depend on their place."""
    made: list[str] = []

    def counted(plan: Any, *rest: Any) -> Any:
        made.append(plan.bound.path.name)
        return compiling.compile_plan(plan, *rest)

    monkeypatch.setattr(quantising, "compile_plan", counted)
    onnx.save(mlp(), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    counts = []
    for name in ("a", "b"):
        made.clear()
        out = tmp_path / f"{name}.onnx"
        autotune.quantise(tmp_path / "m.onnx", {"x": x}, out, threads=1, max_error=0.9)
        counts.append(len(made))
    assert counts[0] >= 3
    assert counts[1] <= counts[0] - 3, f"{made} were compiled again"
    assert (tmp_path / "a.onnx").is_file()


def test_another_model_option_log_or_version_is_compiled_anew(
    tmp_path: Path, cache: Path, plans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path)
    first = compiled(tmp_path, "a.atn")
    options = (
        ("--threads", "2"),
        ("--check",),
        ("--max-error", "1e-6"),
        ("--precision", "bf16"),
        ("--max-size", "9x"),
        ("--sharing", "1.5x"),
        ("--log", str(tuned_log(tmp_path, path))),
    )
    for n, option in enumerate(options):
        compiled(tmp_path, "b.atn", *option)
        assert len(plans) == 2 + n, f"{option} was not heard"
    n_plans = len(plans)
    for option in (("--verify",), ("--no-cache",)):  # to be done each time
        for _ in range(2):
            compiled(tmp_path, "b.atn", *option)
    n_plans += 4
    assert len(plans) == n_plans
    log = tmp_path / "log.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    compiled(tmp_path, "b.atn", "--log", str(log))
    model = mlp()
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, path)
    other = compiled(tmp_path, "c.atn")
    assert len(plans) == n_plans + 2
    onnx.save(mlp(), path)
    assert compiled(tmp_path, "d.atn") == first != other
    assert len(plans) == n_plans + 2
    monkeypatch.setattr(kept, "package_key", lambda: "another")
    assert compiled(tmp_path, "d.atn") == first
    assert len(plans) == n_plans + 3


def test_a_model_that_is_cut_because_of_times_is_compiled_anew(
    tmp_path: Path, cache: Path, plans: list[str]
) -> None:
    pytest.importorskip("onnxruntime")
    hybrid_models.saved(hybrid_models.BRANCH, tmp_path).rename(tmp_path / "m.onnx")
    for n in range(2):
        compiled(tmp_path, f"{n}.atn", "--keep-cut")
    assert len(plans) == 2


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
    shutil.rmtree(cache / "artifacts")
    assert compiled(tmp_path, "damaged.atn") == untuned


def test_sessions_compile_again_when_records_were_stored(tmp_path: Path, cache: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    request = SessionRequest(tmp_path / "m.onnx", threads=1)
    before = key_of_request(request)
    assert key_of_request(request) == before
    log = tuned_log(tmp_path, tmp_path / "m.onnx")
    assert run(["distill", str(log), "--store"]) == 0
    assert key_of_request(request) != before
