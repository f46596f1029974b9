"""⑩ Validation of the manifest of a hybrid artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from autotune.codec import LEFT_OUT, Holds, Misfit, coded
from autotune.dtypes import SMALL_TYPES
from autotune.graph.constant_values import ConstantsField
from autotune.network.artifact.artifact import Endpoint, Error, Positive, Size, Text
from autotune.network.artifact.container import CONSTANTS, IMAGE, Damaged, Json, model_name, require
from autotune.network.artifact.manifest import (
    MOST_VARIANTS,
    require_fields_of_networks,
    require_network,
    require_shared,
)

_FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e8m0fnu")
_DTYPES = (*_FLOATS, *SMALL_TYPES, "bool", "string", "")
_INTEGERS = tuple(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))
_MOST_DEPTH = 16
_N_BODIES = {"If": 2, "Loop": 1}

_Names: TypeAlias = tuple[Text, ...]


def _is_of_model(port: Endpoint) -> bool:
    is_apart = not port.base and not port.offset and port.window is None and not port.is_native
    return is_apart and not port.extents and port.dtype in (*_DTYPES, *_INTEGERS)


_Ports: TypeAlias = tuple[Annotated[Endpoint, Holds(_is_of_model, "of a model")], ...]


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """A branch or a body."""

    inputs: _Ports
    outputs: _Ports
    segments: tuple[SegmentPlan, ...]


@dataclass(frozen=True, slots=True)
class ModelPlan(BodyPlan):
    """A model at one of its shapes."""

    max_error: Error


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """An If or a Loop."""

    op: Annotated[str, Holds(_N_BODIES.__contains__, "If or Loop")]
    name: Text
    operands: _Names
    results: _Names
    constants: ConstantsField
    bodies: tuple[BodyPlan, ...]


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A segment: the number of a network or of an ONNX file, or control flow."""

    inputs: _Names
    outputs: _Names
    operators: Mapping[str, Positive]
    network: Size | None
    model: Size | None
    control: Annotated[ControlPlan | None, LEFT_OUT] = None


def require_hybrid(manifest: Json) -> None:
    """Raise Damaged where a field is missing or impossible."""
    require_shared(manifest)
    networks: Any = manifest.get("networks")
    require(isinstance(networks, list), "its networks cannot be")
    models = [name for name in manifest["parts"] if name.startswith("onnx/")]
    n_models = len(models)
    require(set(models) == set(map(model_name, range(n_models))), "it names other ONNX files")
    require(set(manifest["parts"]) == {CONSTANTS, IMAGE, *models}, "its manifest names other parts")
    require_fields_of_networks(networks)
    for plan in plans_of(manifest):
        _require_bounds(plan, len(networks), n_models)
        _require_order(plan)


def plans_of(manifest: Json) -> Sequence[ModelPlan]:
    """The model at each of its shapes. Raises Damaged."""
    try:
        plans: Sequence[ModelPlan] = coded(tuple[ModelPlan, ...]).read(manifest.get("plans"))
    except (Misfit, RecursionError) as error:
        raise Damaged("its plans cannot be") from error
    require(0 < len(plans) <= MOST_VARIANTS, "its plans cannot be")
    return plans


def _require_bounds(plan: BodyPlan, n_networks: int, n_models: int, depth: int = 0) -> None:
    """Whether there are the networks and models, and not too many bodies in one another."""
    for segment in plan.segments:
        is_there = (segment.network or 0) < max(n_networks, segment.network is None)
        is_there &= (segment.model or 0) < max(n_models, segment.model is None)
        is_flat = segment.control is None or depth < _MOST_DEPTH
        require(is_there and is_flat, "its plans cannot be")
        for body in segment.control.bodies if segment.control else ():
            _require_bounds(body, n_networks, n_models, depth + 1)


def _require_order(plan: BodyPlan) -> None:
    """Whether every operand of a segment is defined before, and every output is made."""
    there = {port.name for port in plan.inputs}
    for segment in plan.segments:
        kinds = [segment.network is None, segment.model is None, segment.control is None]
        require(sorted(kinds) == [False, True, True], "a segment is of no kind")
        require(there.issuperset(segment.inputs), "a segment reads what is not there")
        if segment.control is not None:
            _require_control(segment.control, segment, there)
        there.update(segment.outputs)
    require(there.issuperset(p.name for p in plan.outputs), "an output is made by nobody")


def _require_control(control: ControlPlan, segment: SegmentPlan, there: set[str]) -> None:
    """Whether operands and captured tensors are there, and every body makes the results."""
    bodies, operands = control.bodies, control.operands
    n_own = 0 if control.op == "If" else 1  # the condition, and the number of the iteration
    n_carried = len(operands) - 2 if n_own else 0
    require(len(bodies) == _N_BODIES[control.op], "a segment has other bodies")
    require(len(operands) >= 1 + n_own, "a segment lacks its condition")
    required = operands[2:] if n_own else operands
    require(
        {*there, *control.constants, ""}.issuperset(operands) and "" not in required,
        "a segment reads what is not there",
    )
    require(set(control.results) - {""} == set(segment.outputs), "a result is of no body")
    for body in bodies:
        own, more = body.inputs[: n_own + n_carried], body.inputs[n_own + n_carried :]
        require(len(own) == n_own + n_carried, "a body reads less than is carried")
        require(there.issuperset(port.name for port in more), "a body reads what is not there")
        n_results = len(body.outputs) - n_own
        is_whole = n_carried <= n_results == len(control.results)
        require(is_whole, "a result is of no body")
        _require_order(body)


def networks_of(manifest: Json) -> list[Mapping[str, Any]]:
    """A manifest for every compiled network. Raises Damaged where one cannot be."""
    shared = {n: value for n, value in manifest.items() if n not in ("networks", "plans")}
    found: list[Mapping[str, Any]] = [{**shared, **network} for network in manifest["networks"]]
    for one in found:
        require_network(one)
        require(not one.get("lengths"), "a part of it has lengths")
    return found
