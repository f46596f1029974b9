"""⑧ Chapters as HTML: one file without scripts that asks for nothing from a network.

page(title, chapters) ─► a whole file · fragment(blocks) ─► a part of a notebook
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from html import escape
from importlib.resources import files

from autotune.reporting.blocks import Block, Chapter, Listing, Paragraph, Picture, Sheet
from autotune.reporting.drawing import Drawings, drawings, has_plots
from autotune.reporting.printing import printable

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
    svgs = iter(drawn.svgs)
    body = _linked("\n".join(_chapter(chapter, svgs, _left_out(drawn)) for chapter in known))
    return printable(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="autotune">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{_style("fragment.css")}
{_style("report.css")}
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
</body>
</html>
"""
    )


def fragment(blocks: Iterable[Block]) -> str:
    """Blocks in a frame of their own, for notebooks; a plot that cannot be drawn is left out."""
    known = [b for b in blocks if has_plots() or not isinstance(b, Picture)]
    specs = [b.spec for b in known if isinstance(b, Picture)]
    drawn = drawings(specs) if specs else Drawings(())
    shown = _blocks(known, iter(drawn.svgs), _left_out(drawn))
    return printable(
        f'<div class="autotune-report"><style>{_style("fragment.css")}</style>'
        f"{_linked(''.join(shown))}</div>"
    )


def _style(name: str) -> str:
    return files("autotune.reporting").joinpath(name).read_text(encoding="utf-8").strip()


def _left_out(drawn: Drawings) -> str:
    return f"the process that draws them {drawn.reason}; it needs 100 GiB of addresses (ulimit -v)"


def _chapter(chapter: Chapter, svgs: Iterator[str | None], reason: str) -> str:
    slug = _slug(chapter.title)
    return (
        f'<section aria-labelledby="{slug}">\n<h2 id="{slug}">{escape(chapter.title)}</h2>\n'
        + "\n".join(_blocks(chapter.blocks, svgs, reason))
        + "\n</section>"
    )


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _blocks(blocks: Iterable[Block], svgs: Iterator[str | None], reason: str) -> Iterator[str]:
    """Neighbouring plots share rows where there is room. `svgs`: of all plots, as they come."""
    is_open = False
    for block in blocks:
        if isinstance(block, Picture) != is_open:
            yield '<div class="plots">' if not is_open else "</div>"
            is_open = not is_open
        yield _block(block, svgs, reason)
    if is_open:
        yield "</div>"


def _block(block: Block, svgs: Iterator[str | None], reason: str) -> str:
    match block:
        case Paragraph(text=text):
            return f"<p>{escape(text)}</p>"
        case Picture():
            return _figure(block, next(svgs), reason)
        case Sheet(is_detail=True, caption=caption):
            return f"<details><summary>{escape(caption)}</summary>{_table(block)}</details>"
        case Sheet():
            return _table(block)
        case Listing(title=title, text=text, is_open=is_open, task=task):
            name = "" if task is None else f' id="task-{task}"'
            return (
                f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>"
                f'<pre tabindex="0"{name}>{escape(text)}</pre></details>'
            )


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


def _table(sheet: Sheet) -> str:
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
    cells = (_cells(row, sheet.head, kinds) for row in sheet.rows)
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    wide = " wide" if len(sheet.head) > _PORTRAIT_COLUMNS else ""
    return (
        f'<div class="scroll{wide}" tabindex="0" role="region" aria-label="{caption}"><table>'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cells(row: Iterable[str], head: Iterable[str], kinds: Iterable[str]) -> Iterator[str]:
    """The first names the row; numbers of tasks lead to their loops."""
    for n, (text, column, kind) in enumerate(zip(row, head, kinds, strict=True)):
        tag, scope = ("th", ' scope="row"') if n == 0 else ("td", "")
        shown = _breakable(text)
        if column in ("task", "tasks"):
            shown = re.sub(r"\d+", r'<a href="#task-\g<0>">\g<0></a>', shown)
        yield f"<{tag}{scope}{kind}>{shown}</{tag}>"


def _linked(text: str) -> str:
    """Without the links to loops that are not there."""
    there = set(re.findall(r'<pre [^>]*id="(task-\d+)"', text))
    links = r'<a href="#(task-\d+)">(\d+)</a>'
    return re.sub(links, lambda link: link[0] if link[1] in there else link[2], text)


def _breakable(text: str) -> str:
    """Names of structures are long: lines may end behind their commas and arrows."""
    return re.sub(r"(,|&gt;|\+)(?=\S)", r"\1<wbr>", escape(text))
