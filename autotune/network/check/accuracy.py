"""⑩ Result of a check, output by output: largest error, RMS error, agreement of classifiers.

    error = max |y - e| / max |e|      rms = √(Σ (y - e)² / Σ e²)      over the finite expected e

`top1`: rows of a classifier in which the largest score is at a position that the oracle scores as
highly as any other. A classifier has float outputs of two dimensions with `LEAST_CLASSES` columns
and more, or of any larger rank where its name holds "logits".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.brief import brief
from autotune.network.check.differences import TOLERANCE, Difference, is_float, relative_rms
from autotune.network.check.quantised_outputs import steps_apart
from autotune.printable import one_line

Array = NDArray[Any]

LEAST_CLASSES = 10
"""Columns from which on an output [N, classes] is that of a classifier."""
GIVEN = "given"
"""The kind of the user's own inputs."""
_MOST_LINES = 8


@brief
@dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """One output over all that it was checked on.

    `error`: largest of all inputs, over the largest expected value; `rms`: RMS of the differences
    over that of the expected values, the largest of all kinds of inputs; inf where it exceeds every
    number. `allowed`: the tolerance of `error`. `n_rows`: rows of a classifier, on the user's
    own inputs where there are any; in `n_agreeing` of them the highest score is at the same place.
    `step`: distance between neighbouring values of a quantised output, 0 for others, and `n_steps`:
    by how many of them an element differs at most. `is_decided`: whether it could be compared on
    any kind of inputs; else notes say why not, and `error` tells nothing.
    """

    name: str
    error: float
    rms: float
    allowed: float
    n_rows: int = 0
    n_agreeing: int = 0
    step: float = 0.0
    n_steps: int = 0
    is_decided: bool = True

    def __str__(self) -> str:
        if not self.is_decided:
            return f"{one_line(self.name)}: cannot be compared"
        text = f"{one_line(self.name)}: largest error {self.error:.1e}, RMS {self.rms:.1e}"
        if self.step:
            plural = "step" if self.n_steps == 1 else "steps"
            text += f", at most {self.n_steps:,} {plural} of {self.step:.3g}"
        if self.n_rows:
            text += f", top-1 agrees in {self.n_agreeing:,} of {self.n_rows:,} rows"
        return text


@brief
@dataclass(frozen=True, slots=True)
class Report:
    """A check that was passed.

    `oracles`: their names, and `kinds` of inputs. `error`: the largest of all outputs over
    their largest finite values; `allowed`: the tolerance of that output. `notes`: lines for a
    user, of ill-conditioned outputs and of oracles that failed. `outputs`: the same, one by one.
    `n_given`: inferences on the user's own inputs.
    """

    oracles: tuple[str, ...]
    kinds: tuple[str, ...]
    error: float
    allowed: float
    notes: tuple[str, ...] = ()
    outputs: tuple[OutputAccuracy, ...] = ()
    n_given: int = 0

    def __str__(self) -> str:
        several = {GIVEN: f"{self.n_given:,} given"} if self.n_given > 1 else {}
        kinds = ", ".join(several.get(kind, kind) for kind in self.kinds)
        asked = f"with {' and '.join(self.oracles)} on {kinds} inputs"
        n_open = sum(not output.is_decided for output in self.outputs)
        if n_open and n_open == len(self.outputs):
            return f"outputs cannot be compared {asked}"
        rest = f"; {n_open} of {len(self.outputs)} cannot be compared" if n_open else ""
        return f"outputs agree {asked}: largest error {self.error:.1e} of the largest value{rest}"

    @property
    def lines(self) -> tuple[str, ...]:
        """One output each, those with the largest errors first; a line counts the rest."""
        worst = sorted(self.outputs, key=lambda o: -o.error)
        more = len(worst) - _MOST_LINES
        rest = (f"and {more} outputs with smaller errors",) if more > 0 else ()
        return (*map(str, worst[:_MOST_LINES]), *rest)

    def to_json(self) -> dict[str, Any]:
        """Named fields; numbers that JSON does not have are null."""
        data = asdict(self)
        outputs = [{k: _finite(v) for k, v in o.items()} for o in data["outputs"]]
        return {k: _finite(v) for k, v in data.items()} | {"outputs": outputs}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def worst_of(outputs: Iterable[OutputAccuracy]) -> OutputAccuracy:
    """The output with the largest error, of those that could be compared if any could."""
    none = OutputAccuracy("", 0.0, 0.0, TOLERANCE)
    return max(outputs, key=lambda o: (o.is_decided, o.error), default=none)


