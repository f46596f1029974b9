"""⑪ Requests: the computation (`Source`), and the wanted result of it.

    request = CompileRequest("model.onnx", "model.jsonl", dims={"batch": [1, 8]}, threads=2)

A field is a keyword of the library's functions (`by_fields`) and an option of the command line
(`cli.options`); functions below take the record and pass it on. See docs/howto/add-an-option.md.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from autotune.brief import brief_value
from autotune.calls import require_call
from autotune.errors import UsageError
from autotune.files import Files
from autotune.graph.state import SCORES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from autotune.api.showing import Show
    from autotune.graph.reader.model_files import ModelSource
    from autotune.search.partial import Rule

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Source")
T = TypeVar("T")

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""Shapes of inputs, by name."""
Values: TypeAlias = "int | str | Sequence[int] | Mapping[int, float]"
"""Extents that a dimension takes: one, several, each with how often it is used, or all up to a
most: "..512", in steps "..640/32" (see `ranges`), or the name of a dimension that it equals."""
Dims: TypeAlias = "Mapping[str, Values]"
"""Extents of dimensions, by name."""
Like: TypeAlias = "Mapping[str, ArrayLike] | ArrayLike | None"
"""Arrays, of which the shapes alone count."""
Given: TypeAlias = "Mapping[str, NDArray[Any]] | Sequence[Mapping[str, NDArray[Any]]] | None"
"""The user's own inputs for a check, by name: of one inference or of several."""
Note: TypeAlias = "Callable[[str], None]"
"""Is told, in a line, what a user should know."""


_MAPPINGS = {
    "shapes": '{"input": (1, 3, 224, 224)}',
    "dims": '{"batch": 4, "sequence": "..512"}',
    "constants": '{"sr": 16000}',
    "state": '{"past.0.key": "present.0.key"}',
}
"""Fields that are by name, each with an example."""


def silent(text: str) -> None:
    """No progress callback."""


def logged(text: str) -> None:
    """Tell the logger `autotune`, at the level INFO: `logging.basicConfig(level="INFO")`."""
    logging.getLogger("autotune").info("%s", text)


def never() -> bool:
    """No request to stop."""
    return False


@dataclass(frozen=True)
class Source:
    """`model`: the path of an ONNX file, its bytes, or an `onnx.ModelProto`. `shapes`: of inputs
    with open dimensions. `dims`: extents of dimensions by name, see `bindings`: "..512" for all up
    to a most; a batch without a size is one, beside others that have some. `like`: arrays that have
    the shapes of inputs, by name, or that of the only input. `constants`: inputs that are the same
    in every inference. `random_weights`: for a model that comes without any; None
    as the log was made with. `operators`: files with ONNX operators of your own. `fallback`: what
    cannot be compiled is left to ONNX Runtime. `capacity`: most places of a state that grows, such
    as the keys and values of a decoder; then the model is compiled for prompts of any length and
    steps of one token, and `Model.session` keeps its state; `sessions`: numbers of sessions that
    one step of a place advances together (`Model.step_together`). `state`: inputs that are states,
    each with the output that takes its place, where names do not tell. `cache_type`: of the
    elements of states that grow, one of `graph.state.CACHE_TYPES`. `scores`: "last" for outputs of
    the last new place of a step, which is what the next token needs; "all" for those of all.
    `ragged`: compute the tokens of rows of different lengths alone (docs/ragged.md).
    """

    model: ModelSource | None
    _: KW_ONLY
    shapes: Shapes | None = None
    dims: Dims | None = None
    like: Like = None
    constants: Mapping[str, Any] | None = None
    random_weights: bool | None = None
    operators: Files = ()
    fallback: bool = True
    capacity: int | None = None
    sessions: Sequence[int] = ()
    state: Mapping[str, str] | None = None
    cache_type: str = "f32"
    scores: str = SCORES[0]
    ragged: bool = False

    def __post_init__(self) -> None:
        for name, example in _MAPPINGS.items():
            value = getattr(self, name)
            if not (value is None or isinstance(value, Mapping)):
                found = brief_value(value)
                raise UsageError(f"`{name}` is {found}, expected a dict", f"{name}={example}")


@dataclass(frozen=True)
class Request(Source):
    """`threads`: that it runs on; by default as in the log, else as many as are usable. `target`:
    the name of a CPU, or a file that describes one; for `compile` several, by commas, of which each
    machine takes the first that it can. `runner`: a command that runs its code, such as
    an emulator or a shell elsewhere (`measure.program`); this process by default. `max_error`,
    `precision`: as of `TuneConfig`. `store`: a folder or URL with records of other sessions
    (`autotune distill --store`), "none" for none; by default that of AUTOTUNE_STORE, else of the
    cache folder. `note` is told, in a line each, what a user should know; the logger
    `autotune` by default.
    """

    _: KW_ONLY
    threads: int | None = None
    target: str | None = None
    runner: str | None = None
    max_error: float | None = None
    precision: str | None = None
    store: str | Path | None = None
    note: Note = logged


