"""Sessions whose calls have padding: one network over tokens, found in the masks that come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from autotune.ort.accelerated import accelerated
from autotune.ort.session import InferenceSession
from autotune.ort.sizes import is_padding
from tests.small_encoders import LONGEST, WORDS, Encoder

onnxruntime = pytest.importorskip("onnxruntime")
Array = NDArray[Any]


def _feed(rows: list[str]) -> dict[str, Array]:
    mask = np.array([[int(c) for c in row] for row in rows])
    ids = np.random.default_rng(len(rows)).integers(0, WORDS, mask.shape)
    return {"ids": ids, "mask": mask}


_ROWS = [["111"], ["1110", "1000"], ["0111", "1111"], ["101", "111"], ["1" * LONGEST] * 4]
"""Rows without padding, with it at either end, with holes, and many."""


@pytest.mark.parametrize(
    ("mode", "outputs", "ragged"),
    [
        ("beside", ("mean",), None),
        ("alone", ("hidden", "mean"), True),
        ("alone", ("mean",), None),
        ("alone", ("mean",), False),
        ("beside", ("hidden", "mean"), True),
    ],
)
@pytest.mark.sampled(2)
def test_padding_is_found_in_masks(
    tmp_path: Path, mode: str, outputs: tuple[str, ...], ragged: bool | None
) -> None:
    path = tmp_path / "encoder.onnx"
    onnx.save(Encoder(1).proto(outputs), str(path))
    known = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dims: dict[str, Any] = {"ragged": ragged, "cache": False, "threads": 1}
    session: Any
    if mode == "alone":
        session = InferenceSession(path, **dims)
    else:
        session = accelerated(onnxruntime)(str(path), compile="wait", **dims)
    for rows in _ROWS:
        feed = _feed(rows)
        found, wanted = (
            dict(zip(outputs, s.run(None, feed), strict=True)) for s in (session, known)
        )
        if "hidden" in outputs:
            counted = feed["mask"] != 0
            found["hidden"], wanted["hidden"] = (x["hidden"][counted] for x in (found, wanted))
        for name in outputs:
            assert np.allclose(found[name], wanted[name], atol=2e-5), (rows, name)
    is_packed = ragged is not False
    if mode == "alone":
        (model,) = set(session._models)
        assert model.is_ragged == is_packed
    else:
        (entry,) = session._programs.entries()
        assert (entry.rows is not None) == is_packed
        assert entry.state == "compiled"


@pytest.mark.parametrize(
    ("rows", "is_mask"),
    [
        (["10", "11"], True),
        (["01", "11"], True),
        (["11", "11"], False),
        (["101", "111"], False),
        (["00", "11"], False),
        (["20", "11"], False),
    ],
)
def test_what_is_padding(rows: list[str], is_mask: bool) -> None:
    array = np.array([[int(c) for c in row] for row in rows])
    assert is_padding(array) == is_mask
    assert is_padding(array.astype(np.float32)) == is_mask
    assert not is_padding(array[0])
    assert not is_padding(array[:0])
