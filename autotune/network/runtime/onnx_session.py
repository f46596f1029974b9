"""⑩ ONNX Runtime for the segments of a model that are not compiled.

    session.run(tensors) ─► the tensors that the segment makes

Numeric tensors are passed without a copy: inputs are read where they are, outputs of a known shape
are written into arrays, and what has another shape in every inference stays ONNX Runtime's until
an array of it is asked for. Strings, sequences and maps are Python's objects on the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TypeProto, ValueInfoProto, helper

from autotune.codegen.memory import Recycled
from autotune.errors import MissingDependency
from autotune.network.runtime.apart import apart, has_onnxruntime
from autotune.network.runtime.baselines import blamed
from autotune.network.runtime.onnxruntime_package import (
    ONNXRUNTIME,
    onnxruntime_package,
)
from autotune.network.runtime.ort_sessions import NONE, SessionSetting, ort_session
from autotune.network.runtime.ort_values import array_of, is_plain, kind_of, ort_value

FALLBACK_HINT = (
    "pip install 'autotune-compiler[fallback]', which runs them in ONNX Runtime, or compile with "
    "`fallback=False` to see all that is missing"
)

_NEEDED = "a part of this network runs in ONNX Runtime"
_TENSOR = re.compile(r"tensor\((\w+)\)")


def require_onnxruntime(what: str) -> Any:
    """The package. Raises MissingDependency: `what` names its use."""
    try:
        return onnxruntime_package()
    except ImportError as error:
        raise _missing(what) from error


def _missing(what: str) -> MissingDependency:
    return MissingDependency(f"{what}; onnxruntime is not installed", FALLBACK_HINT)


def declared_types(model: ModelProto, names: Sequence[str]) -> Mapping[str, TypeProto]:
    """Types of tensors of `model` that ONNX Runtime infers; none if it cannot load it."""
    if not has_onnxruntime():
        raise _missing("types of operators that ONNX does not know")
    outputs = {o.name for o in model.graph.output}
    model.graph.output.extend(ValueInfoProto(name=n) for n in names if n not in outputs)
    try:
        session = apart().session(model.SerializeToString(), SessionSetting(1, NONE))
    except Exception:  # of its own, or of protobuf's: segments may load all the same
        return {}
    found = {o.name: _type(o.type, o.shape) for o in session.get_outputs()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _type(text: str, shape: Sequence[Any]) -> TypeProto | None:
    """`tensor(float)`, `seq(tensor(int64))` as ONNX's type; None for others."""
    if match := _TENSOR.fullmatch(text):
        kind = kind_of(match[1])
        dims = [d if isinstance(d, int) else None for d in shape]
        # it says [] for scalars and for unknown ranks
        return None if kind is None else helper.make_tensor_type_proto(kind, dims or None)
    if match := re.fullmatch(r"seq\(tensor\((\w+)\)\)", text):
        kind = kind_of(match[1])
        inner = None if kind is None else helper.make_tensor_type_proto(kind, None)
        return None if inner is None else helper.make_sequence_type_proto(inner)
    return None


class OnnxSession:
    """One segment, ready to run.

    `static`: shape and dtype of the outputs of which all is known. `is_alone`: no compiled segment
    runs beside it, whose threads its own would disturb by waiting for work. `is_apart`: it runs in
    a process of its own, slower, which may die of it.
    """

    def __init__(
        self,
        model: bytes,
        outputs: Sequence[str],
        static: Mapping[str, tuple[tuple[int, ...], str]],
        n_threads: int,
        is_alone: bool = False,
        is_apart: bool = False,
    ) -> None:
        setting = SessionSetting(n_threads, spin=is_alone)
        package = require_onnxruntime(_NEEDED) if not is_apart else None
        self._session: Any
        with blamed(ONNXRUNTIME, "load", ""):
            if is_apart:
                self._session = apart().session(model, setting)
            else:
                self._session = ort_session(package, model, setting)
        self._outputs = tuple(outputs)
        self._inputs = {i.name: i.type for i in self._session.get_inputs()}
        self._types = {o.name: o.type for o in self._session.get_outputs()}
        kinds = *self._inputs.values(), *self._types.values()
        self._is_bound = not is_apart and all(map(_is_numeric, kinds))
        self._memory = {
            name: Recycled(*static[name]) for name in outputs if self._is_bindable(name, static)
        }
        self._package = package

    def _is_bindable(self, name: str, static: Mapping[str, tuple[tuple[int, ...], str]]) -> bool:
        return name in static and 0 not in static[name][0] and is_plain(np.dtype(static[name][1]))

    def run(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors by name: arrays, or ONNX Runtime's own where their shape is not known before.

        Raises ModelError where ONNX Runtime fails, with its reason.
        """
        given = {name: tensors[name] for name in self._inputs}
        with blamed(ONNXRUNTIME, "run", "check the inputs: the reason is ONNX Runtime's"):
            return self._bound(given) if self._is_bound else self._called(given)

    def _called(self, given: Mapping[str, Any]) -> dict[str, Any]:
        arrays = {name: as_array(value) for name, value in given.items()}
        return dict(zip(self._outputs, self._session.run(self._outputs, arrays), strict=True))

    def _bound(self, given: Mapping[str, Any]) -> dict[str, Any]:
        binding = self._session.io_binding()
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                value = ort_value(self._package, value)
            binding.bind_ortvalue_input(name, value)
        made: dict[str, Any] = {}
        for name in self._outputs:
            memory = self._memory.get(name)
            if memory is None:
                binding.bind_output(name)
                continue
            array = made[name] = memory.take()
            address = array.__array_interface__["data"][0]
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, address)
        self._session.run_with_iobinding(binding)
        values = zip(self._outputs, binding.get_outputs(), strict=True)
        return made | {name: value for name, value in values if name not in made}


def _is_numeric(kind: str) -> bool:
    match = _TENSOR.fullmatch(kind)
    return match is not None and match[1] != "string"


def as_array(value: Any) -> Any:
    """A value of ONNX Runtime's as an array; Python's objects as they are."""
    if isinstance(value, np.ndarray) or not hasattr(value, "numpy"):
        return value
    return array_of(value)
