"""⑩ Strings at the border of a network, in which they are numbers: see `graph.texts`.

border.numbers({"job": ["cook", "pilot"]})  ─►  {"job": [3, 17]}, ["pilot"]: it knows 17 words
border.texts({"label": [1, 0]}, [])         ─►  {"label": ["yes", "no"]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.graph.texts import Texts
from autotune.network.artifact.artifact import Endpoint

Array = NDArray[Any]


class Border:
    """Makes numbers of the strings of a call, and strings of numbers."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._known = {word: n for n, word in enumerate(texts.words)}
        self._ports = frozenset(texts.ports)
        self._keys = {name: _sorted(texts.keys(name)) for name in texts.maps}

    def shown(self, ports: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Inputs or outputs as a caller has them."""
        words = self._texts.words
        return tuple(
            replace(p, dtype="string", words=words) if p.name in self._ports else p for p in ports
        )

    def numbers(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Inputs of numbers alone, and the words of this call that are not known.

        Raises UsageError for an element that is no string.
        """
        new: dict[str, int] = {}
        given = dict(inputs)
        for name in self._ports & inputs.keys():
            given[name] = self._numbered(name, inputs[name], new)
        return given, [*new]

    def _numbered(self, name: str, value: Any, new: dict[str, int]) -> Array:
        array = np.asarray(value)
        words = array.reshape(-1).tolist()
        known, n = self._known, len(self._known)
        found = [known.get(word) if type(word) is str else None for word in words]
        for k, number in enumerate(found):
            if number is None:
                word = _text(name, words[k])
                found[k] = known[word] if word in known else new.setdefault(word, n + len(new))
        return np.array(found, np.int64).reshape(array.shape)

    def texts(self, outputs: Mapping[str, Any], new: Sequence[str]) -> dict[str, Any]:
        """Outputs as the model's file has them: strings, and lists of maps."""
        words = np.array([*self._texts.words, *new], object)
        found = dict(outputs)
        for name in self._ports & outputs.keys():
            found[name] = words[outputs[name]]
        for name, (keys, order) in self._keys.items():
            rows = outputs[name][:, order].tolist()
            found[name] = [dict(zip(keys, row, strict=True)) for row in rows]
        return found

    def require_no_out(self, out: Any) -> None:
        """Raise UsageError for arrays that outputs are to be written in, as objects have none."""
        if out is not None:
            raise UsageError("outputs are strings or maps, not numbers alone", "leave out `out`")


def _sorted(keys: Sequence[str | int]) -> tuple[list[str | int], list[int]]:
    """Keys in their order, as ONNX Runtime's maps have them, and the column of each."""
    order = sorted(range(len(keys)), key=lambda k: (str(keys[k]).encode(), k))
    if all(isinstance(key, int) for key in keys):
        order = sorted(range(len(keys)), key=lambda k: (int(keys[k]), k))
    return [keys[k] for k in order], order


def _text(name: str, word: Any) -> str:
    if isinstance(word, bytes):
        try:
            return word.decode()
        except UnicodeDecodeError:
            pass
    elif isinstance(word, str):
        return str(word)
    raise UsageError(
        f"input '{name}' has an element of type {type(word).__name__}, expected strings",
        "convert it: array.astype(str).astype(object)",
    )
