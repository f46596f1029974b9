from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import LogBusy, LogMismatch, OutputError, UsageError
from autotune.records import (
    End,
    Header,
    Journal,
    Log,
    MeasureRecord,
    Workload,
    best_for,
    best_records,
    distill,
    read_log,
    write_log,
)
from autotune.records.record import decode, encode
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Annotate, Parallel, Split, steps_text
from autotune.target import Target
from autotune.te.dag import ComputeDAG

STEPS = (Split("c", "i", (4, 2), "split"), Annotate("c", "j", "vectorize"), Parallel("c", 1))


@pytest.fixture
def header(any_target: Target) -> Header:
    return Header(
        run_id="r1",
        created="2026-01-02T03:04:05+00:00",
        model_path="mödel.onnx",
        model_hash="abc",
        shapes={"x": (1, 8)},
        target=any_target,
        n_threads=2,
        seed=0,
        config={"trials": 16},
        versions={"autotune": "0.1.0"},
        tasks=((K1, 2),),
        overwritten={K1: ("x",)},
    )


K1, K2, UNUSED = (digit * 16 for digit in "12f")


def record(n: int = 0, latency: float | None = 1e-3, **changes: object) -> MeasureRecord:
    ok = latency is not None
    status = MeasureStatus.OK if ok else MeasureStatus.RUN_ERROR
    result = MeasureResult(status, (latency,) * 3 if latency is not None else (), 0.25, 0.5, "")
    made = MeasureRecord("r1", n, K1, "t1", 2, steps_text(STEPS), result, "tiled", 1.5)
    return replace(made, **changes)  # type: ignore[arg-type]


def steps_of(n: int) -> str:
    return steps_text((Parallel("c", n),))


@pytest.fixture
def log_path(tmp_path: Path, header: Header) -> Path:
    path = tmp_path / "a.jsonl"
    with Journal.create(path, header) as journal:
        journal.append([record(0), record(1)])
    return path


def test_every_entry_survives_a_round_trip(
    header: Header, matmul_of: Callable[[int], ComputeDAG]
) -> None:
    dag = matmul_of(8)
    failed = replace(record(), result=MeasureResult(MeasureStatus.BUILD_ERROR, error='no "steps":'))
    for entry in (
        header,
        Workload(dag.key, dag, "matmul"),
        record(),
        failed,
        record(default_estimate_s=1.25e-3),
        End("r1", "time", 3, 1.0),
    ):
        line = encode(entry)
        assert "\n" not in line
        assert decode(line) == entry
    assert record().steps == STEPS
    assert "default_estimate_s" not in encode(record())


def test_a_record_is_read_whatever_the_order_of_its_fields() -> None:
    data = json.loads(encode(record()))
    reordered = {"later": [1], "steps": data.pop("steps"), **data}
    assert decode(json.dumps(reordered)) == record()


def test_infinite_error_is_written_as_null() -> None:
    result = MeasureResult(MeasureStatus.WRONG_ANSWER, max_error=float("inf"))
    assert json.loads(encode(record(result=result)))["result"]["max_error"] is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "7",
        '{"a": 1}',
        '{"type": "measure"}',
        '{"type": "workload", "key": "k", "dag": {"ops": [{}], "outputs": []}}',
        '{"type": "header", "format": "other"}',
        encode(record()).replace('"ok"', '"quantum"'),
        encode(record()).replace(f'"workload":"{K1}"', '"workload"'),
    ],
)
def test_foreign_and_corrupt_lines_are_no_entries(line: str) -> None:
    assert decode(line) is None


def test_a_later_format_version_is_refused(header: Header) -> None:
    with pytest.raises(LogMismatch, match="version 9") as info:
        decode(encode(replace(header, version=9)))
    assert info.value.hint == "upgrade autotune"


def test_what_is_appended_is_read(log_path: Path, header: Header) -> None:
    with Journal.open(log_path) as journal:
        assert journal.log.records == (record(0), record(1))
        journal.append([record(2), End("r1", "trials", 3, 2.0)])
    log = read_log(log_path)
    assert log.header == header
    assert [r.sequence for r in log.records] == [0, 1, 2]
    assert log.ends == (End("r1", "trials", 3, 2.0),)
    assert (log.n_skipped, log.torn) == (0, False)


