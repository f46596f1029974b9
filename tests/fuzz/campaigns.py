"""What is tried, by name: a function that makes the items of some seeds, and the one that judges.

tally = run("models", range(200), n_processes=2)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from onnx import ModelProto

from benchmarks.conformance import official, read
from benchmarks.isolation import outcomes
from benchmarks.outcomes import Case, Kind, Outcome, with_constants
from tests.fuzz import drawers_plain, drawers_sums, reported
from tests.fuzz.graphs import random_model
from tests.fuzz.judging import NO_ORACLE, Question
from tests.fuzz.mutations import mutated

DRAWERS = drawers_plain.DRAWERS | drawers_sums.DRAWERS
TIMEOUT_S = 120.0
CHUNK = 500
BAD = (Kind.WRONG, Kind.UNTYPED, Kind.LOST)


@dataclass
class Tally:
    """Counts of one campaign. `bad`: seed and outcome of all that is wrong, untyped or lost."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[int, Outcome]] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.kinds.total()

    def add(self, seed: int, outcome: Outcome) -> None:
        """Count an outcome; the crash of an oracle is none of ours."""
        if outcome.kind is Kind.LOST and outcome.text.startswith("oracle"):
            outcome = Outcome(Kind.RIGHT, NO_ORACLE)
        is_judged = outcome.text != NO_ORACLE
        self.kinds[str(outcome.kind) if is_judged else NO_ORACLE] += 1
        if outcome.kind in BAD:
            self.bad.append((seed, outcome))

    def __str__(self) -> str:
        found = ", ".join(f"{self.kinds[k]} {k}" for k in (*Kind, NO_ORACLE))
        return f"{self.name}: {self.tried} tried, {found}"


def drawn(seed: int) -> Question:
    """A random model, which the standard allows."""
    return Question(str(seed), random_model(seed, DRAWERS).SerializeToString(), seed)


def damaged(seed: int) -> Question:
    """An official model, or a random one, with something wrong in it."""
    sound = sound_models()
    if seed % 3 == 0:
        model = random_model(seed, DRAWERS)
    else:
        model = ModelProto.FromString(sound[(seed * 7919) % len(sound)])
    return Question(str(seed), mutated(model, seed), seed, is_valid=False)


@cache
def sound_models() -> tuple[bytes, ...]:
    """The official models that are right, in the form that is."""
    forms = {row["case"]: row["form"] for row in read() if row["outcome"] == "right"}
    cases = [case for kind, case in official() if kind != "real" and case.name in forms]
    return tuple(_form(case, forms[case.name]).model for case in cases)


def _form(case: Case, form: str) -> Case:
    return with_constants(case) if form == "constants" else case


CAMPAIGNS: dict[str, tuple[Callable[[int], Any], str]] = {
    "random models": (drawn, "tests.fuzz.judging:judged"),
    "passes": (drawn, "tests.fuzz.passes:judged"),
    "damaged models": (damaged, "tests.fuzz.judging:judged"),
    "reported models": (reported.question, "tests.fuzz.judging:judged"),
    "logs": (int, "tests.fuzz.logs:judged"),
    "artifacts": (int, "tests.fuzz.artifacts:judged"),
    "contexts": (int, "tests.fuzz.contexts:judged"),
    "decoders": (int, "tests.fuzz.decoders:judged"),
    "open models": (int, "tests.fuzz.open_models:judged"),
    "forests and strings": (int, "tests.fuzz.forests:judged"),
}


def run(name: str, seeds: Iterable[int], n_processes: int = 1) -> Tally:
    """Try all seeds of a campaign."""
    tally = Tally(name)
    for seed, outcome in each(name, list(seeds), n_processes):
        tally.add(seed, outcome)
    return tally


def each(name: str, seeds: Sequence[int], n_processes: int) -> Iterator[tuple[int, Outcome]]:
    """Seed and outcome, as they are done, a few hundred items in memory at a time."""
    make, judge = CAMPAIGNS[name]
    for start in range(0, len(seeds), CHUNK):
        part = seeds[start : start + CHUNK]
        for index, outcome in outcomes(judge, [make(s) for s in part], n_processes, TIMEOUT_S):
            yield part[index], outcome
