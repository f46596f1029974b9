"""⑪ Caches of a decoder that stay in place while a caller feeds back what it got.

    past = zeros (1, 2, 0, 64)
    logits, past = run({"input_ids": prompt, "past": past})      the first places of the buffer
    logits, past = run({"input_ids": token, "past": past})       more of them: nothing was copied

Results are arrays over the memory of the state. An array that is the first places of it, wherever
it comes from, continues it; any other is copied into it. What would overwrite places that somebody
still holds goes on in other memory, so that results stay what they were.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.graph.reader.decoder_inputs import inputs_at
from autotune.graph.reader.growth import Growth
from autotune.graph.state import buffer_of
from autotune.network.runtime.session import ModelSession

Array = NDArray[Any]


class KeptState:
    """The state of a session that is called as its file is: with a past, and masks beside it."""

    def __init__(self, session: ModelSession, growth: Growth) -> None:
        self._session, self._growth = session, growth
        self._axes = {name: axis for name, (_, axis) in growth.states.items()}
        self._buffers = {name: buffer_of(name) for name in growth.states}
        self._begun: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._unused = self._n_holders()

    def run(self, feed: Mapping[str, Any]) -> dict[str, Array] | None:
        """Outputs by name; None where inputs are not those of one sequence within the capacity.

        Raises UsageError for inputs that do not fit.
        """
        with self._lock:
            return self._run(feed)

    def _run(self, feed: Mapping[str, Any]) -> dict[str, Array] | None:
        session, growth = self._session, self._growth
        pasts = {name: np.asarray(feed[name]) for name in growth.states if name in feed}
        tokens = {end.name: feed[end.name] for end in session.input_info if end.name in feed}
        staying = {end.name: feed[end.name] for end in session.begin_info if end.name in feed}
        length = self._length(pasts)
        if length is None or len(tokens) < len(session.input_info):
            return None
        n = session.n_places(tokens)
        if length + n > session.capacity or not session.takes(n):
            return None
        if not self._is_plain(feed, length, n):
            return None
        if len(staying) < len(session.begin_info):
            return None
        self._place(pasts, length)
        self._hold(staying, length)
        session.assume(length)
        found = session.run(tokens)
        for name, (output, _) in growth.states.items():
            found[output] = session.rows(self._buffers[name], 0, length + n)
        return found

    def _length(self, pasts: Mapping[str, Array]) -> int | None:
        """The number of places that all pasts have; None where they do not agree."""
        found = {
            array.shape[self._axes[name]] if self._fits(name, array) else None
            for name, array in pasts.items()
        }
        is_whole = len(pasts) == len(self._axes) and len(found) == 1
        return found.pop() if is_whole else None

    def _fits(self, name: str, array: Array) -> bool:
        """Whether an array could be the first places of a state."""
        axis, rows = self._axes[name], self._session.rows(self._buffers[name], 0, 0)
        if array.dtype != rows.dtype or array.ndim != rows.ndim:
            return False
        places = array.shape[axis]
        return array.shape == (*rows.shape[:axis], places, *rows.shape[axis + 1 :])

    def _is_plain(self, feed: Mapping[str, Any], length: int, n: int) -> bool:
        """Whether masks, positions and lengths are those of places without a gap."""
        return all(
            np.array_equal(np.asarray(feed[name]).reshape(-1), value.reshape(-1))
            for name, value in inputs_at(self._growth, length, n).items()
            if name in feed
        )

    def _place(self, pasts: Mapping[str, Array], length: int) -> None:
        """Let the state begin with these arrays."""
        session = self._session
        others = [name for name, array in pasts.items() if not self._is_first(name, array, length)]
        if others or length < session.length:
            self._keep_results(pasts, others, length)
        for name in others:
            session.rows(self._buffers[name], 0, length)[...] = pasts[name]

    def _is_first(self, name: str, array: Array, length: int) -> bool:
        """Whether an array is the first places of a buffer, in its memory."""
        rows = self._session.rows(self._buffers[name], 0, length)
        is_there = array.__array_interface__["data"] == rows.__array_interface__["data"]
        return length == 0 or (is_there and array.strides == rows.strides)

    def _keep_results(self, pasts: Mapping[str, Array], others: list[str], length: int) -> None:
        """Go on in other memory where results of former calls would be overwritten."""
        kept = {name: array for name, array in pasts.items() if name not in others}
        given = sum(self._owner(name) is _owner(array) for name, array in kept.items())
        if self._n_holders() - given > self._unused:
            self._session.move(0 if len(others) == len(pasts) else length)
            self._unused = self._n_holders()

    def _n_holders(self) -> int:
        """References to the memory of all buffers: every view of it has one."""
        return sum(sys.getrefcount(self._owner(name)) for name in self._buffers)

    def _owner(self, name: str) -> Any:
        return _owner(self._session.rows(self._buffers[name], 0, 0))

    def _hold(self, staying: Mapping[str, Any], length: int) -> None:
        """Begin a sequence with what stays for it, where it is another one."""
        known = self._begun
        is_same = length > 0 and all(
            name in known and (value is known[name] or np.array_equal(value, known[name]))
            for name, value in staying.items()
        )
        if staying and not is_same:
            self._session.begin(staying)
            self._begun = dict(staying)


def _owner(array: Array) -> Any:
    return array if array.base is None else array.base
