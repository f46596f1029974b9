"""⑩ A tree of prefixes: places of the KV cache that texts begin with, kept for texts to come.

prefixes = Prefixes(most_bytes=1 << 30)
n = prefixes.begin(session, tokens)        # places of an empty session are filled: read tokens[n:]
...
prefixes.keep(session, tokens)             # of a session that has read `tokens`

A state of a fixed shape beside the cache is that of one place: it is kept where a session has read
whole blocks and no more, so texts are read in parts that end there (`part`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.runtime.session import ModelSession

Array = NDArray[Any]
Tokens = tuple[int, ...]


@dataclass(eq=False)
class _Block:
    """The rows of some tokens behind those of its parents; `states`: of a fixed shape at their
    end, None where no session stopped there."""

    parent: _Block | None = None
    tokens: Tokens = ()
    rows: Mapping[str, Array] = field(default_factory=dict)
    states: Mapping[str, Array] | None = None
    blocks: dict[Tokens, _Block] = field(default_factory=dict)
    used: int = 0

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in (*self.rows.values(), *(self.states or {}).values()))


class Prefixes:
    """Prefixes of texts in blocks of `block` tokens, `most_bytes` of memory together.

    Those go first that were used the longest time ago. Of sessions of one model alone, and of
    several threads. The tree owns copies of the rows, so sessions may go.
    """

    def __init__(self, most_bytes: int = 1 << 30, block: int = 32) -> None:
        if most_bytes < 0 or block < 1:
            raise UsageError("a block has a token or more, and bytes are no less than 0")
        self.most_bytes, self.block = most_bytes, block
        self.n_bytes, self.n_read, self.n_known = 0, 0, 0
        self._root, self._clock, self._lock = _Block(), 0, threading.Lock()
        self._model: object = None

    def begin(self, session: ModelSession, tokens: Sequence[int]) -> int:
        """Fill an empty session with the longest known prefix; its length, below that of `tokens`.

        Raises UsageError for a session that is not empty, or of another model.
        """
        self.require(session)
        if session.length:
            raise _has_read(session)
        with self._lock:
            places, states = 0, session.replaced_arrays()
            for block in self._restored(tokens[:-1], bool(states)):
                end = places + len(block.tokens)
                for name, rows in block.rows.items():
                    session.rows(name, places, end)[...] = rows
                places, block.used = end, self._tick()
                for name, array in states.items():
                    array[...] = (block.states or {}).get(name, array)
            self.n_read, self.n_known = self.n_read + len(tokens), self.n_known + places
        session.assume(places)
        return places

    def keep(self, session: ModelSession, tokens: Sequence[int]) -> None:
        """Keep what a session has read, as far as it is whole blocks.

        `tokens`: those of its first places. States of a fixed shape are kept where these are all
        that it has read. Raises UsageError for a session that has read fewer.
        """
        self.require(session)
        if session.length < len(tokens):
            raise _has_read(session)
        with self._lock:
            above, places = self._root, 0
            for key in self._keys(tokens):
                end = places + len(key)
                block = above.blocks.get(key)
                if block is None:
                    rows = {n: session.rows(n, places, end).copy() for n in session.all_buffers}
                    block = above.blocks[key] = _Block(above, key, rows)
                    self.n_bytes += block.n_bytes
                block.used = self._tick()
                above, places = block, end
            if places == session.length and above.states is None:
                self.n_bytes -= above.n_bytes
                states = session.replaced_arrays()
                above.states = {name: array.copy() for name, array in states.items()}
                self.n_bytes += above.n_bytes
            self._forget()

    def part(self, session: ModelSession, tokens: Sequence[int], begin: int, size: int) -> int:
        """The end of the part of a text to read from `begin` on: of `size` tokens, or of fewer
        where the model has states of a fixed shape, which other texts may go on from there.

        That is where former texts had other tokens, else the end of the last whole block.
        """
        end = min(begin + size, len(tokens))
        if not session.replaced_arrays():
            return end
        with self._lock:
            known = sum(len(block.tokens) for block in self._known(tokens[:-1]))
        whole = end // self.block * self.block
        is_inside = begin < known < end
        return known if is_inside else whole if whole > begin else end

    @staticmethod
    def serves(session: ModelSession) -> bool:
        """Whether places of a session can be kept: its state follows from tokens alone, and a text
        may be read in parts."""
        return bool(session.capacity and session.joins and not session.begin_info)

    def require(self, session: ModelSession) -> None:
        """Raise UsageError for a session whose places cannot be kept, or of another model."""
        if not self.serves(session):
            raise UsageError(
                "prefixes are kept of models with a KV cache that follows from tokens alone",
                "leave them out",
            )
        if self._model not in (None, session.model):
            raise UsageError("the prefixes are of another model", "give each model its own")
        self._model = session.model

    def _keys(self, tokens: Sequence[int]) -> Iterator[Tokens]:
        size = self.block
        for begin in range(0, len(tokens) - size + 1, size):
            yield tuple(int(n) for n in tokens[begin : begin + size])

    def _known(self, tokens: Sequence[int]) -> Iterator[_Block]:
        block: _Block | None = self._root
        for key in self._keys(tokens):
            if block is None or (block := block.blocks.get(key)) is None:
                return
            yield block

    def _restored(self, tokens: Sequence[int], has_states: bool) -> list[_Block]:
        """The longest known prefix that a session can go on from."""
        known = list(self._known(tokens))
        while has_states and known and known[-1].states is None:
            known.pop()
        return known

    def _forget(self) -> None:
        """Drop the blocks without others behind them that were used the longest time ago."""
        while self.n_bytes > self.most_bytes:
            last = min(self._leaves(self._root), key=lambda block: block.used)
            assert last.parent is not None
            del last.parent.blocks[last.tokens]
            self.n_bytes -= last.n_bytes

    def _leaves(self, block: _Block) -> Iterator[_Block]:
        for one in block.blocks.values():
            yield from self._leaves(one) if one.blocks else (one,)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _has_read(session: ModelSession) -> UsageError:
    return UsageError(f"the session has read {session.length} tokens", "`begin` with an empty one")
