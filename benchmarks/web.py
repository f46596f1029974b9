"""Exported WebAssembly beside ONNX Runtime's for the web, in Node and in a browser.

    python -m benchmarks.models FOLDER
    python -m benchmarks.exports FOLDER --only minilm          # where PyTorch is installed
    npm install --prefix PEER onnxruntime-web
    python -m benchmarks.web FOLDER PEER [--time 20m] [--only resnet18] [--runner node]

Each model is tuned in Node for `--time` (into `FOLDER/NAME.wasm.jsonl`; not again where that log is
as long), compiled and exported. Then both run in turns in one process of Node and in one page of
Chromium, one thread each, on equal inputs, `--starts` times: `docs/results/web.md`. A browser that
is not installed is left out.
"""

from __future__ import annotations

import http.server
import json
import os
import queue
import shlex
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

import autotune
from autotune.cli.option_types import DURATION
from autotune.network.runtime.runtime import random_inputs
from autotune.records import read_log
from autotune.tuner import spent

RESULT = Path(__file__).parents[1] / "docs" / "results" / "web.md"
MODELS: Mapping[str, Mapping[str, int]] = {
    "mobilenet_v2": {},
    "resnet18": {},
    "minilm": {"batch": 1, "sequence": 128},
}
"""Names of files, and the extents of their free dimensions."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--mute-audio")
"""Options of a browser that shows nothing."""
_TARGET = "wasm32"
_SPENT = 0.95
_LIMIT_S = 900
_PAGE = """<!doctype html>
<script type="module">
const tell = (found) => fetch("/told", {method: "POST", body: JSON.stringify(found)});
try {
  const {beside} = await import("./web.mjs");
  await tell(await beside(await (await fetch("plan.json")).json()));
} catch (error) {
  await tell({error: `${error}`});
}
</script>
"""

_HEAD = (
    "# WebAssembly",
    "",
    "Modules that `autotune export` writes, beside onnxruntime-web: one thread each, in turns in",
    "one process of Node and in one page of Chromium, on equal inputs (`benchmarks/web.py`).",
    "*start*: ms from the import to the first result, with files of this machine; *inference*: ms",
    "of a later one; *ratio*: ours / theirs, the median over rounds; *difference*: the largest,",
    "over the largest output. All are medians over starts.",
    "",
)
_COLUMNS = (
    *("model", "in", "trials", "code kB", "start", "theirs", "inference", "theirs", "ratio"),
    "difference",
)

Found = dict[str, Any]


def browser() -> str | None:
    """The command of a browser that is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class _Files(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, for a page with precise clocks; what it tells goes to a queue."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def __init__(self, told: queue.Queue[bytes], *args: Any, **kwargs: Any) -> None:
        self._told = told
        super().__init__(*args, **kwargs)

    def end_headers(self) -> None:
        """Isolate the page, so that its clock is precise."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def do_POST(self) -> None:
        """Take what the page tells."""
        self._told.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, queue.Queue[bytes]]]:
    """Address of a server of the files of a folder, and what pages post to it."""
    told: queue.Queue[bytes] = queue.Queue()
    handler = partial(_Files, told, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", told
        server.shutdown()


@contextmanager
def shown(command: str, page: str) -> Iterator[None]:
    """A browser with a profile of its own shows a page; at the end its processes are killed."""
    # a process that has left the group may still write to the profile
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [command, *HEADLESS, f"--user-data-dir={profile}", page],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def in_browser(command: str, folder: Path) -> Found:
    """What the page of a folder tells."""
    with served(folder) as (address, told), shown(command, f"{address}/index.html"):
        return dict(json.loads(told.get(timeout=_LIMIT_S)))


def in_node(command: Sequence[str], folder: Path) -> Found:
    """The same in Node."""
    script = (
        'import {beside} from "./web.mjs"; import fs from "node:fs";'
        'console.log(JSON.stringify(await beside(JSON.parse(fs.readFileSync("plan.json")))));'
    )
    (folder / "node.mjs").write_text(script)
    done = subprocess.run(
        [*command, "node.mjs"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise click.ClickException(done.stderr)
    return dict(json.loads(done.stdout))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder with a model for both engines, trials of its log, kB of code."""

    folder: Path
    trials: int
    code_kb: float


def prepared(
    model: Path, log: Path, peer: Path, folder: Path, rounds: int, repeats: int, runner: str
) -> Prepared:
    """Compile and export a model, and write what the pages need."""
    name, dims = model.stem, MODELS.get(model.stem, {})
    trials = len(read_log(log).records) if log.exists() else 0
    compiled = autotune.compile(
        model, log if trials else None, target=_TARGET, runner=runner, dims=dims
    )
    exported = autotune.export(compiled.artifact, folder / name, name)
    (folder / f"{name}.onnx").symlink_to(model.resolve())
    (folder / "ort").symlink_to((peer / "node_modules/onnxruntime-web/dist").resolve())
    shutil.copy(Path(__file__).with_suffix(".mjs"), folder)
    (folder / "index.html").write_text(_PAGE)
    inputs = []
    for end in compiled.artifact.inputs:
        array = random_inputs((end,), 1)[end.name]
        (folder / f"{end.name}.bin").write_bytes(array.tobytes())
        about = {"name": end.name, "file": f"{end.name}.bin", "dims": end.shape}
        inputs.append(about | {"dtype": end.dtype})
    plan = {"name": name, "inputs": inputs, "rounds": rounds, "repeats": repeats}
    (folder / "plan.json").write_text(json.dumps(plan))
    return Prepared(folder, trials, exported.code_bytes / 1000)


def tuned(model: Path, log: Path, seconds: float, runner: str) -> None:
    """Tune until the log has taken so long."""
    if log.exists():
        rest = seconds - spent(read_log(log)).elapsed_s
        if rest > (1 - _SPENT) * seconds:
            autotune.resume(log, time_s=rest, compare=False)
    else:
        dims = MODELS.get(model.stem, {})
        autotune.tune(
            model, log, time_s=seconds, target=_TARGET, runner=runner, dims=dims, compare=False
        )


def cells(runs: Sequence[Found]) -> list[str]:
    """Medians over processes: start, latency, both sides; the ratio within rounds."""
    first = [statistics.median(run["first"][side] for run in runs) for side in (0, 1)]
    pairs = [pair for run in runs for pair in zip(*run["times"], strict=True)]
    times = [statistics.median(side) for side in zip(*pairs, strict=True)]
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return [*(f"{t:.0f}" for t in first), *(f"{t:.2f}" for t in times), f"**{ratio:.2f}**"]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("peer", type=click.Path(path_type=Path, exists=True))
@click.option("--only", multiple=True, type=click.Choice(tuple(MODELS)), help="[all]")
@click.option("--time", "seconds", type=DURATION, default=0.0, help="To tune each.  [do not]")
@click.option("--runner", default="node", show_default=True, help="The command of Node.")
@click.option("--starts", default=3, show_default=True, help="Processes of each engine.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--repeats", default=10, show_default=True, help="Inferences of a turn.")
def main(
    folder: Path,
    peer: Path,
    only: tuple[str, ...],
    seconds: float,
    runner: str,
    starts: int,
    rounds: int,
    repeats: int,
) -> None:
    """Write the table of the models in FOLDER beside the package in PEER."""
    rows = []
    engines = {}
    for name in only or MODELS:
        model, log = folder / f"{name}.onnx", folder / f"{name}.wasm.jsonl"
        if seconds:
            tuned(model, log, seconds, runner)
        with tempfile.TemporaryDirectory() as made:
            ready = prepared(model, log, peer, Path(made), rounds, repeats, runner)
            for place, run in _places(runner).items():
                runs = [run(ready.folder) for _ in range(starts)]
                if bad := next((found["error"] for found in runs if "error" in found), None):
                    raise click.ClickException(f"{name} in {place}: {bad}")
                worst = max(found["difference"] for found in runs)
                row = [name, place, str(ready.trials), f"{ready.code_kb:.0f}", *cells(runs)]
                rows.append([*row, f"{worst:.0e}"])
                engines[place] = runs[0]["engine"]
                click.echo(" | ".join(rows[-1]), err=True)
    RESULT.write_text(page(rows, engines, peer, starts, rounds))


def _places(runner: str) -> dict[str, Callable[[Path], Found]]:
    places: dict[str, Callable[[Path], Found]] = {"Node": partial(in_node, shlex.split(runner))}
    command = browser()
    if command is None:
        click.echo("no browser is installed: left out", err=True)
    else:
        places["Chromium"] = partial(in_browser, command)
    return places


def page(
    rows: Sequence[Sequence[str]],
    engines: Mapping[str, str],
    peer: Path,
    starts: int,
    rounds: int,
) -> str:
    """The page of results."""
    package = peer / "node_modules/onnxruntime-web"
    version = json.loads((package / "package.json").read_text())["version"]
    megabytes = (package / "dist/ort-wasm-simd-threaded.wasm").stat().st_size / 1e6
    where = ", ".join(f"{place} ({engine})" for place, engine in engines.items())
    lines = [
        *_HEAD,
        f"On {autotune.host_target().cpu}, in {where}, beside onnxruntime-web {version}, which has "
        f"{megabytes:.1f} MB of code;",
        f"{starts} starts of {rounds} rounds:",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
