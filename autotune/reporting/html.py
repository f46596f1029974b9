"""⑧ Chapters as HTML: one file that asks for nothing from a network, whose tables can be sorted.

page(title, chapters) ─► a whole file · fragment(blocks) ─► a part of a notebook
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from html import escape
from importlib.resources import files

from autotune.reporting.blocks import Block, Chapter, Listing, Paragraph, Picture, Sheet
from autotune.reporting.drawing import Drawings, drawings, has_plots
from autotune.reporting.printing import printable

_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'; script-src"
_MOST_ENLARGED = 1.45
"""Of a plot, over the size that its text is for."""
_PORTRAIT_COLUMNS = 10
"""Wider tables are printed on pages that lie."""


def page(title: str, chapters: Iterable[Chapter], note: Callable[[str], None] | None = None) -> str:
    """A file with a list of its chapters. Raises MissingDependency without the extra `report`.

    `note`: told where plots are left out.
    """
    known = list(chapters)
    drawn = drawings([b.spec for c in known for b in c.blocks if isinstance(b, Picture)])
    if drawn.n_missing and note is not None:
        n_plots = f"{drawn.n_missing} of {len(drawn.svgs)} plots"
        note(f"{n_plots} are left out: {_left_out(drawn)}")
    links = "".join(f'<li><a href="#{_slug(c.title)}">{escape(c.title)}</a></li>' for c in known)
    writer = _Writer(drawn, [block for chapter in known for block in chapter.blocks])
    body, script = "\n".join(map(writer.chapter, known)), _file("report.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return printable(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="autotune">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_ALLOWED} 'sha256-{digest}'">
<title>{escape(title)}</title>
<style>
{_file("fragment.css")}
{_file("report.css")}
</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header><h1>{escape(title)}</h1></header>
<nav aria-label="Chapters"><ul>{links}</ul></nav>
<main id="content" class="autotune-report">
{body}
</main>
<footer>Written by <code>autotune report</code>.</footer>
<script>{script}</script>
</body>
</html>
"""
    )


def fragment(blocks: Iterable[Block]) -> str:
    """Blocks in a frame of their own, for notebooks; a plot that cannot be drawn is left out."""
    known = [b for b in blocks if has_plots() or not isinstance(b, Picture)]
    specs = [b.spec for b in known if isinstance(b, Picture)]
    drawn = drawings(specs) if specs else Drawings(())
    shown = "".join(_Writer(drawn, known).blocks(known))
    style = _file("fragment.css")
    return printable(f'<div class="autotune-report"><style>{style}</style>{shown}</div>')


def _file(name: str) -> str:
    return files("autotune.reporting").joinpath(name).read_text(encoding="utf-8").strip()


def _left_out(drawn: Drawings) -> str:
    return f"the process that draws them {drawn.reason}; it needs 100 GiB of addresses (ulimit -v)"


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _figure(picture: Picture, drawn: str | None, reason: str) -> str:
    """The plot is one image to a screen reader, with all of its words; without it, they stay."""
    if drawn is None:
        words = f"{picture.text} Plots are left out: {reason}."
        return (
            f"<figure><figcaption><strong>{escape(picture.title)}.</strong> {escape(words)}"
            "</figcaption></figure>"
        )
    found = re.search(r'width="(\d+)', drawn)
    most = round(_MOST_ENLARGED * int(found[1])) if found else 0
    words = " ".join(filter(None, (picture.text, picture.key)))
    label = escape(f"Plot: {picture.title}. {words}", quote=True)
    frame = f'<svg style="max-width:{most}px" role="img" aria-label="{label}" '
    drawn = frame + drawn.removeprefix("<svg ")
    drawn = re.sub(r' (aria-(?!label=)[a-z]+|xmlns:xlink|class)="[^"]*"', "", drawn)
    drawn = re.sub(r'(<(?!svg )[^>]*?) role="[^"]*"', r"\1", drawn)
    return (
        f"<figure><figcaption><strong>{escape(picture.title)}.</strong> {escape(words)}"
        f"</figcaption>{drawn}</figure>"
    )


