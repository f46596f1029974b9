"""A store of records: nothing is lost, half-read or overwritten, whoever writes, merges or dies."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import (
    AutotuneError,
    MissingDependency,
    OutputError,
    StoreError,
    UsageError,
)
from autotune.records import best_records
from autotune.records.places import place_of
from autotune.records.record import decode, encode
from autotune.records.store import (
    MARKER,
    VERSION,
    EntryName,
    RecordStore,
    store_to_read,
    store_to_write,
)
from autotune.result import MeasureStatus
from tests.records import stores
from tests.records.stores import TARGET, failed, log_of, measured, product

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "of many" / "store")
    pytest.importorskip("fsspec")
    return f"memory://{uuid.uuid4().hex}/store"


def known(store: RecordStore) -> set[tuple[str, str]]:
    """Runs and tasks of all records; nothing is damaged."""
    found = store.verify()
    assert not found.damaged
    return {(r.run_id, r.workload) for log in found.logs.values() for r in log.records}


def test_what_was_added_is_found_by_cpu_threads_and_task(place: str) -> None:
    store = store_to_write(place)
    log = log_of(
        *(measured("r", n, size, n + 1) for n in range(3) for size in (8, 16)), sizes=(8, 16)
    )
    assert store.add(log) == store.add(log) == 2
    assert len(store.names()) == 2  # the same content has the same name
    found = store.log(TARGET.key, 2, {product(8).key})
    assert found is not None
    assert set(found.workloads) == {product(8).key}
    assert [r.sequence for r in best_records(found.records).values()] == [0]
    assert found.header.model_path == "m.onnx"  # not where its user had it
    assert store.log(TARGET.key, 1, {product(8).key}) is None
    assert store.log("another", 2, {product(8).key}) is None
    assert store_to_read(place) is not None


def test_stores_merge_in_any_order_to_the_same_records(place: str) -> None:
    """Also where one was merged before, and where entries of both are still there."""
    logs = [log_of(*(measured(f"r{k}", 10 * k + n, 8, 1 + n) for n in range(7))) for k in range(3)]
    texts = set()
    for order in itertools.permutations(logs):
        store = store_to_write(f"{place}-{len(texts)}-{uuid.uuid4().hex}")
        for log in order:
            store.add(log)
            store.merge()
        first = store.names()
        store.add(order[0])
        store.merge()
        assert store.names() == first
        texts.add(first[0].digest)
        assert len(known(store)) == 3
    assert len(texts) == 1


def test_the_best_and_a_sample_of_many_are_kept_and_faults_stay_known(place: str) -> None:
    store = store_to_write(place)
    store.add(log_of(*(measured("r", n, 8, 1 + n) for n in range(500))))
    store.add(log_of(failed(measured("s", 0, 8), MeasureStatus.WRONG_ANSWER)))
    store.merge()
    found = store.log(TARGET.key, 2, {product(8).key})
    assert found is not None
    assert 20 < len(found.records) < 50
    sequences = [r.sequence for r in found.records]
    assert {0, 1, 2, 499} <= set(sequences)
    assert [r.sequence for r in best_records(found.records).values()] == [1]  # 0 was wrong once


def test_one_more_distillation_of_a_session_that_went_on_counts_nothing_twice(place: str) -> None:
    store, first = store_to_write(place), measured("r", 0, 8)
    again = replace(first, sequence=90, final=True)
    store.add(log_of(first))
    store.add(log_of(first, again))
    found = store.log(TARGET.key, 2, {first.workload})
    assert found is not None
    assert [len(r.result.times_s) for r in found.records] == [6]


def writer(where: Path, number: int, n: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, stores.__file__, where, str(number), str(n)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_writers_readers_and_mergers_at_once_and_some_are_killed(tmp_path: Path) -> None:
    """What a writer has reported is there at the end, and every look finds whole entries."""
    where, rng = tmp_path / "store", random.Random(0)
    writers = [writer(where, n, 4) for n in range(6)]
    doomed = writers[:3]
    deadline = time.monotonic() + 120
    begun = time.monotonic()
    while any(w.poll() is None for w in writers):
        assert time.monotonic() < deadline
        if (where / MARKER).exists():
            known(store_to_write(where))
            store_to_write(where).merge()
        if doomed and time.monotonic() > begun + rng.uniform(0.5, 2.5):
            doomed.pop().send_signal(signal.SIGKILL)
    reported: set[tuple[str, str]] = set()
    for process in writers:
        lines = process.communicate()[0].splitlines(keepends=True)
        whole = (line.split() for line in lines if line.endswith("\n"))
        reported |= {(run, product(int(size)).key) for run, size in whole}
    assert len({run for run, _ in reported}) >= 12
    store = store_to_write(where)
    assert reported <= known(store)
    store.merge()
    assert reported <= known(store)
    assert len(store.names()) == 2


def damaged_entries(folder: Path) -> Iterator[bytes]:
    (path,) = folder.rglob("*.gz")
    content = path.read_bytes()
    yield from (b"", content[:-9], content[:40] + b"?" + content[41:], b"\x1f\x8b" + bytes(99))


def test_damaged_entries_are_told_and_pruned_and_nothing_else_is_lost(tmp_path: Path) -> None:
    store = store_to_write(tmp_path)
    store.add(log_of(measured("r", 0, 8)))
    contents = list(damaged_entries(tmp_path))
    store.add(log_of(measured("r", 0, 16), sizes=(16,)))
    path = next(n.path for n in store.names() if n.group.task == product(8).key)
    for content in contents:
        (tmp_path / path).write_bytes(content)
        assert [d.path for d in store.verify().damaged] == [path]
        assert store.log(TARGET.key, 2, {product(8).key}) is None
        assert store.log(TARGET.key, 2, {product(16).key}) is not None
    store.merge()
    assert len(store.names()) == 2
    store.add(log_of(measured("r", 0, 8)))  # takes the place of the damaged one
    assert len(known(store)) == 2


def irregular(kind: str, path: Path) -> None:
    """What is no file of a bounded size."""
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "sparse":
            path.touch()
            os.truncate(path, 1 << 40)
        case "loop":
            path.symlink_to(path.name)
        case "link to a pipe":
            os.mkfifo(path.with_name("a pipe"))
            path.symlink_to("a pipe")
        case _:
            path.symlink_to(kind)


IRREGULAR = ("pipe", "link to a pipe", "loop", "sparse", "/dev/zero", "/dev/tty")


@pytest.mark.parametrize("kind", IRREGULAR)
def test_what_is_no_file_of_a_bounded_size_is_a_damaged_entry(tmp_path: Path, kind: str) -> None:
    store = store_to_write(tmp_path)
    store.add(log_of(measured("r", 0, 8)))
    (name,) = store.names()
    store.add(log_of(measured("r", 0, 16), sizes=(16,)))
    irregular(kind, tmp_path / name.path)
    assert name.path in {d.path for d in store.verify().damaged}
    assert store.log(TARGET.key, 2, {product(8).key}) is None
    assert store.log(TARGET.key, 2, {product(16).key}) is not None
    store_to_write(tmp_path / "other").take(store)
    store.add(log_of(measured("r", 0, 8)))  # takes its place
    assert store.log(TARGET.key, 2, {product(8).key}) is not None


@pytest.mark.parametrize("kind", IRREGULAR)
def test_what_is_no_file_of_a_bounded_size_is_no_marker(tmp_path: Path, kind: str) -> None:
    store_to_write(tmp_path)
    irregular(kind, tmp_path / MARKER)
    for look in (store_to_write, store_to_read):
        with pytest.raises(StoreError, match="damaged"):
            look(tmp_path)


WILD_NAMES = ("../x", "a/../../x", "/x", "a//x", "./x", "a/..", "", "a\0b", "..")


@pytest.mark.parametrize("name", WILD_NAMES)
def test_no_name_leads_out_of_a_place(place: str, name: str) -> None:
    files = place_of(place)
    for use in (
        lambda: files.write(name, b"planted"),
        lambda: files.read([name]),
        lambda: files.remove([name]),
    ):
        with pytest.raises(StoreError, match="no name of a file"):
            use()


def test_no_link_leads_out_of_a_store(tmp_path: Path) -> None:
    store = store_to_write(tmp_path / "store")
    (tmp_path / "victim").mkdir()
    (tmp_path / "store" / TARGET.key).symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="a link that leads out"):
        store.add(log_of(measured("r", 0, 8)))
    assert not [path for path in (tmp_path / "victim").rglob("*") if path.is_file()]


@pytest.mark.parametrize("cpu", ["..", ".", "a/../../b", "/", "\ud800", "a b%2F", "é", "x" * 200])
def test_cpus_of_any_name_have_a_folder_of_the_store(place: str, cpu: str) -> None:
    store = store_to_write(place)
    target = replace(TARGET, cpu=cpu)
    record = replace(measured("r", 0, 8), target_key=target.key)
    store.add(replace(log_of(record), headers=(stores.header("r", target),)))
    found = store.log(target.key, 2, {product(8).key})
    assert found is not None
    assert [r.target_key for r in found.records] == [target.key]
    assert len(known(store)) == 1


def test_a_task_key_of_a_log_leads_nowhere(tmp_path: Path) -> None:
    log = log_of(measured("r", 0, 8))
    for key in (
        "../../../victim/planted",
        "x/y",
        "",
        "A" * 16,
        "0" * 15,
        "0" * 17,
        "0" * 16 + "\n",
    ):
        for entry in (*log.workloads.values(), *log.records):
            line = encode(entry).replace(product(8).key, key.replace("\n", "\\n"))
            assert decode(line) is None
            assert decode(encode(entry)) is not None


def test_an_entry_under_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    store = store_to_write(tmp_path)
    store.add(log_of(measured("r", 0, 8)))
    (name,) = store.names()
    other = EntryName(replace(name.group, n_threads=3), name.digest)
    (tmp_path / other.path).parent.mkdir()
    (tmp_path / other.path).write_bytes((tmp_path / name.path).read_bytes())
    (found,) = store.verify().damaged
    assert (found.path, found.is_entry) == (other.path, True)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "other files"),
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"format": "other", "version": 1}', "damaged"),
        (f'{{"format": "autotune-store", "version": {VERSION + 1}}}', "reads up to"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_what_is_no_store_is_refused_and_left_as_it_is(
    tmp_path: Path, content: str | None, text: str
) -> None:
    name = MARKER if content is not None else "thesis.tex"
    (tmp_path / name).write_text(content or "mine")
    for look in (store_to_write, store_to_read):
        with pytest.raises(StoreError, match=text):
            look(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == (content or "mine")


def test_places_that_cannot_be_are_told(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError, match="there is no store"):
        store_to_read(tmp_path / "none")
    with pytest.raises(UsageError, match="no place"):
        store_to_read("nonsense://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(AutotuneError, match=r"cannot (open|write)"):
        store_to_write(tmp_path / "file" / "store").add(log_of(measured("r", 0, 8)))
    assert store_to_read("none") is None


def test_a_scheme_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("fsspec.registry")
    odd = {"class": "oddfs.OddFS", "err": "no"}
    monkeypatch.setitem(registry.known_implementations, "odd", odd)
    with pytest.raises(MissingDependency) as error:
        store_to_read("odd://bucket/x")
    assert error.value.hint == "pip install oddfs"
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependency) as error:
        store_to_read("memory://x")
    assert error.value.hint == "pip install fsspec"


def test_a_file_system_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    where = f"memory://{uuid.uuid4().hex}"
    store = store_to_write(where)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials\nand much more")

    for method in ("pipe_file", "find"):
        monkeypatch.setattr(fsspec.get_filesystem_class("memory"), method, fails)
        with pytest.raises(OutputError, match=r"cannot be used: no credentials\n"):
            store.add(log_of(measured("r", 0, 8)))


def test_a_full_disk_loses_nothing_that_was_there(tmp_path: Path) -> None:
    store = store_to_write(tmp_path)
    store.add(log_of(measured("r", 0, 8)))
    before = known(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        with pytest.raises(OutputError):
            store.add(log_of(measured("s", 1, 8)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert known(store) == before
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name.startswith(".")] == []


def test_an_entry_of_a_later_log_format_is_left_alone(tmp_path: Path) -> None:
    import gzip
    import hashlib

    store = store_to_write(tmp_path)
    store.add(log_of(measured("r", 0, 8)))
    (name,) = store.names()
    lines = gzip.decompress((tmp_path / name.path).read_bytes()).decode().splitlines()
    head = json.loads(lines[0]) | {"version": 99}
    content = gzip.compress("\n".join([json.dumps(head), *lines[1:], ""]).encode())
    later = EntryName(name.group, hashlib.sha256(content).hexdigest()[: len(name.digest)])
    (tmp_path / later.path).write_bytes(content)
    (found,) = store.verify().damaged
    assert "reads up to" in found.reason
    store.merge()
    assert (tmp_path / later.path).exists()
