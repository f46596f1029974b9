"""One suite for whatever runs candidates: here, behind a command, in a fleet; and lost workers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import measure_fakes as fakes
import pytest

from autotune.errors import MissingDependency
from autotune.measure.far.program_device import program_device
from autotune.measure.fleet import connection as fleet_connection
from autotune.measure.fleet import fleet
from autotune.measure.fleet import requests as fleet_requests
from autotune.measure.fleet.connection import VersionMismatch, connected_fleet
from autotune.measure.fleet.fleet import FleetDevice, fleet_devices
from autotune.measure.local import LocalDevice
from autotune.measure.pipeline import PipelinedMeasurer, measurer_for
from autotune.measure.processes.frames import Message, ProtocolError, packed, unpacked
from autotune.measure.processes.messages import Batch
from autotune.measure.processes.process import WorkerError
from autotune.measure.protocols import Built, Device
from autotune.records import read_log
from autotune.result import MeasureStatus
from tests.forking import Cli
from tests.fuzz.farm import ARM, HERE, Farm, emulator, farm, problems_of, until

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow
S = MeasureStatus


@pytest.fixture(scope="module")
def two_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A fleet of two devices of one kind."""
    with farm(tmp_path_factory.mktemp("farm"), one=HERE, two=HERE) as found:
        yield found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """The same, whose scheduler gives up a worker that is silent for five seconds."""
    with farm(tmp_path_factory.mktemp("farm"), "2s", one=HERE, two=HERE) as found:
        yield found


@pytest.fixture(params=["here", "command", "fleet"])
def device(request: pytest.FixtureRequest) -> Device:
    match request.param:
        case "here":
            return LocalDevice(fakes.TARGET, 1)
        case "command":
            try:
                return program_device("env", fakes.TARGET, 1)
            except MissingDependency as error:
                pytest.skip(str(error))
        case _:
            (found,) = fleet_devices(request.getfixturevalue("two_here").address)
            return found


def test_every_runner_gives_every_candidate_its_status(device: Device) -> None:
    wanted = {
        "good": S.OK,
        "crash": S.RUN_CRASH,
        "wrong": S.WRONG_ANSWER,
        "bad_code": S.BUILD_ERROR,
        "hang": S.RUN_TIMEOUT,
        "too_far": S.WRONG_ANSWER,
    }
    steps = [fakes.does(what) for what in (*wanted, "good")]
    with measurer_for(device, fakes.QUICK, fakes.build) as measurer:
        dag = fakes.double_dag()
        told = list(measurer.stream(dag, steps))
        results = [result for result in told if not isinstance(result, Built)]
        again = list(measurer.measure_interleaved(dag, steps[:1] * 2, rounds=7))
    assert [r.status for r in results] == [*wanted.values(), S.OK]
    assert all(r.latency_s and r.build_s and r.run_s for r in (results[0], results[-1]))
    assert [len(r.times_s) for r in again] == [7, 7]
    built = [one.n_done for one in told if isinstance(one, Built)]
    assert built == sorted(built)
    assert built[-1:] == ([] if isinstance(device, FleetDevice) else [len(steps)])
    names = {r.device for r in results if r.status is not S.BUILD_ERROR}
    assert names <= {"one", "two"} if isinstance(device, FleetDevice) else names == {""}


def test_every_device_tells_its_peaks(device: Device) -> None:
    peaks = device.peaks(evict=False)
    assert peaks.flops_per_s > 0
    assert peaks.l1_bytes == device.target.l1_bytes
    assert device.stays_cached(1 << 10, 1 << 10)


@pytest.mark.parametrize("blobs", [[], [b""], [b"code", b"", b"\0" * 5000]])
def test_frames_survive_a_transport_of_bytes(blobs: list[bytes]) -> None:
    sent = Message("batch", {"n": [1, 2.5, None]}, blobs, 7)
    data = packed(sent)
    found = unpacked(data)
    assert (found.kind, found.fields, found.number) == (sent.kind, sent.fields, sent.number)
    assert [bytes(blob) for blob in found.blobs] == blobs
    for bad in (b"", data[:10], data[:-1], data + b"x", b"X" + data[1:]):
        with pytest.raises(ProtocolError):
            unpacked(bad)


