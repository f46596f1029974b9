"""⑦ A fleet: devices that Dask reaches, as one `Device` for each kind of them.

    dask scheduler                              # anywhere
    autotune worker dask://HOST:PORT            # beside every device: see `fleet_worker`
    autotune tune MODEL --runner dask://HOST:PORT

A batch goes as bytes to one function of the installed package, on whichever device of its kind is
free. Where a worker dies, Dask runs the batch on another; one that has ended several workers is
measured candidate by candidate, so that the culprit alone has the status of a crash.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import LogMismatch
from autotune.measure.build import Build, build_program
from autotune.measure.builder import LocalBuilder
from autotune.measure.fleet_address import (
    CONNECT_S,
    SCHEME,
    distributed_package,
    fleet_address,
    scheduler_place,
)
from autotune.measure.frames import VERSION, Message, ProtocolError, packed, unpacked
from autotune.measure.local import local_builder
from autotune.measure.messages import Batch, BuildResult, Time, from_message, to_message
from autotune.measure.options import MeasureOptions
from autotune.measure.peak import Peaks
from autotune.measure.pipeline import slots_of
from autotune.measure.process import WorkerError
from autotune.measure.protocols import Abandoned
from autotune.result import MeasureResult, MeasureStatus
from autotune.target import Target
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import ComputeDAG
from autotune.version import __version__

_LOST_S = 60.0
"""Devices may be away for so long: a board that restarts comes back."""
_POLL_S, _COUNT_S = 0.5, 2.0


class VersionMismatch(LogMismatch):
    """A worker and a session are of different versions of this package."""


@dataclass(frozen=True, slots=True)
class FleetMember:
    """A device that a worker has told of."""

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
        from autotune.measure.fleet_worker import facts

        told = self.client.run(facts, on_error="return")
        found = {address: _facts_of(text) for address, text in sorted(told.items())}
        right = [fact for fact in found.values() if _is_ours(fact)]
        if not right and any(found.values()):
            version = next(fact.get("version", "another") for fact in found.values() if fact)
            raise VersionMismatch(
                f"the workers of {self.runner} have autotune {version}, this is {__version__}",
                "install the same version on both sides",
            )
        if not right:
            raise _no_device(self.runner)
        return [
            FleetMember(
                fact["name"], fact["kind"], Target.from_json(fact["target"]), fact["n_threads"]
            )
            for fact in sorted(right, key=lambda fact: str(fact["name"]))
        ]

    def names(self, kind: str) -> list[str]:
        """Names of the devices of a kind that are connected now."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        return sorted(str(w["name"]) for w in workers if kind in (w.get("resources") or {}))


@contextmanager
def connected_fleet(runner: str) -> Iterator[Fleet]:
    """A connection until the end of the block."""
    fleet = Fleet(runner)
    try:
        yield fleet
    finally:
        fleet.close()


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """All devices of one kind in a fleet: `target` describes their CPU, `n_threads` run a program.

    Builders are processes of this machine.
    """

    address: str
    kind: str
    target: Target
    n_threads: int

    def peaks(self, evict: bool, dots: Collection[MultiplyAdd] = ()) -> Peaks:
        """Peaks of all threads together, of one of the devices: see `peak.measure_peaks`."""
        names = [form.name for form in dots]
        found = self._ask(Message("peaks", {"evict": evict, "dots": names}))
        forms = {form.name: form for form in self.target.isa.forms}
        rates = tuple((forms[name], float(rate)) for name, rate in found["rates"])
        rest = ("flops_per_s", "warm_bytes_per_s", "cold_bytes_per_s", "l1_bytes")
        return Peaks(**{name: found[name] for name in rest}, dots=rates)

    def stays_cached(self, n_bytes: int, flops: int) -> bool:
        """Whether `n_bytes` stay in the shared cache of one of the devices."""
        return bool(self._ask(Message("cached", {"n_bytes": n_bytes, "flops": flops}))["stays"])

    def builder(self, options: MeasureOptions, build: Build = build_program) -> LocalBuilder:
        """Builder processes of this machine."""
        return local_builder(self.target, options, build)

    def runner(self, options: MeasureOptions) -> FleetRunner:
        """All devices of the kind; sessions take turns on them, batch by batch."""
        return FleetRunner(self, options)

    def _ask(self, request: Message) -> Mapping[str, Any]:
        with connected_fleet(self.address) as fleet:
            return Requests(fleet, self.kind).ask(request).fields


