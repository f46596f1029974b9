"""⑪ `autotune schema`: JSON Schemas of what commands write."""

from __future__ import annotations

import click

from autotune.cli.console import common_options, put, put_json
from autotune.cli.option_types import Names


@click.command("schema")
@click.argument("name", required=False)
@common_options
def command(name: str | None) -> None:
    """Print the JSON Schema (2020-12) of NAME; without it, the names.

    Most are those of commands with --format json. `events`: a line of --events; `session`: what
    `tune` and `resume` end with; `dry-run`: of `tune`; `compare`: of `bench --compare`.
    """
    from autotune.cli.schemas import OUTPUTS, output_schema

    if name is None:
        put("\n".join(OUTPUTS))
        return
    put_json(output_schema(Names(tuple(OUTPUTS)).convert(name, None, None)[0]))