def test_both_devices_work_and_one_that_dies_loses_nothing(two_here: Farm) -> None:
    (device,) = fleet_devices(two_here.address)
    dag, steps = fakes.double_dag(), [fakes.does("good")] * 8
    with measurer_for(device, fakes.QUICK, fakes.build) as measurer:
        assert isinstance(measurer, PipelinedMeasurer)
        assert measurer.n_slots > 2
        results = []
        for kill in (False, True):
            batches = [measurer.stream(dag, steps) for _ in range(8)]
            killed = kill and _signal(two_here, "one", "spawn_main")
            results += [list(batch) for batch in batches]
    assert killed
    assert all(r.status is S.OK for batch in results for r in batch)
    assert {len({r.device for r in batch}) for batch in results} == {1}  # no batch is of both
    assert {batch[0].device for batch in results} == {"one", "two"}
    until(lambda: _members(two_here) == ["one", "two"], "the device is there again")


def test_a_fleet_on_one_machine_listens_on_its_loopback_alone(two_here: Farm) -> None:
    for name in ("one", "two"):
        assert [host for host, _ in _listening(two_here.below(name))] == ["127.0.0.1"] * 2


def _listening(pids: list[int]) -> list[tuple[str, int]]:
    """Where processes can be reached."""
    import psutil

    states = (psutil.CONN_LISTEN, psutil.CONN_NONE)  # of TCP and of UDP
    found = [c for pid in pids for c in psutil.Process(pid).net_connections("inet")]
    return [tuple(each.laddr) for each in found if each.status in states]


def _members(found: Farm) -> list[str]:
    with suppress(WorkerError), connected_fleet(found.address) as fleet:
        return [member.name for member in fleet.members()]
    return []


def _signal(found: Farm, name: str, word: str, number: int = signal.SIGKILL) -> int:
    commands = found.pids()
    own = [p for p in found.below(name)[1:] if any(word in w for w in commands.get(p, []))]
    for pid in own:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(own)


