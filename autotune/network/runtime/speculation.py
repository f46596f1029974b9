"""⑩ Speculation: a draft proposes tokens, and one step of the model verifies all of them.

session.generate(prompt, draft="ngrams", k=4)

Every token is distributed as without a draft, greedy ones are the same up to rounding: a proposal
x of share q(x) is taken with probability min(1, p(x) / q(x)), p being the model's shares; in the
place of one that is not, a token is drawn from max(p - q, 0) (Leviathan and others, 2023).

A state of a fixed shape goes back to before a draft that was not taken whole: tokens that were are
in front of the next one, and read once more with it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.runtime.generation import TokenSession
from autotune.network.runtime.sampling import Sampler

Array = NDArray[Any]


class TextDraft(Protocol):
    """Proposes tokens behind a text."""

    def propose(self, text: Sequence[int], k: int, choose: Sampler) -> Proposal:
        """At most `k` tokens behind `text`."""


@dataclass(frozen=True)
class Proposal:
    """Tokens, and the shares that each was drawn from; None where it was the only one."""

    tokens: Sequence[int]
    shares: Sequence[Array | None]


class NGrams:
    """What followed the last tokens of a text when they were last there.

    `most`: tokens that are looked for, fewer where so many were not there, down to `least`.
    """

    def __init__(self, most: int = 3, least: int = 1) -> None:
        self._sizes = range(most, least - 1, -1)
        self._text: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}

    def propose(self, text: Sequence[int], k: int, choose: Sampler) -> Proposal:
        """At most `k` tokens behind `text`, which grows from call to call or is another one."""
        known = len(self._text)
        if known > len(text) or list(text[:known]) != self._text:
            self._text, self._behind, known = [], {}, 0
        for end in range(known, len(text)):  # what ends in front of `end` is followed by it
            for size in self._sizes:
                if size <= end:
                    self._behind[tuple(text[end - size : end])] = end
        self._text = list(text)
        for size in self._sizes:
            place = self._behind.get(tuple(text[-size:])) if size <= len(text) else None
            if place is not None:
                found = self._continued(text, place, k)
                return Proposal(found, [None] * len(found))
        return Proposal((), ())

    def _continued(self, text: Sequence[int], place: int, k: int) -> list[int]:
        """The `k` tokens from a place on; behind the end come those from the place again."""
        period = len(text) - place
        return [int(text[place + n % period]) for n in range(k)]


class SessionDraft:
    """Tokens of a smaller model.

    `session`: one of a model with the same tokens, which has read the same text so far.
    """

    def __init__(self, session: TokenSession) -> None:
        if not session.goes_back:
            raise UsageError(
                "a draft goes back to where it was wrong, which its state of a fixed shape cannot",
                'give a model whose whole state is a KV cache, or "ngrams"',
            )
        self._session, self._before = session, session.length
        self._text: list[int] = []

    def propose(self, text: Sequence[int], k: int, choose: Sampler) -> Proposal:
        """At most `k` tokens behind `text`."""
        session, before = self._session, self._before
        same = _common(self._text[: session.length - before], text)
        known = min(same, len(text) - 1)
        session.truncate(before + known)
        k = min(k, session.capacity - before - len(text) + 1)
        tokens, shares = list[int](), list[Array | None]()
        given = list(text[known:])
        while len(tokens) < k:
            found = choose.shares(session.scores_behind(given)[-1])
            tokens.append(int(choose.rng.choice(len(found), p=found)))
            shares.append(found)
            given = tokens[-1:]
        self._text = [*text, *tokens]
        return Proposal(tokens, shares)


@dataclass(frozen=True)
class Wanted:
    """Where a text ends: behind `max_new` tokens, or one of `stop`; `k`: tokens of a proposal."""

    max_new: int
    stop: Container[int] = ()
    k: int = 4


def draft_of(draft: Any) -> TextDraft:
    """A draft: "ngrams", or an object with `propose`. Raises UsageError for others."""
    if draft == "ngrams":
        return NGrams()
    if not hasattr(draft, "propose"):
        raise UsageError(
            f"a draft is no {type(draft).__name__}", 'give "ngrams", or a session of a model'
        )
    found: TextDraft = draft
    return found


def speculated(
    session: TokenSession, tokens: Sequence[int], draft: TextDraft, choose: Sampler, wanted: Wanted
) -> Iterator[int]:
    """Tokens behind `tokens`, one by one; see `ModelSession.generate`."""
    text = [*tokens, choose(session.scores_behind(tokens)[-1])]
    yield text[-1]
    left, unread = wanted.max_new - 1, text[-1:]
    while left > 0 and text[-1] not in wanted.stop:
        if len(unread) + wanted.k > session.most_rows:
            unread = _last_unread(session, unread)
        room = session.capacity - session.length - len(unread)
        if room < 0:
            break
        k = min(wanted.k, left - 1, room)
        proposal = draft.propose(text, k, choose) if k > 0 else Proposal((), ())
        before = session.length
        rows = session.verified([*unread, *proposal.tokens])
        found = _verified(rows[len(unread) - 1 :], proposal, choose)
        ends = [n for n, token in enumerate(found, 1) if token in wanted.stop]
        found = found[: ends[0]] if ends else found
        read = before + len(unread) - 1 + len(found)
        if read == session.length or session.goes_back:
            session.truncate(read)
            unread = found[-1:]
        else:
            session.truncate(before)
            unread = unread + found
        text, left = text + found, left - len(found)
        yield from found
    _last_unread(session, unread)


def _last_unread(session: TokenSession, unread: list[int]) -> list[int]:
    """Read all tokens but the last one, which is left."""
    if len(unread) > 1:
        session.scores_behind(unread[:-1])
    return unread[-1:]


def _verified(rows: Array, proposal: Proposal, choose: Sampler) -> list[int]:
    """The proposed tokens that are taken, and one more; `rows`: scores behind each, and before."""
    found: list[int] = []
    for row, token, shares in zip(rows[:-1], proposal.tokens, proposal.shares, strict=True):
        wanted = choose.shares(row)
        given = 1.0 if shares is None else shares[token]
        if choose.rng.random() * given < wanted[token]:
            found.append(int(token))
            continue
        rest = wanted.copy()
        rest[token] = 0
        if shares is not None:
            rest = np.maximum(wanted - shares, 0)
        return [*found, int(choose.rng.choice(len(rest), p=rest / rest.sum()))]
    return [*found, choose(rows[-1])]


def _common(first: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that two texts begin with in common."""
    pairs = enumerate(zip(first, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(other)))