class _Writer:
    """HTML of the blocks of a page, whose plots come in their order. Links lead to places of it."""

    def __init__(self, drawn: Drawings, all_blocks: Iterable[Block]) -> None:
        self._svgs, self._reason = iter(drawn.svgs), _left_out(drawn)
        self._places = {place for block in all_blocks for place in _places(block)}

    def chapter(self, chapter: Chapter) -> str:
        """A section under its heading."""
        slug = _slug(chapter.title)
        return (
            f'<section aria-labelledby="{slug}">\n<h2 id="{slug}">{escape(chapter.title)}</h2>\n'
            + "\n".join(self.blocks(chapter.blocks))
            + "\n</section>"
        )

    def blocks(self, blocks: Iterable[Block]) -> Iterator[str]:
        """Neighbouring plots share rows where there is room."""
        is_open = False
        for block in blocks:
            if isinstance(block, Picture) != is_open:
                yield '<div class="plots">' if not is_open else "</div>"
                is_open = not is_open
            yield self._block(block)
        if is_open:
            yield "</div>"

    def _block(self, block: Block) -> str:
        match block:
            case Paragraph(text=text):
                return f"<p>{escape(text)}</p>"
            case Picture():
                return _figure(block, next(self._svgs), self._reason)
            case Sheet(is_detail=True, caption=caption):
                table = self._table(block)
                return f"<details><summary>{escape(caption)}</summary>{table}</details>"
            case Sheet():
                return self._table(block)
            case Listing():
                return self._listing(block)

    def _listing(self, block: Listing) -> str:
        name, back = "", ""
        if block.task is not None:
            name = f' id="loops-{block.task}"'
            link = self._link(("task",), str(block.task), f"Task {block.task} in the table")
            back = f"<p>{link}</p>" if link.startswith("<a") else ""
        return (
            f"<details{' open' if block.is_open else ''}><summary>{escape(block.title)}</summary>"
            f'{back}<pre tabindex="0"{name}>{escape(block.text)}</pre></details>'
        )

    def _table(self, sheet: Sheet) -> str:
        caption = escape(sheet.caption)
        if not any(sheet.head):  # names and values
            rows = "".join(
                f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
                for name, value in sheet.rows
            )
            return f'<table class="facts"><caption>{caption}</caption><tbody>{rows}</tbody></table>'
        kinds = [' class="number"' if name in sheet.numbers else "" for name in sheet.head]
        head = "".join(
            f'<th scope="col"{kind}>{escape(name)}</th>'
            for name, kind in zip(sheet.head, kinds, strict=True)
        )
        rows = "".join(self._row(row, sheet, kinds) for row in sheet.rows)
        wide = " wide" if len(sheet.head) > _PORTRAIT_COLUMNS else ""
        return (
            f'<div class="scroll{wide}" tabindex="0" role="region" aria-label="{caption}"><table>'
            f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _row(self, row: Sequence[str], sheet: Sheet, kinds: Iterable[str]) -> str:
        """The first cell names the row; numbers of tasks and nodes are links."""
        name = f' id="{sheet.rows_are}-{row[0]}"' if sheet.rows_are else ""
        cells = []
        for n, (text, column, kind) in enumerate(zip(row, sheet.head, kinds, strict=True)):
            tag, scope = ("th", ' scope="row"') if n == 0 else ("td", "")
            shown = _breakable(text)
            if ends := _ENDS.get(column, ()):
                ends = ends[1:] if column == sheet.rows_are else ends
                shown = _NUMBER.sub(partial(self._to, ends), shown)
            cells.append(f"<{tag}{scope}{kind}>{shown}</{tag}>")
        return f"<tr{name}>{''.join(cells)}</tr>"

    def _to(self, ends: Iterable[str], number: re.Match[str]) -> str:
        return self._link(ends, number[0])

    def _link(self, ends: Iterable[str], number: str, text: str = "") -> str:
        """To the first of these kinds of places that the page has."""
        places = (f"{end}-{number}" for end in ends)
        place = next((p for p in places if p in self._places), None)
        return text or number if place is None else f'<a href="#{place}">{text or number}</a>'


_ENDS = {
    "task": ("task", "loops"),
    "tasks": ("task", "loops"),
    "node": ("node",),
    "nodes": ("node",),
}
"""Kinds of places that numbers in a column lead to, the best first: in the table that has such a
place for each row, the next."""
_NUMBER = re.compile(r"(?<!and )\b\d+")


def _places(block: Block) -> Iterator[str]:
    """Names of what links may lead to."""
    match block:
        case Sheet(rows_are=kind, rows=rows) if kind:
            yield from (f"{kind}-{row[0]}" for row in rows)
        case Listing(task=task) if task is not None:
            yield f"loops-{task}"


def _breakable(text: str) -> str:
    """Names of structures are long: lines may end behind their commas and arrows."""
    return re.sub(r"(,|&gt;|\+)(?=\S)", r"\1<wbr>", escape(text))
