"""Names of TVM: the error says what to write, and docs/tvm.md has the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune import te
from autotune.api.te.schedule import Schedule, StageSchedule
from autotune.errors import DefinitionError
from autotune.target import host_target
from autotune.te.tvm_names import CACHE_WRITE, PACKAGE, SCHEDULE, SPLIT, STAGE, TE, TILE
from tests.schedule.small_dags import gemm

PAGE = (Path(__file__).parents[2] / "docs/tvm.md").read_text(encoding="utf-8")
OWNERS = {"autotune": PACKAGE, "te": TE, "schedule": SCHEDULE, "stage": STAGE}


def owner_of(name: str) -> Any:
    schedule = Schedule(gemm(), host_target())
    return {"autotune": autotune, "te": te, "schedule": schedule, "stage": schedule["e"]}[name]


@pytest.mark.parametrize(("owner", "name"), [(o, n) for o, names in OWNERS.items() for n in names])
def test_a_name_of_tvm_says_what_to_write(owner: str, name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(owner_of(owner), name)
    assert f"has no '{name}'; in its place: {OWNERS[owner][name]}" in str(caught.value)


def test_what_the_errors_name_is_there() -> None:
    told = (TE, SCHEDULE, STAGE, CACHE_WRITE, PACKAGE)
    for place in (place for names in told for place in names.values()):
        for module, name in re.findall(r"(?<!\.)\b(te|s|autotune|\])\.(\w+)", place):
            there = {
                "te": vars(te),
                "s": vars(Schedule),
                "]": vars(StageSchedule),
                "autotune": dir(autotune),
            }[module]
            assert name in there, place


@pytest.mark.parametrize("name", [*PACKAGE, *TE, *SCHEDULE, *STAGE, *SPLIT, *TILE])
def test_the_page_for_users_of_tvm_has_every_name_that_errors_know(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE), name


def test_a_method_of_stages_is_found_on_the_schedule() -> None:
    with pytest.raises(AttributeError, match=r's\["C"\]\.vectorize'):
        owner_of("schedule").vectorize("i")


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("split", {"loop": "i", "factor": 4}, 'split("i", 16)'),
        ("split", {"loop": "i", "nparts": 4}, "extent // nparts"),
        ("tile", {"outer": "i", "inner": "j", "x_factor": 4}, 'tile("i", "j", 8, 16)'),
        ("cache_write", {"scope": "local"}, "cache_write()"),
    ],
)
def test_arguments_of_tvm_say_what_to_write(method: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(owner_of("stage"), method)(**given)
    assert said in str(caught.value)


def test_other_names_are_missing_as_ever() -> None:
    for owner in OWNERS:
        assert not hasattr(owner_of(owner), "nonsense")


def test_a_dtype_in_the_place_of_a_name_is_told() -> None:
    with pytest.raises(DefinitionError, match="is a dtype"):
        te.placeholder((4, 4), "float32")
