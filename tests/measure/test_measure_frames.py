"""Frames and messages: what is sent comes back, and garbage is an error that says so."""

from __future__ import annotations

import ast
import json
import math
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure_fakes as fakes
import numpy as np
import pytest

import autotune.measure
from autotune.codec import from_json, to_json
from autotune.loopir.codec import program_from_json, program_to_json
from autotune.measure.build import build_program
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.frames import Channel, Closed, Late, Message, ProtocolError
from autotune.measure.processes.messages import (
    BuildRequest,
    BuildResult,
    Hold,
    Prepare,
    Prepared,
    Time,
    from_message,
    to_message,
)
from autotune.measure.processes.process import Child, ChildCrash, ChildTimeout, Setup, WorkerError
from autotune.measure.processes.supervisor import Handler
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps
from autotune.search.sketch import generate_sketches
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, mul
from autotune.te.expr import add as plus


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel]]:
    raw, end = socket.socketpair()
    with raw, end:
        yield raw, Channel(end)


def through(message: Message) -> Message:
    a, b = socket.socketpair()
    with a, b:
        sender = threading.Thread(target=Channel(a).send, args=(message, 10.0))
        sender.start()
        found = Channel(b).receive(10.0)
        sender.join()
    return found


def test_a_frame_comes_back_whole() -> None:
    big = os.urandom(3 << 20)
    sent = Message("kind", {"x": [1, None, "ä"]}, [b"", big], 7)
    found = through(sent)
    assert (found.kind, found.fields, found.number) == (sent.kind, sent.fields, 7)
    assert [bytes(b) for b in found.blobs] == [b"", big]


HEAD = struct.Struct("<4sHHQ")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x95" + bytes(40),
        HEAD.pack(b"ATMP", 2, 0, 2) + b"{}",
        HEAD.pack(b"ATMP", 1, 0, 2) + b"{}",
        HEAD.pack(b"ATMP", 1, 0, 2) + b"[]",
        HEAD.pack(b"ATMP", 1, 0, 4) + b"nope",
        HEAD.pack(b"ATMP", 1, 60_000, 2) + bytes(8 * 60_000),
        HEAD.pack(b"ATMP", 1, 0, 1 << 62),
        HEAD.pack(b"ATMP", 1, 1, 2) + struct.pack("<Q", (1 << 64) - 1),
        HEAD.pack(b"ATMP", 1, 0, 40_000) + b"[" * 40_000,
        HEAD.pack(b"ATMP", 1, 0, 39) + b'{"kind": 1, "number": 1, "fields": {}} ',
    ],
)
def test_what_is_no_frame_is_an_error(ends: tuple[socket.socket, Channel], data: bytes) -> None:
    raw, channel = ends
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    raw.sendall(data)
    with pytest.raises(ProtocolError):
        channel.receive(5.0, 1 << 20)


def test_half_a_frame_is_late_and_a_closed_end_is_closed(
    ends: tuple[socket.socket, Channel],
) -> None:
    raw, channel = ends
    raw.sendall(HEAD.pack(b"ATMP", 1, 0, 100) + b"{")
    with pytest.raises(Late):
        channel.receive(0.05)
    raw.close()
    with pytest.raises(Closed):
        channel.receive(5.0)


def test_bytes_that_trickle_in_do_not_extend_the_deadline() -> None:
    now = iter(range(1000))
    raw, end = socket.socketpair()
    with raw, end:
        raw.sendall(HEAD.pack(b"ATMP", 1, 0, 1 << 19) + bytes(1000))
        with pytest.raises(Late):
            Channel(end, lambda: float(next(now))).receive(5.0)


def test_a_peer_that_does_not_read_is_late(ends: tuple[socket.socket, Channel]) -> None:
    _, channel = ends
    with pytest.raises(Late):
        channel.send(Message("x", {}, [bytes(64 << 20)]), 0.2)


def convolution() -> ComputeDAG:
    x, w = placeholder("x", (1, 16, 16, 16)), placeholder("w", (3, 3, 16, 16), constant=True)
    n, h, v, o = Axis("n", 1), Axis("h", 14), Axis("v", 14), Axis("o", 16)
    r, s, c = Axis("r", 3), Axis("s", 3), Axis("c", 16)
    at = x.tensor[n.var, plus(h.var, r.var), plus(v.var, s.var), c.var]
    body = Reduce("sum", mul(at, w.tensor[r.var, s.var, c.var, o.var]), (r, s, c))
    return ComputeDAG((x, w, compute("y", (n, h, v, o), body)), ("y",))


def first_steps(dag: ComputeDAG) -> list[Steps]:
    """A schedule of every sketch: packed, parted and transformed programs among them."""
    rng = np.random.default_rng(0)
    return [s.bind(s.sample(1, rng)[0]) for s in generate_sketches(dag, fakes.TARGET)]


@pytest.mark.slow
def test_programs_come_back_equal() -> None:
    seen = set()
    every = first_steps(dag := convolution())
    for steps in [*every[:8], *every[-4:]]:
        built = build_program(dag, steps, fakes.TARGET)
        program = built.program
        seen |= {"packs"} if program.packs else set()
        seen |= {"derived"} if program.derived else set()
        text = json.dumps(program_to_json(program), allow_nan=False)
        assert program_from_json(json.loads(text)) == program
        again = through(to_message(BuildResult(MeasureStatus.OK, built, 0.5)))
        assert from_message(again) == BuildResult(MeasureStatus.OK, built, 0.5)
    assert seen == {"packs", "derived"}


