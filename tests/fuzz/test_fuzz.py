"""Whatever comes in, the outcome is right or a refusal of one line: a few hundred of each kind.

`make soak` tries thousands. `FAULTS` has what is known and not mended yet.
"""

from __future__ import annotations

import pytest

from tests.fuzz.campaigns import run

FAULTS: dict[str, frozenset[int]] = {
    "random models": frozenset(),
    "damaged models": frozenset(),
    "logs": frozenset(),
    "artifacts": frozenset(),
}
"""Seeds that give something wrong, untyped or lost. One that no longer does has to be removed."""
COUNTS = {"random models": 150, "damaged models": 150, "logs": 200, "artifacts": 300}


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_every_outcome_is_right_or_a_refusal(name: str) -> None:
    tally = run(name, range(COUNTS[name]))
    print(tally)
    bad = {seed: outcome for seed, outcome in tally.bad if seed not in FAULTS[name]}
    assert not bad
    assert {seed for seed, _ in tally.bad} == FAULTS[name]
    assert tally.tried == COUNTS[name]
    assert tally.kinds["right"] > 0
