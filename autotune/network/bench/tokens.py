"""⑩ Prompts and single tokens of a decoder with a state, alone or beside others, in turns.

In each round every side begins a sequence, takes a prompt, and then one token after another. The
first round warms up and is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.timing.noise import Usage, judge
from autotune.measure.timing.turns import turns
from autotune.network.bench.bench import PAUSE_S, Comparison
from autotune.network.runtime.token_loops import Begin
from autotune.units import format_seconds

_MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True, repr=False)
class TokensTiming:
    """Seconds of `n_prompt` tokens at once, in each round, and of the median single one after."""

    prompts_s: tuple[float, ...]
    tokens_s: tuple[float, ...]
    n_prompt: int
    n_threads: int

    @property
    def prompt_s(self) -> float:
        """Median of all prompts."""
        return statistics.median(self.prompts_s)

    @property
    def token_s(self) -> float:
        """Median of single tokens."""
        return statistics.median(self.tokens_s)

    def __repr__(self) -> str:
        prompt, token = map(format_seconds, (self.prompt_s, self.token_s))
        return f"TokensTiming({self.n_prompt} tokens {prompt}, then {token} each)"

    def to_json(self) -> dict[str, float | int]:
        """Summary with the names that the command line documents."""
        return {
            "prompt_s": self.prompt_s,
            "token_s": self.token_s,
            "prompt_tokens": self.n_prompt,
            "prompt_tokens_per_s": self.n_prompt / self.prompt_s,
            "tokens_per_s": 1 / self.token_s,
            "rounds": len(self.prompts_s),
            "threads": self.n_threads,
        }


@dataclass(frozen=True, slots=True, repr=False)
class TokensResult(Comparison[TokensTiming]):
    """Timings of a session of the compiled model and of each requested baseline, by name."""

    @property
    def ratios(self) -> dict[str, float]:
        """Our seconds of a token over each baseline's: below 1 we are faster."""
        return {name: self.autotune.token_s / t.token_s for name, t in self.baselines.items()}

    @property
    def prompt_ratios(self) -> dict[str, float]:
        """The same for prompts."""
        return {name: self.autotune.prompt_s / t.prompt_s for name, t in self.baselines.items()}

    def to_json(self) -> dict[str, Any]:
        """As of `bench.BenchResult`; `ratio` is of single tokens, `prompt_ratio` of prompts."""
        return self.sides_json(prompt_ratio=max(self.prompt_ratios.values(), default=None))


def bench_tokens(
    sides: Mapping[str, Begin],
    prompt: NDArray[Any],
    n_tokens: int,
    n_threads: int,
    min_s: float = 2.0,
    usage: Callable[[], Usage] | None = None,
) -> TokensResult:
    """Time sequences of `prompt` (1, n) and `n_tokens` single tokens, until each side, of which the
    first is ours, has `min_s` seconds."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    before = usage() if usage else None
    spent = dict.fromkeys(sides, 0.0)
    names, order = tuple(sides), turns(len(sides))
    n = 0
    while n <= _MIN_ROUNDS or min(spent.values()) < min_s:
        for name in (names[side] for side in next(order)):
            time.sleep(PAUSE_S)
            found = _sequence(sides[name], prompt, n_tokens)
            if n:
                times[name].append((found[0], statistics.median(found[1:])))
                spent[name] += sum(found)
        n += 1
    noise = judge(before, usage(), ()) if usage and before else None
    ours, *others = ((n, _timing(found, prompt.size, n_threads)) for n, found in times.items())
    return TokensResult(ours[1], dict(others), noise=noise)


def _timing(times: list[tuple[float, float]], n_prompt: int, n_threads: int) -> TokensTiming:
    prompts, tokens = zip(*times, strict=True)
    return TokensTiming(prompts, tokens, n_prompt, n_threads)


def _sequence(begin: Begin, prompt: NDArray[Any], n_tokens: int) -> list[float]:
    """Seconds of the prompt, and of each token behind it."""
    step, last = begin(), time.perf_counter
    singles = (prompt[:, n % prompt.size :][:, :1] for n in range(n_tokens))
    seconds = []
    for tokens in (prompt, *singles):
        begun = last()
        step(tokens)
        seconds.append(last() - begun)
    return seconds


def random_prompt(n_tokens: int, limit: int, seed: int = 0) -> NDArray[np.int64]:
    """Tokens of one sequence, below `limit` and of the first hundred of any vocabulary."""
    return np.random.default_rng(seed).integers(0, min(limit, 100), (1, n_tokens))
