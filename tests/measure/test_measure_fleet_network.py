"""Who can reach what of a fleet: between machines that have a network of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.measure.fleet.address import (
    Listening,
    fleet_address,
    listening_host,
    require_free,
    scheduler_place,
)
from tests.forking import ROOT
from tests.fuzz.farm import HERE, until
from tests.machines import Machine, machines, tunnel

pytest.importorskip("distributed")
_PORT, _WORKER_PORT = 8786, 9001
_WORKLOAD = """
from autotune import te

def task(n):
    x = te.placeholder((n,), "x")
    return te.compute((n,), lambda i: x[i] + x[i], "y")
"""


@pytest.mark.parametrize(
    ("text", "place", "address"),
    [
        ("dask://farm", ("farm", 8786), "tcp://farm:8786"),
        ("dask://10.0.0.1:99/", ("10.0.0.1", 99), "tcp://10.0.0.1:99"),
        ("dask://[::1]", ("::1", 8786), "tcp://[::1]:8786"),
        ("dask://[fe80::1]:99", ("fe80::1", 99), "tcp://[fe80::1]:99"),
    ],
)
def test_an_address_of_a_fleet_is_read(text: str, place: tuple[str, int], address: str) -> None:
    assert scheduler_place(text) == place
    assert fleet_address(text) == address


@pytest.mark.parametrize("text", ["", ":", ":99", "a:b", "a:0", "a:99999", "[::1", "u@a", "a/b"])
def test_what_is_no_address_of_a_fleet_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="is no address of a fleet"):
        scheduler_place(f"dask://{text}")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_a_worker_may_listen_within_its_machine(host: str) -> None:
    assert listening_host("dask://farm", Listening(host)).strip("[]") == host.strip("[]")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.77.0.2", "fe80::1", "192.168.1.7"])
def test_a_worker_does_not_listen_where_others_could_run_code(host: str) -> None:
    with pytest.raises(UsageError, match=r"could run code here.*no certificates") as caught:
        listening_host("dask://farm", Listening(host))
    assert "--insecure" in caught.value.hint
    assert listening_host("dask://farm", Listening(host, is_insecure=True)).strip("[]") == host


def test_a_place_that_this_machine_does_not_have_is_said() -> None:
    require_free("127.0.0.1", (0, 0))
    with pytest.raises(UsageError, match=r"cannot listen at 203\.0\.113\.7"):
        require_free("203.0.113.7", (0, 0))
    with pytest.raises(UsageError, match="there is no host"):
        listening_host("dask://farm", Listening("no.such.host.invalid"))


@pytest.mark.slow
def test_workers_behind_tunnels_measure_for_a_session(tmp_path: Path) -> None:
    """As the page on fleets has it: the scheduler listens on its own machine alone."""
    workload = tmp_path / "task.py"
    workload.write_text(_WORKLOAD)
    with ExitStack() as stack:
        there, board, desk = stack.enter_context(machines(3))
        enter = stack.enter_context
        enter(_scheduler(there, "127.0.0.1", tmp_path))
        for here in (board, desk):
            enter(tunnel(here, _PORT, there, tmp_path))  # ssh -L
        enter(tunnel(there, _WORKER_PORT, board, tmp_path))  # ssh -R
        enter(tunnel(there, _WORKER_PORT + 1, board, tmp_path))
        address = f"dask://127.0.0.1:{_PORT}"
        enter(_worker(board, tmp_path, address, "--port", str(_WORKER_PORT)))
        session = subprocess.run(
            desk.command(
                *_AUTOTUNE, "tune", f"{workload}:task", "--args", "64", "--trials", "4",
                "--runner", address, "--log", str(tmp_path / "log.jsonl"),
            ),
            env=_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert session.returncode == 0, session.stderr
        places = {f"127.0.0.1:{port}" for port in (_PORT, _WORKER_PORT, _WORKER_PORT + 1)}
        assert board.listening() == places
        assert (tmp_path / "log.jsonl").read_text().count('"type":"measure"') >= 4


@pytest.mark.slow
def test_a_worker_in_a_network_needs_certificates_or_trust(tmp_path: Path) -> None:
    secret = {f"DASK_DISTRIBUTED__COMM__{k}": v for k, v in _certificates(tmp_path).items()}
    with machines(2) as (there, board):
        address = f"dask://{there.address}:{_PORT}"
        with _scheduler(there, there.address, tmp_path):
            refused = subprocess.run(
                board.command(*_AUTOTUNE, "worker", address, *HERE),
                env=_environment(), capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert refused.returncode == 2
            assert f"error: whoever reaches {board.address} could run code here" in refused.stderr
            assert "--insecure" in refused.stderr
            with _worker(board, tmp_path, address, "--insecure") as said:
                assert f"note: whoever reaches {board.address} can run code here" in said
                hosts = {place.rpartition(":")[0] for place in board.listening()}
                assert hosts == {board.address}
                assert _runs_code(there, said)
        with (
            _scheduler(there, there.address, tmp_path, **secret),
            _worker(board, tmp_path, address, **secret) as said,
        ):
            assert "note:" not in said
            assert not _runs_code(there, said)
            assert _runs_code(there, said, **secret)


_AUTOTUNE = (sys.executable, "-m", "autotune")
_INTRUDER = """
import asyncio, os, sys
from distributed import Security
from distributed.core import rpc
from distributed.protocol.pickle import dumps

