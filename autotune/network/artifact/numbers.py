"""⑩ The numbers of a call: of each length, the one that the shapes of inputs are for.

numbers_of([Endpoint("ids", extents=(1, n))], {"ids": (1, 17)})  ─►  {"sequence": 17}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.extent import Length, at
from autotune.names import require_known
from autotune.network.artifact.artifact import Endpoint
from autotune.wording import arguments

Array = NDArray[Any]


def numbers_of(ports: Sequence[Endpoint], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The number of each length of `ports`, from the shapes of all of them.

    Raises UsageError for a shape that a port cannot have, and for inputs that disagree.
    """
    numbers: dict[str, int] = {}
    told_by: dict[str, str] = {}
    for port in ports:
        shape, extents = shapes[port.name], port.extents or port.shape
        if len(shape) != len(extents):
            raise _misfit(port, shape)
        for axis, (given, extent) in enumerate(zip(shape, extents, strict=True)):
            if not isinstance(extent, Length):
                if given != extent:
                    raise _misfit(port, shape)
                continue
            n = _number(port, axis, given, extent)
            if numbers.setdefault(extent.name, n) != n:
                raise _disagreement(extent.name, told_by[extent.name], port.name, numbers, n)
            told_by.setdefault(extent.name, port.name)
    return numbers


def fronts(
    ends: Iterable[Endpoint], written: Mapping[str, str], found: Mapping[str, Array]
) -> dict[str, Array]:
    """Outputs as far as their lengths say that are among them; `written`: the outputs of these, by
    their names."""
    numbers = {name: found[port].item() for name, port in written.items()}
    hidden = set(written.values())
    parts = {
        end.name: tuple(map(slice, at(end.written, numbers)))
        for end in ends
        if end.name not in hidden
    }
    return {name: found[name][part] if part else found[name] for name, part in parts.items()}


def variant_of(
    variants: Sequence[Sequence[Endpoint]], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, dict[str, int]]:
    """Which of `variants`, by their inputs, takes these shapes, the smallest; and its numbers.

    Raises UsageError of the largest one where none does.
    """
    *others, last = by_size(variants)
    for k in others:
        try:
            return k, numbers_of(variants[k], shapes)
        except UsageError:
            continue
    return last, numbers_of(variants[last], shapes)


def by_size(variants: Sequence[Sequence[Endpoint]]) -> list[int]:
    """The order in which calls look for a variant: those of one size, then by their longest."""

    def rank(k: int) -> tuple[bool, int]:
        ports = variants[k]
        return any(end.extents for end in ports), sum(math.prod(end.shape) for end in ports)

    return sorted(range(len(variants)), key=rank)


def require_numbers(possible: Mapping[str, range], numbers: Mapping[str, int]) -> None:
    """Raise UsageError unless there is one of the `possible` numbers for each length."""
    known = ", ".join(f"'{name}' from {n[0]} to {n[-1]}" for name, n in possible.items())
    for name in {**possible, **numbers}:
        n = numbers.get(name)
        if n is None or n not in possible.get(name, ()):
            what = f"no number for '{name}'" if n is None else f"no '{name}' of {n}"
            raise UsageError(f"there is {what}", f"give {known or 'none'}")


def numbers_of_dims(
    ports: Sequence[Endpoint], dims: Mapping[str, int], mosts: Mapping[str, int]
) -> dict[str, int]:
    """The numbers for extents of dimensions by name; `mosts` of those that are not named.

    A dimension has the name of the number that it follows, as ports have it. Raises UsageError for
    other names and for an extent that no number gives.
    """
    require_known("length", dims, mosts)
    found = dict(mosts)
    for name, extent in dims.items():
        places = [
            (abs(e.offset), e.factor, p.name, port_axis)
            for p in ports
            for port_axis, e in enumerate(p.extents)
            if isinstance(e, Length) and e.name == name
        ]
        *_, first, axis = min(places)
        port = next(p for p in ports if p.name == first)
        length = port.extents[axis]
        assert isinstance(length, Length)
        found[name] = _number(port, axis, extent, length)
    return found


def extents_text(port: Endpoint) -> str:
    """`1, sequence, 768`: the dimensions of a port."""
    return ", ".join(map(str, port.written or port.extents or port.shape))


def _number(port: Endpoint, axis: int, given: int, length: Length) -> int:
    """The number that an extent is for. Raises UsageError."""
    n = length.number(given)
    if n is not None:
        return n
    where = f"input '{port.name}' has {given} in dimension {axis} ({length})"
    if given > length.longest:
        more = arguments(dims={length.name: f"..{given}"})
        raise UsageError(
            f"{where}, at most {length.longest} are possible", f"compile the model for more: {more}"
        )
    least = length.at(length.least)
    if given < least:
        raise UsageError(f"{where}, at least {least} are needed", "give more, or do not call it")
    near = (given - length.offset) // length.factor
    raise UsageError(
        f"{where}, which no '{length.name}' gives",
        f"give {length.at(near)} or {length.at(near + 1)}, as by padding",
    )


def _misfit(port: Endpoint, shape: tuple[int, ...]) -> UsageError:
    return UsageError(
        f"input '{port.name}' has shape {shape}, expected ({extents_text(port)})",
        "give an array of that shape" + (f": {_mosts(port)}" if port.extents else ""),
    )


def _mosts(port: Endpoint) -> str:
    lengths = {e.name: e for e in port.extents if isinstance(e, Length)}
    return ", ".join(f"{name} from {e.least} to {e.most}" for name, e in lengths.items())


def _disagreement(
    name: str, first: str, second: str, numbers: Mapping[str, int], other: int
) -> UsageError:
    return UsageError(
        f"inputs '{first}' and '{second}' disagree about '{name}': {numbers[name]} and {other}",
        "give both the same",
    )
