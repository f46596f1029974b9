"""Texts -> rows of tokens -> what an encoder says of each.

    encoder = Encoder(autotune.load("model.atn"), Tokenizer.from_file("tokenizer.json"))
    vectors = await encoder.answers(await encoder.rows(["a text"]))

Rows of all requests that wait are one batch, however long each is: an artifact of `--ragged`
computes their tokens alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from waiting import MOST_WAITING, Batcher

import autotune

Floats = NDArray[np.float32]
MOST_TOKENS = 16384
"""Of a batch."""
POOLINGS = ("mean", "cls")


class Row(NamedTuple):
    """Tokens of a text, and of which text of a pair each is."""

    ids: Sequence[int]
    types: Sequence[int]


class Unfit(ValueError):
    """A text of more tokens than the model takes, or of none."""


class Encoder(Batcher[Row, Floats]):
    """A text encoder behind its tokenizer; an answer is a vector: an embedding, or a score.

    `pooling`: of an output with a vector for each token. Raises UsageError for a model that is not
    over rows of tokens.
    """

    def __init__(
        self,
        model: autotune.Model,
        tokenizer: Tokenizer,
        pooling: str = "mean",
        most_waiting: int = MOST_WAITING,
    ) -> None:
        super().__init__(self._encoded, self._size, most_waiting)
        if not model.is_ragged:
            raise autotune.UsageError(
                f"'{model.artifact.name}' was not compiled for rows of different lengths",
                "`autotune compile model.onnx --ragged --dim batch=..32 --dim sequence=..512`",
            )
        if pooling not in POOLINGS:
            raise autotune.UsageError(f"there is no pooling '{pooling}'", "mean or cls")
        self.model, self.pooling = model, pooling
        self.most_rows, self.longest = model.input_info[0].shape
        self.whole, self.cut = (Tokenizer.from_str(tokenizer.to_str()) for _ in range(2))
        for each in (self.whole, self.cut):
            each.no_padding()
        self.whole.no_truncation()
        self.cut.enable_truncation(self.longest)
        self.n_words = model.input_info[0].limit
        self.output = model.output_info[-1]  # a pooled one, where there are two

    @property
    def is_ranking(self) -> bool:
        """Whether it scores pairs of texts: a single number for a row."""
        return self.output.shape[1:] == (1,)

    async def rows(self, texts: Sequence[Any], truncate: bool = False) -> list[Row]:
        """Tokens of texts, or of pairs of texts. Raises Unfit, unless they are to be cut."""
        tokenizer = self.cut if truncate else self.whole
        found = await asyncio.to_thread(tokenizer.encode_batch, list(texts))
        return [self.row(each.ids, each.type_ids) for each in found]

    def row(self, ids: Sequence[int], types: Sequence[int] | None = None) -> Row:
        """A row of tokens. Raises Unfit."""
        if not 0 < len(ids) <= self.longest:
            raise Unfit(f"`inputs` must have 1 to {self.longest} tokens. Given: {len(ids)}")
        if max(ids) >= self.n_words or min(ids) < 0:
            raise Unfit(f"tokens are numbers below {self.n_words}")
        return Row(ids, types or [0] * len(ids))

    def _size(self, waiting: Sequence[Row]) -> int:
        totals = accumulate(len(row.ids) for row in waiting[: self.most_rows])
        return max(1, sum(total <= MOST_TOKENS for total in totals))

    async def _encoded(self, rows: list[Row]) -> list[Floats]:
        return await asyncio.to_thread(self.vectors, rows)

    def vectors(self, rows: Sequence[Row]) -> list[Floats]:
        """What the model says of rows."""
        found = self.model.run_ragged(
            {port.name: [_of(row, port.name) for row in rows] for port in self.model.input_info}
        )[self.output.name]
        if isinstance(found, list):  # a vector for each token
            return [row.mean(0) if self.pooling == "mean" else row[0] for row in found]
        return list(found)


def _of(row: Row, name: str) -> NDArray[np.int64]:
    """What an input with that name has of a row."""
    if "mask" in name:
        return np.ones(len(row.ids), np.int64)
    return np.array(row.types if "type" in name else row.ids, np.int64)
