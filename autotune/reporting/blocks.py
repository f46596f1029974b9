"""⑧ Parts of pages: paragraphs, tables, plots and texts under headings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from autotune.brief import brief


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@brief
@dataclass(frozen=True, slots=True)
class Sheet:
    """A table. `numbers`: the columns that are aligned at their right edge.

    `is_detail`: it says in numbers what a plot shows, and may be folded away. `rows_are`: "task" or
    "node" where each row is one, which its first cell numbers and links lead to.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    is_detail: bool = False
    rows_are: str = ""


@brief
@dataclass(frozen=True, slots=True)
class Picture:
    """A plot, as a specification of Vega-Lite, and its figures in words. `key`: how to read it."""

    title: str
    text: str
    spec: dict[str, Any]
    key: str = ""


@brief
@dataclass(frozen=True, slots=True)
class Listing:
    """A text of a program. `is_open`: not folded away. `task`: whose loops these are."""

    title: str
    text: str
    is_open: bool = False
    task: int | None = None


Block: TypeAlias = Paragraph | Sheet | Picture | Listing


@brief
@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of a report under a heading."""

    title: str
    blocks: tuple[Block, ...]
