"""⑦ Requests to the devices of one kind in a fleet, and the devices that are asked no more.

    Requests(fleet, kind, left_out).ask(message, read)  ─► read(reply) of whichever device is free

A device may have faulty memory, another clock, or a wire that comes loose. Where `read` does not
take its reply, or where it has none, it is left out with the reason, and another one is asked.
Dask tells which worker gave a reply, but not which one raised an exception: then each request goes
to one device alone, until every one has answered or is left out.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from autotune.measure.fleet.connection import Fleet, no_device
from autotune.measure.processes.frames import Message, packed, unpacked
from autotune.measure.processes.process import WorkerError
from autotune.measure.protocols import Abandoned, LeftOut
from autotune.printable import one_line, shortened

T = TypeVar("T")

_LOST_S = 60.0
"""Devices may be away for so long: a board that restarts comes back."""
_POLL_S, _COUNT_S, _GATHER_S = 0.5, 2.0, 5.0
_MOST_LOST = 3
"""Replies of a device that may not arrive."""
_MOST_BYTES = 64 << 20
"""Of a reply: texts of failures, and times."""
_MOST_TEXT = 300


class NoAnswer(Exception):
    """A device says that it cannot do what was asked, or has sent what is no reply."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Reply:
    """What came of a request, from the worker at `address` ("": not known).

    `is_lost`: the worker is out of reach, now or for good.
    """

    address: str
    data: Any
    error: BaseException | None = None
    is_lost: bool = False

    def message(self) -> Message:
        """The message. Raises what says that there is none."""
        if isinstance(self.error, Exception):
            raise self.error
        if self.error is not None:  # none that would end this process
            raise NoAnswer(f"{type(self.error).__name__}: {self.error}")
        if not isinstance(self.data, bytes):
            raise NoAnswer(f"it sent a {type(self.data).__name__} in the place of bytes")
        found = unpacked(self.data)
        if found.kind == "failed":
            raise NoAnswer(*(str(found.fields.get(name, "")) for name in ("text", "hint")))
        return found


class Requests:
    """Requests to whichever device of a kind is free, from any number of threads.

    `left_out`: devices that are asked no more, by the addresses of their workers; a worker that is
    started again has another one.
    """

    def __init__(self, fleet: Fleet, kind: str, left_out: dict[str, LeftOut]) -> None:
        self._fleet, self._kind, self._left_out = fleet, kind, left_out
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._workers: Mapping[str, str] = {}
        self._suspects: set[str] = set()  # one of them has raised an exception
        self._turns = count()
        self._n_lost = Counter[str]()
        self._counted_s = self._seen_s = time.monotonic()
        self._counted_s -= _COUNT_S

    def close(self) -> None:
        """Let every request raise Abandoned."""
        self._is_closed.set()

    def names(self) -> list[str]:
        """Names of the devices that measure, as of a moment ago. Raises WorkerError as `ask`."""
        return sorted(self._there().values())

    def ask(self, request: Message, read: Callable[[Message], T]) -> T:
        """What `read` makes of the reply of a device.

        Raises WorkerError where there was no device for long or none is left, and `KilledWorker`
        as Dask does.
        """
        from distributed import KilledWorker

        data = packed(request)
        while True:
            reply = self._once(data)
            if reply is None or (reply.is_lost and self._is_first_loss(reply.address)):
                continue
            try:
                found = read(reply.message())
            except KilledWorker:
                raise
            except Exception as error:  # what a faulty device sends may raise any of them
                self._leave_out(reply.address, error)
            else:
                self._suspects.discard(reply.address)
                return found

    def _there(self) -> Mapping[str, str]:
        """Names of the devices that may be asked, by the addresses of their workers."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._counted_s >= _COUNT_S:
                self._counted_s = now_s
                self._workers = self._connected()
            found = {a: name for a, name in self._workers.items() if a not in self._left_out}
            if found:
                self._seen_s = now_s
            elif self._workers:
                last = self._left_out[next(reversed(self._left_out))]
                raise WorkerError(f"no device of {self._fleet.runner} is left: {last}", last.hint)
            if now_s - self._seen_s > _LOST_S:
                raise no_device(self._fleet.runner, f" for {_LOST_S:.0f} s")
            return found

    def _connected(self) -> Mapping[str, str]:
        with suppress(Exception):  # of many kinds, while the scheduler is away
            self._fleet.rejoin()
            return self._fleet.workers(self._kind)
        return {}

    def _leave_out(self, address: str, error: Exception) -> None:
        """Ask the device no more; where it is not known ("") which one it was, suspect each."""
        if not address:
            self._suspects.update(self._there())
            return
        text = str(error) if isinstance(error, NoAnswer) else f"{type(error).__name__}: {error}"
        lines = text.strip().splitlines() or ["no message"]
        line = one_line(shortened(lines[-1], _MOST_TEXT))
        hint = getattr(error, "hint", "") or "start its worker again"
        with self._lock:
            self._left_out[address] = LeftOut(self._workers.get(address, address), line, hint)

    def _is_first_loss(self, address: str) -> bool:
        """Whether a worker that is out of reach may be so for a moment."""
        self._n_lost[address] += 1
        return not address or self._n_lost[address] < _MOST_LOST

    def _asked(self) -> list[str]:
        """Addresses of those that may answer a request; [] for all."""
        there = self._there()
        if suspects := sorted(self._suspects & there.keys()):
            return [suspects[next(self._turns) % len(suspects)]]
        return sorted(there) if self._left_out else []

    def _once(self, data: bytes) -> _Reply | None:
        """What came; None where the scheduler forgot the request."""
        from distributed import CancelledError
        from distributed.client import ClosedClientError

        from autotune.measure.fleet.worker import serve

        some, client = self._asked(), self._fleet.client
        try:
            future = client.submit(
                serve, data, resources={self._kind: 1}, pure=False, workers=some or None
            )
            return self._reply(future, client, some)
        except (CancelledError, ClosedClientError, OSError):  # while the scheduler is away
            time.sleep(_POLL_S)
            return None

    def _reply(self, future: Any, client: Any, some: list[str]) -> _Reply | None:
        """What came; None where the connection that has asked for it is not there any more.

        `some`: the only devices that may answer; [] for all.
        """
        while client is self._fleet.client:
            if self._is_closed.is_set():
                future.cancel(force=True)
                raise Abandoned
            try:
                error = future.exception(timeout=_POLL_S)
            except TimeoutError:
                there = self._there()  # raises where none has been there for long
                if some and not there.keys() & some:
                    future.cancel(force=True)
                    return None
                continue
            match future.status:
                case "error":
                    return _Reply(some[0] if len(some) == 1 else "", None, error)
                case "finished":
                    return _gathered(future, client)
            return None
        return None


def _gathered(future: Any, client: Any) -> _Reply:
    """The reply that a worker has for us."""
    from distributed import CancelledError

    address = _address_of(future, client)
    n_bytes = client.nbytes([future.key], summary=False).get(future.key, 0)
    if n_bytes > _MOST_BYTES:
        return _Reply(address, None, NoAnswer(f"its reply is {n_bytes} bytes long"))
    try:
        return _Reply(address, future.result(timeout=_GATHER_S))
    except (CancelledError, OSError) as error:  # a TimeoutError as well
        return _Reply(address, None, error, is_lost=True)
    except Exception as error:  # of whatever unpickles what came
        return _Reply(address, None, error)


def _address_of(future: Any, client: Any) -> str:
    """The worker that has computed something."""
    with suppress(Exception):
        (address,) = client.who_has([future])[future.key]
        return str(address)
    return ""
