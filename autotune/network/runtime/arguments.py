"""⑩ Arguments of a compiled network: arrays by name or in order, and arrays for outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import is_of_ml_dtypes
from autotune.errors import UsageError
from autotune.names import listed, require_known
from autotune.network.artifact.artifact import Endpoint

Array = NDArray[Any]
Ends: TypeAlias = "Mapping[str, tuple[Endpoint, np.dtype[Any]]]"
"""Inputs or outputs of a network by name, with NumPy's dtype of each."""
Inputs: TypeAlias = "Mapping[str, Any] | Sequence[Any]"
"""Arrays, or objects that give one, by name or in order."""
Outputs: TypeAlias = "Mapping[str, Array] | Sequence[Array] | Array | None"
"""Arrays for some of the outputs by name, or for all in order; one alone is the only output."""


def in_order(ends: Sequence[Endpoint], arrays: Any) -> dict[str, Any]:
    """Arrays that stand in the order of `ends`, by name; one alone is the first.

    Raises UsageError where there are more or fewer.
    """
    given = (arrays,) if hasattr(arrays, "shape") else tuple(arrays)
    if len(given) != len(ends):
        names = ", ".join(f"'{end.name}'" for end in ends)
        raise UsageError(
            f"{len(given)} arrays are given, expected {len(ends)}", f"in this order: {names}"
        )
    return {end.name: array for end, array in zip(ends, given, strict=True)}


def as_array(name: str, value: Any) -> Array:
    """Array of another library as a NumPy array, of the same memory where it allows that.

    Raises UsageError for anything but an array.
    """
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if hasattr(value, "__array__"):
            return np.asarray(value)
    except Exception as error:  # whatever the other library raises
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"input '{name}' gives no array: {reason}", "convert it to a NumPy array"
        ) from error
    raise UsageError(
        f"input '{name}' is a {type(value).__name__}", "give a NumPy array (np.asarray)"
    )


def ends_by_name(ends: Sequence[Endpoint]) -> dict[str, tuple[Endpoint, np.dtype[Any]]]:
    """Ports by name, with NumPy's dtype of each."""
    return {end.name: (end, end.numpy_dtype) for end in ends}


def outputs_given(ends: Ends, out: Any) -> dict[str, Array]:
    """The arrays of `out` by the name of their output.

    Raises UsageError for arrays that do not fit, cannot be written, or share memory.
    """
    is_named = isinstance(out, Mapping)
    named = dict(out) if is_named else in_order([end for end, _ in ends.values()], out)
    require_known("output", named, ends)
    for name, array in named.items():
        _require_fit(*ends[name], array)
    arrays = list(named.values())
    for n, array in enumerate(arrays):
        if any(_share(array, other) for other in arrays[:n]):
            raise UsageError("arrays of `out` share memory", "give each output an array of its own")
    return named


def _require_fit(end: Endpoint, dtype: np.dtype[Any], array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise UsageError(f"`out` of '{end.name}' is a {type(array).__name__}", "give a NumPy array")
    if array.dtype != dtype or array.shape != end.shape:
        raise UsageError(
            f"`out` of '{end.name}' is {array.dtype}{list(array.shape)}",
            f"the output is {dtype}{list(end.shape)}",
        )
    if not array.flags.writeable:
        raise UsageError(f"`out` of '{end.name}' cannot be written", "give a writable array")


def writable_in_place(
    given: Mapping[str, Array], ends: Ends, inputs: Collection[Array]
) -> dict[str, Array]:
    """Those of `given` that the last kernels can write: dense, and disjoint from inputs."""
    return {
        name: array
        for name, array in given.items()
        if ends[name][0].stored == ends[name][0].dtype
        and array.flags.c_contiguous
        and array.flags.aligned
        and not any(_share(array, x) for x in inputs)
    }


def _share(a: Array, b: Array) -> bool:
    """Whether the memory from first to last element of two arrays overlaps."""
    return bool(np.may_share_memory(a, b))


def require_names(ports: Sequence[Endpoint], inputs: Mapping[str, Array]) -> None:
    """Raise UsageError where `inputs` lack one of `ports`, or have others."""
    names = [end.name for end in ports]
    if inputs.keys() == set(names):
        return
    require_known("input", inputs, names)
    missing = [f"'{name}'" for name in names if name not in inputs]
    verb = "is" if len(missing) == 1 else "are"
    raise UsageError(
        f"{', '.join(missing)} {verb} missing; {listed('input', names)}", "give every input"
    )


def require_input(end: Endpoint, dtype: np.dtype[Any], given: Any) -> Array:
    """`given` as a contiguous array, as it is stored, if it has the shape and dtype of `end`."""
    array = given if isinstance(given, np.ndarray) else as_array(end.name, given)
    if array.dtype != dtype:
        name = f"ml_dtypes.{dtype}" if is_of_ml_dtypes(dtype.name) else f"'{dtype}'"
        raise UsageError(
            f"input '{end.name}' has dtype {array.dtype}, expected {dtype}",
            f"convert it: array.astype({name})",
        )
    if array.shape != end.shape:
        raise UsageError(
            f"input '{end.name}' has shape {array.shape}, expected {end.shape}",
            "shapes are fixed when the model is tuned; compile it for this one with `shapes`",
        )
    if end.stored != end.dtype:
        return array.astype(end.stored, order="C")
    # np.require would look for this more slowly, just when the interpreter has left the caches
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


def require_inputs(ports: tuple[Endpoint, ...], inputs: Mapping[str, Array]) -> None:
    """Raise UsageError where `inputs` lack one of `ports`, or have others, shapes or dtypes."""
    all_checked({end.name: (end, end.numpy_dtype) for end in ports}, inputs)


def all_checked(
    expected: Mapping[str, tuple[Endpoint, np.dtype[Any]]], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Inputs as their ports have them. Raises UsageError, as `require_inputs`."""
    if inputs.keys() != expected.keys():
        require_names([end for end, _ in expected.values()], inputs)
    return {name: require_input(*known, inputs[name]) for name, known in expected.items()}