class Requests:
    """Requests to whichever device of a kind is free, from any number of threads."""

    def __init__(self, fleet: Fleet, kind: str) -> None:
        self._fleet, self._kind = fleet, kind
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._counted_s = self._seen_s = time.monotonic()
        self._counted_s -= _COUNT_S

    def close(self) -> None:
        """Let every request raise Abandoned."""
        self._is_closed.set()

    def names(self) -> list[str]:
        """Names of the devices that are connected, as of a moment ago.

        Raises WorkerError where there was none for long.
        """
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._counted_s >= _COUNT_S:
                self._counted_s = now_s
                self._names = self._connected()
            if self._names:
                self._seen_s = now_s
            if now_s - self._seen_s > _LOST_S:
                raise _no_device(self._fleet.runner, f" for {_LOST_S:.0f} s")
            return self._names

    def _connected(self) -> list[str]:
        with suppress(Exception):  # of many kinds, while the scheduler is away
            self._fleet.rejoin()
            return self._fleet.names(self._kind)
        return []

    def ask(self, request: Message) -> Message:
        """The reply of a device. Raises WorkerError, and `KilledWorker` as Dask does."""
        data = packed(request)
        while True:
            reply = self._once(data)
            if reply is not None:
                break
        message = unpacked(reply)
        if message.kind == "failed":
            text, hint = (str(message.fields.get(name, "")) for name in ("text", "hint"))
            raise WorkerError(f"device {message.fields.get('device')}: {text}", hint)
        return message

    def _once(self, data: bytes) -> bytes | None:
        """The reply; None where the scheduler forgot the request, as one that restarts does."""
        from distributed import CancelledError, KilledWorker
        from distributed.client import ClosedClientError

        from autotune.measure.fleet_worker import serve

        self.names()
        client = self._fleet.client
        try:
            future = client.submit(serve, data, resources={self._kind: 1}, pure=False)
            return self._result(future, client)
        except KilledWorker:
            raise
        except (CancelledError, ClosedClientError, OSError):
            time.sleep(_POLL_S)
            return None

    def _result(self, future: Any, client: Any) -> bytes | None:
        """The reply; None where the connection that has asked for it is not there any more."""
        while client is self._fleet.client:
            if self._is_closed.is_set():
                future.cancel(force=True)
                raise Abandoned
            try:
                reply: bytes = future.result(timeout=_POLL_S)
                return reply
            except TimeoutError:
                self.names()
        return None


class FleetRunner:
    """Checks and times programs on the devices of one kind, a batch on each of them."""

    def __init__(self, device: FleetDevice, options: MeasureOptions) -> None:
        self._device, self._options = device, options
        self._fleet: Fleet | None = None
        self._requests: Requests | None = None
        self._lock = threading.Lock()
        self.noises: dict[str, dict[str, Any]] = {}
        """What disturbs devices since the session uses them (`NoiseWatch.to_json`), by name."""

    @property
    def pids(self) -> list[int]:
        """None: its processes are elsewhere."""
        return []

    @property
    def n_slots(self) -> int:
        """Batches that keep all devices busy: some are built, some wait."""
        return slots_of(max(1, len(self.devices)))

    @property
    def devices(self) -> list[str]:
        """Names of the devices that are connected. Raises WorkerError where none was for long."""
        return self._open().names()

    def start(self) -> None:
        """Connect."""
        self._open()

    def close(self) -> None:
        """Give up what was asked for, and disconnect; a later run connects again."""
        with self._lock:
            if self._requests is not None and self._fleet is not None:
                self._requests.close()
                self._fleet.close()
            self._fleet = self._requests = None

    def run(
        self, dag: ComputeDAG, built: Sequence[BuildResult], time: Time
    ) -> Iterator[MeasureResult]:
        """One result per element of `built`, in order, when all of them are there."""
        programs = [b for b in built if b.program is not None]
        found = iter(self._measured(dag, programs, time) if programs else ())
        for each in built:
            is_built = each.program is not None
            yield replace(next(found), build_s=each.build_s) if is_built else each.failure()

    def _measured(
        self, dag: ComputeDAG, built: Sequence[BuildResult], time: Time
    ) -> list[MeasureResult]:
        from distributed import KilledWorker

        programs = tuple(b.program for b in built if b.program is not None)
        request = to_message(Batch(dag, programs, time, self._options))
        try:
            reply = self._open().ask(request)
        except KilledWorker as error:
            if len(built) > 1:
                return [r for b in built for r in self._measured(dag, [b], time)]
            text = f"each of {error.allowed_failures + 1} workers that ran it has ended"
            return [MeasureResult(MeasureStatus.RUN_CRASH, error=text)]
        fields = dict(reply.fields)
        device, noise = str(fields.pop("device", "")), fields.pop("noise", {})
        if noise:
            self.noises[device] = noise
        try:
            results = from_message(replace(reply, fields=fields))
        except ProtocolError as error:
            raise WorkerError(f"device {device} sent no results: {error}") from error
        if not isinstance(results, list) or len(results) != len(built):
            raise WorkerError(f"device {device} sent no results of this batch")
        return [replace(result, device=device) for result in results]

    def _open(self) -> Requests:
        with self._lock:
            if self._fleet is None or self._requests is None:
                self._fleet = Fleet(self._device.address)
                self._requests = Requests(self._fleet, self._device.kind)
            return self._requests


def fleet_devices(runner: str) -> list[FleetDevice]:
    """A device for each kind in the fleet at `runner`, those of most workers first.

    Raises WorkerError where there is no scheduler or no device.
    """
    with connected_fleet(runner) as fleet:
        members = fleet.members()
    found = {m.kind: FleetDevice(runner, m.kind, m.target, m.n_threads) for m in members}
    counts = {kind: sum(m.kind == kind for m in members) for kind in found}
    return sorted(found.values(), key=lambda d: (-counts[d.kind], d.kind))


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


def _no_device(runner: str, how_long: str = "") -> WorkerError:
    return WorkerError(
        f"no device is connected to {runner}{how_long}",
        f"start a worker beside each device: autotune worker {runner}",
    )
