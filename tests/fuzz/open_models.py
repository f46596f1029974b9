"""Random models with open dimensions: one artifact, from a file, at ten sizes beside ONNX Runtime.

Every second model is drawn with a batch and a sequence; the others are models of any operators, of
which one or two dimensions are opened. Working memory is spoiled before each call, so that what is
read behind a length shows. A model may be refused; what is computed is right.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

import autotune
from autotune.errors import AutotuneError
from autotune.network.runtime.loading import load
from autotune.network.runtime.runtime import Model
from benchmarks.outcomes import Kind, Outcome, Tell, one_line, typed
from tests.fuzz.graphs import random_model
from tests.fuzz.judging import (
    NO_ORACLE,
    by_reference,
    difference,
    feeds_of,
    oracle_session,
    reference_counts,
    shifted,
)
from tests.graph.open_graphs import OpenGraph

N_SIZES = 10
_NODES = 6
_MOSTS = {"b": 5, "s": 14}
_LEAST_MOST = 9
"""Of an opened dimension that is smaller in the drawn model."""


def drawn(seed: int, drawers: Mapping[str, Any]) -> tuple[ModelProto, dict[str, int]]:
    """A model and the mosts of its open dimensions; none where there is nothing to open."""
    if seed % 2 == 0:
        return OpenGraph(seed).drawn(_NODES), _MOSTS
    return _opened(random_model(seed, drawers), np.random.default_rng(seed))


def _opened(proto: ModelProto, rng: np.random.Generator) -> tuple[ModelProto, dict[str, int]]:
    """Dimensions of one or two extents become open, wherever inputs of a rank have them."""
    graph = proto.graph
    del graph.value_info[:]
    _keep_what_is_read(graph)
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    mosts: dict[str, int] = {}
    dims = [list(port.type.tensor_type.shape.dim) for port in graph.input]
    for name in ("n", "m")[: int(rng.integers(1, 3))]:
        free = [(len(of), k, of[k].dim_value) for of in dims for k in range(len(of))]
        free = [place for place in free if place[2] > 0]
        if not free:
            break
        rank, axis, extent = free[int(rng.integers(len(free)))]
        for of in dims:
            if len(of) == rank and of[axis].dim_value == extent:
                of[axis].dim_param = name
        mosts[name] = max(_LEAST_MOST, extent)
    return proto, mosts


def _keep_what_is_read(graph: onnx.GraphProto) -> None:
    """Nodes that no output depends on go: ONNX Runtime looks at the shapes that they are for."""
    wanted, kept = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for values in (graph.input, graph.initializer):
        used = [value for value in values if value.name in wanted]
        del values[:]
        values.extend(used)


def judged(seed: int, tell: Tell = lambda stage: None) -> Outcome:
    """The outcome of a random model with open dimensions."""
    from tests.fuzz.campaigns import DRAWERS

    with (
        tempfile.TemporaryDirectory(prefix="open-") as folder,
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        try:
            proto, mosts = drawn(seed, DRAWERS)
            if not mosts:
                return Outcome(Kind.REFUSED, "nothing to open")
            return _judged(proto, mosts, seed, Path(folder), tell)
        except AutotuneError as error:
            return Outcome(*typed(error))
        except MemoryError:
            return Outcome(Kind.REFUSED, "out of memory")
        except Exception as error:
            return Outcome(Kind.UNTYPED, one_line(f"{type(error).__name__}: {error}"))


def _judged(
    proto: ModelProto, mosts: Mapping[str, int], seed: int, folder: Path, tell: Tell
) -> Outcome:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    tell("oracle")
    data = proto.SerializeToString()
    try:
        theirs = oracle_session(data)
    except Exception:
        return Outcome(Kind.RIGHT, NO_ORACLE)
    tell("compile")
    dims: Any = {name: f"..{most}" for name, most in mosts.items()}
    made = autotune.compile(path, dims=dims, threads=1, check=False, cache=False)
    made.artifact.save(folder / "model.atn")
    model = load(folder / "model.atn")
    if not isinstance(model, Model) or not model.lengths:
        return Outcome(Kind.REFUSED, "no dimension is a length")
    refusals = []
    for n, numbers in enumerate(_sizes(model.artifact.possible, seed)):
        tell(f"size {n}")
        try:
            fault = _fault(model.sized(numbers), data, theirs, seed + n, min(numbers.values()))
        except _Refused as error:
            refusals.append(one_line(f"ONNX Runtime refuses {dict(numbers)}: {error}"))
            continue
        if fault:
            return Outcome(Kind.WRONG, one_line(f"{fault} at {dict(numbers)}"))
    if len(refusals) == N_SIZES:
        return Outcome(Kind.RIGHT, NO_ORACLE)
    return Outcome(Kind.WRONG, refusals[0]) if refusals else Outcome(Kind.RIGHT)


class _Refused(Exception):
    """Why ONNX Runtime does not run a model at a size."""


def _fault(model: Model, model_bytes: bytes, theirs: Any, seed: int, least: int) -> str:
    """What is wrong with one size; empty for nothing. Raises _Refused.

    `least`: of the numbers; integers are indices into dimensions that may be as short.
    """
    feeds = feeds_of(model, seed)
    feeds = {n: a % least if a.dtype.kind in "iu" else a for n, a in feeds.items()}
    model.spoil()
    found = model.run(feeds)
    try:
        wanted = [theirs.run(None, dict(f)) for f in (feeds, shifted(feeds, 1), shifted(feeds, 2))]
    except Exception as error:  # of ONNX Runtime, whatever it is
        raise _Refused(str(error)) from error
    fault = difference(list(found.values()), wanted[0], wanted[1:])
    if fault and reference_counts(model_bytes):
        with suppress(Exception):
            fault = difference(list(found.values()), by_reference(model_bytes, feeds), wanted[1:])
    return fault


def _sizes(possible: Mapping[str, range], seed: int) -> Iterator[Mapping[str, int]]:
    """The most, the least, each at its most beside the least of others, and random ones."""
    mosts, leasts = ({name: n[at] for name, n in possible.items()} for at in (-1, 0))
    rng = np.random.default_rng(seed)
    yield from (mosts, leasts, *(leasts | {name: mosts[name]} for name in mosts))
    for _ in range(N_SIZES - 2 - len(mosts)):
        yield {name: int(rng.choice(n)) for name, n in possible.items()}
