"""The choice of a token: sampling, a grammar, biases, and what is told of the scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from chat import Text
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from autotune.network.runtime.sampling import Sampler

Array = NDArray[Any]


@dataclass
class Chosen:
    """A token, its share's logarithm, and those of the likeliest."""

    token: int
    logprob: float
    likeliest: list[tuple[int, float]]


class Grammars:
    """Grammars over the tokens of a model: a mask of those that may come next."""

    def __init__(self, text: Text, ends: set[int]) -> None:
        known = text.tokenizer
        self._n = known.get_vocab_size(with_added_tokens=True)
        end = min(ends, default=None)
        self._tokenizer = LLTokenizer(known.to_str(), n_vocab=self._n, eos_token=end)

    def of_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """Of the JSON texts that a schema permits. Raises ValueError for no schema."""
        text = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        error = LLMatcher.validate_grammar(text, self._tokenizer)
        if error:
            raise ValueError(f"the schema cannot be followed: {error.splitlines()[0]}")
        return Grammar(LLMatcher(self._tokenizer, text), self._n)


class Grammar:
    """A text that follows a grammar so far."""

    def __init__(self, matcher: LLMatcher, n: int) -> None:
        self._matcher, self._n = matcher, n
        self._mask = allocate_token_bitmask(1, n)

    def masked(self, scores: Array) -> Array:
        """Scores in which all tokens that cannot come next are lowest."""
        fill_next_token_bitmask(self._matcher, self._mask)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: len(scores)]
        able = np.zeros(len(scores), bool)
        able[: len(bits)] = bits
        return np.where(able, scores, -np.inf)

    def take(self, token: int) -> None:
        """Go on behind a token."""
        self._matcher.consume_token(token)


@dataclass
class Choice:
    """Chooses tokens by their scores, and remembers how.

    `likeliest`: how many are told of; None for not even the chosen one's share.
    """

    sampler: Sampler
    grammar: Grammar | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    likeliest: int | None = None
    chosen: list[Chosen] = field(default_factory=list)

    def __call__(self, scores: Array) -> int:
        """The next token."""
        found = scores.astype(np.float32)
        for token, more in self.bias.items():
            found[token] += more
        if self.grammar is not None:
            found = self.grammar.masked(found)
        token = self.sampler(found)
        if self.grammar is not None:
            self.grammar.take(token)
        if self.likeliest is not None:
            self.chosen.append(self._told(token, scores))
        return token

    def _told(self, token: int, scores: Array) -> Chosen:
        wide = scores.astype(np.float64)
        logs = wide - wide.max()
        logs -= np.log(np.exp(logs).sum())
        best = np.argsort(-logs, kind="stable")[: self.likeliest]
        return Chosen(token, float(logs[token]), [(int(n), float(logs[n])) for n in best])
