"""What becomes of a model: compiled with the default programs, run once, compared with an oracle.

    outcome = judge(case, Compiler())      # right, refused, wrong or untyped

Everything happens in this process; `benchmarks.isolation` does it where a crash ends nobody else.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from autotune.errors import AutotuneError
from autotune.graph.network import build_network, chosen
from autotune.graph.reader.onnx_reader import drop_initializers_from_inputs
from autotune.network.artifact.artifact import Artifact
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.schedule.steps import Steps
from autotune.search.defaults import default_steps
from autotune.target import Target, host_target
from autotune.te.dag import ComputeDAG

Array = NDArray[Any]
Tell = Callable[[str], None]


class Kind(StrEnum):
    """How a model may end. `LOST`: the process died or had to be ended."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    UNTYPED = "untyped"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`text`: why, in one line; empty where right."""

    kind: Kind
    text: str = ""


@dataclass(frozen=True)
class Case:
    """A serialised model with data sets: inputs and the outputs that they have to give, in order.

    `rtol`, `atol`: as in `numpy.testing.assert_allclose`.
    """

    name: str
    model: bytes
    data: tuple[tuple[Sequence[Any], Sequence[Any]], ...]
    rtol: float = 1e-3
    atol: float = 1e-7


class Compiler:
    """Compiles small models for one thread; equal tasks of all of them are scheduled once."""

    def __init__(self, target: Target | None = None) -> None:
        """`target`: this CPU by default."""
        self.target = target or host_target()
        self._steps: dict[str, Steps] = {}

    def __call__(
        self, model: bytes, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> Runnable:
        """The runnable network of a serialised model. Raises AutotuneError."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model)
            network = chosen(build_network(path, shapes), {})
        steps = {key: self._steps_of(dag) for key, dag in network.tasks.items()}
        return self.runnable(compile_network(network, steps, self.target))

    def runnable(self, artifact: Artifact) -> Runnable:
        """What runs a compiled network."""
        return Model(artifact)

    def _steps_of(self, dag: ComputeDAG) -> Steps:
        text = str(dag)  # with the names that steps go by
        if text not in self._steps:
            self._steps[text] = default_steps(dag, self.target, 1)
        return self._steps[text]


class Runnable(Protocol):
    """What computes arrays by name from arrays by name."""

    def run(self, inputs: Any, /) -> Any:
        """The outputs."""


Make = Callable[[bytes, Mapping[str, tuple[int, ...]]], Runnable]


def judge(case: Case, compiler: Make, tell: Tell = lambda stage: None) -> Outcome:
    """The outcome of a case. `tell` hears of each stage before it begins."""
    proto = ModelProto.FromString(case.model)
    drop_initializers_from_inputs(proto)
    ports = [i.name for i in proto.graph.input]
    outputs = [o.name for o in proto.graph.output]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            tell("compile")
            shapes = _free_shapes(proto, case.data[0][0])
            model = compiler(case.model, shapes)
            tell("run")
            for inputs, expected in case.data:
                found = model.run(dict(zip(ports, map(_value, inputs), strict=True)))
                fault = difference(
                    [found[name] for name in outputs], expected, case.rtol, case.atol
                )
                if fault:
                    return Outcome(Kind.WRONG, fault)
    except AutotuneError as error:
        return Outcome(*typed(error))
    except Exception as error:
        return Outcome(Kind.UNTYPED, one_line(f"{type(error).__name__}: {error}"))
    return Outcome(Kind.RIGHT)


def _value(given: Any) -> Any:
    """An array, or a list of arrays; None for an optional that holds nothing."""
    if given is None or isinstance(given, list | tuple):
        return None if given is None else [_value(part) for part in given]
    return np.asarray(given)


def typed(error: AutotuneError) -> tuple[Kind, str]:
    """Refused, if the error says why in one line."""
    is_line = bool(error.message.strip()) and "\n" not in error.message + error.hint
    return (Kind.REFUSED if is_line else Kind.UNTYPED), one_line(error.message)


def one_line(text: str) -> str:
    """`text` without line breaks and folders, of at most 300 characters."""
    return re.sub(r"/\S*/model\.onnx", "model.onnx", " ".join(text.split()))[:300]


def _free_shapes(proto: ModelProto, inputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays for inputs that the model leaves open."""
    out: dict[str, tuple[int, ...]] = {}
    for port, value in zip(proto.graph.input, inputs, strict=False):
        tensor = port.type.tensor_type
        dims = [d.dim_value for d in tensor.shape.dim]
        is_open = port.type.HasField("tensor_type") and (
            not tensor.HasField("shape") or not all(dims)
        )
        if is_open and isinstance(value, np.ndarray | np.generic) and value.size:
            out[port.name] = np.shape(value)
    return out


def difference(found: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> str:
    """What differs between outputs, as ONNX's own test runner compares them; empty if nothing."""
    for n, (got, given) in enumerate(zip(found, expected, strict=True)):
        if given is None:
            continue
        if isinstance(given, list | tuple):
            if not isinstance(got, list | tuple) or len(got) != len(given):
                return f"output {n} is no sequence of {len(given)}"
            fault = difference(got, given, rtol, atol)
            if fault:
                return f"{fault} of output {n}"
            continue
        want = np.asarray(given)
        if want.dtype.name.startswith("float8") and got.dtype == np.uint8:
            got = got.view(want.dtype)  # what ONNX Runtime gives for them
        if want.dtype.kind in "OU":
            if got.shape != want.shape or not np.array_equal(got.astype(str), want.astype(str)):
                return f"output {n}: other strings"
            continue
        if got.dtype != want.dtype:
            return f"output {n} has dtype {got.dtype}, expected {want.dtype}"
        if got.shape != want.shape:
            return f"output {n} has shape {got.shape}, expected {want.shape}"
        tolerance = rtol
        if want.dtype.name == "bfloat16":
            tolerance = max(rtol, 2**-6)
        if want.dtype.kind not in "biuf":
            got, want = got.astype(np.float32), want.astype(np.float32)
        if not np.allclose(got, want, tolerance, atol, equal_nan=True):
            return f"output {n}: {_worst(got, want)}"
    return ""


def _worst(got: Array, want: Array) -> str:
    """Where two arrays differ most."""
    wide = [a.astype(np.float64) for a in (got, want)]
    with np.errstate(all="ignore"):
        gap = np.abs(wide[0] - wide[1])
    gap[np.isnan(wide[0]) & np.isnan(wide[1])] = 0
    gap[(wide[0] == wide[1])] = 0
    gap[np.isnan(gap)] = np.inf
    at = np.unravel_index(int(gap.argmax()), gap.shape) if gap.size else ()
    where = ", ".join(str(int(i)) for i in at)
    return f"{got[at]!r} at [{where}], expected {want[at]!r}"


def with_constants(case: Case) -> Case:
    """The case with all inputs but the first as constants of the model, as exporters write them.

    Raises ValueError where no input can be a constant, or data sets differ in one.
    """
    if len(case.data) != 1:
        raise ValueError
    proto = ModelProto.FromString(case.model)
    drop_initializers_from_inputs(proto)
    inputs, outputs = case.data[0]
    kept: list[Any] = list(inputs[:1])
    for port, value in list(zip(proto.graph.input, inputs, strict=True))[1:]:
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            proto.graph.initializer.append(numpy_helper.from_array(array, port.name))
            proto.graph.input.remove(port)
        else:
            kept.append(value)
    if len(kept) == len(inputs):
        raise ValueError
    data = ((tuple(kept), outputs),)
    return Case(case.name, proto.SerializeToString(), data, case.rtol, case.atol)