def test_foreign_lines_are_counted_and_stay(log_path: Path) -> None:
    with log_path.open("ab") as file:
        file.write(b"\xff\xfe\n# a note\n\n" + encode(record(2)).encode() + b"\n")
    before = log_path.read_bytes()
    with Journal.open(log_path) as journal:
        assert journal.log.n_skipped == 2
        assert len(journal.log.records) == 3
    assert log_path.read_bytes() == before


@pytest.mark.parametrize("keep", [1, 10, -3])
def test_a_torn_tail_is_cut_off_and_reported(log_path: Path, keep: int) -> None:
    whole = log_path.read_bytes()
    torn = encode(record(2)).encode()[:keep]
    log_path.write_bytes(whole + torn)
    log = read_log(log_path)
    assert (log.torn, len(log.records), log.n_skipped) == (True, 2, 0)
    with Journal.open(log_path) as journal:
        assert journal.n_repaired_bytes == len(torn)
        journal.append([record(2)])
    assert [r.sequence for r in read_log(log_path).records] == [0, 1, 2]


def test_a_whole_last_line_without_newline_is_kept(log_path: Path) -> None:
    log_path.write_bytes(log_path.read_bytes()[:-1])
    with Journal.open(log_path) as journal:
        assert journal.n_repaired_bytes == 0
        journal.append([record(2)])
    assert len(read_log(log_path).records) == 3


def test_a_very_long_torn_line_is_found(log_path: Path) -> None:
    whole = log_path.read_bytes()
    log_path.write_bytes(whole + b'{"type": "measure", "x": "' + b"y" * 300_000)
    Journal.open(log_path).close()
    assert log_path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b"\x08\x00onnx" * 99, b'{"a": 1}\n'])
def test_a_file_that_is_no_log_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for use in (read_log, Journal.open):
        with pytest.raises(LogMismatch, match=r"no autotune log|is empty") as info:
            use(path)
        assert info.value.hint
    assert path.read_bytes() == content


def test_a_missing_file_and_a_folder_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        read_log(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="is a directory"):
        read_log(tmp_path)


def test_create_refuses_an_existing_file(log_path: Path, header: Header) -> None:
    before = log_path.read_bytes()
    with pytest.raises(UsageError, match="exists") as info:
        Journal.create(log_path, header)
    assert f"autotune resume {log_path}" in info.value.hint
    assert log_path.read_bytes() == before


def test_create_below_a_file_is_one_clear_error(log_path: Path, header: Header) -> None:
    with pytest.raises(UsageError, match="cannot open") as info:
        Journal.create(log_path / "x" / "b.jsonl", header)
    assert "may write" in info.value.hint


def test_a_second_writer_is_refused_until_the_first_is_gone(log_path: Path) -> None:
    with Journal.open(log_path), pytest.raises(LogBusy, match="another autotune process"):
        Journal.open(log_path)
    Journal.open(log_path).close()


