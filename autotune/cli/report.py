"""⑪ `autotune report`: a search as a page, a comment for a pull request, or figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.console import common_options, json_text, put, put_path, say_late_note
from autotune.cli.option_types import FILE
from autotune.cli.options import force_option

if TYPE_CHECKING:
    from autotune.reporting.report import SearchReport

_FORMS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


@click.command("report")
@click.argument("log", metavar="LOG", type=FILE)
@click.argument("artifact", metavar="[OUT]", required=False, type=FILE)
@click.option("-o", "--output", type=FILE, help="File to write.  [LOG.html; md, json: stdout]")
@force_option
@click.option(
    "--format",
    "style",
    type=click.Choice(["html", "md", "json"]),
    help="A page, Markdown for a pull request, or all figures.  [as -o ends, else html]",
)
@click.option("--against", metavar="EARLIER", type=FILE, help="An earlier log, to compare with.")
@common_options
def command(
    log: Path,
    artifact: Path | None,
    output: Path | None,
    force: bool,
    style: str | None,
    against: Path | None,
) -> None:
    """Show what the search in LOG found: one HTML file with plots, which needs no network.

    Latency during the search, where the time goes, the roofline, each task with its structure and
    loops, predictions, failures and noise. With OUT, a file that `autotune compile` wrote from LOG,
    its tasks are timed here and set beside the times of tuning. With --against, two logs are
    compared task by task.

    HTML needs the extra `report`; Markdown and JSON need nothing.
    """
    from autotune.api.reporting import report
    from autotune.file_kinds import REPORT
    from autotune.files import replacing, require_place
    from autotune.reporting.drawing import require_plots

    if style is None:
        style = _FORMS.get(output.suffix.lower(), "html") if output else "html"
    if output is None and style == "html":
        output = log.with_suffix(".html")
    if output is not None:
        inputs = [p for p in (log, artifact, against) if p is not None]
        require_place(output, inputs=inputs, kind=None if force else REPORT)
    if style == "html":
        require_plots()
    text = _text(report(log, artifact, against), style)
    if output is None:
        put(text.rstrip("\n"))
        return
    with replacing(output) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    put_path(output)


def _text(found: SearchReport, style: str) -> str:
    match style:
        case "html":
            return found.html(say_late_note)
        case "md":
            return found.markdown()
    return json_text(found.to_json(), indent=2) + "\n"
