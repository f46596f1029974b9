"""⑩ Inputs of a check: numbers as the first operators expect them, and a user's own.

    normal     normal floats, valid indices, flags
    uniform    floats from 0 to 1; of indices the first and the last; bytes of every value
    pixels     floats that are whole numbers from 0 to 255, where the model scales or centres them

Masks from which the filled length of a cache is counted are ones: results behind it are undefined.
Equal seeds give equal inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TypeProto, helper, numpy_helper

from autotune.network.artifact.artifact import Endpoint
from autotune.network.runtime.runtime import random_array, random_inputs

Array = NDArray[Any]

_PIXEL = 16.0
"""A constant that centres or scales pixels from 0 to 255 is at least so large, or one over it."""
_SCALES = {"Mul": 1, "Div": 1, "Sub": 1, "Add": 1}
_REARRANGES = ("Cast", "Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Slice", "Split")
_FLAGS = 2
_LENGTHS = 5
"""The operand of GroupQueryAttention with the number of filled places of a cache, less one."""


def check_inputs(
    ports: tuple[Endpoint, ...], graph: GraphProto, seed: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Inputs by name for every kind that says something else than the others."""
    others = _others(ports, graph, seed)
    ports = tuple(p for p in ports if p.name not in others)
    for kind, arrays in _of_tensors(ports, graph, seed):
        yield kind, {**arrays, **others}


def _others(ports: tuple[Endpoint, ...], graph: GraphProto, seed: int) -> dict[str, Any]:
    """Inputs that are no tensors: sequences of two, optionals that hold something."""
    rng = np.random.default_rng([seed, 3])
    names = {p.name for p in ports if not p.dtype}
    return {v.name: _value(rng, v.type) for v in graph.input if v.name in names}


def _value(rng: np.random.Generator, kind: TypeProto) -> Any:
    """A value of a type; dimensions that are open are 2."""
    match kind.WhichOneof("value"):
        case "sequence_type":
            return [_value(rng, kind.sequence_type.elem_type) for _ in range(2)]
        case "optional_type":
            return _value(rng, kind.optional_type.elem_type)
        case "tensor_type":
            shape = [d.dim_value or 2 for d in kind.tensor_type.shape.dim]
            shape = shape if kind.tensor_type.HasField("shape") else [2]
            dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
            numbers = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            return np.asarray(numbers).astype(dtype)
        case _:
            return {}


def _of_tensors(
    ports: tuple[Endpoint, ...], graph: GraphProto, seed: int
) -> Iterator[tuple[str, dict[str, Array]]]:
    nonzero = _divisors(graph) | _masks_of_caches(graph)
    yield "normal", _without_zeros(random_inputs(ports, seed), nonzero)
    if ports:
        rng = np.random.default_rng([seed, 1])
        yield "uniform", _without_zeros({p.name: _uniform(rng, p) for p in ports}, nonzero)
    pixels = set(_pixels(graph)) & {p.name for p in ports if p.is_float}
    if pixels:
        rng = np.random.default_rng([seed, 2])
        arrays = {p.name: _uniform(rng, p) for p in ports}
        shades = {p.name: rng.integers(0, 256, p.shape) for p in ports if p.name in pixels}
        dtypes = {p.name: p.numpy_dtype for p in ports}
        yield "pixels", arrays | {name: a.astype(dtypes[name]) for name, a in shades.items()}


def inferences(
    known: Sequence[tuple[Endpoint, ...]], arrays: Mapping[str, Array]
) -> list[dict[str, Array]]:
    """The inferences that `arrays` are, for a model that takes one of `known` inputs.

    One where all shapes are the model's; else several along a dimension in front of those of some
    inputs, or along a first dimension that is a multiple of theirs, while the other inputs are the
    same in all of them. None where the arrays fit to no variant.
    """
    for ports in known:
        if arrays.keys() == {p.name for p in ports}:
            counts = {p.name: _count(arrays[p.name].shape, p.shape) for p in ports}
            several = {n for n in counts.values() if n != 1}
            if len(several) <= 1 and 0 not in several:
                return [_nth(ports, arrays, counts, n) for n in range(max(several, default=1))]
    return []


