"""⑩ Sampling: the next token from the scores of all, by their distribution.

choose = sampler("top_p", temperature=0.8, top_p=0.95, seed=1)
token = choose(logits)                                  # (vocabulary,) -> int
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError

Array = NDArray[Any]
SAMPLINGS = GREEDY, TOP_P, TOP_K = "greedy", "top_p", "top_k"


@dataclass
class Sampler:
    """Chooses tokens by scores (vocabulary,) of a place; see `sampler`."""

    sample: str
    temperature: float
    top_p: float
    top_k: int
    rng: np.random.Generator = field(repr=False)

    def __call__(self, scores: Array) -> int:
        """The next token."""
        if self.sample == GREEDY:
            return int(np.argmax(scores))
        order, kept = self._kept(scores)
        return int(order[self.rng.choice(len(kept), p=kept)])

    def shares(self, scores: Array) -> Array:
        """The share of each token, (vocabulary,) of float64, which are 1 together."""
        found = np.zeros(len(scores))
        if self.sample == GREEDY:
            found[np.argmax(scores)] = 1
            return found
        order, kept = self._kept(scores)
        found[order[: len(kept)]] = kept
        return found

    def _kept(self, scores: Array) -> tuple[Array, Array]:
        """Tokens, the likeliest first, and the shares of those that may be chosen."""
        scaled = scores.astype(np.float64) / self.temperature
        order = np.argsort(-scaled, kind="stable")
        shares = np.exp(scaled[order] - scaled[order[0]])
        shares /= shares.sum()
        n_likely = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
        n = self.top_k if self.sample == TOP_K else n_likely
        return order, shares[:n] / shares[:n].sum()


def sampler(
    sample: str = GREEDY,
    *,
    temperature: float = 1.0,
    top_p: float = 0.95,
    top_k: int = 50,
    seed: int | None = None,
) -> Sampler:
    """A function of the scores (vocabulary,) of a place that chooses a token.

    `sample`: "greedy", the first of the highest; "top_p", of the smallest set whose shares are
    `top_p` together; "top_k", of the `top_k` highest. The same seed gives the same tokens. Raises
    UsageError for a sampling that there is not, and for numbers out of range.
    """
    if sample not in SAMPLINGS:
        raise UsageError(f"there is no sampling '{sample}'", f"it is one of {', '.join(SAMPLINGS)}")
    is_random = sample != GREEDY
    if is_random and (not temperature > 0 or not 0 < top_p <= 1 or top_k < 1):
        raise UsageError(
            "temperature is above 0, top_p above 0 and at most 1, top_k at least 1",
            "leave out what you do not need",
        )
    return Sampler(sample, temperature, top_p, top_k, np.random.default_rng(seed))
