"""⑩ Latency of a compiled network, alone or beside ONNX Runtime in one interleaved run.

The two take turns in blocks of about `BLOCK_S`, because both keep worker threads that spin for a
few milliseconds after an inference (libgomp's and ONNX Runtime's own, each at its default) and
would steal the other's cores if runs alternated one by one. Between blocks everyone sleeps
`PAUSE_S`, long enough for spinning threads to park, and the first run of a block, which wakes them
and refills the caches, is not counted. Nobody is pinned.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import MissingDependency
from autotune.network.artifact import Endpoint
from autotune.network.runtime import Model

BLOCK_S = 0.15
PAUSE_S = 0.03

Array = NDArray[Any]
Runner = Callable[[Mapping[str, Array]], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Latencies of single inferences in seconds, in order of measurement."""

    times_s: tuple[float, ...]
    n_threads: int

    @property
    def median_s(self) -> float:
        """Median latency."""
        return statistics.median(self.times_s)

    def to_json(self) -> dict[str, float | int]:
        """Summary with the names that the command line documents."""
        return {
            "min_s": min(self.times_s),
            "median_s": self.median_s,
            "mean_s": statistics.fmean(self.times_s),
            "max_s": max(self.times_s),
            "std_s": statistics.pstdev(self.times_s),
            "runs": len(self.times_s),
            "threads": self.n_threads,
        }


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Ours and, if it was asked for, ONNX Runtime's."""

    autotune: Timing
    onnxruntime: Timing | None = None

    @property
    def ratio(self) -> float | None:
        """Our median over ONNX Runtime's: below 1 we are faster."""
        return self.autotune.median_s / self.onnxruntime.median_s if self.onnxruntime else None

    def to_json(self) -> dict[str, Any]:
        """`{"autotune": {…}, "onnxruntime": {…} or null, "ratio": ours/theirs or null}`."""
        theirs = self.onnxruntime.to_json() if self.onnxruntime else None
        return {"autotune": self.autotune.to_json(), "onnxruntime": theirs, "ratio": self.ratio}


def bench(
    model: Model,
    against_onnxruntime: Any = None,
    min_runs: int = 10,
    min_s: float = 2.0,
    seed: int = 0,
) -> BenchResult:
    """Time `model` on random inputs until each side has `min_runs` runs and `min_s` seconds.

    `against_onnxruntime`: path or ModelProto of the same model, with the weights that the artifact
    was compiled with, to be run on as many threads as `model`. Raises MissingDependency when it is
    asked for and not installed.
    """
    inputs = random_inputs(model.input_info, seed)
    sides = [partial(model.run, inputs)]
    if against_onnxruntime is not None:
        theirs = onnxruntime_runner(against_onnxruntime, model.n_threads)
        sides.append(partial(theirs, inputs))
    times = interleave(sides, min_runs, min_s)
    timings = [Timing(tuple(t), model.n_threads) for t in times]
    return BenchResult(timings[0], timings[1] if len(timings) > 1 else None)


def interleave(
    sides: Sequence[Callable[[], object]],
    min_runs: int,
    min_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> list[list[float]]:
    """Seconds of every counted run of every side; the sides take turns in blocks."""
    times: list[list[float]] = [[] for _ in sides]
    while any(len(t) < min_runs or sum(t) < min_s for t in times):
        for side, measured in zip(sides, times, strict=True):
            sleep(PAUSE_S)
            side()
            measured += _block(side, clock)
    return times


def _block(side: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    out: list[float] = []
    start = before = clock()
    while before - start < BLOCK_S:
        side()
        now = clock()
        out.append(now - before)
        before = now
    return out


def random_inputs(ports: tuple[Endpoint, ...], seed: int = 0) -> dict[str, Array]:
    """Standard normal floats, or small integers, for every input."""
    rng = np.random.default_rng(seed)
    return {p.name: _random(rng, p) for p in ports}


def _random(rng: np.random.Generator, port: Endpoint) -> Array:
    if port.dtype.startswith("float"):
        return rng.standard_normal(port.shape).astype(port.dtype)
    return rng.integers(0, 2, port.shape).astype(port.dtype)


def onnxruntime_runner(model: Any, n_threads: int) -> Runner:
    """A function that runs `model` (path or ModelProto) by ONNX Runtime, else at its defaults."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            "onnxruntime is not installed", "pip install onnxruntime, or leave it out"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.log_severity_level = 3
    source = str(model) if isinstance(model, str | Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))
