"""What commands write as JSON is what `autotune schema` says, and no command is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from autotune.cli.main import app
from autotune.cli.schemas import OUTPUTS, output_schema
from tests.cli.conftest import mlp
from tests.forking import Cli

SCHEDULE = "def schedule(s):\n    pass\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tuned: Path) -> Path:
    """A folder for what commands write, with a log, a store, inputs and a schedule."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "log.jsonl").write_bytes(tuned.read_bytes())
    (folder / "mine.py").write_text(SCHEDULE)
    np.save(folder / "x.npy", np.zeros((4, 8), np.float32))
    samples = np.random.default_rng(0).standard_normal((32, 8))
    np.savez(folder / "samples.npz", x=samples.astype(np.float32))
    onnx.save(mlp(batch="n"), folder / "open.onnx")
    return folder


COMMANDS: list[tuple[str, str]] = [
    ("dry-run", "tune {model} --dry-run"),
    ("session", "tune {model} --log new.jsonl --trials 2 --threads 1 --preset ci"),
    ("session", "resume log.jsonl --trials 1"),
    ("tasks", "tasks {model} --dag"),
    ("tasks", "tasks open.onnx --dim n=2,4"),
    ("compile", "compile --log log.jsonl -o a.atn"),
    ("quantise", "quantise {model} --data samples.npz -o q.onnx --threads 1 --max-error 0.5"),
    ("run", "run a.atn"),
    ("run", "run a.atn --input x.npy -o y.npz"),
    ("bench", "bench a.atn --time 0.1s --against onnxruntime"),
    ("bench", "bench a.atn --time 0.1s --callers 2"),
    ("bench", "bench a.atn --time 0.1s --per-task"),
    ("compare", "bench a.atn --time 0.1s --compare a.atn"),
    ("distill", "distill log.jsonl -o best.jsonl"),
    ("distill", "distill log.jsonl --store store"),
    ("store-list", "store list --store store"),
    ("store-merge", "store merge --store store"),
    ("store-verify", "store verify --store store"),
    ("store-prune", "store prune --store store --older 1s --dry-run"),
    ("explain", "explain log.jsonl --task 0"),
    ("explain", "explain log.jsonl --task 0 --stage loopir:nests"),
    ("measure", "measure mine.py --log log.jsonl --task 0"),
    ("export", "export a.atn -o lib"),
    ("report", "report log.jsonl"),
    ("report", "report log.jsonl a.atn --against log.jsonl"),
    ("info", "info --no-measure"),
    ("info", "info a.atn"),
    ("target", "target"),
    ("target-list", "target --list"),
]


def test_every_output_is_as_its_schema_says(cli: Cli, model: Path, files: Path) -> None:
    wrong: dict[str, list[str]] = {}
    for name, line in COMMANDS:
        words = [word.replace("{model}", str(model)) for word in line.split()]
        done = cli(*words, "--format", "json", cwd=files)
        assert done.code == 0, (line, done.err)
        if found := faults(name, json.loads(done.out)):
            wrong[line] = found
    assert not wrong


def test_every_event_is_as_its_schema_says(
    cli: Cli, model: Path, tuned: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(tuned.read_bytes())
    done = cli("resume", path, "--trials", 4, "--events", "jsonl")
    assert done.code == 0, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    assert {event["event"] for event in events} >= {"session_started", "session_finished"}
    assert not [text for event in events for text in faults("events", event)]


def faults(name: str, data: Any) -> list[str]:
    """Reasons why data are not as a schema without other fields says."""
    schema = output_schema(name, is_closed=True)
    Draft202012Validator.check_schema(schema)
    found = [best_match([error]) for error in Draft202012Validator(schema).iter_errors(data)]
    return [f"{error.json_path}: {error.message[:200]}" for error in found if error]


def test_every_command_with_json_has_a_schema_and_a_test() -> None:
    tested = {line.split(" ")[0] for _, line in COMMANDS} | {
        " ".join(line.split(" ")[:2]) for _, line in COMMANDS
    }
    assert set(with_json(app, "")) <= tested
    assert {name for name, _ in COMMANDS} | {"events"} == set(OUTPUTS)


def with_json(command: click.Command, path: str) -> Iterator[str]:
    """Commands that have `--format json`."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from with_json(child, f"{path} {name}".strip())
    for option in command.params:
        if "--format" in option.opts and "json" in getattr(option.type, "choices", ()):
            yield path


def test_a_schema_permits_fields_of_later_versions_and_names_are_known(cli: Cli) -> None:
    done = cli("schema", "run")
    schema = json.loads(done.out)
    Draft202012Validator(schema).validate({"outputs": [], "file": None, "later": 1})
    assert cli("schema").out.split() == list(OUTPUTS)
    done = cli("schema", "rnu")
    assert (done.code, "known:" in done.err) == (2, True)