@dataclass(frozen=True)
class CompileRequest(Request):
    """`log`: with the records to compile from; tasks without one take those of the store, or else
    the program that the analytic cost model chooses. `model` None: that of the log; `target` "log":
    likewise. `check`: compare the outputs with an oracle, on `check_inputs` of your own too, of one
    inference or of several. `keep_cut`: even where all of the model is faster in ONNX Runtime.
    `cache`: keep programs for the next time. `max_size`: most bytes of weights, as a multiple of
    the model's. `sharing`: so many times as long a program may take to read weights in the order of
    other CPUs or shapes, 1.03 by default. `verify`: check the loop IR of every program after each
    pass of lowering.
    """

    model: ModelSource | None = None
    log: str | Path | None = None
    _: KW_ONLY
    check: bool = True
    check_inputs: Given = None
    keep_cut: bool = False
    cache: bool = True
    max_size: float | None = None
    sharing: float | None = None
    verify: bool = False


@dataclass(frozen=True)
class TuneRequest(Request):
    """`log`: a new file. `trials`, `time_s`: the budget, the first that is reached; ten minutes
    without one. `preset`: quick, full, ci, or a TOML file. `seed`: same seed, same search.
    `warm_start`: earlier logs to learn from. `rules`: files with sketch rules of your own. `stop`
    is asked between measurements.
    """

    log: str | Path
    _: KW_ONLY
    trials: int | None = None
    time_s: float | None = None
    preset: str | None = None
    seed: int | None = None
    warm_start: Files = ()
    rules: Files = ()
    stop: Callable[[], bool] = never


@dataclass(frozen=True)
class ShownTuneRequest(TuneRequest):
    """`show`: "table", a live one; "lines", one per batch; "auto", a table where stderr is a
    terminal, else lines; "nothing"; or a function of each event, see `tuning`. `compare`: at the
    end compile the network, and time it in turns with the untuned one.
    """

    _: KW_ONLY
    show: Show = "auto"
    compare: bool = True


@dataclass(frozen=True)
class ResumeRequest:
    """`log`: of the session. `trials`, `time_s`: so much more than was spent; without one, what is
    left of its budget. `max_error`: everything measured so far is judged anew. `warm_start`: logs
    to learn from, after those of the earlier runs. `store`: as for `tune`, else that of the earlier
    runs. `rules`: sketch rules, see `api.rules`. `stop` and `note`: as for `tune`.
    """

    log: str | Path
    _: KW_ONLY
    trials: int | None = None
    time_s: float | None = None
    max_error: float | None = None
    warm_start: Files = ()
    store: str | Path | None = None
    stop: Callable[[], bool] = never
    note: Note = logged
    rules: Sequence[Rule] = ()


@dataclass(frozen=True)
class ShownResumeRequest(ResumeRequest):
    """`show`, `compare`: see `tune`."""

    _: KW_ONLY
    show: Show = "auto"
    compare: bool = True


@contextmanager
def in_a_file(source: S) -> Iterator[tuple[S, Path]]:
    """`source` with a file as its model, and its path: see `model_files.model_file`."""
    from autotune.graph.reader.model_files import model_file

    with model_file(source.model) as path:  # type: ignore[arg-type]  # of None it says what it is
        yield replace(source, model=path), path


def by_fields(record: Callable[P, R]) -> Callable[[Callable[[R], T]], Callable[P, T]]:
    """A function of a record as one of the record's fields, with what these mean."""
    kinds = [kind for kind in reversed(inspect.getmro(record)) if is_dataclass(kind)]  # type: ignore[arg-type]

    def of(function: Callable[[R], T]) -> Callable[P, T]:
        taken = inspect.signature(record)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            require_call(function.__name__, taken, args, kwargs)
            return function(record(*args, **kwargs))

        told = (function.__doc__, *(kind.__doc__ for kind in kinds))
        call.__doc__ = "\n\n".join(inspect.cleandoc(text or "") for text in told)
        made = inspect.signature(function).return_annotation
        call.__signature__ = taken.replace(  # type: ignore[attr-defined]
            return_annotation=made
        )
        return call

    return of


def made_by_fields(
    record: Callable[P, R],
) -> Callable[[Callable[[T, R], None]], Callable[Concatenate[T, P], None]]:
    """An `__init__` of a record as one of the record's fields."""

    def of(init: Callable[[T, R], None]) -> Callable[Concatenate[T, P], None]:
        @wraps(init)
        def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, record(*args, **kwargs))

        taken = inspect.signature(record)
        own = [*inspect.signature(init).parameters.values()][:1]
        whole = taken.replace(parameters=[*own, *taken.parameters.values()])
        call.__signature__ = whole  # type: ignore[attr-defined]
        return call

    return of
