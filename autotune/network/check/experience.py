"""⑩ Experiments with the rounding of one model, shared by all its shapes.

    experience.known(kind, scale) ─► spreads by output, at other shapes; experience.add(…)

An experiment runs the model in an oracle several times, every result rounded otherwise, and takes
minutes for a large picture. How ill-conditioned a model is on one kind of inputs shows at any
shape; only what that does not explain is an experiment of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from autotune.cache import FileStore, key_of

_BUDGET_S = 60.0
"""Of all experiments of a check; further ones have one sample each."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Spread:
    """The largest differences of an oracle from itself: see `Difference`.

    `is_reshaped`: it even returns another shape, as where rounding decides how many boxes are kept.
    """

    error: float = 0.0
    n_moved: int = 0
    rms: float = 0.0
    is_reshaped: bool = False

    def joined(self, other: Spread) -> Spread:
        """The larger of both in every respect."""
        return Spread(
            max(self.error, other.error),
            max(self.n_moved, other.n_moved),
            max(self.rms, other.rms),
            self.is_reshaped or other.is_reshaped,
        )


Spreads = Mapping[str, Spread]
"""By output."""


class Experience:
    """Of one model, in `store` for other processes where there is one.

    `model`: a digest of its contents. `clock`: seconds that only grow.
    """

    def __init__(
        self,
        store: FileStore | None = None,
        model: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._model, self._clock = store, model, clock
        self._known: dict[tuple[str, float], dict[str, Spread]] = {}
        self._spent_s = 0.0

    def known(self, kind: str, scale: float) -> Spreads:
        """Spreads found by experiments on inputs of a kind at that scale of rounding, if any."""
        at = kind, scale
        if at not in self._known:
            kept = self._store.get(self._key(at)) if self._store else None
            found = json.loads(kept) if kept else {}
            self._known[at] = {name: Spread(**fields) for name, fields in found.items()}
        return self._known[at]

    def add(self, kind: str, scale: float, spreads: Spreads) -> None:
        """Keep the outcome of an experiment, but for shapes, which others need not have."""
        at = kind, scale
        known = dict(self.known(kind, scale))
        for name, spread in spreads.items():
            joined = known.get(name, Spread()).joined(spread)
            known[name] = replace(joined, is_reshaped=False)
        self._known[at] = known
        if self._store:
            fields = {name: asdict(spread) for name, spread in known.items()}
            self._store.put(self._key(at), json.dumps(fields).encode())

    def within_budget(self, samples: Iterable[_T]) -> Iterator[_T]:
        """`samples` as long as there is time; one in any case."""
        start_s = self._clock()
        for sample in samples:
            yield sample
            self._spent_s += self._clock() - start_s
            start_s = self._clock()
            if self._spent_s > _BUDGET_S:
                return

    def _key(self, at: tuple[str, float]) -> str:
        return key_of("rounding", self._model, repr(at))
