"""A worker of a fleet whose device answers garbage.

    python -m tests.fuzz.faulty KIND dask://… --name NAME

Batches are answered by `GARBAGE[KIND]`, all else as a sound worker does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from autotune.measure.fleet import worker as fleet_worker
from autotune.measure.local import LocalDevice
from autotune.measure.processes.frames import unpacked
from autotune.target import Target

_SOUND = fleet_worker.serve


def _raise(reply: bytes) -> bytes:
    raise RuntimeError("the bus is stuck")


def _never(reply: bytes) -> bytes:
    """Times that are no numbers, as JSON of Python has them."""
    return reply.replace(b'"times_s":[', b'"times_s":[NaN,', 1)


GARBAGE: dict[str, Callable[[bytes], Any]] = {
    "half": lambda reply: reply[: len(reply) // 2],
    "raises": _raise,
    "nan": _never,
    "nothing": lambda reply: None,
    "other": lambda reply: reply.replace(b"results", b"prepare"),
}


class FaultyDevice(LocalDevice):
    """This machine; where a worker of Dask unpickles it, that worker becomes faulty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return made, (KIND, self.target, self.n_threads)


KIND = ""


def made(kind: str, target: Target, n_threads: int) -> FaultyDevice:
    """The device, in the process that measures."""

    def serve(request: bytes) -> Any:
        reply = _SOUND(request)
        return GARBAGE[kind](reply) if unpacked(request).kind == "batch" else reply

    fleet_worker.serve = serve
    return FaultyDevice(target, n_threads)


def main(kind: str, *arguments: str) -> int:
    """Run `autotune worker` with such a device."""
    from autotune.api.tune import machines
    from autotune.cli.main import run
    from tests.fuzz import faulty  # by this name it is pickled

    faulty.KIND = kind
    sound = machines.served_device

    def served(name: str, runner: str | None, n_threads: int | None) -> LocalDevice:
        device = sound(name, runner, n_threads)
        return faulty.FaultyDevice(device.target, device.n_threads)

    machines.served_device = served
    return run(["worker", *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
