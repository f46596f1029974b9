"""⑦ A worker of a fleet: one device that Dask gives one batch at a time.

    scheduler ─ bytes ─► serve ─► DeviceServer ─► LocalRunner: a supervised child, or a command

A session calls `serve`, a function of this installed package, with a frame (`frames`) and gets one
back; nothing else of it is code. Crashes, hangs and time-outs are those of the runner's child, as
on any machine, so the worker outlives them. The child ends when nothing has come for a while, so
that a session leaves nothing behind, however it ended.
"""

from __future__ import annotations

import json
import threading
import traceback
from dataclasses import replace
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from autotune.errors import AutotuneError
from autotune.machine import read_limits
from autotune.measure.far.program_device import ProgramDevice
from autotune.measure.fleet.address import kind_of
from autotune.measure.local import LocalDevice
from autotune.measure.memory_plan import private_bytes
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.frames import VERSION, Message, packed, unpacked
from autotune.measure.processes.messages import Batch, BuildResult, from_message, to_message
from autotune.measure.processes.runner import LocalRunner
from autotune.measure.protocols import Device
from autotune.measure.timing.noise import NoiseWatch, read_usage
from autotune.result import MeasureResult, MeasureStatus
from autotune.version import __version__

PLUGIN = "autotune-device"
_IDLE_S = 30.0
"""The runner's child ends when nothing has come for so long."""


def serve(request: bytes) -> bytes:
    """Answer one request of a session on the device of this worker; frames both.

    It raises nothing: Dask does not tell a session which worker an exception is from.
    """
    worker = get_worker()
    name = {"device": str(worker.name)}
    try:
        plugin: Any = worker.plugins[PLUGIN]
        reply = plugin.server.answer(unpacked(request))
        return packed(Message(reply.kind, {**reply.fields, **name}, reply.blobs))
    except Exception:
        text = {"text": traceback.format_exc(), "hint": ""}
        return packed(Message("failed", {**text, **name}))


def facts(dask_worker: Worker) -> str:
    """What a session has to know of the device of a worker, as JSON; "" where it has none."""
    plugin: Any = dask_worker.plugins.get(PLUGIN)
    if plugin is None:
        return ""
    device: Device = plugin.device
    return json.dumps(
        {
            "version": __version__,
            "protocol": VERSION,
            "name": str(dask_worker.name),
            "kind": kind_of(device.target, device.n_threads),
            "target": device.target.to_json(),
            "n_threads": device.n_threads,
        }
    )


class DeviceWorker(Worker):
    """A worker without the HTTP server of Dask's, which listens on all interfaces."""

    def start_http_server(self, *args: object, **kwargs: object) -> None:
        """None."""


class DevicePlugin(WorkerPlugin):
    """Gives a worker of Dask its device."""

    name = PLUGIN

    def __init__(self, device: LocalDevice | ProgramDevice) -> None:
        self.device = device
        self.server: DeviceServer | None = None

    def setup(self, worker: Worker) -> None:
        """The worker begins."""
        self.server = DeviceServer(self.device)

    def teardown(self, worker: Worker) -> None:
        """The worker ends."""
        if self.server is not None:
            self.server.close()


class DeviceServer:
    """Answers requests about one device, one at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._runner: Any = None
        self._options: MeasureOptions | None = None
        self._watch: NoiseWatch | None = None
        self._timer: threading.Timer | None = None

    def answer(self, request: Message) -> Message:
        """The reply; one of kind `failed` where nothing can be measured."""
        with self._lock:
            self._stop_timer()
            try:
                return self._answer(request)
            except AutotuneError as error:
                return Message("failed", {"text": error.message, "hint": error.hint})
            except Exception:
                return Message("failed", {"text": traceback.format_exc(), "hint": ""})
            finally:
                self._timer = threading.Timer(_IDLE_S, self.close)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """End the child; a later request starts a new one."""
        with self._lock:
            self._stop_timer()
            self._close_runner()

    def _answer(self, request: Message) -> Message:
        fields, device = request.fields, self._device
        match request.kind:
            case "peaks":
                self._close_runner()  # nothing runs beside
                forms = {form.name: form for form in device.target.isa.forms}
                peaks = device.peaks(fields["evict"], [forms[name] for name in fields["dots"]])
                return Message("peaks", {"peaks": peaks.to_json()})
            case "cached":
                self._close_runner()
                stays = device.stays_cached(fields["n_bytes"], fields["flops"])
                return Message("cached", {"stays": stays})
            case _:
                batch = from_message(request)
                assert isinstance(batch, Batch)
                results = to_message(self._measured(batch))
                return replace(results, fields={**results.fields, "noise": self._noise()})

    def _measured(self, batch: Batch) -> list[MeasureResult]:
        built = [BuildResult(MeasureStatus.OK, program) for program in batch.programs]
        return list(self._runner_of(batch.options).run(batch.dag, built, batch.time))

    def _runner_of(self, options: MeasureOptions) -> LocalRunner:
        """A runner with these options, which may take the memory that this machine has."""
        if self._options != options:
            self._close_runner()
            n_bytes = max(1, read_limits().memory_bytes - private_bytes())
            self._runner = self._device.runner(replace(options, worker_bytes=n_bytes))
            self._options = options
            is_here = isinstance(self._device, LocalDevice)  # not behind a command
            self._watch = NoiseWatch(read_usage) if is_here else None
        runner: LocalRunner = self._runner
        return runner

    def _close_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner = self._options = self._watch = None

    def _noise(self) -> dict[str, object]:
        """What has disturbed this machine since the runner was made; {} where it is quiet."""
        if self._watch is None:
            return {}
        self._watch.look()
        return self._watch.to_json()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
