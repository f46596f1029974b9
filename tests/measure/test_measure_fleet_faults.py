"""Devices that answer what no sound one does are left out, whatever they answer."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import measure_fakes as fakes
import numpy as np
import pytest

from autotune.measure.fleet import connection as fleet_connection
from autotune.measure.fleet import fleet
from autotune.measure.fleet import requests as fleet_requests
from autotune.measure.fleet.address import kind_of
from autotune.measure.fleet.fleet import FleetDevice, FleetRunner
from autotune.measure.processes.frames import Message
from autotune.measure.processes.messages import BuildResult, Time, to_message
from autotune.measure.processes.process import WorkerError
from autotune.measure.timing.peak import Peaks
from autotune.records import read_log
from autotune.result import MeasureResult, MeasureStatus
from autotune.tuner.bound import believed
from tests.fuzz.farm import HERE, farm

distributed = pytest.importorskip("distributed")
S = MeasureStatus
_KIND = kind_of(fakes.TARGET, 1)
_SOUND_S = (1e-3, 2e-3)
_PEAKS = Peaks(1e9, 2e9, 3e9, 1 << 15)
Answer = Callable[[], Any]


def results(n: int = 2, **fields: Any) -> Message:
    """What a sound device sends for `n` programs."""
    found = to_message([MeasureResult(S.OK, _SOUND_S, run_s=0.1, max_error=1e-7)] * n)
    return Message(found.kind, {**found.fields, "device": "sound", "noise": {}, **fields})


def frame(message: Message) -> bytes:
    """A frame as a peer may make it that knows nothing of finite numbers."""
    head = {"kind": message.kind, "number": message.number, "fields": message.fields}
    text = json.dumps(head).encode()
    return struct.pack("<4sHHQ", b"ATMP", 1, 0, len(text)) + text


@dataclass
class FakeFuture:
    """Of a reply that is there, or of an exception."""

    address: str
    answer: Any
    n_bytes: int = 1000
    key: str = "key"

    @property
    def status(self) -> str:
        if isinstance(self.answer, asyncio.CancelledError):
            return "cancelled"
        return "error" if isinstance(self.answer, BaseException) else "finished"

    def exception(self, timeout: float) -> BaseException | None:
        return self.answer if self.status == "error" else None

    def result(self, timeout: float) -> Any:
        return self.answer


@dataclass
class FakeFleet:
    """A scheduler that gives requests to workers in turns, or as `rng` draws.

    `answers`: by their addresses.
    """

    answers: dict[str, Answer]
    n_bytes: dict[str, int] = field(default_factory=dict)
    runner: str = "dask://fake"
    asked: list[str] = field(default_factory=list)
    rng: np.random.Generator | None = None

    @property
    def client(self) -> FakeFleet:
        return self

    def rejoin(self) -> None:
        pass

    def close(self) -> None:
        pass

    def workers(self, kind: str) -> dict[str, str]:
        return {address: address.partition(":")[0] for address in self.answers}

    def submit(self, function: Any, data: bytes, workers: Any, **known: Any) -> FakeFuture:
        there = workers or sorted(self.answers)
        turn = len(self.asked) if self.rng is None else int(self.rng.integers(len(there)))
        address = there[turn % len(there)]
        self.asked.append(address)
        return FakeFuture(address, self.answers[address](), self.n_bytes.get(address, 1000))

    def who_has(self, futures: list[FakeFuture]) -> dict[str, tuple[str, ...]]:
        return {f.key: (f.address,) for f in futures if f.status == "finished"}

    def nbytes(self, keys: list[str], summary: bool) -> dict[str, int]:
        return {keys[0]: self.n_bytes.get(self.asked[-1], 1000)}


def raised(error: BaseException) -> Answer:
    return lambda: error


def sent(message: Message) -> Answer:
    return lambda: frame(message)


def one(**fields: Any) -> Answer:
    """Results of which the first has these fields."""
    message = results()
    first, *rest = message.fields["results"]
    return sent(Message(message.kind, {**message.fields, "results": [{**first, **fields}, *rest]}))


class OwnError(Exception):
    """One that only the device knows."""


FAULTS: dict[str, Answer] = {
    "none": lambda: None,
    "number": lambda: 12,
    "text": lambda: "results",
    "list": lambda: [1, 2],
    "no bytes": lambda: b"",
    "noise": lambda: random.Random(0).randbytes(500),
    "half": lambda: frame(results())[:60],
    "longer": lambda: frame(results()) + b"\0",
    "huge head": lambda: struct.pack("<4sHHQ", b"ATMP", 1, 60000, 1 << 62),
    "raises": raised(RuntimeError("stuck")),
    "raises its own": raised(OwnError("stuck")),
    "raises nothing": raised(AssertionError()),
    "late": raised(TimeoutError("late")),
    "broken pipe": raised(OSError("pipe")),
    "out of memory": raised(MemoryError()),
    "ends": raised(SystemExit(3)),
    "interrupted": raised(KeyboardInterrupt()),
    "failed": sent(Message("failed", {"text": "Traceback:\n  here\nValueError: no", "hint": ""})),
    "failed with codes": sent(Message("failed", {"text": "\x1b[2J\x9b1m" + 999 * "x"})),
    "failed without text": sent(Message("failed", {"text": None})),
    "another kind": sent(Message("peaks", results().fields)),
    "no kind": lambda: frame(results()).replace(b'"kind"', b'"dnik"'),
    "too few": sent(results(1)),
    "too many": sent(results(3)),
    "no results": sent(Message("results", {"device": "sound", "noise": {}})),
    "results of another type": sent(results(results={"status": "ok"})),
    "no device": sent(Message("results", {"results": results().fields["results"], "noise": {}})),
    "device of another type": sent(results(device=12)),
    "long device": sent(results(device="x" * 10_000)),
    "noise of another type": sent(results(noise=[1])),
    "noise with a text": sent(results(noise={"n_cores": "many"})),
    "nan": one(times_s=[math.nan]),
    "infinite": one(times_s=[math.inf]),
    "negative": one(times_s=[-1e-3]),
    "zero": one(times_s=[0.0, 0.0]),
    "no times": one(times_s=[]),
    "times of a failure": one(status="run_crash"),
    "times as texts": one(times_s=["1e-3"]),
    "times as one number": one(times_s=1e-3),
    "many times": one(times_s=[1e-3] * 200_000),
    "unknown status": one(status="fine"),
    "negative error": one(max_error=-1.0),
    "error as text": one(max_error="little"),
    "more fields": one(pickle="gASV"),
    "deep": lambda: frame(results()).replace(b'"noise": {}', b'"noise": ' + b"[" * 90_000),
}  # fmt: skip


def runner_of(found: FakeFleet, **options: Any) -> FleetRunner:
    device = FleetDevice(found.runner, _KIND, fakes.TARGET, 1)
    runner = FleetRunner(device, replace(fakes.QUICK, **options))
    runner._fleet = found  # type: ignore[assignment]
    runner._requests = fleet_requests.Requests(found, _KIND, device.left_out)  # type: ignore[arg-type]
    return runner


def measured(found: FakeFleet) -> tuple[list[MeasureResult], FleetRunner]:
    """What a batch of two programs brings."""
    runner = runner_of(found)
    return list(runner.run(fakes.double_dag(), _two_programs(), Time())), runner


def _two_programs() -> list[BuildResult]:
    program = fakes.build(fakes.double_dag(), fakes.does("good"), fakes.TARGET)
    return [BuildResult(S.OK, program)] * 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_device_with_a_fault_is_left_out_and_another_measures(fault: str) -> None:
    found = FakeFleet({"faulty:1": FAULTS[fault], "sound:1": sent(results())})
    runner, programs = runner_of(found), _two_programs()
    for _ in range(4):
        got = list(runner.run(fakes.double_dag(), programs, Time()))
        assert [(r.status, r.times_s, r.device) for r in got] == [(S.OK, _SOUND_S, "sound")] * 2
    (left,) = runner.left_out.values()
    assert found.asked.count("faulty:1") <= 2
    assert left.device == "faulty"
    assert 0 < len(left.reason) < 400
    assert left.reason.isprintable()


@pytest.mark.parametrize("fault", FAULTS)
def test_where_no_sound_device_is_left_the_reason_is_one_line(fault: str) -> None:
    found = FakeFleet({"faulty:1": FAULTS[fault], "faulty:2": FAULTS[fault]})
    with pytest.raises(WorkerError, match="no device of dask://fake is left: device faulty") as e:
        measured(found)
    assert "\n" not in e.value.message
    assert e.value.hint


@pytest.mark.parametrize("n_sound", [1, 3, 7])
@pytest.mark.parametrize("fault", ["raises", "raises its own", "nan"])
def test_a_device_with_a_fault_is_found_within_as_many_requests_as_there_are_devices(
    fault: str, n_sound: int, rng: np.random.Generator
) -> None:
    """However Dask spreads them: it does not tell which of its workers has raised an exception."""
    answers: dict[str, Answer] = {f"sound{n}:1": sent(results()) for n in range(n_sound)}
    found = FakeFleet({"faulty:1": FAULTS[fault], **answers}, rng=rng)
    runner, programs = runner_of(found), _two_programs()
    while "faulty:1" not in found.asked:
        list(runner.run(fakes.double_dag(), programs, Time()))
    for _ in range(n_sound):
        list(runner.run(fakes.double_dag(), programs, Time()))
    assert [left.device for left in runner.left_out.values()] == ["faulty"]
    assert found.asked.count("faulty:1") <= 2


def test_a_reply_that_is_too_long_is_not_fetched() -> None:
    def fetched() -> bytes:
        return frame(results())

    found = FakeFleet({"faulty:1": fetched, "sound:1": sent(results())}, {"faulty:1": 1 << 40})
    got, runner = measured(found)
    assert [r.device for r in got] == ["sound"] * 2
    assert "1099511627776 bytes" in runner.left_out["faulty:1"].reason


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_of_a_reply_is_no_failure_of_the_session(seed: int) -> None:
    """It is refused, or results are what they may be."""
    rng = random.Random(seed)

    def damaged() -> bytes:
        data = bytearray(frame(results()))
        for _ in range(rng.randint(1, 4)):
            begin = rng.randrange(len(data))
            change = rng.choice((b"", b"0", b"null", b"]", rng.randbytes(2), b"-1e999", b"NaN"))
            data[begin : begin + rng.choice((0, 1, 1, 8))] = change
        return bytes(data)

    for _ in range(20):
        got, _ = measured(FakeFleet({"faulty:1": damaged, "sound:1": sent(results())}))
        assert len(got) == 2
        for result in got:
            latency_s = result.latency_s
            assert (latency_s is not None) == result.ok
            assert latency_s is None or 0 < latency_s < math.inf
            assert 0 < len(result.device) <= 200


def test_an_error_beyond_the_limit_is_inaccurate_whatever_the_device_says() -> None:
    runner = runner_of(FakeFleet({"board:1": one(max_error=0.5)}), max_error=0.01)
    got = list(runner.run(fakes.double_dag(), _two_programs(), Time()))
    assert [r.status for r in got] == [S.INACCURATE, S.OK]


def test_a_device_whose_replies_do_not_arrive_is_left_out_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def result(self: FakeFuture, timeout: float) -> Any:
        if self.address == "faulty:1":
            raise TimeoutError
        return self.answer

    monkeypatch.setattr(FakeFuture, "result", result)
    found = FakeFleet(dict.fromkeys(("faulty:1", "sound:1"), sent(results())))
    runner = runner_of(found)
    for _ in range(8):
        reply = runner._open().ask(Message("batch"), lambda reply: reply)
        assert reply.fields["device"] == "sound"
    assert list(runner.left_out) == ["faulty:1"]
    assert found.asked.count("faulty:1") == fleet_requests._MOST_LOST


@pytest.mark.parametrize(
    "peaks",
    [
        {**_PEAKS.to_json(), "flops_per_s": math.nan},
        {**_PEAKS.to_json(), "flops_per_s": -1.0},
        {**_PEAKS.to_json(), "cold_bytes_per_s": 0},
        {**_PEAKS.to_json(), "warm_bytes_per_s": 1e300},
        {**_PEAKS.to_json(), "l1_bytes": 0},
        {**_PEAKS.to_json(), "l1_bytes": math.inf},
        {**_PEAKS.to_json(), "dots": []},
        {"flops_per_s": 1e9},
        [1, 2],
        None,
    ],
)
def test_peaks_of_no_machine_are_asked_of_another(
    peaks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Message("peaks", {"peaks": _PEAKS.to_json()})
    found = FakeFleet({"faulty:1": sent(Message("peaks", {"peaks": peaks})), "sound:1": sent(good)})
    monkeypatch.setattr(fleet, "connected_fleet", lambda address: nullcontext(found))
    device = FleetDevice(found.runner, _KIND, fakes.TARGET, 1)
    assert device.peaks(evict=True) == _PEAKS
    assert [left.device for left in device.left_out.values()] == ["faulty"]
    found.answers = {"faulty:1": lambda: None, "sound:1": sent(Message("cached", {"stays": True}))}
    assert device.stays_cached(1, 1)
    found.answers = {"odd:1": sent(Message("cached", {"stays": "yes"}))}
    with pytest.raises(WorkerError, match="device odd is left out"):
        device.stays_cached(1, 1)


@pytest.mark.parametrize(
    ("times_s", "device", "status"),
    [
        ((1e-6, 1.1e-6, 2e-6), "board", S.OK),
        ((0.51e-6,) * 3, "board", S.OK),
        ((0.49e-6,) * 3, "board", S.WRONG_ANSWER),
        ((1e-300,), "board", S.WRONG_ANSWER),
        ((1e-300,), "", S.OK),
    ],
)
def test_times_of_more_than_twice_the_peak_are_wrong_answers_of_a_fleet(
    times_s: tuple[float, ...], device: str, status: MeasureStatus
) -> None:
    found = believed(MeasureResult(S.OK, times_s, device=device), 1e-6)
    assert found.status is status
    assert bool(found.times_s) == (status is S.OK)
    assert believed(MeasureResult(S.OK, times_s, device=device), None).ok


@pytest.mark.parametrize(
    "change",
    [
        lambda fact: {**fact, "name": 12},
        lambda fact: {**fact, "n_threads": "one"},
        lambda fact: {**fact, "n_threads": -1},
        lambda fact: {**fact, "kind": "another"},
        lambda fact: {**fact, "target": {}},
        lambda fact: {**fact, "target": None},
        lambda fact: {k: v for k, v in fact.items() if k != "target"},
        lambda fact: [fact],
        lambda fact: None,
    ],
)
def test_a_worker_that_tells_garbage_of_its_device_is_none(change: Callable[[Any], Any]) -> None:
    fact = {
        "version": fleet_connection.__version__,
        "protocol": fleet_connection.VERSION,
        "name": "board",
        "kind": _KIND,
        "target": fakes.TARGET.to_json(),
        "n_threads": 1,
    }
    found = fleet_connection.Fleet.__new__(fleet_connection.Fleet)
    found.runner = "dask://fake"
    told = {"a": json.dumps(fact), "b": json.dumps(change(fact)), "c": "{", "d": 12, "e": OSError()}
    found.client = FakeClient(told)
    assert [member.name for member in found.members()] == ["board"]
    del told["a"]
    with pytest.raises(WorkerError, match="does not reach its workers: e"):
        found.members()
    del told["e"]
    with pytest.raises(WorkerError, match="no device is connected to dask://fake"):
        found.members()


@dataclass
class FakeClient:
    """What workers tell, by their addresses."""

    told: dict[str, Any]

    def run(self, function: Any, on_error: str) -> dict[str, Any]:
        return {f"tcp://{address}": text for address, text in self.told.items()}


@pytest.mark.slow
def test_a_session_ends_well_beside_faulty_devices(tmp_path: Path) -> None:
    kinds = ("raises", "nan")
    with farm(tmp_path, sound=HERE) as found:
        for kind in kinds:
            found.options[kind] = HERE
            found.workers[kind] = found.process(
                "-m", "tests.fuzz.faulty", kind, found.address, "--name", kind, *HERE, to=kind
            )
        found.wait()
        log = tmp_path / "log.jsonl"
        source = ("tune", f"{found.workload}:task", "--args", "64,64,64", "--log", str(log))
        session = found.tune(*source, "--runner", found.address, "--trials", "48")
        assert session.wait(180) == 0, (found.folder / "session.txt").read_text()
        said = (found.folder / "session.txt").read_text()
    assert {r.result.device for r in read_log(log).records} == {"sound"}
    notes = Counter(re.findall(r"note: device (\w+) is left out: ", said))
    assert notes.keys() <= set(kinds)  # one that was given no batch is not found
    assert set(notes.values()) <= {1}
