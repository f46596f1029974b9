"""A fork of a process that has imported the command line is the command in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forking import Cli, in_process

MODEL, LOG, ARTIFACT = "m.onnx", "log.jsonl", "m.atn"
COMMANDS: dict[str, tuple[str, ...]] = {
    "help": ("--help",),
    "usage": ("tunes", "x"),
    "tasks": ("tasks", MODEL, "--format", "json"),
    "tune": ("tune", MODEL),  # which AUTOTUNE_THREADS forbids
    "resume": ("resume", "none.jsonl"),
    "distill": ("distill", LOG, "-o", "best.jsonl"),
    "compile": ("compile", MODEL, "-o", "new.atn"),
    "run": ("run", ARTIFACT),
    "bench": ("bench", ARTIFACT, "--against", "tvm"),
    "measure": ("measure", LOG, "--task", "9"),
    "report": ("report", LOG, "--format", "md"),
    "explain": ("explain", LOG, "--task", "0", "--stage", "asm"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_fork_does_what_a_process_does(
    cli: Cli, model: Path, tuned: Path, artifact: Path, tmp_path: Path, name: str
) -> None:
    """Exit code, stdout, stderr and the names of the files that are left."""
    found = []
    for way, call in enumerate((in_process, cli)):
        folder = tmp_path / str(way)
        folder.mkdir()
        for source, target in ((model, MODEL), (tuned, LOG), (artifact, ARTIFACT)):
            (folder / target).write_bytes(source.read_bytes())
        env = {"AUTOTUNE_THREADS": "x"} if name == "tune" else {}
        outcome = call(*COMMANDS[name], cwd=folder, **env)
        found.append((outcome, {path.name for path in folder.iterdir()}))
    assert found[0] == found[1]
