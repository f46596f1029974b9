"""Machines of a network that is none of this one's: network namespaces, in which processes run.

    with machines(2) as (farm, board):      # 10.77.0.1 and 10.77.0.2, each with a loopback
        board.run("autotune", "worker", …)
        with tunnel(board, 8786, farm):     # board's 127.0.0.1:8786 leads to that of `farm`

Only root may make them; elsewhere the test is skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_FORWARD = """
import asyncio, sys
source, target = sys.argv[1:]

async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()

async def accepted(reader, writer):
    if target.startswith("/"):
        there = await asyncio.open_unix_connection(target)
    else:
        there = await asyncio.open_connection("127.0.0.1", int(target))
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

async def main():
    if source.startswith("/"):
        server = await asyncio.start_unix_server(accepted, source)
    else:
        server = await asyncio.start_server(accepted, "127.0.0.1", int(source))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Machine:
    """A namespace, which lasts as long as its process; `address`: in the network of all."""

    holder: int
    address: str

    def command(self, *words: str) -> list[str]:
        """A command line, there."""
        return ["nsenter", "-t", str(self.holder), "-n", *words]

    def run(self, *words: str) -> str:
        """What a command prints."""
        return subprocess.run(
            self.command(*words), check=True, capture_output=True, text=True
        ).stdout

    def listening(self) -> set[str]:
        """Where something listens, as `address:port`."""
        lines = self.run("ss", "-Hltn").splitlines()
        return {line.split()[3] for line in lines}


@contextmanager
def machines(n: int) -> Iterator[list[Machine]]:
    """Machines in one network; skips the test where none can be made."""
    with ExitStack() as stack:
        try:
            found = [_machine(stack, f"10.77.0.{k + 1}") for k in range(n)]
            _connect(found)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield found


def _machine(stack: ExitStack, address: str) -> Machine:
    holder = stack.enter_context(_process("unshare", "-n", "sh", "-c", "echo ready; exec cat"))
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":  # until then it has the network of this machine
        raise OSError("unshare has failed")
    return Machine(holder.pid, address)


def _connect(found: Sequence[Machine]) -> None:
    """A bridge in the first one, to which a cable leads from each."""
    first = found[0]
    first.run("ip", "link", "add", "bridge", "type", "bridge")
    first.run("ip", "address", "add", f"{first.address}/24", "dev", "bridge")
    first.run("ip", "link", "set", "bridge", "up")
    for k, machine in enumerate(found):
        machine.run("ip", "link", "set", "lo", "up")
        if machine is first:
            continue
        end = ("peer", "name", "cable", "netns", str(machine.holder))
        first.run("ip", "link", "add", f"cable{k}", "type", "veth", *end)
        first.run("ip", "link", "set", f"cable{k}", "master", "bridge", "up")
        machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "cable")
        machine.run("ip", "link", "set", "cable", "up")


@contextmanager
def tunnel(here: Machine, port: int, there: Machine, folder: Path) -> Iterator[None]:
    """What connects to 127.0.0.1:`port` of `here` comes out at that of `there`, as with ssh."""
    path = str(folder / f"{here.holder}-{port}")
    with ExitStack() as stack:
        for machine, ends in ((there, (path, str(port))), (here, (str(port), path))):
            forward = machine.command(sys.executable, "-c", _FORWARD, *ends)
            process = stack.enter_context(_process(*forward))
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield


@contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=null)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
