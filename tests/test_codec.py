"""Records come back from JSON equal, and what is no record is an error that says where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pytest

from autotune.codec import (
    LEFT_OUT,
    REQUIRED,
    Apart,
    Coded,
    Holds,
    Misfit,
    from_json,
    tagged,
    to_json,
    within,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Leaf:
    size: Annotated[int, within(0, 10)]


@dataclass(frozen=True, slots=True)
class Branch:
    parts: tuple[Annotated[Leaf | Branch, PARTS], ...] = ()


PARTS = tagged("kind", {"leaf": Leaf, "branch": Branch})


@dataclass(frozen=True, slots=True)
class Everything:
    name: Annotated[str, Holds(str.islower, "in lower case")]
    weight: float
    colour: Colour = Colour.RED
    pairs: tuple[tuple[str, int], ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    window: tuple[Leaf, bool] | None = None
    any: Any = None
    tree: Annotated[Leaf | Branch, PARTS] = Leaf(0)
    numbers: Annotated[frozenset[int], Coded(sorted, frozenset)] = frozenset()
    code: Annotated[bytes, Apart(b"")] = b""
    rare: Annotated[bool, LEFT_OUT] = False
    most: Annotated[int, REQUIRED] = 1


PLAIN = Everything("a", 1.5)
FULL = Everything(
    "b",
    2,
    Colour.BLUE,
    (("x", 1), ("y", 2)),
    {"z": (), "w": (1, 2)},
    (Leaf(3), True),
    {"free": [1, None]},
    Branch((Leaf(10), Branch((Leaf(0),)))),
    frozenset({2, 1}),
    rare=True,
    most=7,
)


@pytest.mark.parametrize("record", [PLAIN, FULL])
def test_a_record_comes_back_equal(record: Everything) -> None:
    data = json.loads(json.dumps(to_json(record)))
    assert from_json(Everything, data) == record
    assert "code" not in data
    assert ("rare" in data) is record.rare


def test_whole_numbers_stay_whole_where_a_float_may_be() -> None:
    found = from_json(Everything, {"name": "a", "weight": 2, "most": 1})
    assert json.dumps(to_json(found)["weight"]) == "2"


def test_unknown_fields_are_refused_unless_the_record_is_open() -> None:
    data = to_json(FULL) | {"later": 1, "window": [{"size": 3, "later": 1}, True]}
    assert from_json(Everything, data, is_open=True) == FULL
    with pytest.raises(Misfit, match=r"window\.0 is .* not of the fields size alone"):
        from_json(Everything, data)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "A"}, "name is 'A', not in lower case"),
        ({"name": 1}, "name is 1, not a text"),
        ({"weight": True}, "weight is True, not a number"),
        ({"weight": math.nan}, "weight is nan, not a number"),
        ({"weight": 10**400}, "weight is 1000"),
        ({"colour": "green"}, "colour is 'green', not one of red, blue"),
        ({"colour": ["red"]}, "colour is ['red'], not one of red, blue"),
        ({"pairs": [["x", 1], ["y", 2.0]]}, "pairs.1.1 is 2.0, not a whole number"),
        ({"pairs": [["x"]]}, "pairs.0 is ['x'], not a list of 2"),
        ({"pairs": "x"}, "pairs is 'x', not a list"),
        ({"sizes": {"w": [None]}}, "sizes.w.0 is None, not a whole number"),
        ({"sizes": []}, "sizes is [], not an object"),
        ({"window": [{"size": 11}, True]}, "window.0.size is 11, not from 0 to 10"),
        ({"window": [{}, True]}, "window.0.size is missing"),
        ({"tree": {"kind": "root"}}, "tree is {'kind': 'root'}, not of a known 'kind'"),
        ({"tree": {"kind": "branch", "parts": [{"kind": "leaf"}]}}, "tree.parts.0.size is missing"),
        ({"numbers": 3}, "numbers is 3, not valid ('int' object is not iterable)"),
        ({"code": "x"}, "not of the fields"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(change: dict[str, Any], text: str) -> None:
    with pytest.raises(Misfit) as caught:
        from_json(Everything, to_json(PLAIN) | change)
    assert text in str(caught.value)


def test_missing_fields_are_their_defaults_but_where_they_are_required() -> None:
    assert from_json(Everything, {"name": "a", "weight": 1.5, "most": 1}) == PLAIN
    for name in ("name", "weight", "most"):
        with pytest.raises(Misfit, match=f"{name} is missing"):
            from_json(Everything, {k: v for k, v in to_json(PLAIN).items() if k != name})


def test_a_tree_without_end_is_refused() -> None:
    data: dict[str, Any] = {"kind": "leaf", "size": 0}
    for _ in range(100_000):
        data = {"kind": "branch", "parts": [data]}
    with pytest.raises(Misfit, match="bounded depth"):
        from_json(Everything, to_json(PLAIN) | {"tree": data})
