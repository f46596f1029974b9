"""⑧ Choices of the best program of a task that mattered: what others cost that chose otherwise.

    ("split conv.i 8, 1", 41e-6, 1.32, 17)   the fastest of 17 without it: 1.32 times as long

The structure is compared with all measured candidates, a step with those of the same structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from autotune.records import MeasureRecord
from autotune.schedule.steps import steps_to_json

_MATTERS, _LEAST, _MOST = 1.05, 3, 3
"""Ratio, candidates that chose otherwise, and choices of a task that are told."""
_MOST_READ = 300
_PLACES = ("step", "stage", "tensor", "iter")
_LEFT_OUT = ("tail", "kind")

_Steps: TypeAlias = dict[tuple[Any, ...], Any]


@dataclass(frozen=True, slots=True)
class ChoiceFigures:
    """`ratio`: of the fastest of `n_others` candidates that chose otherwise, which takes
    `other_s`, over the best program."""

    text: str
    other_s: float
    ratio: float
    n_others: int


def choices_of(
    best: MeasureRecord | None, trials: Sequence[MeasureRecord]
) -> tuple[ChoiceFigures, ...]:
    """Those that mattered most, of the fastest few hundred `trials`."""
    valid = [r for r in trials if r.result.ok and r.result.latency_s]
    if best is None or best.result.latency_s is None:
        return ()
    fastest = sorted(valid, key=_latency_s)[:_MOST_READ]
    others = [r for r in fastest if r.sketch != best.sketch]
    found = [_choice(f"structure {best.sketch}", best, others)]
    alike = [(r, _steps(r)) for r in fastest if r.sketch == best.sketch]
    for place, value in _steps(best).items():
        others = [r for r, steps in alike if steps.get(place) != value]
        found.append(_choice(_text(place, value), best, others))
    told = [choice for choice in found if choice is not None]
    return tuple(sorted(told, key=lambda choice: -choice.ratio)[:_MOST])


def _choice(
    text: str, best: MeasureRecord, others: Sequence[MeasureRecord]
) -> ChoiceFigures | None:
    if len(others) < _LEAST:
        return None
    other_s = min(map(_latency_s, others))
    ratio = other_s / _latency_s(best)
    return ChoiceFigures(text, other_s, ratio, len(others)) if ratio >= _MATTERS else None


def _latency_s(record: MeasureRecord) -> float:
    return record.result.latency_s or float("inf")


def _steps(record: MeasureRecord) -> _Steps:
    """What is decided at each place: of a loop, or of a stage where a step names no loop."""
    found: _Steps = {}
    for step in steps_to_json(record.steps):
        names = _PLACES[:-1] if step["step"] == "compute_at" else _PLACES
        place = tuple(step.get(name) for name in names)
        found[place] = tuple((k, str(v)) for k, v in step.items() if k not in names)
    return found


def _text(place: Sequence[Any], value: Sequence[tuple[str, str]]) -> str:
    """`split conv.i 8, 1`, `vectorize conv.o.1`, `compute_at conv relu w.1`."""
    told = dict(value)
    name = told.get("kind", place[0])
    loop = ".".join(str(part) for part in (place[1] or place[2], *place[3:]) if part)
    rest = (text.strip("[]").replace("'", "") for k, text in value if k not in _LEFT_OUT)
    return " ".join([name, loop, *rest]).strip()
