"""⑩ Outputs of a network beside those of float32 on samples: equal labels, largest error.

    judge = Judge(truth, samples)           # truth: a runner of the model in float32
    judge.likeness(run)                     ─► Likeness(n_rows, n_agreeing, error, rms)

Labels are the places of the largest score in each row of an output along its last dimension: of
classifiers (`accuracy.is_classifier`), and where all rows are probabilities. Whole numbers are
labels themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.check.accuracy import agreement, is_classifier
from autotune.network.check.differences import difference, flat_outputs, is_float, relative_rms

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Runner = Callable[[Arrays], Mapping[str, Any]]

_NEAR_ONE = 1e-3


@dataclass(frozen=True, slots=True)
class Likeness:
    """Outputs beside those of float32, over all samples.

    `n_rows`: labels, 0 where no output has any; `n_agreeing`: equal ones. `error`: the largest
    difference of an output of floats over its largest value; `rms`: the RMS of the differences over
    that of the values, the largest of all outputs.
    """

    n_samples: int
    n_rows: int
    n_agreeing: int
    error: float
    rms: float

    @property
    def agreement(self) -> float:
        """The share of equal labels; 1 without labels."""
        return self.n_agreeing / self.n_rows if self.n_rows else 1.0

    def __str__(self) -> str:
        if not self.n_rows:
            return f"largest error {self.error:.1e} of the largest value on {self._samples}"
        share = f"{100 * self.agreement:.2f} %"
        return f"labels are equal in {share} of {self.n_rows:,} rows on {self._samples}"

    @property
    def _samples(self) -> str:
        return f"{self.n_samples:,} samples held back"


@dataclass
class _Sums:
    """Of one output: the largest difference and the largest value, and sums of their squares."""

    most: float = 0.0
    largest: float = 0.0
    squares: tuple[float, float] = (0.0, 0.0)

    def add(self, actual: Array, expected: Array) -> None:
        found = difference(actual, expected)
        finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
        largest = float(finite.max(initial=0.0))
        self.most = max(self.most, found.error * (largest or 1.0))
        self.largest = max(self.largest, largest)
        self.squares = (
            self.squares[0] + found.squares[0],
            self.squares[1] + found.squares[1],
        )

    @property
    def error(self) -> float:
        return self.most / (self.largest or 1.0)


@dataclass
class Judge:
    """Compares networks with `truth` on `samples`; `labels`: outputs whose rows are scores.

    Without any those that look like it, see the module. Raises UsageError where they have no rows.
    """

    truth: Runner
    samples: Sequence[Arrays]
    labels: Sequence[str] = ()
    n_rows: int = field(default=0, init=False)
    """Labels of one sample."""
    _integers: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        outputs = flat_outputs(self.truth(self.samples[0]))
        is_whole = {name for name, a in outputs.items() if a.dtype.kind in "iub"}
        if not self.labels:
            self.labels = tuple(n for n, a in outputs.items() if _has_labels(n, a))
            self._integers = frozenset(is_whole)
        self.n_rows = sum(self._labels(name, a, a)[0] for name, a in outputs.items())
        if self.has_labels and not self.n_rows:
            names = ", ".join(self.labels)
            raise UsageError(f"there are no rows of scores in {names}", "leave out `labels`")

    @property
    def has_labels(self) -> bool:
        """Whether labels decide, not values."""
        return bool(self.labels or self._integers)

    def likeness(
        self,
        run: Runner,
        samples: Sequence[Arrays] | None = None,
        tell: Callable[[int, int], None] = lambda n, total: None,
    ) -> Likeness:
        """Outputs of `run` on `samples`, by default all of them; `tell`: how many are done."""
        chosen = self.samples if samples is None else samples
        sums: dict[str, _Sums] = {}
        n_rows = n_agreeing = 0
        for n, inputs in enumerate(chosen):
            theirs, ours = flat_outputs(self.truth(inputs)), flat_outputs(run(inputs))
            for name, expected in theirs.items():
                more = self._labels(name, ours[name], expected)
                n_rows, n_agreeing = n_rows + more[0], n_agreeing + more[1]
                if is_float(expected.dtype):
                    sums.setdefault(name, _Sums()).add(ours[name], expected)
            tell(n + 1, len(chosen))
        error = max((s.error for s in sums.values()), default=0.0)
        rms = max((relative_rms(*s.squares) for s in sums.values()), default=0.0)
        return Likeness(len(chosen), n_rows, n_agreeing, error, rms)

    def _labels(self, name: str, actual: Array, expected: Array) -> tuple[int, int]:
        """Number of labels of an output, and of equal ones."""
        if name in self._integers:
            return expected.size, int(np.count_nonzero(np.equal(actual, expected)))
        has_rows = name in self.labels and expected.ndim > 0
        return agreement(actual, expected) if has_rows else (0, 0)


def _has_labels(name: str, output: Array) -> bool:
    """Whether the rows of an output are scores of classes, or probabilities."""
    if is_classifier(name, output):
        return True
    if not is_float(output.dtype) or output.ndim < 2 or output.shape[-1] < 2 or not output.size:
        return False
    values = output.astype(np.float64)
    return bool(values.min() >= 0 and np.abs(values.sum(axis=-1) - 1).max() < _NEAR_ONE)
