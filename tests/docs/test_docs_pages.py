"""Pages that people write are readable in an editor; code blocks and generated pages are exempt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 120
GENERATED = {"conformance.md"}  # and docs/results: written by benchmarks/
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.name not in GENERATED and page.parent.name != "results"
    ),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_a_page_fit_an_editor(page: Path) -> None:
    is_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code and not line.startswith("    "):
            assert len(line) <= WIDTH, f"line {number} has {len(line)} characters"
        assert not line.startswith(("<<<<<<< ", ">>>>>>> ")), f"line {number}: a conflict"


ARCHITECTURE = [page.name for page in sorted((ROOT / "docs").glob("architecture*.md"))]
MOST_WORDS = 1500


@pytest.mark.parametrize("name", ARCHITECTURE)
def test_a_page_of_the_architecture_is_read_in_a_few_minutes(name: str) -> None:
    assert len((ROOT / "docs" / name).read_text(encoding="utf-8").split()) < MOST_WORDS


@pytest.mark.parametrize("name", [*ARCHITECTURE, "glossary.md"])
def test_files_that_a_page_names_are_there(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    folders = ("autotune", "autotune_operators", "benchmarks", "tests")
    files = [
        f"/{path.relative_to(ROOT)}" for room in folders for path in ROOT.glob(f"{room}/**/*.py")
    ]
    named = set(re.findall(r"`((?:[\w/]+/)?\w+\.py)`", text))
    assert named
    assert {n for n in named if not any(f.endswith(f"/{n}") for f in files)} == set()


def test_a_change_is_told_in_one_line() -> None:
    """Figures and reasons are in docs/results and docs/decisions, whose pages a line may name."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("## "))
    others = [line for line in lines[first:] if not line.startswith(("* ", "## ", "### "))]
    assert {*others} <= {""}
