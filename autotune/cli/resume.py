"""⑪ `autotune resume`: replay a log, and go on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from autotune.cli.console import common_options, say, say_note, stage
from autotune.cli.option_types import FILE
from autotune.cli.options import (
    compare_option,
    events_option,
    format_option,
    max_error_option,
    store_option,
    time_option,
    trials_option,
    warm_start_option,
)


@click.command("resume")
@click.argument("log_path", metavar="LOG", type=FILE)
@trials_option
@time_option
@max_error_option
@warm_start_option
@store_option
@compare_option
@events_option
@format_option
@common_options
def command(log_path: Path, compare: bool, events: str | None, style: str, **given: Any) -> int:
    """Go on with the session of LOG: same model, settings and seed, nothing measured twice.

    What is left of its budget is spent. With --trials or --time, so much more is spent instead.
    With --max-error, everything measured so far is judged anew.
    """
    from autotune.api.request import ResumeRequest
    from autotune.api.tune.session import reopen
    from autotune.cli.sessions import added, budget_text, run_session

    with ExitStack() as stack:
        with stage(f"reading {log_path.name}"):
            session = stack.enter_context(reopen(ResumeRequest(log_path, **given)))
        for text in session.notes:
            say_note(text)
        if session.is_spent:
            say_note(
                f"nothing is left of the budget, {budget_text(session.budget)}; add some: "
                f"autotune resume {log_path} {added(session.budget)}"
            )
        if events is None:
            say(f"{log_path}: {len(session.log.records)} measurements taken over")
        return run_session(session, events, style, compare)