def test_a_full_disk_loses_nothing(log_path: Path) -> None:
    """The limit on the size of files stands for the disk: half of the batch fits below it."""
    before = log_path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal.open(log_path) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1000, hard))
        try:
            with pytest.raises(OutputError, match="cannot write") as info:
                journal.append([record(n) for n in range(2, 20)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "make room" in info.value.hint
        assert log_path.read_bytes() == before
        journal.append([record(2)])
    assert len(read_log(log_path).records) == 3


_WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
from autotune.records import Journal
with Journal.open(Path(sys.argv[1])) as journal:
    record, n = journal.log.records[0], 2
    while True:
        journal.append([replace(record, sequence=n + i, sketch="s" * 20000) for i in range(20)])
        journal.sync()
        n += 20
        print(n, flush=True)
"""


def test_kill_in_the_middle_of_writing_loses_at_most_the_last_batch(log_path: Path) -> None:
    """Also: the lock dies with its process."""
    command = [sys.executable, "-c", _WRITER, str(log_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = int(process.stdout.readline())
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            reported = int(line) if line.endswith("\n") else reported
    with Journal.open(log_path) as journal:
        sequences = [r.sequence for r in journal.log.records]
        assert sequences == list(range(len(sequences)))
        assert len(sequences) >= reported
        journal.append([record(len(sequences))])
    assert not read_log(log_path).torn


def test_best_is_the_lowest_pooled_median() -> None:
    lucky = [record(0, 1e-3, steps_json=steps_of(1)), record(1, 3e-3, steps_json=steps_of(1))]
    steady = [record(2, 1.5e-3, steps_json=steps_of(2)), record(3, None, steps_json=steps_of(3))]
    (best,) = best_records(lucky + steady).values()
    assert best.sequence == 2
    pooled = best_records(lucky)[(K1, "t1", 2)].result
    assert sorted(pooled.times_s) == [1e-3] * 3 + [3e-3] * 3


def test_a_simpler_program_that_is_as_fast_within_the_noise_is_better() -> None:
    def timed(sequence: int, n_steps: int, latency: float) -> MeasureRecord:
        times = tuple(latency * (1 + 0.01 * k) for k in range(-5, 6))  # one per cent of noise
        text = steps_text(tuple(Parallel(f"s{sequence}", n + 1) for n in range(n_steps)))
        return record(sequence, steps_json=text, result=MeasureResult(MeasureStatus.OK, times))

    long, short = timed(0, 5, 1e-3), timed(1, 2, 1.015e-3)
    assert long.n_steps == 5
    assert 0.01 < long.result.noise < 0.02
    (best,) = best_records([long, short]).values()
    assert best.sequence == 1
    (best,) = best_records([long, timed(1, 2, 1.03e-3)]).values()
    assert best.sequence == 0
    (best,) = best_records([short, timed(2, 2, 1.01e-3)]).values()
    assert best.sequence == 2


def test_another_program_than_the_default_has_to_be_faster_beyond_the_noise() -> None:
    noisy = tuple(1e-3 * (1 + 0.01 * k) for k in range(-5, 6))

    def timed(sequence: int, n_steps: int, factor: float, **changes: object) -> MeasureRecord:
        text = steps_text(tuple(Parallel(f"s{sequence}", n + 1) for n in range(n_steps)))
        result = MeasureResult(MeasureStatus.OK, tuple(factor * t for t in noisy))
        return record(sequence, steps_json=text, result=result, **changes)

    fastest, default, short = timed(0, 5, 1.0), timed(1, 4, 1.01), timed(2, 2, 1.015)
    assert 0.015 < fastest.result.noise < 0.02
    (best,) = best_records([fastest, default, short]).values()
    assert best.sequence == 2
    for factor, chosen in ((0.9, 1), (1.01, 1), (1.02, 1), (1.1, 2)):
        marked = timed(1, 4, factor, default_estimate_s=2e-3)
        (best,) = best_records([fastest, marked, short]).values()
        assert best.sequence == chosen


@pytest.mark.parametrize(
    "status", [MeasureStatus.WRONG_ANSWER, MeasureStatus.RUN_CRASH, MeasureStatus.INACCURATE]
)
def test_a_schedule_that_once_was_wrong_cannot_be_best(status: MeasureStatus) -> None:
    fast = record(0, 1e-6, steps_json=steps_of(1))
    wrong = record(1, None, steps_json=steps_of(1), result=MeasureResult(status))
    slow = record(2, 1e-3, steps_json=steps_of(2))
    for order in ([fast, wrong, slow], [wrong, fast, slow]):
        assert [r.sequence for r in best_records(order).values()] == [2]


def test_a_log_is_judged_by_the_limit_of_its_last_run(tmp_path: Path, header: Header) -> None:
    def with_error(n: int, latency: float, error: float) -> MeasureRecord:
        result = MeasureResult(MeasureStatus.OK, (latency,), max_error=error).within(1e-4)
        return record(n, steps_json=steps_of(n), result=result)

    records = (with_error(0, 1e-3, 1e-6), with_error(1, 1e-4, 7e-5), with_error(2, 1e-5, 2e-4))
    assert [r.result.status for r in records] == ["ok", "ok", "inaccurate"]
    runs = tuple(replace(header, config=c) for c in ({}, {"max_error": 5e-5}))
    log = Log(headers=runs, records=records)
    assert (replace(log, headers=runs[:1]).max_error, log.max_error) == (None, 5e-5)
    best = [best_for(log.within(limit), "t1", 2)[K1].sequence for limit in (None, 5e-5, 1e-3)]
    assert best == [1, 0, 2]
    with pytest.raises(LogMismatch, match="as accurate") as info:
        best_for(log.within(1e-9), "t1", 2)
    assert "`max_error`" in info.value.hint
    write_log(tmp_path / "a", log)
    assert [r.sequence for r in distill([tmp_path / "a"]).records] == [0]
    write_log(tmp_path / "b", replace(log, headers=runs[:1]))
    assert [r.sequence for r in distill([tmp_path / "b"]).records] == [1]


def test_a_time_of_zero_is_no_measurement() -> None:
    assert best_records([record(0, 0.0)]) == {}


def test_best_for_never_takes_another_target_and_prefers_its_thread_count() -> None:
    log = Log(
        records=(
            record(0, 1e-3, n_threads=4),
            record(1, 9e-3, n_threads=1),
            record(2, 1e-9, target_key="t2"),
        )
    )
    assert best_for(log, "t1", 1)[K1].sequence == 1
    assert best_for(log, "t1", 8)[K1].sequence == 0
    with pytest.raises(LogMismatch, match="measured on t1, t2, not on t3"):
        best_for(log, "t3", 1)
    with pytest.raises(LogMismatch, match="no valid measurement"):
        best_for(Log(records=(record(0, None),)), "t1", 1)


def test_keys_with_the_number_of_cores_in_them_mean_the_same_cpu(
    tmp_path: Path, header: Header
) -> None:
    target = header.target
    old = [record(0, 2e-3, target_key=target.former_key), record(1, 1e-3, target_key="other")]
    with Journal.create(tmp_path / "old", header) as journal:
        journal.append(old)
    fewer = replace(target, n_cores=target.n_cores + 7)
    assert best_for(read_log(tmp_path / "old"), fewer.key, 1)[K1].sequence == 0
    assert [r.target_key for r in read_log(tmp_path / "old").records] == [target.key, "other"]
    with Journal.create(tmp_path / "new", replace(header, target=fewer)) as journal:
        journal.append([record(0, 3e-3, target_key=fewer.former_key)])
    best = distill([tmp_path / "old", tmp_path / "new"])
    pooled = [r.result.latency_s for r in best.records if r.target_key == target.key]
    assert pooled == [pytest.approx(2.5e-3)]


def test_distill_keeps_the_best_of_every_workload_and_stays_readable(
    tmp_path: Path, header: Header, matmul_of: Callable[[int], ComputeDAG]
) -> None:
    dag = matmul_of(8)
    ours = [Workload(K1, dag), Workload(K2, dag), Workload(UNUSED, dag)]
    for name, latency in (("a", 2e-3), ("b", 1e-3)):
        with Journal.create(tmp_path / name, replace(header, run_id=name), ours) as journal:
            one = record(0, latency, run_id=name, steps_json=steps_of(1 + (name == "b")))
            journal.append([one, replace(one, workload=K2, sequence=1)])
    best = distill([tmp_path / "a", tmp_path / "b"])
    assert [(r.workload, r.run_id) for r in best.records] == [(K1, "b"), (K2, "b")]
    assert [h.run_id for h in best.headers] == ["b"]
    assert set(best.workloads) == {K1, K2}
    write_log(tmp_path / "best", best)
    assert read_log(tmp_path / "best") == best
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "best"]


def test_distilling_nothing_valid_is_a_mismatch(tmp_path: Path, header: Header) -> None:
    with Journal.create(tmp_path / "a", header) as journal:
        journal.append([record(0, None)])
    with pytest.raises(LogMismatch, match="no log holds a valid measurement"):
        distill([tmp_path / "a"])


def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = log_path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = read_log(log_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError):
        write_log(log_path, log)
    assert log_path.read_bytes() == before
    assert [p.name for p in log_path.parent.iterdir()] == [log_path.name]


def test_a_log_of_version_1_is_read_for_ever(assets: Path) -> None:
    log = read_log(assets / "log-v1.jsonl")
    assert log.header.model_path == "mlp.onnx"
    assert log.header.target.lanes == 16
    assert log.header.tasks == (("6f1d2a3b4c5d6e7f", 2), ("0a1b2c3d4e5f6071", 1))
    assert (len(log.workloads), len(log.records), len(log.ends)) == (1, 4, 1)
    assert (log.n_skipped, log.torn) == (2, True)
    assert log.workloads["6f1d2a3b4c5d6e7f"].dag.flops == 2 * 4 * 16 * 8
    assert [r.result.status for r in log.records] == ["ok", "ok", "build_timeout", "ok"]
    first = log.records[0]
    assert first.result.latency_s == 2.1e-6
    assert first.steps[0] == Split("c", "i", (2, 2), "shift")
    assert [type(s).__name__ for s in first.steps] == [
        "Split",
        "Reorder",
        "Parallel",
        "Annotate",
        "ComputeInline",
        "ComputeAt",
        "CacheRead",
        "CacheWrite",
        "RFactor",
        "Pack",
        "Prefetch",
    ]
    best = best_for(log, "znver5-0123456789ab", 1)
    assert best["6f1d2a3b4c5d6e7f"].sequence == 1


def edited(line: str, path: str, value: object) -> str:
    """The line with the field at `path` (`result/times_s`) replaced."""
    data = json.loads(line)
    *folders, last = path.split("/")
    inner = data
    for name in folders:
        inner = inner[int(name) if isinstance(inner, list) else name]
    inner[int(last) if isinstance(inner, list) else last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sequence", "7"),
        ("workload", None),
        ("n_threads", 0),
        ("n_threads", True),
        ("n_threads", 1 << 63),
        ("elapsed_s", float("nan")),
        ("result/times_s", []),
        ("result/times_s", [1e-3, "2"]),
        ("result/times_s", [-1.0]),
        ("result/error", {}),
        ("steps", "none"),
    ],
)
def test_a_record_with_a_field_of_another_type_is_no_entry(path: str, value: object) -> None:
    assert decode(edited(encode(record()), path, value)) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run_id", 7),
        ("shapes", {"x": "1x3"}),
        ("n_threads", -1),
        ("n_threads", 1 << 63),
        ("config", []),
        ("config/batch", "many"),
        ("tasks", [[K1, "one"]]),
        ("target/vector_bits", None),
        ("version", "1"),
    ],
)
def test_a_header_with_a_field_of_another_type_is_no_entry(
    header: Header, path: str, value: object
) -> None:
    assert decode(edited(encode(header), path, value)) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("key", 7),
        ("dag/outputs", []),
        ("dag/outputs", ["nobody"]),
        ("dag/ops/0/shape", [[8], 8]),
        ("dag/ops/0/dtype", "float99"),
        ("dag/ops/1/constant", "yes"),
        ("dag/ops/2/axes/0/1", 9),
        ("dag/ops/2/axes/0/0", "q"),
        ("dag/ops/2/body/1", "mean"),
        ("dag/ops/2/body/2/1", ["call", "shout", ["const", 1.0, "float32"]]),
        ("dag/ops/2/body/2/1", ["load", "a", ["var", "i"]]),
    ],
)
def test_a_computation_that_is_none_is_no_entry(
    matmul_of: Callable[[int], ComputeDAG], path: str, value: object
) -> None:
    dag = matmul_of(8)
    line = encode(Workload(dag.key, dag, "matmul"))
    assert decode(line) is not None
    assert decode(edited(line, path, value)) is None


def test_a_step_with_a_field_of_another_type_is_a_mismatch() -> None:
    text = json.dumps([{"step": "parallel", "stage": "c", "n": "2"}])
    with pytest.raises(LogMismatch, match="does not know"):
        _ = record(steps_json=text).steps
