"""⑩ Steps of many requests: sessions join and leave between steps, long prompts come in slices.

scheduler = TurnScheduler(model, sessions=8)
scheduler.submit(TextRequest(tokens, max_new=100, stop={2}, tell=print))
while scheduler.turn():
    ...
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.runtime.generation import TokenSession
from autotune.network.runtime.runtime import Model
from autotune.network.runtime.sampling import sampler
from autotune.network.runtime.session import ModelSession, step_together
from autotune.network.serving.prefixes import Prefixes

Array = NDArray[Any]
STOP, LENGTH, CANCELLED, FAILED = "stop", "length", "cancelled", "failed"


class QueueFull(UsageError):
    """There are as many requests as may wait."""


@dataclass(eq=False)
class TextRequest:
    """A text to go on from.

    `choose`: the next token by scores (vocabulary,). `tell`: is called with each token, and with
    None once the request has ended, in the thread of turns. `found`: the tokens so far; `end`: why
    it ended, one of "stop", "length", "cancelled" and "failed" (`error` says of what), "" before.
    """

    tokens: Sequence[int]
    max_new: int
    stop: Container[int] = ()
    choose: Callable[[Array], int] = field(default_factory=sampler)
    tell: Callable[[int | None], object] = field(default_factory=lambda: _nobody)
    found: list[int] = field(default_factory=list, init=False)
    end: str = field(default="", init=False)
    error: BaseException | None = field(default=None, init=False)

    def cancel(self) -> None:
        """End it before the next turn; of any thread."""
        self.end = self.end or CANCELLED

    def _fail(self, error: BaseException) -> None:
        self.end, self.error = FAILED, error


def _nobody(token: int | None) -> None:
    """Is told of no token."""


@dataclass(eq=False)
class _Running:
    """A request and its session; `read`: the tokens of it that the session has read."""

    request: TextRequest
    session: ModelSession
    read: int = 0


class TurnScheduler:
    """Computes requests of a model in turns, one thread at a time.

    `sessions`: requests at once; as many steps of several sessions as the artifact has are used
    (`--sessions`). `waiting`: requests that may wait for one. `part`: tokens of a prompt in a turn,
    beside the next token of all others. `prefixes`: of former texts, for all. It owns the sessions.
    Raises UsageError for a model that takes more than tokens.
    """

    def __init__(
        self,
        model: Model,
        *,
        sessions: int = 8,
        waiting: int = 64,
        part: int = 128,
        prefixes: Prefixes | None = None,
    ) -> None:
        if min(sessions, part) < 1 or waiting < 0:
            raise UsageError("there is one session and one token in a part at least")
        self._model, self._part, self._most_waiting = model, part, waiting
        self.prefixes: Prefixes | None = None
        self._free = [model.session() for _ in range(sessions)]
        self._ports, self.capacity = TokenSession(self._free[0]), self._free[0].capacity
        if not self.capacity or self._free[0].begin_info:
            raise UsageError(
                f"'{model.artifact.name}' is no decoder of text alone",
                "compile one with `capacity`",
            )
        if prefixes is not None and prefixes.serves(self._free[0]):
            prefixes.require(self._free[0])
            self.prefixes = prefixes
        self._waiting = deque[TextRequest]()
        self._prompts, self._texts = deque[_Running](), list[_Running]()
        self._lock = threading.Lock()

    @property
    def n_waiting(self) -> int:
        """Requests without a session."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Requests with a session."""
        return len(self._prompts) + len(self._texts)

    def submit(self, request: TextRequest) -> None:
        """Let a request wait for its turns; of any thread.

        Raises UsageError for an empty prompt and for one that is longer than the capacity, and
        QueueFull.
        """
        n = len(request.tokens)
        if not 0 < n < self.capacity or request.max_new < 1:
            raise UsageError(
                f"a prompt of {n} tokens and {request.max_new} more do not fit: there are "
                f"{self.capacity} places",
                f"give 1 to {self.capacity - 1} tokens, and ask for one or more",
            )
        with self._lock:
            n_waiting = sum(not one.end for one in self._waiting)
            if n_waiting - len(self._free) >= self._most_waiting:
                raise QueueFull(f"{n_waiting} requests are waiting", "try again later")
            self._waiting.append(request)

    def turn(self) -> bool:
        """Compute one part of a prompt and one token of every other request.

        Whether there was anything to do.
        """
        self._admit()
        if self._prompts:
            self._read(self._prompts.popleft())
        self._texts = [one for one in self._texts if self._goes_on(one)]
        if self._texts:
            self._step(self._texts)
            self._texts = [one for one in self._texts if self._goes_on(one)]
        return bool(self.n_waiting or self.n_running)

    def _admit(self) -> None:
        """Give sessions to requests that wait for one."""
        while (one := self._seated()) is not None:
            self._prompts.append(one)
            if self.prefixes is not None:
                one.read = self.prefixes.begin(one.session, one.request.tokens)

    def _seated(self) -> _Running | None:
        """The request that has waited longest, with a session; None without either."""
        with self._lock:
            while self._free and self._waiting:
                request = self._waiting.popleft()
                if not request.end:
                    return _Running(request, self._free.pop())
                request.tell(None)
        return None

    def _read(self, one: _Running) -> None:
        """The next part of a prompt."""
        request = one.request
        if request.end:
            return self._leave(one)
        end = one.read + self._part
        if self.prefixes is not None:
            end = self.prefixes.part(one.session, request.tokens, one.read, self._part)
        part = request.tokens[one.read : end]
        try:
            scores = TokenSession(one.session).scores_behind(part)
        except Exception as error:  # of this request: the others go on
            request._fail(error)
            return self._leave(one)
        one.read += len(part)
        is_read = one.read >= len(request.tokens)
        if self.prefixes is not None and (is_read or one.session.replaced_arrays()):
            self.prefixes.keep(one.session, request.tokens[: one.read])
        if not is_read:
            return self._prompts.append(one)
        self._take(one, scores[-1])
        if self._goes_on(one):
            self._texts.append(one)

    def _step(self, texts: Sequence[_Running]) -> None:
        """One token of each."""
        ports = self._ports
        tokens = [one.request.found[-1:] for one in texts]
        try:
            sessions = [one.session for one in texts]
            found = step_together(self._model, sessions, {ports.source: ports.array(tokens)})
            rows = found[ports.scores].reshape(len(texts), -1)
        except Exception as error:
            for one in texts:
                one.request._fail(error)
            return
        for one, row in zip(texts, rows, strict=True):
            self._take(one, row)

    def _take(self, one: _Running, scores: Array) -> None:
        """The next token of a request, and whether it is the last one."""
        request = one.request
        try:
            token = int(request.choose(scores))
        except Exception as error:
            return request._fail(error)
        request.found.append(token)
        is_full = one.session.length >= self.capacity
        if token in request.stop:
            request.end = request.end or STOP
        elif len(request.found) >= request.max_new or is_full:
            request.end = request.end or LENGTH
        request.tell(token)

    def _goes_on(self, one: _Running) -> bool:
        if one.request.end:
            self._leave(one)
        return not one.request.end

    def _leave(self, one: _Running) -> None:
        """Give back the session of a request that has ended."""
        one.session.reset()
        with self._lock:
            self._free.append(one.session)
        one.request.tell(None)
