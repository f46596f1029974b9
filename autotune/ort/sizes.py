"""⑪ One network for all sizes of a session's calls: up to mosts, which grow with the calls.

sizes = AllSizes(open_sizes)
sizes.may_take(shapes) ─► sizes.wanted ─► a network is compiled ─► sizes.adopt(its inputs)
sizes.takes(shapes)         the network has this size; else wanted is larger, or it never has
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from autotune.errors import UsageError
from autotune.extent import Length

if TYPE_CHECKING:
    from autotune.network.artifact.artifact import Endpoint

Arrays: TypeAlias = "Mapping[str, Any]"
Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"

_ANY = 1 << 40
_PARTS = 8
"""Mosts are an eighth, a quarter, … of a power of two apart."""
_WIDER = 16
"""Elements of the mosts over those of the assumed ones, up to which all of them are kept."""


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """Open dimensions of a model, as far as its network may follow them.

    `names`: of the dimensions of each input, empty for those that have an extent; `mosts`: assumed,
    by name; `batches`: those that count samples; `images`: heights and widths. `has_rows`: outputs
    have a row for each of a batch, and nothing for each token.
    """

    names: Mapping[str, tuple[str, ...]]
    mosts: Mapping[str, int]
    batches: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    has_rows: bool = False

    def of(self, shapes: Shapes) -> dict[str, int] | None:
        """Extents that shapes give the dimensions; None where they give none, or several."""
        found: dict[str, int] = {}
        for name, names in self.names.items():
            shape = shapes.get(name, ())
            if len(shape) != len(names) or 0 in shape:
                return None
            for dimension, extent in zip(names, shape, strict=True):
                if dimension in self.mosts and found.setdefault(dimension, extent) != extent:
                    return None
        return found


@dataclass(slots=True)
class AllSizes:
    """What calls have asked of one network, and what it has. `ports`: its inputs, once it is there.

    `seen`: the largest extents of calls. `is_final`: no larger network is possible. `held`: sizes
    of images that may be fixed, because no network is for all of them. `is_padded`: calls had
    padding.
    """

    known: OpenSizes
    seen: dict[str, int] = field(default_factory=dict)
    ports: tuple[Endpoint, ...] = ()
    is_final: bool = False
    held: dict[str, int] = field(default_factory=dict)
    is_padded: bool = False

    def note(self, feed: Arrays) -> bool:
        """Look at a call. Gives whether it is the first with padding."""
        if self.is_padded or not self.known.has_rows:
            return False
        self.is_padded = any(map(is_padding, feed.values()))
        return self.is_padded

    def hold(self) -> bool:
        """Fix what cannot be of any size, as the height of a line, to what was called; once."""
        if self.held or self.ports or not self.known.images:
            return False
        self.held = {name: self.seen[name] for name in self.known.images}
        return True

    def may_take(self, shapes: Shapes) -> bool:
        """Whether the network that is there, or a larger one, takes a call; it is noted then."""
        if self.ports and _numbers(self.ports if self.is_final else self._wider, shapes) is None:
            return False
        sizes = self.known.of(shapes)
        if sizes is not None:
            self.seen = {name: max(n, self.seen.get(name, 0)) for name, n in sizes.items()}
        return sizes is not None

    def takes(self, shapes: Shapes) -> bool:
        """Whether the network that is there takes a call."""
        return bool(self.ports) and _numbers(self.ports, shapes) is not None

    def kind(self, shapes: Shapes) -> tuple[int, ...]:
        """Calls of one kind have about the same size: less than twice of each number."""
        numbers = _numbers(self.ports, shapes) or {}
        return tuple((n - 1).bit_length() for n in numbers.values())

    def adopt(self, ports: Sequence[Endpoint]) -> None:
        """The network is there, with these inputs."""
        self.ports = tuple(ports)
        mosts = self._mosts
        self.is_final |= any(mosts.get(n, 0) < most for n, most in self.seen.items() if n in mosts)

    @property
    def wanted(self) -> dict[str, int]:
        """Mosts of a network for all that was called, as far as they are not the assumed ones.

        What was exceeded is at least doubled. Memory has the shape of the mosts: where a length was
        exceeded, or they would be much more, the others become what was called.
        """
        former = self._mosts
        beyond = {n: size for n, size in self.seen.items() if size > former.get(n, size)}
        mosts = former | {n: max(2 * former[n], _rounded(size)) for n, size in beyond.items()}
        is_wide = math.prod(mosts.values()) > _WIDER * math.prod(self.known.mosts.values())
        if is_wide or not beyond.keys() <= set(self.known.batches):
            others = self.seen.keys() - beyond.keys()
            mosts |= {n: min(mosts[n], max(2, _rounded(self.seen[n]))) for n in others}
        return {n: most for n, most in mosts.items() if most != self.known.mosts[n]}

    def text(
        self, shapes: Shapes, mosts: Mapping[str, int] | None = None
    ) -> dict[str, tuple[int | str, ...]]:
        """Shapes with a most in the place of each dimension that follows the calls."""
        mosts = {**self._mosts, **(mosts or {})}
        return {
            name: tuple(
                f"..{mosts[dimension]}" if dimension in mosts else extent
                for dimension, extent in zip(self._names(name, shape), shape, strict=True)
            )
            for name, shape in shapes.items()
        }

    def _names(self, name: str, shape: Sequence[object]) -> tuple[str, ...]:
        return self.known.names.get(name, ("",) * len(shape))

    @property
    def _mosts(self) -> dict[str, int]:
        """Of the network that is there, else the assumed ones."""
        found = dict(self.known.mosts)
        for port in self.ports:
            shape = port.extents or port.shape
            extents = zip(self._names(port.name, shape), shape, strict=True)
            found |= {
                dimension: extent.longest if isinstance(extent, Length) else extent
                for dimension, extent in extents
                if dimension in found
            }
        return found

    @property
    def _wider(self) -> list[Endpoint]:
        """The inputs as of a network without mosts."""
        return [replace(port, extents=tuple(map(_endless, port.extents))) for port in self.ports]


def is_padding(array: Any) -> bool:
    """Whether an input is a mask of rows of different lengths, each of one token or more."""
    if getattr(array, "ndim", 0) != 2 or array.dtype.kind not in "biuf" or not array.size:
        return False
    flags = array != 0
    rises = np.count_nonzero(flags[:, 1:] & ~flags[:, :-1], axis=1) + flags[:, 0]
    is_mask = array.dtype == bool or bool(((array == 0) | (array == 1)).all())
    return is_mask and not flags.all() and bool((rises == 1).all())


def _endless(extent: int | Length) -> int | Length:
    return replace(extent, most=_ANY) if isinstance(extent, Length) else extent


def _numbers(ports: Sequence[Endpoint], shapes: Shapes) -> dict[str, int] | None:
    from autotune.network.artifact.numbers import numbers_of

    try:
        return numbers_of(ports, shapes)
    except (UsageError, KeyError):
        return None


def _rounded(n: int) -> int:
    """The next number that three bits tell, with zeros behind them."""
    step = max((1 << (n - 1).bit_length()) // _PARTS, 1)
    return -(-n // step) * step
