"""⑪ The `autotune` command: subcommands; errors become one line, a hint and an exit code."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches

import click

from autotune.cli.console import STDOUT_HINT, Invocation, common_options, invocation, put, say_error
from autotune.cli.examples import examples_text
from autotune.cli.streams import STDOUT_ERRORS, silence
from autotune.errors import AutotuneError, ExitCode
from autotune.machine import NEW_OBJECTS
from autotune.platforms import require_host
from autotune.version import __version__

# Modules are imported when their command runs: `autotune --help` needs neither LLVM nor LightGBM.
_COMMANDS = {
    "demo": "The first minute: compile, compare and tune a network that it makes.",
    "tune": "Search for the fastest program of every part of a model, and log it.",
    "resume": "Go on with a tuning session that was killed or has ended.",
    "distill": "Keep only the best record of every task.",
    "compile": "Compile a model from the best records of a log.",
    "quantise": "Write a model with products of bytes, where that is faster.",
    "run": "Run a compiled model on arrays.",
    "bench": "Measure the latency of a compiled model.",
    "tasks": "List the tuning tasks of a model.",
    "target": "Describe a CPU: this one, or one by its name.",
    "worker": "Let sessions on other machines measure on this one, or on a board beside it.",
    "export": "Write a compiled model as a library of C.",
    "measure": "Measure a schedule of your own beside the best of a log.",
    "store": "List, merge, prune and verify a store of records.",
    "explain": "Show the best program of a task, stage by stage.",
    "info": "Describe this machine, and what makes its timings steadier.",
    "schema": "Print the JSON Schema of what a command writes.",
    "report": "Show what a search found: a page with plots, or Markdown.",
}


class _Commands(click.Group):
    """A group whose commands live in modules of their own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"autotune.cli.{cmd_name}").command
        command.epilog = examples_text(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            near = get_close_matches(args[0].lower(), _COMMANDS, n=1)
            known = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_COMMANDS)}"
            raise click.UsageError(f"there is no command '{args[0]}' ({known})", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


_COMPLETING = "_AUTOTUNE_COMPLETE"  # set by the shell that asks for completions

_EPILOG = """\b
Exit codes: 0 ok · 1 failure · 2 usage · 3 a task without a valid schedule ·
4 log, model or target do not fit · 5 wrong numbers · 6 slower than permitted ·
7 a note, with --strict · 129 hung up · 130 interrupted ·
141 nobody reads the output · 143 terminated"""


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "AUTOTUNE"},
    epilog=_EPILOG,
    invoke_without_command=True,
    no_args_is_help=False,
)
@click.option(
    "-V",
    "--version",
    "asks_version",
    is_flag=True,
    help="Show the version; with --verbose all that a report of a fault needs.",
)
@common_options
@click.pass_context
def app(ctx: click.Context, asks_version: bool) -> None:
    """Find the fastest program for every part of an ONNX model on this CPU, and compile it."""
    if asks_version:
        put(f"autotune {__version__}")
        if invocation().verbose:
            importlib.import_module("autotune.cli.info").put_facts()
        ctx.exit()
    if ctx.invoked_subcommand is None:
        put(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code. Errors are told on stderr, never raised."""
    state = Invocation()
    gc.set_threshold(NEW_OBJECTS)
    try:
        require_host()
        name = next((a for a in arguments if a in _COMMANDS), "autotune")
        with state.waiting, state.waiting.stage(name):
            result = app.main([*arguments], prog_name="autotune", standalone_mode=False, obj=state)
        return _ended(result if isinstance(result, int) else ExitCode.OK, state)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if state.debug and not isinstance(error, click.exceptions.Exit | SystemExit):
            traceback.print_exc()
        try:
            return _report(error)
        except BrokenPipeError:  # stderr has no reader either
            return _report(SystemExit())


def _ended(code: int, state: Invocation) -> int:
    """The exit code of a command that came to its end."""
    if code or not (state.strict and state.late_notes):
        return code
    say_error(state.late_notes[0], "without --strict this is a note")
    return ExitCode.NOTED


def _report(error: BaseException) -> int:
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            say_error("interrupted")
            return ExitCode.INTERRUPTED
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "autotune"
            say_error(error.format_message(), f"see {path} --help")
            return ExitCode.USAGE
        case click.ClickException():
            say_error(error.format_message())
            return error.exit_code
        case AutotuneError():
            say_error(error.message, error.hint)
            return error.exit_code
        case SystemExit() if _COMPLETING in os.environ:
            return error.code if isinstance(error.code, int) else ExitCode.FAILURE
        case BrokenPipeError() | SystemExit():  # click turns the first into the second
            silence(sys.stdout)
            silence(sys.stderr)
            return ExitCode.BROKEN_PIPE
        case MemoryError():
            say_error("out of memory", "close other programs, or use a machine with more")
            return ExitCode.FAILURE
        case OSError() if "libgomp" in str(error):
            say_error(
                "LightGBM cannot be loaded: libgomp.so.1 is missing",
                "on Debian and Ubuntu: apt-get install libgomp1",
            )
            return ExitCode.FAILURE
        case OSError() if error.filename is None and error.errno in STDOUT_ERRORS:
            silence(sys.stdout)
            say_error(f"cannot write to stdout: {error.strerror}", STDOUT_HINT)
            return ExitCode.FAILURE
        case OSError():
            say_error(
                f"{error.filename or 'the system'}: {error.strerror or error}",
                "check the path, its permissions, and the room on the disk",
            )
            return ExitCode.FAILURE
        case _:
            text = str(error).strip().splitlines()
            say_error(
                f"{type(error).__name__}: {text[0] if text else 'no message'}",
                "this is a bug; add --debug to the command to see where",
            )
            return ExitCode.FAILURE
