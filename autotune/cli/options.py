"""⑪ Options of commands, validated where they are parsed (`option_types`).

Those of a request have the names and the values of its fields (`api.request`), so that a command
makes it of them: `CompileRequest(model, **options)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from autotune.cli.option_types import (
    CONSTANT_INPUT,
    COUNT,
    DIMENSIONS,
    DURATION,
    FILE,
    MOST_CAPACITY,
    NAMED_FILE,
    NUMBERS,
    PAIR,
    SHAPE,
    TargetName,
    arrays_like,
    as_field,
    constants_of,
    dims_of,
    no_chunks,
    shapes_of,
)
from autotune.config import PRECISION_NAMES
from autotune.graph.state import CACHE_TYPES, SCORES

F = TypeVar("F", bound=Callable[..., Any])

_shape = click.option(
    "--shape",
    "shapes",
    type=SHAPE,
    multiple=True,
    callback=as_field(shapes_of),
    help="Shape of an input with dynamic dimensions, e.g. input:1x3x224x224. Repeatable.",
)
_dim = click.option(
    "--dim",
    "dims",
    type=DIMENSIONS,
    multiple=True,
    callback=as_field(dims_of),
    help="Extents of a dimension by name: batch=4; all up to a most: batch=..32,sequence=..512, in "
    "steps width=..640/32; several make variants: batch=1,4,8, sequence=16..256:16, with shares "
    "sequence=16:0.5,128:0.5; one that equals another: mask_length=sequence. Repeatable.",
)
_like = click.option(
    "--like",
    "like",
    type=NAMED_FILE,
    multiple=True,
    callback=as_field(arrays_like),
    help="Shapes of the inputs as these arrays have them: x.npy, name=x.npy, or an .npz. "
    "Repeatable.",
)
_const = click.option(
    "--const",
    "constants",
    type=CONSTANT_INPUT,
    multiple=True,
    callback=as_field(constants_of),
    help="Value of an input that is always the same: sr=16000, or name=x.npy. Repeatable.",
)
_random_weights = click.option(
    "--random-weights",
    is_flag=True,
    callback=as_field(lambda is_given: is_given or None),
    help="Give random weights to a model that comes without any (all are ConstantOfShape).",
)
_capacity = click.option(
    "--capacity",
    type=click.IntRange(min=1, max=MOST_CAPACITY),
    help="Most tokens of the KV cache of a decoder, which stays in place: prefill and decode steps "
    "by `Model.session`.",
)
_chunks = click.option(
    "--chunks",
    expose_value=False,
    hidden=True,
    callback=no_chunks,
)
_sessions = click.option(
    "--sessions",
    type=NUMBERS,
    callback=as_field(lambda sizes: sizes or ()),
    help="Numbers of sessions that one decode step may advance, such as 4; with --capacity.",
)
_cache_type = click.option(
    "--cache",
    "cache_type",
    type=click.Choice([*CACHE_TYPES]),
    default="f32",
    show_default=True,
    help="Elements of the KV cache: half the memory, or a quarter; with --capacity.",
)
_ragged = click.option(
    "--ragged", is_flag=True, help="Compute the tokens of rows of different lengths, no padding."
)
_scores = click.option(
    "--scores",
    type=click.Choice([*SCORES]),
    default=SCORES[0],
    show_default=True,
    help="Tokens of a step that outputs (logits) are for: the last one, which the next token "
    "needs, or all; with --capacity.",
)
_state = click.option(
    "--state",
    "state",
    type=PAIR,
    multiple=True,
    callback=as_field(lambda pairs: dict(pairs) or None),
    help="A state of the model where names do not tell: past.0.key=present.0.key. Repeatable.",
)
args_option = click.option(
    "--args",
    "arguments",
    metavar="VALUE,…",
    help="What the function of FILE.py:FUNCTION is called with, e.g. 1024,1024,1024.",
)
input_option = click.option(
    "--input",
    "files",
    type=NAMED_FILE,
    multiple=True,
    help="name=x.npy, x.npy where there is one input, or an .npz with all. Repeatable.",
)
check_input_option = click.option(
    "--check-input",
    "check_files",
    type=NAMED_FILE,
    multiple=True,
    help="Check on these inputs as well: an .npz with all, name=x.npy, or a folder of such files; "
    "arrays of several inferences are split. Repeatable.",
)
trials_option = click.option("--trials", type=COUNT, help="Candidates to measure at most.")
time_option = click.option("--time", "time_s", type=DURATION, help="Time to spend at most.")
max_error_option = click.option(
    "--max-error",
    type=click.FloatRange(min=0, min_open=True),
    help="Largest error of a candidate, as a share of its largest output.  [5e-5]; with "
    "--precision auto of the network  [2e-2]",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(PRECISION_NAMES),
    help="Type of the factors of products; sums are in float32; auto: of each what is fastest.  "
    "[f32, or as tuned]",
)
warm_start_option = click.option(
    "--warm-start",
    "warm_start",
    type=FILE,
    multiple=True,
    metavar="LOG",
    help="Learn from an earlier log of this CPU before the first batch. Repeatable.",
)
runner_option = click.option(
    "--runner",
    metavar="COMMAND",
    help="Run code behind this command: an emulator, 'ssh BOARD', 'adb shell'.  [here]",
)
store_option = click.option(
    "--store",
    metavar="DIR|URL",
    help="Records of other sessions, as `distill --store` keeps them, or 'none'.  "
    "[AUTOTUNE_STORE, else that of the cache folder]",
)
rules_option = click.option(
    "--rules",
    "rules",
    type=FILE,
    multiple=True,
    metavar="FILE.py",
    help="Sketch rules of your own: a Python file that defines RULES. Repeatable.",
)
operators_option = click.option(
    "--operators",
    "operators",
    type=FILE,
    multiple=True,
    metavar="FILE.py",
    help="ONNX operators of your own: a Python file that defines OPERATORS. Repeatable.",
)
fallback_option = click.option(
    "--fallback/--no-fallback",
    default=True,
    help="Run in ONNX Runtime what cannot be compiled, or refuse and name all of it.  [fallback]",
)
cache_option = click.option(
    "--no-cache",
    "cache",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Keep no compiled programs in the user's cache folder for the next time.",
)


def target_option(help: str, *more: str) -> Callable[[F], F]:
    """A CPU by its name, of those of `autotune target --list` and `more`, or by its file."""
    return click.option("--target", "--target-file", "target", type=TargetName(*more), help=help)


force_option = click.option(
    "--force", is_flag=True, help="Replace a file of another kind, or write beside those of others."
)
events_option = click.option(
    "--events",
    type=click.Choice(["jsonl"]),
    help="Write every event as a JSON line to stdout.",
)
compare_option = click.option(
    "--compare/--no-compare",
    default=True,
    help="At the end, compile the network and time it in turns with the untuned one.  [compare]",
)
format_option = click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the output.",
)


def environment_of(context: click.Context) -> dict[str, str]:
    """Options whose values environment variables gave, by the names of their fields."""
    found = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT:
            found[name] = f"{context.auto_envvar_prefix}_{name.upper()}"
    return found


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Options that several commands have, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


shape_options = _together(_shape, _dim, _like, _const)
"""Of the shapes of a model with weights: fields of `api.request.Source`."""
source_options = _together(shape_options, _random_weights, _ragged)
"""Of what is computed: fields of `api.request.Source`."""
state_options = _together(_capacity, _chunks, _sessions, _cache_type, _scores, _state)
"""Of a model with a state: fields of `api.request.Source`."""
exactness_options = _together(max_error_option, precision_option)
"""Of how exact it is: fields of `api.request.Request`."""
