"""⑦ The process of a worker of a fleet: joins the scheduler, and joins again when it was lost.

Dask's nanny starts the worker (`fleet_worker`) in a process of its own and starts it again when it
has died. Limits of memory are those of the runner's child; Dask's are off.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import dask
from distributed import Nanny

from autotune.measure.far.program_device import ProgramDevice
from autotune.measure.fleet.address import (
    Listening,
    fleet_address,
    kind_of,
    listening_host,
    require_free,
)
from autotune.measure.fleet.worker import DevicePlugin, DeviceWorker
from autotune.measure.local import LocalDevice

_CLOSE_S = 5.0
_AGAIN_S = 2.0
_CONFIG = {
    "distributed.comm.timeouts.connect": "5s",
    "distributed.nanny.environ": {},  # a child is measured in the environment of any session
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}


@dataclass(slots=True)
class FleetServing:
    """Serves `device` to the fleet at `runner` under `name`, until `stop`.

    It listens at the two ports of `listening` and nowhere else, and in a folder of its own.

    `note` is told when the fleet is joined, and when it is lost.
    """

    runner: str
    device: LocalDevice | ProgramDevice
    name: str
    listening: Listening
    note: Callable[[str], None]
    _loop: asyncio.AbstractEventLoop | None = None
    _end: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """Leave the fleet; from any thread or signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)

    def run(self) -> None:
        """Serve.

        Raises UsageError for what is no address, and where this machine cannot or must not listen.
        """
        require_free(listening_host(self.runner, self.listening), self.listening.ports)
        with dask.config.set(_CONFIG), tempfile.TemporaryDirectory(prefix="autotune-") as folder:
            asyncio.run(self._serve(folder))

    async def _serve(self, folder: str) -> None:
        self._loop = asyncio.get_running_loop()
        while not self._end.is_set():
            with suppress(OSError):  # the scheduler is away
                await self._serve_once(folder, listening_host(self.runner, self.listening))
            if not self._end.is_set():
                self.note(f"{self.runner} is away; trying again")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), _AGAIN_S)

    async def _serve_once(self, folder: str, host: str) -> None:
        """Serve until the scheduler is lost."""
        nanny = self._nanny(folder, host)
        if await self._unless_ended(nanny.start()):  # type: ignore[no-untyped-call]
            places = (str(nanny.worker_address), str(nanny.address))
            worker, own = (place.partition("://")[2] for place in places)
            self.note(f"{self.name} serves {self.runner}, listens at {worker} and {own}")
            await self._unless_ended(nanny.finished())  # type: ignore[no-untyped-call]
        with suppress(Exception):
            await asyncio.wait_for(nanny.close(timeout=_CLOSE_S), 2 * _CLOSE_S)

    async def _unless_ended(self, step: Awaitable[object]) -> bool:
        """Whether a step succeeded before an end was asked for, which cancels it."""
        waiting = [asyncio.ensure_future(each) for each in (step, self._end.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        first, _ = waiting
        return first.done() and not first.cancelled() and first.exception() is None

    def _nanny(self, folder: str, host: str) -> Nanny:
        """Starts one worker with the device, for one batch at a time."""
        worker_port, port = self.listening.ports
        return Nanny(
            fleet_address(self.runner),
            nthreads=1,
            host=host,
            port=port,
            worker_port=worker_port,
            worker_class=DeviceWorker,
            local_directory=folder,
            name=self.name,
            memory_limit=0,
            resources={kind_of(self.device.target, self.device.n_threads): 1},
            silence_logs=logging.CRITICAL + 1,
            plugins=(DevicePlugin(self.device),),
        )
