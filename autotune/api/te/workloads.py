"""⑪ Computations that a user's Python file defines: `workloads.py:matmul_add --args 64,64,64`.

The file is run, so it is trusted as any program is that a user starts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.api.te.task import Task
from autotune.api.user_code import named, reported
from autotune.errors import LogMismatch, UsageError, WrongNumbers
from autotune.network.artifact.artifact import Artifact
from autotune.network.check.differences import TOLERANCE, max_error
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.target import runs_here
from autotune.te.evaluate import evaluate

_SOURCE = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*)(?:\((?P<args>.*)\))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """A function of a file, and its arguments; printed as a log's header has it."""

    file: Path
    name: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.file.resolve()}:{self.name}({', '.join(map(repr, self.args))})"


def parse_source(text: str, args: str | None = None) -> WorkloadSource | None:
    """The source that `text` names, `FILE.py:NAME` or `FILE.py:NAME(args)`; None: it is a model.

    `args`: Python literals with commas between them. Raises UsageError where they are none, or are
    given for a model.
    """
    match = _SOURCE.fullmatch(text)
    if match is None:
        if args is not None:
            raise UsageError(
                f"--args is for workloads, '{text}' is a model", "write FILE.py:FUNCTION"
            )
        return None
    return WorkloadSource(
        Path(match["file"]), match["name"], _literals(args or match["args"] or "")
    )


def _literals(text: str) -> tuple[Any, ...]:
    try:
        return tuple(ast.literal_eval(f"[{text}]"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UsageError(
            f"'{text}' are no arguments", "write numbers with commas: --args 1024,1024"
        ) from None


def task_of(source: WorkloadSource, **options: Any) -> Task:
    """The task that a source defines; `options` are those of `Task`.

    Raises UsageError, with file and line, for whatever goes wrong in the user's code.
    """
    function = named(source.file, source.name)
    with reported(source.file):
        return Task(function, source.args, name=source.name, source=str(source), **options)


def task_of_log(text: str, key: str, **options: Any) -> Task:
    """The task that the header of a log names, if it is unchanged since."""
    source = parse_source(text)
    if source is None:
        raise UsageError(f"'{text}' is no workload", "name one: FILE.py:FUNCTION --args …")
    task = task_of(source, **options)
    if task.key != key:
        raise LogMismatch(
            f"{source} is not what the log was made for: it has changed",
            "tune it again, or go back to the file as it was",
        )
    return task


def compile_task(
    task: Task,
    log: Path | None,
    constants: Mapping[str, NDArray[Any]],
    check: bool = True,
    verify: bool = False,
) -> tuple[Artifact, float | None]:
    """The artifact of a task, from the best record of `log` or the analytic schedule.

    Also the largest error beside NumPy; None where it was not checked, or cannot be on this CPU.
    Raises WrongNumbers, and LogMismatch for the log of another task. `verify`: as in `Task.build`.
    """
    steps = task.best(log).steps if log else task.default().steps
    artifact = task.artifact(steps, constants, verify)
    is_checked = check and runs_here(task.target)
    return artifact, check_task(task, artifact, constants) if is_checked else None


def check_task(task: Task, artifact: Artifact, constants: Mapping[str, NDArray[Any]]) -> float:
    """Compare a built task with NumPy on random inputs; the largest error. Raises WrongNumbers."""
    model = Model(artifact)
    inputs = random_inputs(model.input_info)
    expected = evaluate(task.dag, {**inputs, **{n: np.asarray(a) for n, a in constants.items()}})
    found = model.run(inputs)
    errors = {n: max_error(found[n], expected[n]) for n in task.dag.outputs}
    name, worst = max(errors.items(), key=lambda item: item[1])
    if worst > TOLERANCE:
        raise WrongNumbers(
            f"output '{name}' differs from NumPy by {worst:.2g} of its largest value, "
            f"{TOLERANCE:g} is allowed",
            "please report the file and the log",
        )
    return worst
