"""Work that may crash or hang, in processes of its own: what is lost is an outcome like another.

    for index, outcome in outcomes("benchmarks.conformance:judged", items): ...

The function takes an item and a `Tell`, and returns an Outcome. It is named by module and name and
imported in each process. A process that dies or is late is ended, and a new one takes its place.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from benchmarks.outcomes import Kind, Outcome, Tell, one_line

Function: TypeAlias = Callable[[Any, Tell], Outcome]
START_S = 120.0


def outcomes(
    function: str, items: Sequence[Any], n_processes: int = 1, timeout_s: float = 60.0
) -> Iterator[tuple[int, Outcome]]:
    """Index and outcome of every item, in the order in which they are done.

    `timeout_s`: for one item. Items are pickled.
    """
    todo = deque(range(len(items)))
    workers = [_Worker(function, n) for n in range(min(n_processes, len(items)))]
    try:
        for worker in workers:
            worker.give(todo, items)
        while any(w.index is not None for w in workers):
            busy = [w for w in workers if w.index is not None]
            wait([w.connection for w in busy], timeout=0.5)
            for worker in busy:
                found = worker.found(timeout_s)
                if found is not None:
                    assert worker.index is not None
                    yield worker.index, found
                    worker.give(todo, items)
    finally:
        for worker in workers:
            worker.stop()


@dataclass
class _Worker:
    """A process and the item that it has."""

    function: str
    core: int
    index: int | None = None
    stage: str = "start"
    given_s: float = 0.0
    process: Any = field(init=False)
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        context = mp.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(self.function, self.core, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.stage = "start"

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()

    def give(self, todo: deque[int], items: Sequence[Any]) -> None:
        self.index = todo.popleft() if todo else None
        if self.index is None:
            return
        if not self.process.is_alive():
            self.stop()
            self.start()
        self.given_s = time.monotonic()
        with suppress(OSError):
            self.connection.send_bytes(pickle.dumps(items[self.index]))

    def found(self, timeout_s: float) -> Outcome | None:
        """What became of the item; None while it is worked on."""
        try:
            while self.connection.poll():
                message = pickle.loads(self.connection.recv_bytes())
                if isinstance(message, Outcome):
                    return message
                self.stage = message
                self.given_s = time.monotonic() if message == "ready" else self.given_s
        except (EOFError, OSError):
            self.process.join(5)
            if self.stage == "start":  # nothing of the item has been seen
                raise RuntimeError(
                    f"no process can start: exit status {self.process.exitcode}"
                ) from None
            return Outcome(Kind.LOST, f"{self.stage}: exit status {self.process.exitcode}")
        limit_s = START_S if self.stage == "start" else timeout_s
        if time.monotonic() - self.given_s < limit_s:
            return None
        self.stop()
        return Outcome(Kind.LOST, f"{self.stage}: no answer in {limit_s:g} s")


def _serve(function: str, core: int, connection: Connection) -> None:
    """One process: items in, stages and outcomes out. It keeps to one core, so to one thread."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    module, _, name = function.partition(":")
    call: Function = getattr(import_module(module), name)

    def tell(stage: str) -> None:
        connection.send_bytes(pickle.dumps(stage))

    tell("ready")
    while True:
        try:
            item = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            found = call(item, tell)
        except Exception as error:
            found = Outcome(Kind.UNTYPED, one_line(f"{type(error).__name__}: {error}"))
        connection.send_bytes(pickle.dumps(found))
