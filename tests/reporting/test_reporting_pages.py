"""Pages of a report: well formed, alone, readable by machines and in a browser."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autotune import Task, TaskTiming
from autotune.errors import MissingDependency
from autotune.network.bench.bench import BenchResult, Timing
from autotune.records import write_log
from autotune.reporting import html, plots
from autotune.reporting.blocks import Chapter, Listing, Sheet
from autotune.reporting.comparison import compared
from autotune.reporting.drawing import drawings
from autotune.reporting.figures import figures_of
from autotune.reporting.report import SearchReport
from autotune.target import Target
from tests.reporting.small_log import SmallLog

pytest.importorskip("vl_convert", reason="plots need vl-convert-python")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_VOID = {"meta", "wbr", "br"}


@pytest.fixture(scope="module")
def report() -> SearchReport:
    target = Target("testcpu", "+avx2,+fma", 256, 16, 32 << 10, 1 << 20, 32 << 20, 4)
    small = SmallLog(target)
    small.add_all()
    figures = figures_of(small.log(), "small.jsonl")
    return SearchReport(figures, other=figures, comparison=compared(figures, figures))


@pytest.fixture(scope="module")
def page(report: SearchReport) -> str:
    return report.html()


class _Checked(HTMLParser):
    """Elements with their attributes; every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), tag
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_a_page_is_well_formed_and_asks_for_nothing(page: str) -> None:
    parsed = _Checked(page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert page.count("<script") == 1
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert not {"link", "img", "iframe", "object", "base"} & {t for t, _ in parsed.found}
    for tag, attributes in parsed.found:
        for name, value in attributes.items():
            assert not name.startswith(("src", "on")), f"{tag} {name}"
            assert name.startswith("xmlns") or "//" not in (value or ""), f"{tag} {name}={value}"
    assert not re.search(r"url\(|@import", page)
    assert len(page) < 2_000_000
    assert "<two>" not in page


def test_a_page_can_be_read_without_eyes_or_mouse(page: str) -> None:
    """Landmarks, headings, tables with headers, plots with all of their words, places to go to."""
    parsed = _Checked(page)
    assert parsed.all("html") == [{"lang": "en"}]
    assert [len(parsed.all(tag)) for tag in ("h1", "main", "nav")] == [1, 1, 1]
    ids = Counter(attributes["id"] for _, attributes in parsed.found if "id" in attributes)
    assert set(ids.values()) == {1}
    for link in parsed.all("a"):
        assert (link["href"] or "")[1:] in ids
    for kind in ("loops", "task", "node"):  # from tables of tasks and nodes, and back
        there = {name for name in ids if str(name).startswith(f"{kind}-")}
        assert there
        assert there <= {(link["href"] or "")[1:] for link in parsed.all("a")}
    assert len(parsed.all("caption")) == len(parsed.all("table")) > 5
    assert all("scope" in head for head in parsed.all("th"))
    drawn = parsed.all("svg")
    assert len(drawn) == len(parsed.all("figure")) == len(parsed.all("figcaption")) > 7
    assert all(d["role"] == "img" and len(d["aria-label"] or "") > 20 for d in drawn)
    inside = [a for t, a in parsed.found if t in ("g", "path", "text") and "role" in a]
    assert not inside
    assert all(a.get("tabindex") in (None, "0") for _, a in parsed.found)


def _contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_have_contrast_on_light_and_dark_paper(page: str) -> None:
    found = re.findall(r"--(ink|paper|link): (#\w{6})", page)
    light, dark = dict(found[:3]), dict(found[3:6])
    for colours in (light, dark):
        assert _contrast(colours["ink"], colours["paper"]) > 7
        assert _contrast(colours["link"], colours["paper"]) > 4.5
        for mark in (plots.BLUE, plots.ORANGE):
            assert _contrast(mark, colours["paper"]) > 3
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.S))
    used = set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawn))
    assert used <= {plots.BLUE, plots.ORANGE, "currentColor", "none", "transparent"}


def test_without_the_library_it_says_what_to_install(
    report: SearchReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingDependency, match="vl-convert-python") as error:
        report.html()
    assert "autotune-compiler[report]" in error.value.hint
    assert "<svg" not in report._repr_html_()
    assert "Mat&lt;Mul&gt;0" in report._repr_html_()


