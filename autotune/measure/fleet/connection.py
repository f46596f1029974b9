"""⑦ A connection to the scheduler of a fleet, and what its workers tell of their devices.

    with connected_fleet("dask://farm") as fleet: fleet.members()

What comes from a worker is read as JSON with these fields, and one that tells anything else is no
device of the fleet.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from autotune.codec import BAD
from autotune.errors import LogMismatch
from autotune.measure.fleet.address import (
    CONNECT_S,
    SCHEME,
    distributed_package,
    fleet_address,
    kind_of,
    scheduler_place,
)
from autotune.measure.processes.frames import VERSION
from autotune.measure.processes.process import WorkerError
from autotune.target import Target
from autotune.version import __version__


class VersionMismatch(LogMismatch):
    """A worker and a session are of different versions of this package."""


@dataclass(frozen=True, slots=True)
class FleetMember:
    """A device that a worker has told."""

    name: str
    kind: str
    target: Target
    n_threads: int


class Fleet:
    """A connection to the scheduler of a fleet. Raises WorkerError where nobody answers."""

    def __init__(self, runner: str) -> None:
        self.runner = runner
        self.client = self._joined()

    def _joined(self) -> Any:
        address = fleet_address(self.runner)
        distributed = distributed_package()
        try:
            place = scheduler_place(self.runner)
            socket.create_connection(place, CONNECT_S).close()  # refused at once
        except OSError as error:
            raise WorkerError(
                f"no scheduler answers at {self.runner}",
                f"start one there: dask scheduler; and workers: autotune worker {SCHEME}HOST:PORT",
            ) from error
        try:
            return distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise WorkerError(
                f"what listens at {self.runner} is no scheduler of this fleet",
                "is it Dask's, of the same version, and are its certificates from the same "
                "authority as those of Dask's configuration here?",
            ) from error

    def rejoin(self) -> None:
        """Connect anew where Dask has given up: it tries for five seconds. Raises WorkerError."""
        if self.client.status == "closed":
            self.client = self._joined()

    def close(self) -> None:
        """End the connection; what was asked for is given up."""
        with suppress(Exception):
            self.client.close(timeout=CONNECT_S)

    def members(self) -> list[FleetMember]:
        """The devices that are there. Raises WorkerError for none, VersionMismatch."""
        from autotune.measure.fleet.worker import facts

        told = self.client.run(facts, on_error="return")
        found = {address: _facts_of(text) for address, text in sorted(told.items())}
        right = [fact for fact in found.values() if _is_ours(fact)]
        if not right and any(found.values()):
            version = next(fact.get("version", "another") for fact in found.values() if fact)
            raise VersionMismatch(
                f"the workers of {self.runner} have autotune {str(version)[:40]}, "
                f"this is {__version__}",
                "install the same version on both sides",
            )
        members = [member for member in map(_member, right) if member is not None]
        if not members:
            raise no_device(self.runner) if not _unreached(told) else _no_way(self.runner, told)
        return sorted(members, key=lambda member: member.name)

    def workers(self, kind: str) -> dict[str, str]:
        """Names of the devices of a kind that are connected now, by the addresses of workers."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {
            address: str(w["name"])
            for address, w in workers.items()
            if kind in (w.get("resources") or {})
        }


@contextmanager
def connected_fleet(runner: str) -> Iterator[Fleet]:
    """A connection until the end of the block."""
    fleet = Fleet(runner)
    try:
        yield fleet
    finally:
        fleet.close()


def no_device(runner: str, how_long: str = "") -> WorkerError:
    """What to raise where no device of a fleet can be asked."""
    return WorkerError(
        f"no device is connected to {runner}{how_long}",
        f"start a worker beside each device: autotune worker {runner}",
    )


def _facts_of(text: Any) -> dict[str, Any]:
    """What a worker has told of itself; nothing for one that is not of this package."""
    if isinstance(text, BaseException):  # of a version without `facts`, or without this package
        return {"version": "of another version, or none"} if "autotune" in str(text) else {}
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_ours(fact: Mapping[str, Any]) -> bool:
    return (fact.get("version"), fact.get("protocol")) == (__version__, VERSION)


def _member(fact: Mapping[str, Any]) -> FleetMember | None:
    """The device of a worker; None for one that tells anything else."""
    with suppress(*BAD):
        name, n_threads = fact["name"], fact["n_threads"]
        target = Target.from_json(fact["target"])
        is_sound = type(name) is str and type(n_threads) is int and n_threads > 0
        if is_sound and fact["kind"] == kind_of(target, n_threads):
            return FleetMember(name, fact["kind"], target, n_threads)
    return None


def _unreached(told: Mapping[str, Any]) -> list[str]:
    """Addresses of the workers that the scheduler could not ask."""
    return sorted(address for address, text in told.items() if isinstance(text, OSError))


def _no_way(runner: str, told: Mapping[str, Any]) -> WorkerError:
    places = [address.partition("://")[2] for address in _unreached(told)]
    return WorkerError(
        f"the scheduler of {runner} does not reach its workers: {', '.join(places[:3])}",
        "their ports have to be open for it, or to lead back through a tunnel: see the page on "
        "fleets",
    )
