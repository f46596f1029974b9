"""⑩ What the manifest of a hybrid artifact says, looked at before anybody believes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autotune.dtypes import SMALL_TYPES
from autotune.network.container import CONSTANTS, IMAGE, model_name, require
from autotune.network.manifest import (
    MOST_PARTS,
    MOST_VARIANTS,
    Json,
    are_constants,
    is_error,
    is_list_of,
    is_map_of,
    is_number,
    is_record,
    is_text,
    require_fields_of_networks,
    require_network,
    require_shared,
)

_FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e8m0fnu")
_DTYPES = (*_FLOATS, *SMALL_TYPES, "bool", "string", "")
_INTEGERS = tuple(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))
_MOST_DIMENSIONS = 64
_MOST_DEPTH = 16
_N_BODIES = {"If": 2, "Loop": 1}

_port = is_record(
    name=is_text,
    shape=is_list_of(is_number(-1), _MOST_DIMENSIONS),
    dtype=lambda x: x in (*_DTYPES, *_INTEGERS),
    base=lambda x: x == 0,
    offset=lambda x: x == 0,
    window=lambda x: x is None,
    limit=is_number(1),
)


def _maybe(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or holds(x)


def require_hybrid(manifest: Json) -> None:
    """Raise Damaged where a field is missing, or says what cannot be."""
    require_shared(manifest)
    networks: Any = manifest.get("networks")
    require(isinstance(networks, list) and len(networks) <= MOST_PARTS, "its networks cannot be")
    models = [name for name in manifest["parts"] if name.startswith("onnx/")]
    n_models = len(models)
    require(set(models) == set(map(model_name, range(n_models))), "it names other ONNX files")
    require(set(manifest["parts"]) == {CONSTANTS, IMAGE, *models}, "its manifest names other parts")
    require_fields_of_networks(networks)
    plans: Any = manifest.get("plans")
    holds = _plan(len(networks), n_models, max_error=is_error)
    require(is_list_of(holds, MOST_VARIANTS)(plans) and plans, "its plans cannot be")
    for one in plans:
        _require_order(one)


def _plan(
    n_networks: int, n_models: int, depth: int = 0, **more: Callable[[Any], bool]
) -> Callable[[Any], bool]:
    """Of a model at one shape, or of a body of one."""
    fields = {
        "inputs": is_list_of(is_text),
        "outputs": is_list_of(is_text),
        "operators": is_map_of(is_number(1)),
        "network": _maybe(is_number(0, n_networks - 1)),
        "model": _maybe(is_number(0, n_models - 1)),
    }
    plain = is_record(**fields)

    def segment(value: Any) -> bool:
        if not isinstance(value, dict) or "control" not in value or depth == _MOST_DEPTH:
            return plain(value)
        control = is_record(
            op=lambda x: x in _N_BODIES,
            name=is_text,
            operands=is_list_of(is_text),
            results=is_list_of(is_text),
            constants=are_constants,
            bodies=is_list_of(_plan(n_networks, n_models, depth + 1)),
        )
        return is_record(**fields, control=control)(value)

    ports = {"inputs": is_list_of(_port), "outputs": is_list_of(_port)}
    return is_record(**ports, **more, segments=is_list_of(segment))


def _require_order(plan: Json) -> None:
    """Whether every segment reads what is there, and every output is made."""
    there = {port["name"] for port in plan["inputs"]}
    for segment in plan["segments"]:
        kinds = [segment["network"] is None, segment["model"] is None, "control" not in segment]
        require(sorted(kinds) == [False, True, True], "a segment is of no kind")
        require(there.issuperset(segment["inputs"]), "a segment reads what is not there")
        if "control" in segment:
            _require_control(segment["control"], segment, there)
        there.update(segment["outputs"])
    require(there.issuperset(p["name"] for p in plan["outputs"]), "an output is made by nobody")


def _require_control(control: Json, segment: Json, there: set[str]) -> None:
    """Whether the operands and what bodies read are there, and every body makes the results."""
    bodies, operands = control["bodies"], control["operands"]
    n_own = 0 if control["op"] == "If" else 1  # the condition, and the number of the iteration
    n_carried = len(operands) - 2 if n_own else 0
    require(len(bodies) == _N_BODIES[control["op"]], "a segment has other bodies")
    require(len(operands) >= 1 + n_own, "a segment lacks its condition")
    required = operands[2:] if n_own else operands
    require(
        {*there, *control["constants"], ""}.issuperset(operands) and "" not in required,
        "a segment reads what is not there",
    )
    require(set(control["results"]) - {""} == set(segment["outputs"]), "a result is of no body")
    for body in bodies:
        own, more = body["inputs"][: n_own + n_carried], body["inputs"][n_own + n_carried :]
        require(len(own) == n_own + n_carried, "a body reads less than is carried")
        require(there.issuperset(port["name"] for port in more), "a body reads what is not there")
        n_results = len(body["outputs"]) - n_own
        is_whole = n_carried <= n_results == len(control["results"])
        require(is_whole, "a result is of no body")
        _require_order(body)


def networks_of(manifest: Json) -> list[Mapping[str, Any]]:
    """A manifest for every compiled network. Raises Damaged where one cannot be."""
    shared = {n: value for n, value in manifest.items() if n not in ("networks", "plans")}
    found: list[Mapping[str, Any]] = [{**shared, **network} for network in manifest["networks"]]
    for one in found:
        require_network(one)
    return found