def test_requests_come_back_equal() -> None:
    dag = fakes.double_dag()
    built = fakes.build(dag, fakes.does("good"), fakes.TARGET)
    requests = [
        BuildRequest(3, dag, fakes.does("good")),
        BuildRequest(3, None, fakes.does("good")),
        Prepare(1, dag, None),
        Hold(2, built, first=True),
        Time(),
        Time(best_s=1e-6, rounds=3),
    ]
    assert [from_message(through(to_message(r))) for r in requests] == requests


def test_replies_come_back_equal() -> None:
    replies: list[Any] = [
        MeasureResult(MeasureStatus.OK, (1e-6, 2e-6), max_error=1e-7, peaks=(1e11,)),
        MeasureResult(MeasureStatus.WRONG_ANSWER, error="wrong", max_error=math.inf),
        [MeasureResult(MeasureStatus.OK, (1e-6,)), MeasureResult(MeasureStatus.RUN_ERROR)],
        [],
        BuildResult(MeasureStatus.BUILD_ERROR, error="no"),
    ]
    assert [from_message(through(to_message(r))) for r in replies] == replies
    with np.errstate(all="ignore"):
        arrays = {
            "y": np.array([1.0, np.nan, -np.inf], np.float32),
            "n": np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2],
            "b": np.array([True, False]),
            "none": np.zeros((0, 4), np.float32),
        }
    found = from_message(through(to_message(Prepared(arrays, frozenset({1, 2})))))
    assert isinstance(found, Prepared)
    assert found.held == {1, 2}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.expected[name], array)
        assert found.expected[name].dtype == array.dtype


def test_options_come_back_equal() -> None:
    for options in (MeasureOptions(), MeasureOptions(cores=(1, 2), max_error=1e-5, evict=True)):
        text = json.dumps(to_json(options), allow_nan=False)
        assert from_json(MeasureOptions, json.loads(text)) == options


def test_mangled_replies_are_protocol_errors_and_nothing_else() -> None:
    dag = fakes.double_dag()
    built = fakes.build(dag, fakes.does("good"), fakes.TARGET)
    whole = [
        to_message(BuildResult(MeasureStatus.OK, built, 0.5)),
        to_message(Prepared({"y": np.ones(4, np.float32)}, frozenset({1}))),
        to_message([MeasureResult(MeasureStatus.OK, (1e-6, 2e-6), max_error=1e-7)]),
    ]
    rng = random.Random(0)
    odd = [None, -1, 1e999, "", "ok", [], {}, [[]], True, 1 << 70, "O", "object", ["y", "O", [4]]]
    n_refused = 0
    for _ in range(3000):
        message = rng.choice(whole)
        fields = json.loads(json.dumps(message.fields))
        mangle(fields, rng, odd)
        blobs = message.blobs if rng.random() < 0.8 else []
        try:
            from_message(Message(message.kind, fields, blobs))
        except ProtocolError:
            n_refused += 1
    assert n_refused > 1000


def mangle(data: Any, rng: random.Random, odd: Sequence[Any]) -> None:
    """Replace something somewhere in nested lists and objects."""
    keys = list(data) if isinstance(data, dict) else list(range(len(data)))
    if not keys:
        return
    key = rng.choice(keys)
    if isinstance(data[key], dict | list) and rng.random() < 0.7:
        mangle(data[key], rng, odd)
    elif isinstance(data, dict) and rng.random() < 0.2:
        del data[key]
    else:
        data[key] = rng.choice(odd)


def test_nothing_that_runs_candidates_is_unpickled() -> None:
    folder = Path(autotune.measure.__file__).parent
    importers = [
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) and any(a.name == "pickle" for a in node.names)
    ]
    assert importers == ["parallel_map.py"]


def serve_echo(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """A child that dies `deaths` times while it starts; a file counts them."""
    count = Path(arguments["count"])
    n = len(count.read_bytes()) if count.exists() else 0
    if n < arguments["deaths"]:
        count.write_bytes(bytes(n + 1))
        os.kill(os.getpid(), signal.SIGKILL)

    def handle(message: Message) -> Message:
        if message.fields.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(message.fields.get("sleep_s", 0.0))
        return Message("echo", message.fields)

    return handle


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(("deaths", "starts"), [(0, True), (2, True), (9, False)])
def test_a_child_that_is_killed_while_it_starts_is_started_again(
    tmp_path: Path, deaths: int, starts: bool
) -> None:
    arguments = {"count": str(tmp_path / "count"), "deaths": deaths}
    child = Child(Setup("test_measure_frames:serve_echo", arguments), 60.0)
    try:
        if not starts:
            with pytest.raises(WorkerError, match="did not start: killed by SIGKILL"):
                child.ready()
            return
        child.ready()
        assert child.generation == deaths + 1
        assert child.request(Message("hello", {"a": 1}), 10.0).fields == {"a": 1}
        with pytest.raises(ChildTimeout, match=r"within 0\.2 s"):
            child.request(Message("hello", {"sleep_s": 60.0}), 0.2)
        child.ready()
        with pytest.raises(ChildCrash):
            child.request(Message("hello", {"dies": True}), 10.0)
    finally:
        child.kill()
