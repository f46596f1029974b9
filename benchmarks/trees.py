"""Ensembles of trees beside ONNX Runtime, and the library that made them, in turns.

    python -m benchmarks.trees forest.onnx … --machine NAME [--rows 64]… [--threads 2]…

A file has one input of features. `NAME.txt` beside it is the model of LightGBM, which lleaves
compiles as well where it is installed, `NAME.json` that of XGBoost, `NAME.pkl` that of
scikit-learn; `NAME.ROWS.atn` is what was compiled, and is made where it is missing. Every call has
other rows than the one before, for the branches of the same ones again would be predicted. Rows are
added to `docs/results/trees.csv`: medians.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import click
import lightgbm
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import autotune
from autotune.cli.option_types import COUNT
from autotune.network.bench.bench import interleave
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "trees.csv"
FIELDS = ["machine", "model", "trees", "rows", "threads", "ours_us", "onnxruntime_us", "ratio",
          "own_us", "lleaves_us", "lleaves_ratio", "error"]  # fmt: skip
Floats = NDArray[np.float32]
Side = Callable[[Floats], Any]
_MOST_BATCHES = 200
_MIN_RUNS, _MIN_S = 7, 0.4


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--machine", required=True)
@click.option("--rows", type=COUNT, multiple=True, default=(1, 64, 1024, 10000))
@click.option("--threads", type=COUNT, multiple=True, default=(1, 2))
@click.option("--prepare", is_flag=True, help="Compile what is missing, and time nothing.")
def main(
    files: tuple[Path, ...],
    machine: str,
    rows: tuple[int, ...],
    threads: tuple[int, ...],
    prepare: bool,
) -> None:
    """Time forests."""
    for path in files:
        for n_rows in rows:
            artifact = _artifact(path, n_rows)
            for n_threads in () if prepare else threads:
                row = _measured(path, artifact, n_rows, n_threads)
                append_row(FILE, FIELDS, {"machine": machine, **row})
                click.echo(" ".join(map(str, row.values())))


def _artifact(path: Path, n_rows: int) -> Path:
    """The compiled forest for some rows."""
    made = path.with_suffix(f".{n_rows}.atn")
    if not made.exists():
        name, n_features = _input(path)
        shapes = {name: (n_rows, n_features)}
        autotune.compile(path, shapes=shapes, check=False, fallback=False).artifact.save(made)
    return made


def _input(path: Path) -> tuple[str, int]:
    """Name and features of the input."""
    value = onnx.load(path).graph.input[0]
    return value.name, value.type.tensor_type.shape.dim[1].dim_value


def _n_trees(path: Path) -> int:
    for node in onnx.load(path).graph.node:
        for attribute in node.attribute:
            if attribute.name == "nodes_treeids":
                return len(set(attribute.ints))
    return 0


def _measured(path: Path, artifact: Path, n_rows: int, n_threads: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    name, n_features = _input(path)
    n = min(_MOST_BATCHES, max(3, 20000 // n_rows))
    batches = [rng.standard_normal((n_rows, n_features)).astype(np.float32) for _ in range(n)]
    model = autotune.load(artifact, n_threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    session = onnxruntime.InferenceSession(str(path), options)
    sides: dict[str, Side] = {"ours": model, "onnxruntime": partial(_run, session, name)}
    sides |= _peers(path, n_threads)
    outputs = [np.asarray(side(batches[0])).reshape(-1) for side in sides.values()]
    found = interleave([_over(side, batches) for side in sides.values()], _MIN_RUNS, _MIN_S)
    times = {side: 1e6 * median(seconds) for side, seconds in zip(sides, found, strict=True)}
    ours, theirs = times["ours"], times["onnxruntime"]
    return {
        "model": path.stem,
        "trees": _n_trees(path),
        "rows": n_rows,
        "threads": n_threads,
        "ours_us": f"{ours:.1f}",
        "onnxruntime_us": f"{theirs:.1f}",
        "ratio": f"{ours / theirs:.3f}",
        "own_us": f"{times['own']:.1f}" if "own" in times else "",
        "lleaves_us": f"{times['lleaves']:.1f}" if "lleaves" in times else "",
        "lleaves_ratio": f"{ours / times['lleaves']:.3f}" if "lleaves" in times else "",
        "error": f"{np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[1]).max():.1e}",
    }


def _run(session: onnxruntime.InferenceSession, name: str, x: Floats) -> Any:
    return session.run(None, {name: x})


def _peers(path: Path, n_threads: int) -> dict[str, Side]:
    """The libraries that made a forest, and lleaves, by what lies beside its file."""
    text, json, pickled = (path.with_suffix(end) for end in (".txt", ".json", ".pkl"))
    if text.exists():
        booster = lightgbm.Booster(model_file=str(text))
        found: dict[str, Side] = {"own": partial(booster.predict, num_threads=n_threads)}
        if find_spec("lleaves"):
            lleaves = importlib.import_module("lleaves").Model(model_file=str(text))
            lleaves.compile(cache=str(path.with_suffix(".lleaves")))
            found["lleaves"] = partial(lleaves.predict, n_jobs=n_threads)
        return found
    if json.exists() and find_spec("xgboost"):
        forest = importlib.import_module("xgboost").XGBRegressor(n_jobs=n_threads)
        forest.load_model(json)
        return {"own": forest.predict}
    if pickled.exists() and find_spec("sklearn"):
        forest = pickle.loads(pickled.read_bytes())
        if hasattr(forest, "n_jobs"):
            forest.n_jobs = n_threads
        return {"own": forest.predict}
    return {}


def _over(side: Side, batches: list[Floats]) -> Callable[[], Any]:
    """Calls of `side` for other rows each time."""
    turns = cycle(batches)
    return lambda: side(next(turns))


if __name__ == "__main__":
    main()
