"""The server of examples/serving: its micro-batches alone, and as a process over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import io
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import autotune
from tests.serving import FOLDER, ROOT, Server, needs, started

from batches import MOST_DELAY, Batches, harmless  # isort: skip
from waiting import Overloaded  # isort: skip

WIDTH = 24
WEIGHTS = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)

Array = NDArray[Any]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ports = [helper.make_tensor_value_info(name, 1, ("batch", WIDTH)) for name in ("x", "y")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weights = [numpy_helper.from_array(WEIGHTS, "w")]
    graph = helper.make_graph(nodes, "small", ports[:1], ports[1:], weights)
    imports = [helper.make_opsetid("", 17)]
    path = tmp_path_factory.mktemp("serving") / "model.atn"
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    compiled = autotune.compile(model, dims={"batch": [1, 2, 4, 8]}, threads=2, check=False)
    compiled.artifact.save(path)
    return path


def sample(k: int) -> Array:
    return np.random.default_rng(k).standard_normal(WIDTH).astype(np.float32)


def is_answer(k: int, found: Array) -> bool:
    return bool(np.allclose(found, np.maximum(sample(k) @ WEIGHTS, 0), rtol=1e-4, atol=1e-5))


# --- which batches, and when ---------------------------------------------------------------------


def answered(n: int, sizes: list[int], seconds: dict[int, float], first: int) -> float:
    """Median latency of `n` requests that come while `first` of them are taken."""
    times: list[float] = []
    now, left = 0.0, n
    while left:
        size = max(s for s in sizes if s <= (first if left == n else left))
        now, left = now + seconds[size], left - size
        times += [now] * size
    return statistics.median(times)


def test_batches_raise_the_median_of_no_burst_by_more_than_a_tenth() -> None:
    """And they are made where they cost nothing, and left out where they save nothing."""
    draw = random.Random(0)
    kept = set()
    for _ in range(200):
        one, each = draw.random(), draw.random()
        seconds = {n: (one + n * each) / (one + each) for n in (1, 2, 4, 8)}
        sizes = harmless(seconds)
        kept.add(tuple(sizes))
        for n in range(1, 32):
            for first in {1, n}:
                alone = answered(n, [1], seconds, 1)
                assert answered(n, sizes, seconds, first) <= (MOST_DELAY + 1e-9) * alone
    assert {(1,), (1, 2, 4, 8)} <= kept
    assert harmless({1: 1.0, 2: 2.0, 4: 4.0}) == [1]
    assert harmless({1: 1.0, 2: 1.0, 4: 1.0}) == [1, 2, 4]


class Gated(autotune.Model):
    """A model whose inferences wait until they are let."""

    def __init__(self, artifact: Any) -> None:
        super().__init__(artifact, 1)
        self.gate = threading.Event()
        self.gate.set()

    def run(self, inputs: Any, out: Any = None) -> dict[str, Array]:
        assert self.gate.wait(60)
        return super().run(inputs, out)


@pytest.fixture
def batches(artifact: Path) -> Batches:
    made = Batches(Gated(autotune.load(artifact).artifact))
    made.sizes = [1, 2, 4, 8]
    return made


def test_what_waits_is_taken_together_and_nothing_waits_for_more(batches: Batches) -> None:
    n_cores, gate = batches.free, batches.model.gate  # type: ignore[attr-defined]

    async def main() -> None:
        gate.clear()
        tasks = [asyncio.create_task(batches.infer(sample(k))) for k in range(n_cores + 13)]
        await asyncio.sleep(0.05)
        assert batches.counts == {1: n_cores}, "a free core takes what comes at once"
        assert len(batches.waiting) == 13
        tasks[-1].cancel()  # a client that leaves
        gate.set()
        found = await asyncio.gather(*tasks[:-1])
        assert all(is_answer(k, y) for k, y in enumerate(found))
        while batches.running:
            await asyncio.sleep(1e-3)

    asyncio.run(main())
    assert batches.counts == {1: n_cores, 8: 1, 4: 1}, "nothing is computed for who has left"
    assert not batches.waiting
    assert batches.free == n_cores


def test_what_is_too_much_to_wait_is_refused_at_once(batches: Batches) -> None:
    gate = batches.model.gate  # type: ignore[attr-defined]
    batches.most_waiting = 3

    async def main() -> None:
        gate.clear()
        tasks = [asyncio.create_task(batches.infer(sample(k))) for k in range(batches.free + 3)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await batches.infer(sample(0))
        gate.set()
        assert all(is_answer(k, y) for k, y in enumerate(await asyncio.gather(*tasks)))
        assert is_answer(1, await batches.infer(sample(1)))

    asyncio.run(main())


def test_an_inference_that_fails_is_told_to_those_in_its_batch_alone(batches: Batches) -> None:
    async def main() -> None:
        wrong = asyncio.create_task(batches.infer(np.zeros(3, np.float32)))
        good = asyncio.create_task(batches.infer(sample(1)))
        with pytest.raises(autotune.UsageError):
            await wrong
        assert is_answer(1, await good)

    asyncio.run(main())


def test_a_model_that_takes_no_single_sample_is_refused(artifact: Path) -> None:
    model = autotune.load(artifact).variants[1]
    with pytest.raises(autotune.UsageError, match="takes a single sample") as caught:
        Batches(model)
    assert "batch=1,2,4,8" in caught.value.hint


# --- the server ----------------------------------------------------------------------------------


PARSING = threading.Lock()
"""NumPy parses its header by `ast`, which Python 3.11 does not do on several threads at once."""


def infer(server: Server, k: int) -> Array:
    status, body = server.ask("/infer", npy(sample(k)))
    assert status == 200, body
    with PARSING:
        return np.asarray(np.load(io.BytesIO(body)))


def is_refused_soon(server: Server) -> bool:
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        try:
            server.ask("/healthz")
        except OSError:
            return True
    return False


def npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def server(artifact: Path) -> Iterator[Server]:
    with started("server.py", artifact) as made:
        yield made


needs_fastapi = needs("fastapi", "uvicorn")


@needs_fastapi
def test_concurrent_requests_get_their_own_answers_and_are_counted(server: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(partial(infer, server), range(300)))
    assert all(is_answer(k, y) for k, y in enumerate(found))
    counts = server.metrics()
    assert counts['requests_total{code="200"}'] == 300
    assert counts["request_seconds_count"] == counts['request_seconds_bucket{le="+Inf"}'] == 300
    sizes = {int(n.split('"')[1]): v for n, v in counts.items() if n.startswith("batches_total")}
    assert sum(size * n for size, n in sizes.items()) == 300
    assert (counts["requests_waiting"], counts["batches_running"]) == (0, 0)


WRONG = (
    (b"no array", 400, b"no .npy file"),
    (b"", 400, b"no .npy file"),
    (npy(sample(0)[:5]), 400, b"a sample is float32[24]"),
    (npy(sample(0).astype(np.float64)), 400, b"a sample is float32[24]"),
    (b"x" * 10_000, 413, b"at most 1120 bytes"),
)


@needs_fastapi
def test_wrong_bodies_are_refused_in_one_line(server: Server) -> None:
    for body, status, text in WRONG:
        found, answer = server.ask("/infer", body)
        assert (found, answer.count(b"\n")) == (status, 1)
        assert text in answer
    assert is_answer(1, infer(server, 1))


@needs_fastapi
def test_a_stop_answers_what_has_begun_and_refuses_what_is_new(server: Server) -> None:
    body = npy(sample(1))
    begun = []
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.putrequest("POST", "/infer")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:10])
        begun.append(connection)
    assert is_answer(2, infer(server, 2))  # later than those, so they have begun
    server.process.send_signal(signal.SIGTERM)
    assert is_refused_soon(server)
    for connection in begun:
        connection.send(body[10:])
        answer = connection.getresponse()
        assert answer.status == 200
        assert is_answer(1, np.load(io.BytesIO(answer.read())))
        connection.close()
    assert server.process.wait(60) in (0, -signal.SIGTERM)
    assert server.process.stderr is not None
    assert server.process.stderr.read() == ""


# --- wrong beginnings ----------------------------------------------------------------------------


@needs("fastapi", "uvicorn", "PIL", "tokenizers")
@pytest.mark.parametrize(
    ("script", "more", "line"),
    [
        ("server.py", (), "is not a network compiled by autotune"),
        ("detector.py", (), "has not an image in and boxes out"),
        ("embeddings.py", ("none.json",), "is no tokenizer"),
        ("scorer.py", ("--threads", "0"), "threads"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    artifact: Path, script: str, more: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    given = artifact if script != "server.py" else tmp_path / "junk.atn"
    (tmp_path / "junk.atn").write_bytes(b"junk")
    found = subprocess.run(
        [sys.executable, FOLDER / script, given, *more, "--port", "0"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert line in found.stderr
    assert len(found.stderr.splitlines()) <= 2
