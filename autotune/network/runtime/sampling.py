"""⑩ Sampling: the next token from the scores of all, by their distribution.

choose = sampler("top_p", temperature=0.8, top_p=0.95, seed=1)
token = choose(logits)                                  # (vocabulary,) -> int
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError

Array = NDArray[Any]
SAMPLINGS = GREEDY, TOP_P, TOP_K = "greedy", "top_p", "top_k"


def sampler(
    sample: str = GREEDY,
    *,
    temperature: float = 1.0,
    top_p: float = 0.95,
    top_k: int = 50,
    seed: int | None = None,
) -> Callable[[Array], int]:
    """A function of the scores (vocabulary,) of a place that chooses a token.

    `sample`: "greedy", the first of the highest; "top_p", of the smallest set whose shares are
    `top_p` together; "top_k", of the `top_k` highest. The same seed gives the same tokens. Raises
    UsageError for a sampling that there is not, and for numbers out of range.
    """
    if sample not in SAMPLINGS:
        raise UsageError(f"there is no sampling '{sample}'", f"it is one of {', '.join(SAMPLINGS)}")
    if sample == GREEDY:
        return lambda scores: int(np.argmax(scores))
    if not temperature > 0 or not 0 < top_p <= 1 or top_k < 1:
        raise UsageError(
            "temperature is above 0, top_p above 0 and at most 1, top_k at least 1",
            "leave out what you do not need",
        )
    rng = np.random.default_rng(seed)

    def choose(scores: Array) -> int:
        scaled = scores.astype(np.float64) / temperature
        order = np.argsort(-scaled, kind="stable")
        shares = np.exp(scaled[order] - scaled[order[0]])
        shares /= shares.sum()
        n_likely = int(np.searchsorted(np.cumsum(shares), top_p)) + 1
        n = top_k if sample == TOP_K else n_likely
        kept = shares[:n] / shares[:n].sum()
        return int(order[rng.choice(len(kept), p=kept)])

    return choose
