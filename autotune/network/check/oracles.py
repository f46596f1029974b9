"""⑩ Oracles: the original file of a model, run by another runtime.

    ONNX Runtime without its optimisations, else onnx.reference, else NumPy on the network's tasks

The first two run the file as it is: before our conversion to one opset, folding and fusion. The
last shares our reading of the model, but neither schedules nor code generation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper
from onnx.external_data_helper import uses_external_data
from onnx.reference import ReferenceEvaluator

from autotune.errors import MissingDependency, ModelError
from autotune.graph.bound_model import BoundModel
from autotune.graph.reader.constant_inputs import fed, shapes_of
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.external_data import tensors_of
from autotune.graph.reader.node_order import all_nodes, put_in_order
from autotune.graph.reader.onnx_reader import (
    bind_inputs,
    prepare_model,
    read_file,
    read_outline,
)
from autotune.graph.reader.opsets import opset_of
from autotune.graph.reader.sparse_constants import make_dense
from autotune.network.check.definitions import DEFINITIONS
from autotune.network.check.rounding import EXACT, rounded_anew
from autotune.network.runtime.baselines import Runner, apart_runner, blamed
from autotune.network.runtime.onnxruntime_package import ONNXRUNTIME

Array = NDArray[Any]
Arrays = Mapping[str, Array]

REFERENCE, NUMPY = "onnx.reference", "NumPy"

_MISREAD = {"BatchNormalization": 14, "Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "LRN": 999}
"""Operators that onnx.reference computes wrongly below an opset."""
_POOLS = ("MaxPool", "AveragePool", "LpPool")
"""Operators whose padding it computes wrongly where it is SAME_LOWER and they are dilated."""


class _Contents:
    """What was read of a model's file, and the sessions that run it: of all its sizes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.runners: dict[int, Runner] = {}

    @cached_property
    def outline(self) -> ModelProto:
        """The model without its large weights."""
        found = read_outline(self._path)
        make_dense(found)
        put_in_order(found.graph)
        return found


@dataclass(frozen=True)
class Original:
    """A model's file as it is, with the shapes of inputs that the user bound."""

    model: BoundModel
    shapes: Shapes = field(default_factory=dict)
    _shared: _Contents | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _contents(self) -> _Contents:
        return self._shared or _Contents(self.model.path)

    def at(self, shapes: Shapes) -> Original:
        """The same file at other shapes of some inputs; it is read once for all."""
        return Original(self.model, {**self.shapes, **shapes}, self._contents)

    @cached_property
    def proto(self) -> ModelProto:
        """The model as it is in the file; only the stated shapes are changed where bound."""
        bound = self.model
        if bound.random_weights:
            return prepare_model(bound.path, self.shapes, True, bound.constants)
        return self._bound(read_file(bound.path))

    @cached_property
    def outline(self) -> ModelProto:
        """`proto`, where large weights may have no data; reading it costs next to nothing."""
        found = self._contents.outline
        if self.model.random_weights or any(map(uses_external_data, tensors_of(found))):
            return self.proto
        own = ModelProto()
        own.CopyFrom(found)
        return self._bound(own)

    def _bound(self, model: ModelProto) -> ModelProto:
        bind_inputs(model, {**self.shapes, **shapes_of(fed(model, self.model.constants))})
        return model

    @cached_property
    def fed(self) -> dict[str, Array]:
        """The constants as the inputs of `proto` take them."""
        return fed(self.outline, self.model.constants)

    @cached_property
    def source(self) -> Path | ModelProto:
        """The file itself, unless something in it was changed: see `proto`."""
        is_changed = self.model.random_weights or self._is_rebound
        return self.proto if is_changed else self.model.path

    @property
    def _is_rebound(self) -> bool:
        return any(
            dim.dim_value not in (0, extent)
            for value in self._contents.outline.graph.input
            for dim, extent in zip(
                value.type.tensor_type.shape.dim, self.shapes.get(value.name, ()), strict=False
            )
        )

    def in_onnxruntime(self, n_threads: int) -> Runner:
        """See `by_onnxruntime`; the file itself is loaded once for all shapes."""
        if isinstance(self.source, ModelProto):
            return by_onnxruntime(n_threads, self.source)
        runners = self._contents.runners
        if n_threads not in runners:
            runners[n_threads] = by_onnxruntime(n_threads, self.source)
        return runners[n_threads]


