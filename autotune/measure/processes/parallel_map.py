"""⑦ Parallel map: one function over many arguments, in this process and in worker processes."""

from __future__ import annotations

import gc
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from autotune.machine import NEW_OBJECTS, read_limits
from autotune.measure.processes.frames import MAX_BYTES, Message
from autotune.measure.processes.process import Child, ChildCrash, ChildTimeout, Setup, WorkerError
from autotune.measure.processes.supervisor import Handler

A = TypeVar("A")
B = TypeVar("B")
Todo: TypeAlias = "deque[tuple[int, A]]"
OnProgress: TypeAlias = Callable[[int, int], None]
"""Progress callback: the number of results so far, and of all."""

MIN_SHARE = 4
"""Fewest arguments per process; starting one takes half a second."""
MAX_PROCESSES = 16
"""Each takes some 150 MB."""
_START_TIMEOUT_S = 60.0
_TIMEOUT_S = 600.0


def parallel_map(
    function: Callable[[A], B],
    arguments: Sequence[A],
    tell: OnProgress = lambda n_done, n_all: None,
    n_processes: int | None = None,
    is_apart: bool = False,
) -> list[B]:
    """`[function(a) for a in arguments]`; function, arguments and results can be pickled.

    `tell` is called as results come, from any thread. Calls that fail in other processes are
    repeated in this one, so exceptions are those of `function`. `n_processes`: at most so many,
    including this one; by default as many as run all the time. `is_apart`: what may end its process
    is called in others alone; raises ChildCrash where one has ended.
    """
    todo = deque(enumerate(arguments))
    found: dict[int, B] = {}

    def keep(index: int, result: B) -> None:
        found[index] = result
        tell(len(found), len(arguments))

    most = min(n_processes or read_limits().n_busy, MAX_PROCESSES)
    n_helping = max(1, min(most, len(arguments) // MIN_SHARE))
    n_children = n_helping - (not is_apart or not arguments)
    crashes: list[ChildCrash] = []
    called = pickle.dumps(function) if n_children else b""
    with _children(n_children) as children, ThreadPoolExecutor(max(1, n_children)) as threads:
        helped = [threads.submit(_feed, child, called, todo, keep, crashes) for child in children]
        for index, argument in () if is_apart else _taken(todo):
            keep(index, function(argument))
        wait(helped)
        if is_apart and crashes:
            raise crashes[0]
        for index, argument in _taken(todo):
            keep(index, function(argument))
    return [found[n] for n in range(len(arguments))]


_HELD: ContextVar[list[Child] | None] = ContextVar("held", default=None)
"""Processes that nothing asks at the moment, for the next map."""


@contextmanager
def held_processes() -> Iterator[None]:
    """Maps in the block, of this thread, have the same processes: starting one takes a second."""
    idle: list[Child] = []
    token = _HELD.set(idle)
    try:
        yield
    finally:
        _HELD.reset(token)
        for child in idle:
            child.kill()


@contextmanager
def _children(n: int) -> Iterator[list[Child]]:
    """Processes for one map, which have begun to start."""
    idle = _HELD.get()
    setup = Setup("autotune.measure.processes.parallel_map:serve_calls")
    taken = [idle.pop() for _ in range(min(n, len(idle)))] if idle else []
    taken += [Child(setup, _START_TIMEOUT_S) for _ in range(n - len(taken))]
    is_done = False
    try:
        for child in taken:
            child.start()  # in this thread: a child ends with the thread that started it
        yield taken
        is_done = True
    finally:
        if is_done and idle is not None:
            idle += taken
        else:  # it may be in the middle of a call
            for child in taken:
                child.kill()


def _taken(todo: Todo[A]) -> Iterator[tuple[int, A]]:
    """Arguments that no thread has taken yet, one by one; threads share `todo`."""
    while True:
        try:
            yield todo.popleft()
        except IndexError:
            return


def _feed(
    child: Child,
    called: bytes,
    todo: Todo[A],
    keep: Callable[[int, B], None],
    crashes: list[ChildCrash],
) -> None:
    """Let `child` work until it fails; the argument on which it failed goes back to `todo`."""
    try:
        child.ready()
    except WorkerError:
        return
    for index, argument in _taken(todo):
        request = Message("call", {}, [called, pickle.dumps(argument)])
        try:
            reply = child.request(request, _TIMEOUT_S, MAX_BYTES)
        except (ChildCrash, ChildTimeout) as error:
            reply = Message("failed")
            if isinstance(error, ChildCrash):
                crashes.append(error)
        if reply.kind != "value":
            todo.append((index, argument))
            return
        keep(index, pickle.loads(reply.blobs[0]))


def serve_calls(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """The handler of a process that calls functions.

    Functions, arguments and results are pickled: these processes run the code of this package and
    nothing that it has generated.
    """
    gc.set_threshold(NEW_OBJECTS)

    def handle(message: Message) -> Message:
        function, argument = map(pickle.loads, message.blobs)
        return Message("value", {}, [pickle.dumps(function(argument))])

    return handle
