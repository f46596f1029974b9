"""⑩ Generation: tokens behind a prompt, one by one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.artifact.artifact import Endpoint

Array = NDArray[Any]
COMPILED_FOR_ALL = 'compile it with `scores="all"` (`--scores all`)'


class _Session(Protocol):
    """A session, as far as texts need it."""

    @property
    def input_info(self) -> tuple[Endpoint, ...]: ...
    @property
    def output_info(self) -> tuple[Endpoint, ...]: ...
    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def most_rows(self) -> int: ...
    def truncate(self, length: int) -> None: ...
    def run(self, inputs: Mapping[str, Any], *, has_all: bool = ...) -> dict[str, Array]: ...
    def replaced_arrays(self) -> dict[str, Array]: ...


class TokenSession:
    """A session of a model that takes tokens alone and gives their scores.

    `source` and `scores`: the names of both. Raises UsageError for another model.
    """

    def __init__(self, session: _Session) -> None:
        if len(session.input_info) != 1 or session.input_info[0].is_float:
            raise UsageError("a step of the model takes more than tokens", "use `step`")
        self._session, self._source = session, session.input_info[0]
        self.source, self.scores = self._source.name, _scores(session)

    @property
    def length(self) -> int:
        """The number of tokens that it has read."""
        return self._session.length

    @property
    def capacity(self) -> int:
        """The most tokens."""
        return self._session.capacity

    @property
    def most_rows(self) -> int:
        """The most tokens that are read at once with scores behind each."""
        return self._session.most_rows

    @property
    def goes_back(self) -> bool:
        """Whether any number of tokens can be forgotten, and not those of the last step alone."""
        return not self._session.replaced_arrays()

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        self._session.truncate(length)

    def tokens(self, of: Any) -> list[int]:
        """Tokens of one sequence, as an array or a list of any rank."""
        return [int(n) for n in self.array(of).reshape(-1)]

    def array(self, tokens: Any) -> Array:
        """Tokens as steps take them."""
        return np.asarray(tokens, self._source.numpy_dtype)

    def scores_behind(self, tokens: Sequence[int]) -> Array:
        """Read more tokens; scores of what follows each, or the last one alone: (n, vocabulary)."""
        return self._read(tokens, False)

    def verified(self, tokens: Sequence[int]) -> Array:
        """Read at most `most_rows` tokens; scores of what follows each: (n, vocabulary)."""
        return self._read(tokens, True)

    def _read(self, tokens: Sequence[int], has_all: bool) -> Array:
        given = self.array(tokens).reshape(1, -1)
        found = self._session.run({self.source: given}, has_all=has_all)[self.scores]
        return found.reshape(-1, found.shape[-1])

    def require_rows(self, k: int) -> None:
        """Raise UsageError for a model that does not verify drafts of so many tokens."""
        most = self.most_rows
        if most < 2:
            raise UsageError(
                "a draft is verified by the scores of all its tokens, and the model gives those of "
                "the last one",
                COMPILED_FOR_ALL,
            )
        if not 0 < k < most:
            raise UsageError(
                f"a draft of {k} tokens is verified by a step of {k + 1}: the model has one of 2 "
                f"to {most}",
                f"give `k` from 1 to {most - 1}, or {COMPILED_FOR_ALL}",
            )


def generated(
    session: TokenSession,
    tokens: Sequence[int],
    choose: Callable[[Array], int],
    max_new: int,
    stop: Container[int],
) -> Iterator[int]:
    """Tokens behind `tokens`, one by one; see `ModelSession.generate`."""
    for _ in range(max_new):
        token = choose(session.scores_behind(tokens)[-1])
        yield token
        if token in stop or session.length >= session.capacity:
            return
        tokens = [token]


def _scores(session: _Session) -> str:
    """The output that has a score for each token."""
    floats = [end.name for end in session.output_info if end.is_float]
    named = [name for name in floats if "logits" in name]
    found = named or floats
    if len(found) != 1:
        raise UsageError("no output of the model is the scores of tokens", "use `step`")
    return found[0]
