"""Calls of the library as a person types them: wrong arguments, notes, names, results."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune.calls import checked
from tests.cli.conftest import mlp

WRONG: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a name nearly": (
        lambda: autotune.compile("m.onnx", thread=2),  # type: ignore[call-arg]
        r"compile\(\) has no argument 'thread'",
        "did you mean `threads`?",
    ),
    "of a session": (
        lambda: autotune.tune("m.onnx", "l.jsonl", trails=2),  # type: ignore[call-arg]
        r"tune\(\) has no argument 'trails'",
        "did you mean `trials`?",
    ),
    "another name": (
        lambda: autotune.load("m.atn", colour=1),  # type: ignore[call-arg]
        r"load\(\) has no argument 'colour'",
        "it takes `path`, `threads`, `memory`",
    ),
    "one too few": (
        lambda: autotune.tune("m.onnx"),  # type: ignore[call-arg]
        r"tune\(\): missing a required argument: 'log'",
        "it takes `model`, `log`, ",
    ),
    "one too many": (
        lambda: autotune.report("a", "b", "c", "d"),  # type: ignore[call-arg]
        r"report\(\): too many positional arguments",
        "it takes `log`, `artifact`, `against`",
    ),
    "of bench": (
        lambda: autotune.bench("m.atn", agains="onnxruntime"),  # type: ignore[call-overload]
        r"bench\(\) has no argument 'agains'",
        "did you mean `against`?",
    ),
    "of a class": (
        lambda: autotune.Task(lambda: None, thread=1),  # type: ignore[call-arg]
        r"^Task\(\) has no argument 'thread'",
        "did you mean `threads`?",
    ),
    "of a method": (
        lambda: autotune.compile(mlp(), check=False).save(paht="m.atn"),  # type: ignore[call-arg]
        r"^Compiled.save\(\) has no argument 'paht'",
        "did you mean `path`?",
    ),
    "of a schedule": (
        lambda: autotune.Schedule("C"),  # type: ignore[arg-type, call-arg]
        r"^Schedule\(\): missing a required argument: 'target'",
        "it takes `dag`, `target`, `steps`",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_told_as_any_other_fault(case: str) -> None:
    call, message, hint = WRONG[case]
    with pytest.raises(autotune.ArgumentError, match=message) as caught:
        call()
    assert caught.value.hint.startswith(hint)
    assert isinstance(caught.value, TypeError)
    assert caught.value.exit_code == autotune.ExitCode.USAGE
    assert "__init__" not in str(caught.value)


@pytest.mark.parametrize("name", ["shapes", "dims", "constants", "state"])
def test_what_is_by_name_takes_no_other_type(name: str) -> None:
    with pytest.raises(autotune.UsageError, match=f"^`{name}` is .*, expected a dict\n") as caught:
        autotune.compile("m.onnx", **{name: ["batch=4"]})
    assert caught.value.hint.startswith(f"{name}={{")


def test_an_error_of_a_type_deep_inside_stays_what_it_is() -> None:
    @checked
    def half(n: int) -> float:
        return n / 2

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        half("four")  # type: ignore[arg-type]
    assert not isinstance(caught.value, autotune.ArgumentError)


@pytest.mark.parametrize(("name", "meant"), [("complie", "compile"), ("te.summ", "sum")])
def test_the_nearest_name_is_told_below_a_traceback(name: str, meant: str) -> None:
    script = f"import autotune; autotune.{name}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.endswith(f". Did you mean: '{meant}'?\n")


@pytest.fixture(scope="module")
def compiled() -> Any:
    return autotune.compile(mlp(), check=False)


def test_what_is_compiled_runs_and_is_saved(compiled: Any, tmp_path: Path) -> None:
    model = compiled.model(threads=1)
    inputs = {p.name: np.ones(p.shape, p.numpy_dtype) for p in model.input_info}
    found = compiled.run(inputs)
    assert compiled.save(tmp_path / "mlp.atn") == tmp_path / "mlp.atn"
    loaded = autotune.load(tmp_path / "mlp.atn").run(inputs)
    assert all(np.array_equal(found[name], loaded[name]) for name in found)


def test_notes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    with caplog.at_level(logging.INFO, "autotune"):
        autotune.compile(model, check=False, cache=False)
    told = [record.getMessage() for record in caplog.records if record.name == "autotune"]
    assert any("take the analytic default" in text for text in told), told
    caplog.clear()
    notes: list[str] = []
    with caplog.at_level(logging.INFO, "autotune"):
        autotune.compile(model, check=False, note=notes.append)
    assert notes
    assert not [record for record in caplog.records if record.name == "autotune"]


def test_dir_has_what_is_public(compiled: Any) -> None:
    model = compiled.model()
    for one in (model, autotune.InferenceSession, pickle.loads(pickle.dumps(model))):
        names = dir(one)
        assert "run" in names
    assert not [name for name in dir(model) if name.startswith("_") and name[1] != "_"]
    assert model.__class__.__name__ in repr(model)
