"""Sizes that neither file nor user says: a batch of one, arrays alike, and what is still asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import autotune
from autotune.api.bindings import bind
from autotune.api.request import Source
from autotune.errors import DynamicShape, UsageError
from tests.forking import Cli

Extents = Sequence[int | str | None]


def saved(folder: Path, **inputs: Extents) -> Path:
    """A model that hands every input through, by name and shape."""
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    made = [helper.make_tensor_value_info(f"{n}_y", TensorProto.FLOAT, None) for n in inputs]
    nodes = [helper.make_node("Abs", [name], [f"{name}_y"]) for name in inputs]
    for value in given:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "-1":
                dim.dim_value = -1
    graph = helper.make_graph(nodes, "g", given, made)
    opset = helper.make_opsetid("", 17)
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def shapes_of(path: Path, **options: Any) -> dict[str, tuple[int, ...]]:
    (variant,) = bind(Source(path, **options)).variants
    return variant.shapes


ONE: dict[str, dict[str, Extents]] = {
    "batch": {"x": ("batch", 3)},
    "batch_size, in the middle too": {"x": ("batch_size", 3), "state": (2, "batch_size", 8)},
    "N": {"x": ("N", 3, 4)},
    "None": {"x": ("None", 3)},
    "no name": {"x": (None, 3)},
    "no names": {"x": (None, 3), "y": (None, 4), "z": ()},
    "-1": {"x": ("-1", 3)},
    "?": {"x": ("?", 3)},
    "of tf2onnx": {"x": ("unk__214", 3)},
    "of paddle2onnx": {"x": ("p2o.DynamicDimension.0", 3)},
    "of torch": {"x": ("x_dynamic_axes_1", 3)},
    "of dynamo": {"x": ("s0", 3), "lengths": ("s0",)},
    "beside a batch of one": {"x": (None, 3), "y": (1, 3)},
    "one of twelve": {f"layer.{n}": ("batch", 4) for n in range(12)},
}
ASKED: dict[str, dict[str, Extents]] = {
    "a length": {"x": ("batch", "sequence")},
    "a name that says nothing of a batch": {"x": ("rows", 3)},
    "samples": {"x": (None,)},
    "a batch of others": {"x": (None, 3), "y": (2, 3)},
    "edges of a graph": {"x": ("N", 16), "edges": (2, "E")},
    "an image": {"x": (None, 3, None, None)},
    "images": {"x": (1, 3, "?", "?")},
    "a batch and a length in one": {"x": ("batch_sequence", 3)},
}


@pytest.mark.parametrize("kind", ONE)
def test_a_batch_is_one_with_a_note(tmp_path: Path, kind: str) -> None:
    path, told = saved(tmp_path, **ONE[kind]), list[str]()
    want = {
        name: tuple(n if isinstance(n, int) else 1 for n in shape)
        for name, shape in ONE[kind].items()
    }
    found = shapes_of(path)
    assert found == {name: shape for name, shape in want.items() if name in found}
    assert found
    done = autotune.compile(path, threads=1, check=False, cache=False, note=told.append)
    assert {end.name: end.shape for end in done.artifact.inputs} == want
    assert any(text.startswith("the batch (") and "SIZE" in text for text in told)


@pytest.mark.parametrize("kind", ASKED)
def test_other_sizes_are_asked_for_and_not_guessed(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, **ASKED[kind])
    with pytest.raises(DynamicShape, match="have no value") as caught:
        shapes_of(path)
    assert "SIZE" in caught.value.hint
    assert "224" not in caught.value.hint
    arrays = {
        name: np.zeros([n if isinstance(n, int) else 5 for n in shape])
        for name, shape in ASKED[kind].items()
    }
    assert shapes_of(path, like=arrays) == {name: x.shape for name, x in arrays.items()}


def test_what_is_given_is_no_batch_of_one(tmp_path: Path) -> None:
    path = saved(tmp_path, x=("batch", 3), y=("batch", "n"))
    assert shapes_of(path, dims={"batch": 4, "n": 2}) == {"x": (4, 3), "y": (4, 2)}
    assert shapes_of(path, shapes={"x": (6, 3)}, dims={"n": 2}) == {"x": (6, 3), "y": (6, 2)}
    done = autotune.compile(path, like={"y": np.zeros((7, 2))}, check=False, threads=1)
    assert [end.shape for end in done.artifact.inputs] == [(7, 3), (7, 2)]
    assert not bind(Source(path, dims={"batch": 4, "n": 2})).notes


def test_a_decoder_is_told_of_its_capacity(tmp_path: Path) -> None:
    layers = {f"past_key_values.{n}.key": ("batch", 2, "past", 8) for n in range(12)}
    path = saved(tmp_path, input_ids=("batch", "sequence"), **layers)
    with pytest.raises(DynamicShape, match="7 more") as caught:
        autotune.compile(path)
    assert "`capacity=SIZE`" in caught.value.hint
    assert len(caught.value.message) < 300


def test_an_array_that_is_like_no_input_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, image=("batch", 3, "h", "w"))
    assert shapes_of(path, like=np.zeros((2, 3, 5, 6))) == {"image": (2, 3, 5, 6)}
    with pytest.raises(
        UsageError, match="there is no input 'imag'; the input is 'image'"
    ) as caught:
        shapes_of(path, like={"imag": np.zeros((2, 3, 5, 6))})
    assert caught.value.hint == "did you mean 'image'?"
    with pytest.raises(UsageError, match="image"):
        autotune.compile(path, like=np.zeros((2, 3)), check=False)
    two = saved(tmp_path, a=("batch", "n"), b=("batch", "n"))
    with pytest.raises(UsageError, match="which input is the array like"):
        shapes_of(two, like=np.zeros((2, 3)))


def test_the_command_takes_files_and_says_what_it_took(cli: Cli, tmp_path: Path) -> None:
    path = saved(tmp_path, x=("batch", "n"))
    np.save(tmp_path / "x.npy", np.zeros((2, 6), np.float32))
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 6), np.float32))
    words = ("--threads", "1", "--no-check", "-o", tmp_path / "m.atn")
    for given, shape in (("x.npy", (2, 6)), ("x=x.npy", (2, 6)), ("x.npz", (3, 6))):
        done = cli("compile", path, "--like", given, *words, cwd=tmp_path)
        assert done.code == 0, done.err
        assert autotune.load(tmp_path / "m.atn").input_info[0].shape == shape
    done = cli("compile", path, "--dim", "n=6", *words, cwd=tmp_path)
    assert "note: the batch (batch) is 1: --dim batch=SIZE compiles for another\n" in done.err
    assert cli("compile", path, "--dim", "n=6", "--strict", *words, cwd=tmp_path).code == 7
    done = cli("compile", path, *words, cwd=tmp_path)
    assert done.code == 2
    assert "no value: n (x.1)\nhint: give their sizes: --dim n=SIZE; or an input" in done.err
