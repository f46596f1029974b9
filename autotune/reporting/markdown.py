"""⑧ Chapters as Markdown of GitHub, for a pull request: words and tables without plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autotune.reporting.blocks import Block, Chapter, Listing, Paragraph, Picture, Sheet
from autotune.reporting.printing import printable

_MOST_ROWS = 40
"""A comment of GitHub has 65,536 characters."""
_SPECIAL = str.maketrans({c: f"\\{c}" for c in r"\`*_|<>~#[]"} | {"\n": " ", "\r": " "})


def markdown(title: str, chapters: Iterable[Chapter]) -> str:
    """The words and tables of chapters; loops are left out, details are folded away."""
    parts = ["<!-- autotune report -->", f"## {_text(title)}"]
    for chapter in chapters:
        found = [text for block in chapter.blocks for text in _block(block)]
        if found:
            parts += [f"### {_text(chapter.title)}", *found]
    return printable("\n\n".join(parts) + "\n")


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text=text) | Picture(text=text):
            yield from [_text(text)] if text else []
        case Sheet(is_detail=True):
            yield _folded(block)
        case Sheet(rows=rows) if len(rows) > _MOST_ROWS:
            yield _folded(block)
        case Sheet():
            yield _table(block)
        case Listing():
            return


def _folded(sheet: Sheet) -> str:
    table = _table(sheet)
    return f"<details><summary>{_text(sheet.caption)}</summary>\n\n{table}\n\n</details>"


def _table(sheet: Sheet) -> str:
    marks = ["---:" if name in sheet.numbers else "---" for name in sheet.head]
    rows = [sheet.head, marks, *sheet.rows[:_MOST_ROWS]]
    lines = [_row(row, is_plain=row is marks) for row in rows]
    left = len(sheet.rows) - _MOST_ROWS
    return "\n".join([*lines, *([f"\nand {left} more"] if left > 0 else [])])


def _row(cells: Iterable[str], is_plain: bool = False) -> str:
    return f"| {' | '.join(c if is_plain else _text(c) for c in cells)} |"


def _text(text: str) -> str:
    return text.translate(_SPECIAL)