def test_of_a_batch_that_ends_all_workers_the_culprit_is_found(
    two_here: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import KilledWorker

    (device,) = fleet_devices(two_here.address)
    runner = device.runner(fakes.QUICK)
    dag = fakes.double_dag()
    with measurer_for(LocalDevice(fakes.TARGET), fakes.QUICK, fakes.build) as local:
        built = local._builder.build(dag, [fakes.does(w) for w in ("good", "crash", "good")])
    culprit = built[1].program
    assert culprit is not None
    ask = fleet.Requests.ask

    def killed(self: Any, request: Message, read: Any) -> Any:
        if culprit.code in [bytes(blob) for blob in request.blobs]:
            raise KilledWorker("serve", None, 3)
        return ask(self, request, read)

    monkeypatch.setattr(fleet.Requests, "ask", killed)
    results = list(runner.run(dag, built, fleet.Time()))
    runner.close()
    assert [r.status for r in results] == [S.OK, S.RUN_CRASH, S.OK]


def test_workers_of_another_version_are_refused(
    two_here: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_connection, "__version__", "9.9")
    with pytest.raises(VersionMismatch, match=r"have autotune .*, this is 9\.9") as caught:
        fleet_devices(two_here.address)
    assert caught.value.exit_code == 4


def test_a_device_that_is_gone_for_good_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_requests, "_LOST_S", 2.0)
    with farm(tmp_path, one=HERE) as found:
        (device,) = fleet_devices(found.address)
        with measurer_for(device, fakes.QUICK, fakes.build) as measurer:
            dag = fakes.double_dag()
            first = list(measurer.stream(dag, [fakes.does("good")]))
            for pid in found.below("one"):  # all at once: what is left of it would go on
                os.kill(pid, signal.SIGKILL)
            lost = measurer.stream(dag, [fakes.does("good")])
            with pytest.raises(WorkerError, match=r"no device is connected to dask://.* for 2 s"):
                list(lost)
        assert [r.status for r in first] == [S.OK]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--runner", "dask://127.0.0.1:1"), 1, "no scheduler answers at dask://127.0.0.1:1"),
        (("--runner", "dask://"), 2, "'dask://' is no address of a fleet"),
        (("--runner", "dask://host:many"), 2, "is no address of a fleet"),
        (("--runner", "FLEET", "--target", "znver3"), 2, "no device of FLEET is as --target"),
        (("--runner", "FLEET", "--threads", "7"), 2, "no device of FLEET is as --target"),
        (("--runner", "EMPTY"), 1, "no device is connected to EMPTY"),
    ],
)
def test_a_fleet_that_is_not_there_is_one_line(
    cli: Cli, two_here: Farm, tmp_path: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    def run(empty: str) -> None:
        places = {"FLEET": two_here.address, "EMPTY": empty}
        words = [places.get(word, word) for word in arguments]
        expected = text.replace("FLEET", two_here.address).replace("EMPTY", empty)
        log = tmp_path / "log.jsonl"
        done = cli("tune", f"{two_here.workload}:task", "--args", "8,8,8", "--log", log, *words)
        assert (done.code, done.out) == (code, "")
        assert expected in done.err
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 2
        assert "hint: " in done.err
        assert not log.exists()

    if "EMPTY" in arguments:
        with farm(tmp_path) as found:
            run(found.address)
    else:
        run("")


def test_a_worker_serves_one_machine(cli: Cli) -> None:
    assert cli("worker", "ssh board").code == 2
    assert cli("worker", "dask://127.0.0.1:1").code == 1


def test_a_killed_session_goes_on_and_leaves_the_workers_clean(
    cli: Cli, two_here: Farm, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    source = ("tune", f"{two_here.workload}:task", "--args", "64,64,64", "--log", str(log))
    session = two_here.tune(*source, "--runner", two_here.address, "--trials", "48")
    until(lambda: _n_records(log) > 8, "there are records")
    session.kill()
    session.wait()
    told = two_here.told()
    session = two_here.tune("resume", str(log))
    assert session.wait(120) == 0, (two_here.folder / "session.txt").read_text()
    found = read_log(log)
    assert sum(not r.final for r in found.records) == 48
    assert problems_of(found, told + two_here.told()) == []
    assert {r.result.device for r in found.records} <= {"one", "two"}  # one may come back late
    other = log.with_name("elsewhere.jsonl")
    header, *rest = log.read_text().splitlines()
    data = json.loads(header)
    data["target"]["l2_bytes"] += 1
    other.write_text("\n".join([json.dumps(data), rest[0]]) + "\n")
    done = cli("resume", other)
    assert done.code == 4
    assert "no device of dask://" in done.err


def _n_records(log: Path) -> int:
    with suppress(FileNotFoundError):
        return log.read_text().count('"type":"measure"')
    return 0


def test_a_session_outlives_a_scheduler_that_is_away_for_a_while(
    watched: Farm, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    source = ("tune", f"{watched.workload}:task", "--args", "64,64,96", "--log", str(log))
    session = watched.tune(*source, "--runner", watched.address, "--trials", "48")
    until(lambda: _n_records(log) > 8, "there are records")
    watched.scheduler.kill()
    watched.scheduler.wait()
    time.sleep(7)  # Dask's client gives up after five seconds
    assert session.poll() is None, (watched.folder / "session.txt").read_text()
    watched.scheduler = watched.start_scheduler()
    assert session.wait(180) == 0, (watched.folder / "session.txt").read_text()
    found = read_log(log)
    assert sum(not r.final for r in found.records) == 48
    assert problems_of(found, watched.told()) == []


def test_the_batch_of_a_worker_that_hangs_is_measured_elsewhere(watched: Farm) -> None:
    until(lambda: _members(watched) == ["one", "two"], "both devices are there")
    (device,) = fleet_devices(watched.address)
    dag, steps = fakes.double_dag(), [fakes.does("good")] * 8
    with measurer_for(device, fakes.QUICK, fakes.build) as measurer:
        batches = [measurer.stream(dag, steps) for _ in range(6)]
        assert _signal(watched, "one", "spawn_main", signal.SIGSTOP)
        results = [list(batch) for batch in batches]
    assert all(r.status is S.OK for batch in results for r in batch)
    until(lambda: _members(watched) == ["one", "two"], "the device is there again")


def test_an_interrupted_session_ends_at_once_and_says_how_to_go_on(
    two_here: Farm, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    source = ("tune", f"{two_here.workload}:task", "--args", "96,64,64", "--log", str(log))
    session = two_here.tune(*source, "--runner", two_here.address, "--time", "1h")
    until(lambda: _n_records(log) > 4, "there are records")
    assert _listening([session.pid]) == []
    session.send_signal(signal.SIGINT)
    assert session.wait(30) == 130
    assert "go on with: autotune resume" in (two_here.folder / "session.txt").read_text()
    assert read_log(log).ends[-1].reason == "interrupted"


@pytest.mark.skipif(emulator() is None, reason="qemu-aarch64-static is not installed")
def test_two_kinds_of_devices_are_tuned_for_in_one_log(
    cli: Cli, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path / "log.jsonl"
    with farm(tmp_path_factory.mktemp("farm"), here=HERE, arm=ARM) as found:
        source = ("tune", f"{found.workload}:task", "--args", "16,16,16", "--log", str(log))
        session = found.tune(*source, "--runner", found.address, "--trials", "4")
        assert session.wait(300) == 0, (found.folder / "session.txt").read_text()
        kept, told = read_log(log), found.told()
    assert problems_of(kept, told) == []
    assert len(kept.targets) == 2
    assert {k: n for k, n in told.items() if k} == dict.fromkeys(kept.targets, 4)
    by_device = Counter((r.result.device, r.target_key) for r in kept.records)
    assert {device for device, _ in by_device} == {"here", "arm"}
    arm = next(key for device, key in by_device if device == "arm")
    best = tmp_path / "best.jsonl"
    assert cli("distill", log, "-o", best).code == 0
    assert len(read_log(best).records) == 2
    done = cli("compile", "--log", best, "--target", arm, "-o", tmp_path / "arm.atn")
    assert done.code == 0, done.err
    done = cli("explain", best, "--task", "0", "--target", arm)
    assert arm in done.out
    done = cli("explain", best, "--task", "0")
    assert arm not in done.out


def test_a_batch_is_plain_bytes_and_comes_back_whole() -> None:
    from autotune.measure.processes.messages import from_message, to_message

    with measurer_for(LocalDevice(fakes.TARGET), fakes.QUICK, fakes.build) as local:
        dag = fakes.double_dag()
        built = local._builder.build(dag, [fakes.does("good"), fakes.does("wrong")])
    programs = tuple(b.program for b in built if b.program is not None)
    batch = Batch(dag, programs, fleet.Time(1e-3), fakes.QUICK)
    found = from_message(unpacked(packed(to_message(batch))))
    assert isinstance(found, Batch)
    assert (found.time, found.options) == (batch.time, batch.options)
    assert [p.code for p in found.programs] == [p.code for p in programs]


def test_a_worker_tells_what_disturbs_it_and_its_child_ends_when_it_idles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from autotune.measure.fleet import worker as fleet_worker
    from autotune.measure.processes.messages import to_message
    from autotune.measure.timing.noise import Noise, NoiseWatch, Usage

    usages = (Usage(3.0 * n, 2, 3.0 * n, 0.0, 0.0) for n in range(9))
    monkeypatch.setattr(fleet_worker, "_IDLE_S", 0.2)
    monkeypatch.setattr(fleet_worker, "read_usage", lambda: next(usages))
    server = fleet_worker.DeviceServer(LocalDevice(fakes.TARGET))
    with measurer_for(LocalDevice(fakes.TARGET), fakes.QUICK, fakes.build) as local:
        dag = fakes.double_dag()
        (built,) = local._builder.build(dag, [fakes.does("good")])
    assert built.program is not None
    batch = to_message(Batch(dag, (built.program,), fleet.Time(), fakes.QUICK))
    noises = [server.answer(batch).fields["noise"] for _ in range(2)]
    assert noises[0] == {}
    noise = Noise.from_json(noises[1], "one")
    assert (noise.other_cpus, noise.device) == (1.0, "one")
    assert str(noise).startswith("one: others keep 1.0 of 2 cores busy")
    assert isinstance(server._watch, NoiseWatch)
    until(lambda: server._runner is None, "the child ends", 30)