class Oracle:
    """One way to run a model. `rounded` gives the outputs of models that round otherwise.

    `begin`: the way to run `original` itself, by `make` unless told.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[ModelProto], Runner],
        original: Original,
        begin: Callable[[], Runner] | None = None,
    ) -> None:
        self.name = name
        self._make, self._original = make, original
        self._begin = begin or (lambda: make(original.proto))

    @cached_property
    def run(self) -> Runner:
        """Raises ModelError or MissingDependency, also when it is called."""
        run, fixed = self._begin(), self._original.fed
        return lambda inputs: run({**inputs, **fixed})

    def rounded(self, inputs: Arrays, seeds: range, scale: float) -> Iterator[Arrays]:
        """Outputs of `rounded_anew` models; without those that cannot be run."""
        for seed in seeds:
            # any model may be beyond shape inference; there is just less to go by then
            with contextlib.suppress(Exception):
                model = rounded_anew(self._original.proto, seed, scale)
                names = [i.name for i in model.graph.input]
                given = {**inputs, **self._original.fed}
                yield self._make(model)({n: given[n.removesuffix(EXACT)] for n in names})


def onnxruntime_oracle(original: Original, n_threads: int) -> Oracle:
    """ONNX Runtime, node by node as the file has them."""
    make = partial(by_onnxruntime, n_threads)
    begin = partial(original.in_onnxruntime, n_threads)
    return Oracle(ONNXRUNTIME, make, original, begin)


def by_onnxruntime(n_threads: int, model: Path | ModelProto) -> Runner:
    """`model` in ONNX Runtime without optimisations, in a process of its own.

    Raises ModelError, also when it is called.
    """
    with blamed(ONNXRUNTIME, "load", ""):
        run = apart_runner(model, n_threads)

    def outputs(inputs: Arrays) -> dict[str, Array]:
        with blamed(ONNXRUNTIME, "run", ""):
            return run(inputs)

    return outputs


def reference_oracle(original: Original) -> Oracle:
    """The evaluator of the `onnx` package, the reference of the standard; slow."""
    return Oracle(REFERENCE, by_reference, original)


def by_reference(proto: ModelProto) -> Runner:
    """`proto` in `onnx.reference`, with the definitions that it lacks. Raises as `by_onnxruntime`,
    and for what it computes wrongly."""
    misread = sorted(set(_misread(proto)))
    if misread:
        raise ModelError(f"{REFERENCE} misreads {', '.join(misread)} of this opset")
    with blamed(REFERENCE, "load", ""):
        evaluator = ReferenceEvaluator(proto, new_ops=[*DEFINITIONS])
    kinds = {o.name: o.type.tensor_type.elem_type for o in proto.graph.output}

    def outputs(inputs: Arrays) -> dict[str, Any]:
        with blamed(REFERENCE, "run", ""), np.errstate(all="ignore"):
            found = evaluator.run(None, dict(inputs))
        named = zip(evaluator.output_names, found, strict=True)
        return {name: _as_stated(x, kinds[name]) for name, x in named}

    return outputs


@dataclass
class Oracles:
    """The oracles of one model in order of preference; those that failed, and why."""

    original: Original
    n_threads: int
    numpy: Runner
    problems: list[str] = field(default_factory=list)

    @cached_property
    def _first(self) -> tuple[Oracle, ...]:
        return onnxruntime_oracle(self.original, self.n_threads), self.reference

    @cached_property
    def reference(self) -> Oracle:
        """Oracle: the standard's own evaluator."""
        return reference_oracle(self.original)

    @cached_property
    def _last(self) -> Oracle:
        fixed = self.original.fed
        return Oracle(NUMPY, _refused, self.original, lambda: _without(fixed, self.numpy))

    def ask(self, inputs: Arrays) -> tuple[Oracle, Arrays]:
        """The first oracle that can run the model on `inputs`, and its outputs."""
        for oracle in self._first:
            try:
                return oracle, oracle.run(inputs)
            except (MissingDependency, ModelError) as error:
                self._note(error)
        return self._last, self._last.run(inputs)

    def _note(self, error: MissingDependency | ModelError) -> None:
        is_new = isinstance(error, ModelError) and error.message not in self.problems
        self.problems += [error.message] if is_new else []


def _without(fixed: Arrays, run: Runner) -> Runner:
    """`run` without inputs that a network has as constants."""
    return lambda inputs: run({n: x for n, x in inputs.items() if n not in fixed})


def _refused(model: ModelProto) -> Runner:
    raise ModelError("the tasks of a network cannot be rounded anew")


def _misread(model: ModelProto) -> Iterator[str]:
    opset = opset_of(model.opset_import)
    for graph in (model.graph, *model.functions):
        for node in all_nodes(graph):
            if opset < _MISREAD.get(node.op_type, 0):
                yield node.op_type
            elif node.op_type in _POOLS and _is_dilated(node):
                yield f"{node.op_type} with SAME_LOWER and dilations"


def _is_dilated(node: NodeProto) -> bool:
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return attrs.get("auto_pad") == b"SAME_LOWER" and max(attrs.get("dilations", [1])) > 1


def _as_stated(value: Any, kind: int) -> Any:
    """`value` in the type that the model states, which the evaluator does not always keep."""
    if value is None or isinstance(value, list):
        return value
    array = np.asarray(value)
    dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else array.dtype
    with np.errstate(all="ignore"):
        return array.astype(dtype, copy=False)
