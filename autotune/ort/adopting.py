"""⑪ How a session takes what was prepared: loaded, and compared with ONNX Runtime on a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autotune.ort.entries import Arrays
from autotune.ort.request import Feed, PreparedNetwork, Run

if TYPE_CHECKING:
    from autotune.network.runtime.ragged import RaggedPorts
    from autotune.network.runtime.runtime import Model

_MOST_APART = 2e-2
"""Of the largest value: networks that differ more from ONNX Runtime's are rejected."""


_NONE = np.zeros(0)


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    """Of the inputs; of one for all sizes the longest."""
    return {end.name: end.shape for end in model.input_info}


def copied(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Arrays that their caller may write to."""
    return {name: np.array(array) for name, array in arrays.items()}


def loaded(found: PreparedNetwork, threads: int, memory: str) -> Model:
    """A prepared network, ready to run. Raises ArtifactError."""
    from autotune.network.runtime.loading import model_of, read_artifact

    try:
        return model_of(read_artifact(found.path, memory), threads)
    finally:
        if not found.is_kept:
            os.unlink(found.path)


def disagreement(
    ours: Run,
    theirs: Callable[[Feed], Mapping[str, Any]],
    feed: Feed,
    rows: RaggedPorts | None = None,
) -> str:
    """Difference of a compiled network from ONNX Runtime, as text; empty for none.

    `rows`: of one over tokens, which alone are compared.
    """
    from autotune.network.check.differences import flat_outputs, max_error

    try:
        expected = theirs(feed)
        found = {name: value for name, value in ours(feed).items() if name in expected}
        if rows is not None:
            found, expected = rows.counted(feed, found), rows.counted(feed, expected)
        found, expected = flat_outputs(found), flat_outputs(expected)
    except Exception as error:  # of either, whatever it is: the other answers
        return f"{type(error).__name__}: {error}"
    for name, wanted in expected.items():
        have, want = found.get(name, _NONE), wanted
        if have.shape != want.shape or have.dtype != want.dtype:
            return f"output '{name}' is {have.dtype}{have.shape}, not {want.dtype}{want.shape}"
        if max_error(have, want) > _MOST_APART:
            return f"output '{name}' differs from ONNX Runtime's"
    return ""
