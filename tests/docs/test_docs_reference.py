"""What is public is documented: names, their members, the errors they raise, every primitive."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import autotune
from autotune import rules, te
from autotune.ort import alone
from autotune.tuner import events

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference/api.md").read_text()
# Of these modules the reference shows everything, by `automodule`.
SHOWN_WHOLE = {"autotune.errors", "autotune.te.functions", "autotune.schedule.steps"}


OF_ONNXRUNTIME = {*dir(alone)} - {"InferenceSession"}
"""Names of its package where that is installed."""


def names_of(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
    found = ((n, getattr(module, n)) for n in names if n != "annotations")
    names = [n for n, v in found if not isinstance(v, ModuleType) and callable(v)]
    return [n for n in names if module is not autotune or n not in OF_ONNXRUNTIME]


PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (autotune, te, rules)
    for name in names_of(module)
    if inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))
}
EVENTS = {
    n: v for n, v in vars(events).items() if inspect.isclass(v) and v.__module__ == events.__name__
}


ALONE = {f"autotune.ort.alone.{name}": getattr(alone, name) for name in dir(alone)}
ALONE = {n: v for n, v in ALONE.items() if inspect.isclass(v) or inspect.isfunction(v)}


def documented(value: Any) -> list[tuple[str, str]]:
    """Docstrings of a function, or of a class and its public members, by name."""
    found = [(value.__name__, inspect.getdoc(value) or "")]
    members = vars(value).items() if inspect.isclass(value) else ()
    for name, member in members:
        is_code = inspect.isfunction(member) or isinstance(member, property)
        if is_code and not name.startswith("_"):
            found.append((f"{value.__name__}.{name}", inspect.getdoc(member) or ""))
    return found


@pytest.mark.parametrize("name", [*PUBLIC, *ALONE, *EVENTS])
def test_what_is_public_has_a_docstring_of_its_own(name: str) -> None:
    value = PUBLIC.get(name) or ALONE.get(name) or EVENTS[name]
    for member, text in documented(value):
        assert text, member
        assert not text.startswith(f"{value.__name__}("), f"{member}: made up by dataclass"
        for error in re.findall(r"\b([A-Z]\w+(?:Error|Mismatch|Schedule|Busy|Lost))\b", text):
            assert hasattr(autotune, error), f"{member} names {error}, which is not exported"


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_is_in_the_reference(name: str) -> None:
    value = PUBLIC[name]
    assert f":: {name}\n" in REFERENCE or value.__module__ in SHOWN_WHOLE, name


def test_every_primitive_is_on_the_page_of_schedules_with_its_loops() -> None:
    page = (DOCS / "tutorials/schedules.md").read_text()
    methods = [n for n, v in vars(autotune.StageSchedule).items() if inspect.isfunction(v)]
    primitives = [n for n in methods if not n.startswith("_")] + ["cache_read"]
    for name in primitives:
        head = re.search(rf"\*\*`{name}\(", page)
        assert head, f"{name} is missing"
        block = re.search(r"^```python\n(.*?)^```\n\n```text\n", page[head.start() :], re.M | re.S)
        assert block, name
        assert f"{name}(" in block[1], f"the block behind {name} does not use it"