def test_a_notebook_shows_the_same_plots(report: SearchReport, page: str) -> None:
    shown = report._repr_html_()
    _Checked(shown)
    assert shown.count("<svg") == page.count("<svg")


def test_notebooks_show_tasks_schedules_and_results(tmp_path: Path, any_target: Target) -> None:
    small = SmallLog(any_target)
    small.add_all()
    path = tmp_path / "small.jsonl"
    write_log(path, small.log())
    task = Task(small.dags[1], target=any_target, threads=1)
    assert "Computation" in task._repr_html_()
    assert "<svg" not in task._repr_html_()
    task._log = path  # as after `tune`
    shown = task._repr_html_()
    _Checked(shown)
    assert shown.count("<svg") == 5
    assert "Mat&lt;Mul&gt;1" in shown
    best = task.best()
    assert "10.00 µs" in best._repr_html_()
    schedule = task.schedule(best.steps)._repr_html_()
    _Checked(schedule)
    assert "vectorize j.1 in 8" in schedule
    path.unlink()
    assert "<svg" not in task._repr_html_()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to look at the page with")
def test_a_browser_shows_the_page_within_a_phone(page: str, tmp_path: Path) -> None:
    """Nothing but tables, which scroll by themselves, is wider than 390 pixels."""
    phone = tmp_path / "phone.html"
    phone.write_text(
        f'<iframe style="width:390px;height:844px;border:0" srcdoc="{escape(page)}" '
        'onload="const d = this.contentDocument.documentElement;'
        "document.title = [d.scrollWidth, d.clientWidth, d.querySelectorAll('svg').length]\">"
        "</iframe>"
    )
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    folder = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [*command, folder, phone.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    title = re.search(r"<title>(\d+),(\d+),(\d+)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    wide, room, n_plots = map(int, title.groups())
    assert wide <= room <= 390
    assert n_plots == page.count("<svg")


_TIMES = (
    ("a", "2.5 ms"),
    ("b", "-"),
    ("c", "900 µs"),
    ("d", "12 s"),
    ("e", "2m05s"),
    ("f", "3 ns"),
)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to click with")
def test_a_browser_sorts_a_table_by_what_its_cells_mean(tmp_path: Path) -> None:
    """Units count, and what has no number is last both ways; a link opens what is folded."""
    sheet = Sheet("s", ("task", "time"), _TIMES, frozenset({"time"}))
    loops = Listing("Task 1", "for i", task=1)
    page = html.page("t", [Chapter("c", (sheet, loops))])
    click = (
        "const d = this.contentDocument; const told = [];"
        "for (const n of [1, 1, 0]) { d.querySelectorAll('th button')[n].click();"
        "told.push([...d.querySelectorAll('tbody th')].map((h) => h.textContent).join('')); }"
        "this.contentWindow.location.hash = 'loops-1';"
        "setTimeout(() => document.title = told + ',' + d.querySelector('details').open, 200);"
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f'<iframe srcdoc="{escape(page)}" onload="{click}"></iframe>')
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    folder = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [*command, "--virtual-time-budget=2000", folder, outer.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    assert title[1] == "fcadeb,edacfb,abcdef,true"


def test_notebooks_show_timings() -> None:
    ours, theirs = Timing((1e-3, 2e-3, 3e-3), 1), Timing((4e-3,) * 3, 1)
    shown = BenchResult(ours, {"onnxruntime": theirs})._repr_html_()
    _Checked(shown)
    assert "2.000 ms" in shown
    assert "0.500" in shown
    shown = TaskTiming(ours, 10**6, 1.0)._repr_html_()
    _Checked(shown)
    assert "50.0 %" in shown


def test_what_cannot_be_drawn_is_left_out_with_a_note(report: SearchReport) -> None:
    """As where the process may not have the addresses that a JavaScript engine reserves."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    notes: list[str] = []
    try:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
        page = report.html(notes.append)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert len(notes) == 1
    assert re.match(r"(\d+) of \1 plots are left out: the process that draws them ", notes[0])
    assert "<svg" not in page
    assert "Plots are left out" in page


def test_one_plot_that_ends_its_process_takes_no_other_with_it() -> None:
    good = plots.CONFIG | {"$schema": plots.SCHEMA, "data": {"values": []}, "mark": "bar"}
    found = drawings([good, {"mark": 7}, good, {}, good])
    assert [svg is not None for svg in found.svgs] == [True, False, True, False, True]
    assert found.reason
    assert drawings([]).svgs == ()