def joint_report(reports: Sequence[Report]) -> Report:
    """Union of several reports: the largest error, and every note once."""
    outputs = tuple(_joint(found) for found in _by_name(o for r in reports for o in r.outputs))
    worst = worst_of(outputs)
    return Report(
        tuple(dict.fromkeys(o for r in reports for o in r.oracles)),
        tuple(dict.fromkeys(k for r in reports for k in r.kinds)),
        worst.error,
        worst.allowed,
        tuple(dict.fromkeys(n for r in reports for n in r.notes)),
        outputs,
        sum(r.n_given for r in reports),
    )


def _by_name(outputs: Iterable[OutputAccuracy]) -> Iterable[list[OutputAccuracy]]:
    found: dict[str, list[OutputAccuracy]] = {}
    for output in outputs:
        found.setdefault(output.name, []).append(output)
    return found.values()


def _joint(outputs: Sequence[OutputAccuracy]) -> OutputAccuracy:
    worst = max(outputs, key=lambda o: o.error)
    n_rows, n_agreeing = sum(o.n_rows for o in outputs), sum(o.n_agreeing for o in outputs)
    rms, n_steps = max(o.rms for o in outputs), max(o.n_steps for o in outputs)
    return replace(
        worst,
        rms=rms,
        n_rows=n_rows,
        n_agreeing=n_agreeing,
        n_steps=n_steps,
        is_decided=any(o.is_decided for o in outputs),
    )


@dataclass
class Tally:
    """Running statistics of one output; `step`: see `OutputAccuracy`."""

    name: str
    step: float = 0.0
    error: float = 0.0
    allowed: float = 0.0
    n_steps: int = 0
    is_decided: bool = False
    _sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    _rows: dict[bool, tuple[int, int]] = field(default_factory=dict)

    def add(
        self, kind: str, found: Difference, allowed: float, actual: Array, expected: Array
    ) -> None:
        """One inference on inputs of `kind`: the computed and the expected output."""
        if self.step:
            self.n_steps = max(self.n_steps, steps_apart(actual, expected, self.step))
        if found.error >= self.error:
            self.error, self.allowed = found.error, allowed
        errors, sizes = self._sums.get(kind, (0.0, 0.0))
        self._sums[kind] = errors + found.squares[0], sizes + found.squares[1]
        if is_classifier(self.name, expected):
            is_given = kind == GIVEN
            n_rows, n_agreeing = self._rows.get(is_given, (0, 0))
            more = agreement(actual, expected)
            self._rows[is_given] = n_rows + more[0], n_agreeing + more[1]

    @property
    def accuracy(self) -> OutputAccuracy:
        """All of it together."""
        rms = max((relative_rms(*sums) for sums in self._sums.values()), default=0.0)
        rows = self._rows.get(True) or self._rows.get(False) or (0, 0)
        steps = self.step, self.n_steps
        return OutputAccuracy(
            self.name, self.error, rms, self.allowed, *rows, *steps, self.is_decided
        )


def is_classifier(name: str, expected: Array) -> bool:
    """Whether the rows of an output are scores of classes; see the module."""
    if not is_float(expected.dtype) or expected.ndim < 2 or expected.shape[-1] < LEAST_CLASSES:
        return False
    return expected.ndim == 2 or "logits" in name.lower()


def agreement(actual: Array, expected: Array) -> tuple[int, int]:
    """Rows that hold numbers alone, and those of them with the highest score at the same place.

    Several places may share the highest score: any of them is right.
    """
    ours, theirs = (a.astype(np.float32).reshape(-1, a.shape[-1]) for a in (actual, expected))
    if ours.shape != theirs.shape or not theirs.size:
        return 0, 0
    known = ~np.isnan(theirs).any(axis=1)
    ours, theirs = ours[known], theirs[known]
    picked = np.take_along_axis(theirs, ours.argmax(axis=1)[:, None], axis=1)[:, 0]
    return len(theirs), int(np.count_nonzero(picked == theirs.max(axis=1)))
