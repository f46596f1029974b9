"""Sessions of models of a user's size, in every mode: what answers, the numbers, time and memory.

    python -m benchmarks.large_sessions bert.onnx resnet50.onnx decoder.onnx --extent l=64 --runs 7

Every mode runs in a process of its own with an empty cache folder, then again with what the first
has left there. ONNX Runtime and the session answer in turns; outputs are compared in each.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

MODES = ("background", "wait", "never")
_DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32"}
_WAIT_S = 1800.0
_LARGEST_ID = 1000


def inputs(session: Any, extents: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """Random inputs: masks of ones, small integers, numbers near zero."""
    rng = np.random.default_rng(seed)
    feed = {}
    for end in session.get_inputs():
        shape = [n if isinstance(n, int) else extents.get(n, 1) for n in end.shape]
        dtype = _DTYPES[end.type]
        if "mask" in end.name:
            feed[end.name] = np.ones(shape, dtype)
        elif dtype == "float32":
            feed[end.name] = rng.standard_normal(shape, dtype=np.float32)
        else:
            feed[end.name] = rng.integers(1, _LARGEST_ID, shape).astype(dtype)
    return feed


def measured(model: Path, mode: str, extents: dict[str, int], n_runs: int) -> str:
    """A line about one mode, in this process."""
    import onnxruntime

    import autotune.ort

    start_s = time.monotonic()
    ours = autotune.ort.InferenceSession(model, compile=mode)
    made_s = time.monotonic() - start_s
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feed = inputs(theirs, extents)
    ours.run(None, feed)
    while ours.autotune_status().is_busy and time.monotonic() < start_s + _WAIT_S:
        time.sleep(0.2)
    ready_s = time.monotonic() - start_s
    times: tuple[list[float], list[float]] = ([], [])
    largest = 0.0
    for turn in range(n_runs):
        feed = inputs(theirs, extents, turn)
        found = []
        for side, session in enumerate((ours, theirs)):
            begin_s = time.perf_counter()
            found.append(session.run(None, feed))
            times[side].append(time.perf_counter() - begin_s)
        for have, want in zip(*found, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
            largest = max(largest, float(np.abs(have - want).max() / np.abs(want).max()))
    status = ours.autotune_status()
    ours_ms, theirs_ms = (1e3 * statistics.median(side) for side in times)
    states = ", ".join(f"{s.state} {s.ratio or 0:.2f} {s.reason}".strip() for s in status.shapes)
    told = status.reason or states or "nothing"
    peaks = [resource.getrusage(who).ru_maxrss >> 10 for who in _WHOSE]
    return (
        f"{model.stem} {mode}: made {made_s:.1f} s, ready {ready_s:.1f} s, ours {ours_ms:.1f} ms, "
        f"theirs {theirs_ms:.1f} ms, apart {largest:.1e}, peak {peaks[0]} MB: {told}"
    )


_WHOSE = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


@click.command()
@click.argument("models", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--extent", "extents", multiple=True, help="NAME=N of an open dimension; else 1.")
@click.option("--runs", default=7)
@click.option("--mode", "modes", multiple=True, default=MODES)
@click.option("--here", is_flag=True, hidden=True)
def main(
    models: tuple[Path, ...],
    extents: tuple[str, ...],
    runs: int,
    modes: tuple[str, ...],
    here: bool,
) -> None:
    """Run MODELS in each mode."""
    named = {name: int(n) for name, _, n in (text.partition("=") for text in extents)}
    if here:
        click.echo(measured(models[0], modes[0], named, runs))
        return
    options = [f"--extent={text}" for text in extents]
    for model in models:
        for mode in modes:
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "XDG_CACHE_HOME": cache}
                call = [sys.executable, "-m", "benchmarks.large_sessions", str(model), "--here"]
                call += [f"--mode={mode}", f"--runs={runs}", *options]
                for _ in range(1 if mode == "never" else 2):
                    subprocess.run(call, env=environment, check=True)


if __name__ == "__main__":
    main()
