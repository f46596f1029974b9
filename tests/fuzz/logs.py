"""Damaged logs: lines changed, cut, repeated, of wrong types; read, distilled and compiled from.

Whatever a log holds, a command ends with a documented exit code and one line; and what it compiles
gives the right numbers, for a schedule of a log is data, not trust.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper, parser

from autotune.cli.main import run
from autotune.errors import ExitCode
from autotune.graph.network import build_network
from autotune.graph.reader.onnx_reader import model_hash
from autotune.network.runtime.loading import load
from autotune.records import Header, MeasureRecord, Workload, write_log
from autotune.records.record import Log
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import steps_to_json
from autotune.search.cost.ranker import Ranker
from autotune.search.defaults import default_steps
from autotune.search.policy import SketchPolicy
from autotune.target import host_target
from benchmarks.outcomes import Kind, Outcome, Tell, one_line

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1, 4, 9, 9] x) => (float[1, 24] y) {
  c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) p = GlobalAveragePool(r)
  f = Flatten(p) y = MatMul(f, v) }
"""
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    1e308,
    -1e308,
    2**63,
    10**30,
    "",
    "x",
    [],
    {},
    [[]],
)
COMMANDS = ("compile", "compile", "compile", "distill", "explain")
BUG = ("this is a bug", "Traceback")
LEFT_OPEN = {int(code) for code in ExitCode}


@dataclass(frozen=True)
class Base:
    """A folder with a model, a sound log of it, its inputs and what it gives."""

    folder: Path
    lines: tuple[str, ...]
    inputs: dict[str, Any]
    outputs: dict[str, Any]


@cache
def base() -> Base:
    """Made once per process: eight programs of every task, with made-up times."""
    folder = Path(tempfile.mkdtemp())
    model = parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (6, 4, 3, 3)), ("v", (6, 24))):
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    write_log(folder / "base.jsonl", _log(path))
    _call("compile", str(path), "-o", str(folder / "base.atn"), "--threads", "1", "--no-check")
    inputs = {"x": rng.standard_normal((1, 4, 9, 9)).astype(np.float32)}
    outputs = load(folder / "base.atn", 1).run(inputs)
    lines = (folder / "base.jsonl").read_text("utf-8").splitlines()
    return Base(folder, tuple(lines), inputs, outputs)


def _log(path: Path) -> Log:
    network, target = build_network(path), host_target()
    records: list[MeasureRecord] = []
    for key, dag in network.tasks.items():
        policy = SketchPolicy(dag, target, 1, Ranker(0), np.random.default_rng(0))
        steps = [default_steps(dag, target, 1), *(c.steps for c in policy.propose(7))]
        for n, found in enumerate(steps):
            result = MeasureResult(MeasureStatus.OK, (1e-5 + n * 1e-6,) * 3, max_error=1e-6)
            text = json.dumps(steps_to_json(found))
            records.append(MeasureRecord("run", len(records), key, target.key, 1, text, result))
    header = Header(
        run_id="run",
        created="2026-01-01T00:00:00+00:00",
        model_path=str(path),
        model_hash=model_hash(path),
        shapes={},
        target=target,
        n_threads=1,
        seed=0,
        config={},
        versions={},
        tasks=tuple(network.weights.items()),
        random_weights=False,
    )
    workloads = {key: Workload(key, dag) for key, dag in network.tasks.items()}
    return Log((header,), workloads, tuple(records))


def damaged(lines: tuple[str, ...], seed: int) -> bytes:
    """The lines with one to four changes, or some bytes of them."""
    rng = random.Random(seed)
    kept = list(lines)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(kept)) if kept else 0
        match rng.randrange(9):
            case 0 if kept:
                del kept[at]
            case 1 if kept:
                kept.insert(rng.randrange(len(kept) + 1), kept[at])
            case 2 if kept:
                kept[at] = kept[at][: rng.randrange(len(kept[at]) + 1)]
            case 3:
                kept.insert(at, rng.choice(["", "null", "[]", "{", "\0", "é" * 9, "[" * 5000, "1"]))
            case _ if kept:
                kept[at] = changed_json(kept[at], rng)
    data = ("\n".join(kept) + "\n").encode("utf-8", "surrogatepass")
    match rng.randrange(12):
        case 0:
            data = data[: rng.randrange(len(data))]
        case 1:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 2:
            data = rng.choice([b"", b"\n", b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n")])
    return data


def changed_json(line: str, rng: random.Random) -> str:
    """A JSON text with one of its values changed or gone."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    holder, key = _place(value, rng)
    if holder is None:
        return line
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = rng.choice([holder[key] + 1, -holder[key], holder[key] * 2, 0, 1])
        case _:
            holder[key] = rng.choice(ODD)
    return json.dumps(value)


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container inside of `value` and one of its keys: any depth."""
    here: tuple[Any, Any] = (None, None)
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        here = value, key
        if rng.random() < 0.25:
            break
        value = value[key]
    return here


def judged(seed: int, tell: Tell = lambda stage: None) -> Outcome:
    """The outcome of one command on a damaged log."""
    sound = base()
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(dir=sound.folder))
    try:
        log = folder / "log.jsonl"
        log.write_bytes(damaged(sound.lines, seed))
        command = rng.choice(COMMANDS)
        tell(command)
        match command:
            case "distill":
                code, text = _call("distill", str(log), "-o", str(folder / "best.jsonl"))
                log = folder / "best.jsonl" if code == 0 else log
            case "explain":
                code, text = _call("explain", str(log), "--task", "0")
        if command == "explain" or (command == "distill" and code):
            return outcome_of(code, text)
        return _compiled(sound, folder, log, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compiled(sound: Base, folder: Path, log: Path, tell: Tell) -> Outcome:
    """Compile from the log and run the result."""
    out, model = folder / "out.atn", str(sound.folder / "model.onnx")
    options = ["--log", str(log), "-o", str(out), "--no-check"]
    code, text = _call("compile", model, *options)
    found = outcome_of(code, text)
    if code or found.kind is not Kind.RIGHT:
        return found
    tell("run")
    results = load(out, 1).run(sound.inputs)
    for name, want in sound.outputs.items():
        if not np.allclose(results[name], want, 1e-3, 1e-4):
            return Outcome(Kind.WRONG, f"output {name} differs")
    return Outcome(Kind.RIGHT)


def _call(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command, in this process."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = run(list(arguments))
    return int(code), told.getvalue()


def outcome_of(code: int, text: str) -> Outcome:
    """Right for exit code 0; refused for a documented one with a line that says why."""
    errors = [line for line in text.splitlines() if line.startswith("error:")]
    if any(word in text for word in BUG) or code not in LEFT_OPEN or (code and len(errors) != 1):
        return Outcome(Kind.UNTYPED, one_line(f"exit {code}: {text}"))
    return Outcome(Kind.REFUSED, one_line(errors[0])) if code else Outcome(Kind.RIGHT)