def _count(given: Sequence[int], shape: Sequence[int]) -> int:
    """Number of arrays of `shape` that are stacked in one of shape `given`; 0 if none fit."""
    given, shape = tuple(given), tuple(shape)
    if given == shape:
        return 1
    if given[1:] == shape:
        return given[0]
    is_multiple = bool(shape) and given[1:] == shape[1:] and shape[0] > 0
    return given[0] // shape[0] if is_multiple and given[0] % shape[0] == 0 else 0


def _nth(
    ports: Sequence[Endpoint], arrays: Mapping[str, Array], counts: Mapping[str, int], n: int
) -> dict[str, Array]:
    """The inputs of inference `n`."""
    return {
        p.name: arrays[p.name].reshape(count, *p.shape)[n if count > 1 else 0, ...]  # no scalar
        for p in ports
        for count in (counts[p.name],)
    }


def _uniform(rng: np.random.Generator, port: Endpoint) -> Array:
    dtype = port.numpy_dtype
    if port.dtype == "string":
        return random_array(rng, port)
    if port.is_float:
        return rng.random(port.shape).astype(dtype)
    if port.limit > _FLAGS:
        return (rng.integers(0, 2, port.shape) * (port.limit - 1)).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, port.shape, dtype, endpoint=True)
    return rng.integers(0, port.limit, port.shape).astype(dtype)


def _without_zeros(arrays: Mapping[str, Array], names: set[str]) -> dict[str, Array]:
    """Integers of these inputs are not zero: some runtimes end the process where something is
    divided by it, and masks have no holes."""
    return {
        name: np.where(a == 0, 1, a).astype(a.dtype)
        if name in names and a.dtype.kind in "iu"
        else a
        for name, a in arrays.items()
    }


def _divisors(graph: GraphProto) -> set[str]:
    nodes = (n for n in graph.node if n.op_type in ("Div", "Mod") and len(n.input) > 1)
    return {node.input[1] for node in nodes}


def _masks_of_caches(graph: GraphProto) -> set[str]:
    """Inputs from which the filled lengths of caches are computed."""
    makers = {name: node for node in graph.node for name in node.output}
    names = [n.input[_LENGTHS] for n in graph.node if n.op_type == "GroupQueryAttention"]
    found: set[str] = set()
    while names:
        name = names.pop()
        maker = makers.get(name)
        if name not in found and maker is not None:
            names += maker.input
        found.add(name)
    return found & {i.name for i in graph.input}


def _pixels(graph: GraphProto) -> Iterator[str]:
    """Inputs that the first arithmetic on them centres or scales as it does with pixels."""
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer if _is_small(t.dims)}
    constants |= {n.output[0]: a for n in graph.node for a in _constant(n)}
    roots = {i.name: i.name for i in graph.input}
    for node in graph.node:
        root = roots.get(node.input[0]) if node.input else None
        if root is None:
            continue
        if node.op_type in _REARRANGES:
            roots |= dict.fromkeys(node.output, root)
        elif _scales_pixels(node, constants):
            yield root


def _scales_pixels(node: NodeProto, constants: Mapping[str, Array]) -> bool:
    slot = _SCALES.get(node.op_type)
    by = constants.get(node.input[slot]) if slot is not None and len(node.input) > slot else None
    if by is None or by.dtype.kind != "f" or not by.size:
        return False
    size = float(np.abs(by).max())
    return 0 < size <= 1 / _PIXEL if node.op_type == "Mul" else _PIXEL <= size <= 256


def _is_small(dims: Any) -> bool:
    return int(np.prod(dims, dtype=np.int64)) <= 1024


def _constant(node: NodeProto) -> Iterator[Array]:
    if node.op_type == "Constant":
        for attribute in node.attribute:
            if attribute.name == "value" and _is_small(attribute.t.dims):
                yield numpy_helper.to_array(attribute.t)
            elif attribute.name in ("value_float", "value_floats"):
                yield np.asarray(helper.get_attribute_value(attribute), np.float32)
