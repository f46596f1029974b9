"""Random forests and random models on strings, compiled, beside ONNX Runtime at several rows.

Every second model is a forest; the others encode, compare and move strings. Forests of every third
seed take any number of rows. A model may be refused; what is computed is right.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

import autotune
from autotune.errors import AutotuneError
from autotune.network.check.differences import flat_outputs
from autotune.network.runtime.loading import load
from benchmarks.outcomes import Kind, Outcome, Tell, one_line, typed
from tests.graph import random_texts
from tests.graph.random_forests import random_forest

N_CALLS = 4
_TOLERANCE = 2e-5


def judged(seed: int, tell: Tell = lambda stage: None) -> Outcome:
    """What became of one model."""
    try:
        text = _difference(seed, tell)
    except AutotuneError as error:
        return Outcome(*typed(error))
    except Exception as error:
        return Outcome(Kind.UNTYPED, one_line(f"{type(error).__name__}: {error}"))
    return Outcome(Kind.WRONG, one_line(text)) if text else Outcome(Kind.RIGHT)


def _drawn(seed: int) -> tuple[ModelProto, Iterator[dict[str, Any]], int]:
    """A model, inputs for it, and how many rows it has to take (0: those of the model)."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        proto, first = random_texts.random_texts(rng)
        return proto, (first if n == 0 else random_texts.feeds(rng, 5) for n in range(N_CALLS)), 0
    proto, x = random_forest(rng)
    most = len(x) if seed % 3 == 0 and x.ndim == 2 else 0
    if most:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
        for output in proto.graph.output:
            output.type.tensor_type.ClearField("shape")
    rows = (int(n) for n in rng.integers(1, len(x) + 1, N_CALLS))
    feeds = ({"x": x[rng.permutation(len(x))][:n] if most else x} for n in rows)
    return proto, feeds, most


def _difference(seed: int, tell: Tell) -> str:
    proto, feeds, most = _drawn(seed)
    tell("compile")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(proto, str(path))
        dims = {"rows": f"..{most}"} if most else {}
        plain: dict[str, Any] = {"fallback": False, "check": False, "cache": False}
        done = autotune.compile(path, dims=dims, threads=1, **plain)
        done.artifact.save(path.with_suffix(".atn"))
        model = load(path.with_suffix(".atn"))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tell("run")
    names = [end.name for end in session.get_outputs()]
    for given in feeds:
        model.spoil()
        found = flat_outputs(model.run(given))
        wanted = flat_outputs(dict(zip(names, session.run(None, given), strict=True)))
        for name, want in wanted.items():
            have = found[name]
            if (have.shape, have.dtype) != (want.shape, want.dtype):
                return f"{name} is {have.dtype}{have.shape}, not {want.dtype}{want.shape}"
            near = have == want
            if want.dtype.kind == "f":
                near = np.isclose(have, want, _TOLERANCE, _TOLERANCE, True)
            if not np.all(near):
                return f"{name} differs in {np.count_nonzero(~near)} elements"
    return ""