async def main():
    secret = Security().get_connection_args("client")
    scheme = "tls" if secret["ssl_context"] else "tcp"
    async with rpc(f"{scheme}://{sys.argv[1]}", connection_args=secret, timeout=3) as worker:
        print((await worker.run(function=dumps(os.getppid)))["status"])

asyncio.run(main())
"""


def _runs_code(machine: Machine, said: str, **variables: str) -> bool:
    """Whether who connects to a worker from `machine` has code run; `said`: where it listens."""
    place = said.partition("listens at ")[2].split()[0]
    done = subprocess.run(
        machine.command(sys.executable, "-c", _INTRUDER, place),
        env=_environment() | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "OK" in done.stdout


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE", "DASK"))}
    return kept | {"PYTHONPATH": str(ROOT), "AUTOTUNE_TUNE_COMPARE": "0"}


@contextmanager
def _scheduler(machine: Machine, host: str, folder: Path, **variables: str) -> Iterator[None]:
    words = ("--host", host, "--port", str(_PORT), "--dashboard-address", "127.0.0.1:0")
    words = ("-m", "distributed.cli.dask_scheduler", *words)
    command = machine.command(sys.executable, *words)
    with _running(command, folder / "scheduler.txt", variables):
        until(lambda: f"{host}:{_PORT}" in machine.listening(), "the scheduler listens")
        yield


@contextmanager
def _worker(
    machine: Machine, folder: Path, address: str, *options: str, **variables: str
) -> Iterator[str]:
    """A worker that has joined: what it says."""
    said = folder / f"worker-{time.monotonic_ns()}.txt"
    command = machine.command(*_AUTOTUNE, "worker", address, *HERE, *options)
    with _running(command, said, variables):
        until(lambda: "serves" in said.read_text(), "the worker joins", 60)
        yield said.read_text()


@contextmanager
def _running(command: list[str], said: Path, variables: dict[str, str]) -> Iterator[None]:
    with said.open("ab") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            env=_environment() | variables,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _certificates(folder: Path) -> dict[str, str]:
    """An authority and a certificate of it, as Dask's configuration names them."""
    names = {k: str(folder / f"{k}.pem") for k in ("ca", "ca-key", "key", "ask", "cert")}
    make = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout")
    signed = ("-CA", names["ca"], "-CAkey", names["ca-key"], "-CAcreateserial", "-days", "2")
    for command in (
        (*make, names["ca-key"], "-x509", "-subj", "/CN=authority", "-out", names["ca"]),
        (*make, names["key"], "-subj", "/CN=member", "-out", names["ask"]),
        ("openssl", "x509", "-req", "-in", names["ask"], *signed, "-out", names["cert"]),
    ):
        subprocess.run(command, check=True, capture_output=True)
    found = {"REQUIRE_ENCRYPTION": "true", "TLS__CA_FILE": names["ca"]}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        found |= {f"TLS__{role}__{k}": names[k.lower()] for k in ("CERT", "KEY")}
    return found
