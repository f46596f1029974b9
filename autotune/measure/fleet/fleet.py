"""⑦ A fleet: devices that Dask reaches, as one `Device` for each kind of them.

    dask scheduler                              # anywhere
    autotune worker dask://HOST:PORT            # beside every device: see `fleet_worker`
    autotune tune MODEL --runner dask://HOST:PORT

A batch goes as bytes to one function of the installed package, on whichever device of its kind is
free. Where a worker dies, Dask runs the batch on another; one that has ended several workers is
measured candidate by candidate, so that the culprit alone has the status of a crash. What comes
back is not trusted: a device that sends anything but results is left out, and another
one of its kind measures the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias, TypeVar

from autotune.codec import Holds, from_json
from autotune.measure.build import Build, build_program
from autotune.measure.fleet.connection import Fleet, connected_fleet
from autotune.measure.fleet.requests import NoAnswer, Requests
from autotune.measure.local import local_builder
from autotune.measure.options import MeasureOptions
from autotune.measure.pipeline import slots_of
from autotune.measure.processes.builder import LocalBuilder
from autotune.measure.processes.frames import Message
from autotune.measure.processes.messages import Batch, BuildResult, Time, from_message, to_message
from autotune.measure.processes.process import WorkerError
from autotune.measure.protocols import LeftOut
from autotune.measure.timing.noise import Noise
from autotune.measure.timing.peak import Peaks
from autotune.result import MeasureResult, MeasureStatus
from autotune.target import Target
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import ComputeDAG

T = TypeVar("T")

_LONGEST_NAME = 200
_Name: TypeAlias = Annotated[str, Holds(lambda name: 0 < len(name) <= _LONGEST_NAME, "a name")]
_LEAST_RATE, _MOST_RATE = 1e5, 1e18
"""Per second: flops and bytes of any machine, emulated or large."""


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """All devices of one kind in a fleet: `target` describes their CPU, `n_threads` run a program.

    Builders are processes of this machine.
    """

    address: str
    kind: str
    target: Target
    n_threads: int
    left_out: dict[str, LeftOut] = field(default_factory=dict, compare=False)
    """Those that are asked no more, by the addresses of their workers."""

    def peaks(self, evict: bool, dots: Collection[MultiplyAdd] = ()) -> Peaks:
        """Peaks of all threads together, of one of the devices: see `peak.measure_peaks`."""
        names = [form.name for form in dots]
        request = Message("peaks", {"evict": evict, "dots": names})
        return self._ask(request, lambda reply: _peaks(reply, self.target, names))

    def stays_cached(self, n_bytes: int, flops: int) -> bool:
        """Whether `n_bytes` stay in the shared cache of one of the devices."""
        request = Message("cached", {"n_bytes": n_bytes, "flops": flops})
        return self._ask(request, lambda reply: from_json(_Cached, reply.fields, True).stays)

    def builder(self, options: MeasureOptions, build: Build = build_program) -> LocalBuilder:
        """Builder processes of this machine."""
        return local_builder(self.target, options, build)

    def runner(self, options: MeasureOptions) -> FleetRunner:
        """All devices of the kind; sessions take turns on them, batch by batch."""
        return FleetRunner(self, options)

    def _ask(self, request: Message, read: Callable[[Message], T]) -> T:
        from distributed import KilledWorker

        with connected_fleet(self.address) as fleet:
            try:
                return Requests(fleet, self.kind, self.left_out).ask(request, read)
            except KilledWorker as error:
                raise WorkerError(
                    f"measuring the peaks has ended {error.allowed_failures + 1} workers",
                    "do they work by themselves? autotune info",
                ) from error


@dataclass(frozen=True, slots=True)
class _Cached:
    stays: bool


@dataclass(frozen=True, slots=True)
class _Measured:
    """What a device sends beside the results of a batch."""

    device: _Name
    noise: Mapping[str, Any]


def _peaks(reply: Message, target: Target, names: Sequence[str]) -> Peaks:
    """The peaks of a reply. Raises one of `BAD` where they are none of a machine."""
    found = Peaks.from_json(reply.fields["peaks"], target.isa)
    rates = {"float32": found.flops_per_s, **{form.name: rate for form, rate in found.dots}}
    rates |= {"warm": found.warm_bytes_per_s, "cold": found.cold_bytes_per_s}
    for name, rate in rates.items():
        if not _LEAST_RATE <= rate <= _MOST_RATE:
            raise ValueError(f"a peak of {rate:g} per second ({name}) is none of a machine")
    if set(names) - rates.keys() or found.l1_bytes < 1:
        raise ValueError("peaks are missing")
    return found


class FleetRunner:
    """Checks and times programs on the devices of one kind, a batch on each of them."""

    def __init__(self, device: FleetDevice, options: MeasureOptions) -> None:
        self._device, self._options = device, options
        self._fleet: Fleet | None = None
        self._requests: Requests | None = None
        self._lock = threading.Lock()
        self.noises: dict[str, dict[str, Any]] = {}
        """What disturbs devices since the session uses them (`NoiseWatch.to_json`), by name."""
        self.left_out = device.left_out

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
            return self._open().ask(request, lambda reply: self._results(reply, len(built)))
        except KilledWorker as error:
            if len(built) > 1:
                return [r for b in built for r in self._measured(dag, [b], time)]
            text = f"each of {error.allowed_failures + 1} workers that ran it has ended"
            return [MeasureResult(MeasureStatus.RUN_CRASH, error=text)]

    def _results(self, reply: Message, n: int) -> list[MeasureResult]:
        """The results of a reply. Raises whatever says that they are none of `n` programs."""
        fields = dict(reply.fields)
        beside = {name: fields.pop(name) for name in ("device", "noise")}
        told = from_json(_Measured, beside)
        results = from_message(replace(reply, fields=fields))
        if not isinstance(results, list) or len(results) != n:
            raise NoAnswer("it sent no results of this batch")
        if told.noise:
            self.noises[told.device] = from_json(Noise, told.noise, is_open=True).to_json()
        limit = self._options.max_error
        return [replace(result.within(limit), device=told.device) for result in results]

    def _open(self) -> Requests:
        with self._lock:
            if self._fleet is None or self._requests is None:
                self._fleet = Fleet(self._device.address)
                self._requests = Requests(self._fleet, self._device.kind, self.left_out)
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
