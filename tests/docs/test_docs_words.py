"""Pages and docstrings use the field's words, and sentences that are read once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AVOIDED = {
    r"(?:about|by|into|of)[.;:](?=\s|$)": "what the preposition belongs to behind it",
    r"crews?": "threads of a team",
    r"halls?": "elite pool",
    r"heirs?": "buffer aliasing, in place",
    r"luck": "noise",
    r"nobody else|somebody else": "another process, thread or consumer",
    r"opponents?": "baseline",
    r"pitch": "row stride",
    r"strangers?": "co-tenant",
}
"""Words, and what is written instead of them."""
FOUND = {
    "docs/state.md": ("KV cache", "prefill", "decode step", "position"),
    "docs/glossary.md": ("KV cache", "prefill", "decode step"),
}
"""Words of the field that people search for, on pages that answer them."""


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Places and texts of pages that people write, and of docstrings."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    written = [page for page in pages if page.parent.name not in ("results", "decisions")]
    found = [(page.name, page.read_text(encoding="utf-8")) for page in written]
    for package in ("autotune", "autotune_operators"):
        for path in sorted((ROOT / package).rglob("*.py")):
            found += [(f"{path.name}: {name}", text) for name, text in docstrings(path)]
    return tuple(found)


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", ""), text


@pytest.mark.parametrize("words", AVOIDED)
def test_what_the_field_has_a_word_for_is_called_so(words: str) -> None:
    form = re.compile(rf"\b(?:{words})(?!\w)", re.IGNORECASE)
    met = [(place, hit[0]) for place, text in texts() for hit in form.finditer(text)]
    assert not met, f"write {AVOIDED[words]}"


@pytest.mark.parametrize("page", FOUND)
def test_a_page_is_found_by_the_words_of_the_field(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").lower()
    assert [word for word in FOUND[page] if word.lower() not in text] == []
