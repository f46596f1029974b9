"""⑪ Dispatch of a session's calls: contests by the shapes and values of their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from autotune.ort.contest import Contest
from autotune.ort.entries import Arrays, Shapes
from autotune.ort.request import Feed

Key: TypeAlias = tuple[Any, ...]
"""Shapes of the open inputs, or `ALL_SIZES`, then the bytes of those that decide."""

ALL_SIZES = "all sizes"
_MOST_KEYS = 4096
"""Shapes whose networks are known at once; then all are forgotten, which costs microseconds."""
UNKNOWN: Any = object()
"""Of a call that nothing is known of."""


class Dispatch:
    """`inputs`: of a model, of which those in `open` have no fixed shape, and `deciding` ones have
    values that networks are bound to. `only`: the contest of all calls, where all shapes are fixed.
    """

    def __init__(self, shapes: Mapping[str, Sequence[Any]], constants: Iterable[str]) -> None:
        self.inputs = tuple(name for name in shapes if name not in constants)
        self.open = tuple(n for n in self.inputs if _is_open(shapes[n]))
        self.fixed = {n: tuple(shapes[n]) for n in self.inputs if n not in self.open}
        self.deciding: tuple[str, ...] = ()
        self.only: Contest | None = None
        self._known: dict[Key, Contest | None] = {}

    @property
    def is_static(self) -> bool:
        """Whether one network is for all calls."""
        return not self.open and not self.deciding

    def decide(self, deciding: Iterable[str]) -> None:
        """Tell calls apart by the values of these inputs, too."""
        self.deciding = tuple(n for n in self.inputs if n in deciding)
        self.open = tuple(n for n in self.open if n not in self.deciding)

    def key(self, feed: Feed) -> Key:
        """Of a call. Raises KeyError, AttributeError or TypeError for what is none."""
        shapes = [feed[name].shape for name in self.open]
        if self.deciding:
            shapes += [np.asarray(feed[name]).tobytes() for name in self.deciding]
        return tuple(shapes)

    def family(self, key: Key) -> Key:
        """Of the calls of all sizes beside this one."""
        return (ALL_SIZES, *key[len(self.open) :])

    def shapes(self, arrays: Arrays) -> Shapes:
        """Of the inputs that do not decide."""
        return {n: a.shape for n, a in arrays.items() if n not in self.deciding}

    def values(self, arrays: Arrays) -> Arrays:
        """Of those that do."""
        return {name: arrays[name].copy() for name in self.deciding}

    def at(self, feed: Feed) -> Contest | None:
        """The contest of a call: None for ONNX Runtime, `UNKNOWN` where there is neither."""
        try:
            return self._known.get(self.key(feed), UNKNOWN)
        except (KeyError, AttributeError, TypeError):
            return None

    def put(self, key: Key, contest: Contest | None) -> None:
        """Dispatch these calls from now on."""
        if len(self._known) >= _MOST_KEYS:
            self._known.clear()
        self._known[key] = contest

    def forget(self, contests: Iterable[Contest]) -> None:
        """Dispatch the calls of these anew."""
        gone = set(map(id, contests))
        for key in [key for key, known in self._known.items() if id(known) in gone]:
            del self._known[key]

    def lose(self, contest: Contest) -> None:
        """Let ONNX Runtime answer the calls of this one."""
        self.only = None
        for key in [key for key, known in self._known.items() if known is contest]:
            self._known[key] = None


def _is_open(shape: Sequence[Any]) -> bool:
    """Whether extents are not known, or the rank: ONNX Runtime says () for unknown ones too."""
    return not shape or not all(isinstance(n, int) for n in shape)
