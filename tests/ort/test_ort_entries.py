"""States of a session and of its networks are those of the tables in docs/drop-in.md."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import pytest

from autotune.ort.entries import AFTER, NEXT, Entry, SessionState, ShapeState

PAGE = Path(__file__).parents[2] / "docs" / "drop-in.md"


@pytest.mark.parametrize(("states", "following"), [(ShapeState, NEXT), (SessionState, AFTER)])
def test_the_page_has_every_transition_of_the_table(
    states: type[StrEnum], following: Mapping[StrEnum, tuple[StrEnum, ...]]
) -> None:
    rows = (line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines())
    named = {row[0].strip(): row[-1] for row in rows if row and row[0].strip() in list(states)}
    told = {state: tuple(re.findall("|".join(states), text)) for state, text in named.items()}
    assert told == following


@pytest.mark.parametrize(("at", "to"), list(itertools.product(ShapeState, repeat=2)))
def test_a_network_takes_no_other_way(at: ShapeState, to: ShapeState) -> None:
    entry = Entry({}, state=at)
    if to in (at, *NEXT[at]):
        entry._to(to)
        assert entry.state is to
    else:
        with pytest.raises(AssertionError, match="is not followed by"):
            entry._to(to)
