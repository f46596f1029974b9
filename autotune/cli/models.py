"""⑪ Read the models, workloads and tasks that options name, with their notes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.api.sources import random_weights_note
from autotune.cli.console import say_note
from autotune.errors import UsageError
from autotune.files import open_input

if TYPE_CHECKING:
    from autotune.api.te.task import Task
    from autotune.records import Log
    from autotune.target import Target


def read_workload(
    model: Path | None, arguments: str | None, threads: int = 0, target: Target | str | None = None
) -> Task | None:
    """The task of FILE.py:FUNCTION; None where `model` is a model. Raises UsageError."""
    if arguments is None and ".py:" not in str(model or ""):
        return None
    from autotune.api.te.workloads import parse_source, task_of

    source = parse_source(str(model or ""), arguments)
    return None if source is None else task_of(source, threads=threads or None, target=target)


def is_onnx(path: Path) -> bool:
    """Whether a file is a model rather than an artifact, which is a zip archive.

    Raises UsageError where there is no such file.
    """
    with open_input(path) as file:
        head = file.read(4)
    return path.suffix == ".onnx" and head != b"PK\x03\x04"


def say_random_weights(name: str) -> None:
    """Note that latencies and outputs are those of random weights."""
    say_note(random_weights_note(name))


def find_task(log: Log, text: str) -> str:
    """The key of the task that `text` names: its id (as `tasks` prints it) or part of its key.

    Raises UsageError when no task, or more than one, fits.
    """
    keys = [key for key, _ in log.header.tasks] if log.headers else []
    keys += [key for key in log.workloads if key not in keys]
    if text.isdecimal() and int(text) < len(keys):
        return keys[int(text)]
    found = [key for key in keys if key.startswith(text)]
    if len(found) != 1:
        many = f"{len(found)} tasks fit '{text}'" if found else f"the log has no task '{text}'"
        raise UsageError(many, f"give an id from 0 to {len(keys) - 1}, or the beginning of a key")
    return found[0]
