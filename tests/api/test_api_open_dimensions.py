"""Sizes that neither file nor user says: all up to mosts, a batch of one, or asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import autotune
from autotune.api.bindings import Bound, bind
from autotune.api.ranges import length_of
from autotune.api.request import Source
from autotune.errors import DynamicShape, UsageError
from autotune.extent import Length
from autotune.graph.reader.mosts import open_dimensions
from autotune.network.runtime.runtime import Model
from tests.forking import Cli
from tests.graph.onnx_models import model, node

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
OTHERS: dict[str, dict[str, Extents]] = {
    "a length": {"x": ("batch", "sequence")},
    "a name that says nothing of a batch": {"x": ("rows", 3)},
    "samples": {"x": (None,)},
    "a batch of others": {"x": (None, 3), "y": (2, 3)},
    "edges of a graph": {"x": ("N", 16), "edges": (2, "E")},
    "an image": {"x": (None, 3, None, None)},
    "images": {"x": (1, 3, "?", "?")},
    "a batch and a length in one": {"x": ("batch_sequence", 3)},
    "a length that follows": {"x": ("n",), "y": ("2 * n - 1",)},
}


def sizes(**inputs: Extents) -> dict[str, tuple[int, ...]]:
    return {n: tuple(e if isinstance(e, int) else 1 for e in s) for n, s in inputs.items()}


@pytest.mark.parametrize("kind", ONE)
def test_a_batch_is_one_with_a_note(tmp_path: Path, kind: str) -> None:
    path, told = saved(tmp_path, **ONE[kind]), list[str]()
    want = sizes(**ONE[kind])
    found = shapes_of(path)
    assert found
    assert found == {name: shape for name, shape in want.items() if name in found}
    done = autotune.compile(path, threads=1, check=False, cache=False, note=told.append)
    assert {end.name: end.shape for end in done.artifact.inputs} == want
    assert any(text.startswith("the batch (") and "SIZE" in text for text in told)


@pytest.mark.parametrize("kind", OTHERS)
def test_nothing_said_is_all_sizes_up_to_mosts_that_are_named(tmp_path: Path, kind: str) -> None:
    inputs = OTHERS[kind]
    bound = bind(Source(saved(tmp_path, **inputs)))
    (variant,) = bound.variants
    (note,) = bound.notes
    assert variant.lengths
    for name, length in variant.lengths.items():
        assert f"{name} up to {length.longest}" in note
        assert f"'{name}': '..{length.longest}'" in note
    (network,) = bound.networks()
    assert set(network.lengths) == set(variant.lengths)
    for name, shape in inputs.items():
        port = next(p for p in network.inputs if p.name == name)
        extents = port.extents or port.shape
        assert [isinstance(e, int) for e in extents] == [isinstance(e, int) for e in shape]


@pytest.mark.parametrize("kind", ONE)
def test_beside_given_sizes_a_batch_is_one_with_a_note(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, **ONE[kind], other=("other", 2))
    want = {**sizes(**ONE[kind]), "other": (5, 2)}
    bound = bind(Source(path, dims={"other": 5}))
    (network,) = bound.networks()
    assert {port.name: port.shape for port in network.inputs} == want
    assert any(text.startswith("the batch (") and "SIZE" in text for text in bound.notes)


@pytest.mark.parametrize("kind", sorted(OTHERS.keys() - {"samples"}))  # which are a batch there
def test_beside_given_sizes_others_are_asked_for_and_not_guessed(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, **OTHERS[kind], other=("other",))
    with pytest.raises(DynamicShape, match="have no value") as caught:
        shapes_of(path, dims={"other": 5})
    assert "SIZE" in caught.value.hint
    assert "224" not in caught.value.hint
    arrays = {
        name: np.zeros([n if isinstance(n, int) else 9 if "2" in str(n) else 5 for n in shape])
        for name, shape in OTHERS[kind].items()
    }
    like = {**arrays, "other": np.zeros(5)}
    assert shapes_of(path, like=like) == {name: x.shape for name, x in like.items()}


def test_a_range_is_every_size_up_to_its_most(tmp_path: Path) -> None:
    (found,) = bind(Source(saved(tmp_path, x=("batch", "n")), dims={"n": "..96/32"})).variants
    assert found.shapes == {"x": (1, 96)}
    assert found.lengths == {"n": Length("n", 3, 32)}
    one, two = bind(Source(saved(tmp_path, x=("b", "n")), dims={"n": [8, 9], "b": "..4"})).variants
    assert (one.shapes["x"], two.shapes["x"]) == ((4, 8), (4, 9))
    assert one.lengths == two.lengths == {"b": Length("b", 4)}
    path = saved(tmp_path, x=("n", "m"), y=("n * m",))
    with pytest.raises(UsageError, match="does not follow from one length alone") as caught:
        bind(Source(path, dims={"n": "..4", "m": "..5"})).networks()
    assert "SIZE" in caught.value.hint
    with pytest.raises(UsageError, match="one extent"):
        autotune.compile(path, dims={"n": "..4"}, capacity=8)


BAD_RANGES = {
    "..0": "up to 0 has no extent",
    "..8/0": "in steps of 0 has no extent",
    "..650/32": "in steps of 32 is never 650",
    "..5/8": "in steps of 8 is never 5",
    "512": "cannot be '512'",
    "2..8": "cannot be '2..8'",
    "..": "cannot be '..'",
}


@pytest.mark.parametrize("text", BAD_RANGES)
def test_a_range_without_extents_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=BAD_RANGES[text]) as caught:
        bind(Source(saved(tmp_path, x=("batch", "n")), dims={"n": text}))
    assert caught.value.hint
    assert length_of("n", "..650/10") == Length("n", 65, 10)


def test_a_range_of_what_the_file_fixes_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, x=("batch", 3))
    with pytest.raises(UsageError, match=r"dimension 'x\.1' is 3 in the model"):
        bind(Source(path, dims={"x.1": "..4"}))
    with pytest.raises(UsageError, match="no dimension 'n'"):
        bind(Source(path, dims={"n": "..4"}))


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
    assert done.code == 0, done.err
    assert "note: one artifact for all sizes: batch up to 8, n up to 512; others by" in done.err
    assert "--dim batch=..8 --dim n=..512\n" in done.err
    model = autotune.load(tmp_path / "m.atn")
    for shape in ((1, 1), (3, 17), (8, 512)):
        x = np.full(shape, -2, np.float32)
        np.testing.assert_array_equal(model.run({"x": x})["x_y"], -x)
    done = cli("compile", path, "--dim", "batch=..4,n=..96/32", *words, cwd=tmp_path)
    assert done.code == 0, done.err
    model = autotune.load(tmp_path / "m.atn")
    assert model.run({"x": np.ones((3, 64), np.float32)})["x_y"].shape == (3, 64)
    for given, told in (("n=..650/32", "never 650"), ("n=..0", "up to 0"), ("n=..x", "cannot be")):
        done = cli("compile", path, "--dim", given, *words, cwd=tmp_path)
        assert done.code == 2
        assert told in done.err
        assert "hint: " in done.err


def test_a_table_of_positions_limits_a_length(tmp_path: Path) -> None:
    rows = numpy_helper.from_array(np.ones((48, 4), np.float32), "rows")
    places = numpy_helper.from_array(np.arange(48)[None], "places")
    zero, one = (numpy_helper.from_array(np.array([n]), f"n{n}") for n in (0, 1))
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "n1"], ["end"]),
        helper.make_node("Slice", ["places", "n0", "end", "n1"], ["p"]),
        helper.make_node("Gather", ["rows", "p"], ["r"]),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", "n", 4))
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [given], [made], [rows, places, zero, one])
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "table.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    (variant,) = bind(Source(path)).variants
    assert variant.shapes == {"x": (8, 48, 4)}


@pytest.mark.parametrize("op", ["LSTM", "GRU", "DynamicQuantizeLSTM"])
def test_cells_of_all_steps_limit_a_length(op: str) -> None:
    """Each is compiled alone: many layers of both directions take fewer steps."""
    mosts = []
    for layers in (0, 1, 3, 6):
        nodes = [
            node(op, f"x{n} w r", f"x{n + 1}", direction=direction)
            for n in range(layers)
            for direction in ("forward", "bidirectional")
        ]
        proto = model([*nodes, node("Abs", "x0", "y")], {"x0": ("batch", "steps", 4)})
        mosts.append(open_dimensions(proto)["steps"].most)
    assert mosts[0] == 512
    assert mosts == sorted(mosts, reverse=True)
    assert all(3 * n * most <= 1024 for n, most in zip((1, 3, 6), mosts[1:], strict=True))


def test_quantisation_asks_for_one_size(tmp_path: Path) -> None:
    path = saved(tmp_path, x=("batch", "n"))
    data = {"x": np.ones((4, 1, 5), np.float32)}
    with pytest.raises(UsageError, match="calibrated at one shape") as caught:
        autotune.quantise(path, data, tmp_path / "q.onnx")
    assert "'batch': SIZE" in caught.value.hint
    assert "'n': SIZE" in caught.value.hint


# --- what a model needs is found ---


def opened(folder: Path, proto: ModelProto, **options: Any) -> Bound:
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return bind(Source(path, **options))


def integers(*values: int) -> Any:
    return np.array(values, np.int64)


def weights(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def masked() -> ModelProto:
    """Two inputs that are added up, and whose dimensions have other names."""
    nodes = [node("Add", "x mask", "sum"), node("MatMul", "sum w", "y")]
    return model(nodes, {"x": ("b", "s1", 4), "mask": ("b2", "s2", 4)}, {"w": weights(4, 3)})


def read_by_rows() -> ModelProto:
    """The places of one batch are read in the other, as exporters write a mask."""
    nodes = [
        node("Shape", "x", "b", end=1),
        node("Squeeze", "b", "end"),
        node("Range", "zero end one", "rows"),
        node("Gather", "mask rows", "read"),
        node("Mul", "x read", "y"),
    ]
    numbers = {"zero": np.int64(0), "one": np.int64(1)}
    return model(nodes, {"x": ("batch_1", "s", 4), "mask": ("batch_2", 1, 1)}, numbers)


TIES: dict[str, tuple[Callable[[], ModelProto], dict[str, str]]] = {
    "both of two": (masked, {"b2": "b", "s2": "s1"}),
    "one that may be longer": (read_by_rows, {"batch_2": "batch_1"}),
}


@pytest.mark.parametrize("kind", TIES)
def test_dimensions_that_have_to_be_equal_are_one(tmp_path: Path, kind: str) -> None:
    made, ties = TIES[kind]
    bound = opened(tmp_path, made())
    (variant,) = bound.variants
    assert {n: x.name for n, x in variant.lengths.items() if x.name != n} == ties
    for name, other in ties.items():
        assert any(text.startswith(f"{name} is taken to be {other}") for text in bound.notes)
    told = list[str]()
    done = autotune.compile(tmp_path / "m.onnx", threads=1, cache=False, note=told.append)
    network = Model(done.artifact)
    assert set(network.lengths) == set(variant.lengths) - set(ties)
    inputs = {end.name: np.ones((3, *end.shape[1:]), np.float32) for end in network.input_info}
    some = next(iter(inputs))
    with pytest.raises(UsageError, match="disagree about"):
        network.run(inputs | {some: inputs[some][:2]})


def test_a_dimension_is_said_to_be_another(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(masked(), path)
    dims: dict[str, Any] = {"s2": "s1", "b": [1, 2], "s1": 5}
    found = bind(Source(path, dims={"b2": "b", **dims})).variants
    assert [v.shapes["mask"] for v in found] == [(1, 5, 4), (2, 5, 4)]
    assert all(v.shapes["mask"] == v.shapes["x"] for v in found)
    (variant,) = bind(
        Source(path, dims={"b2": "b", "b": "..4", "s1": "..96/32", "s2": "s1"})
    ).variants
    assert variant.lengths["s2"] == variant.lengths["s1"] == Length("s1", 3, 32)
    assert bind(Source(path, dims={"b2": "b", "s2": "s1"})).variants[0].lengths["b2"].name == "b"
    for wrong, told in (
        ({"b2": "b3"}, "no dimension 'b3'"),
        ({"b": "b2", "b2": "b"}, "each other"),
    ):
        with pytest.raises(UsageError, match=told) as caught:
            bind(Source(path, dims=wrong))
        assert caught.value.hint
    words = ("--dim", "s2=s1", "--dim", "b2=b", "--dim", "b=..4,s1=8", "--threads", "1")
    done = cli("compile", path, *words, "-o", tmp_path / "m.atn", cwd=tmp_path)
    assert done.code == 0, done.err
    ones = np.ones((3, 8, 4), np.float32)
    assert autotune.load(tmp_path / "m.atn").run({"x": ones, "mask": ones})["y"].shape == (3, 8, 3)


def line() -> ModelProto:
    """Rows become one, of a height of 48 alone."""
    nodes = [
        node("Conv", "x w", "c", kernel_shape=[3, 3], strides=[4, 2], pads=[1, 1, 1, 1]),
        node("Reshape", "c joined", "r"),
        node("Add", "r b", "y"),
    ]
    constants = {"w": weights(4, 3, 3, 3), "joined": integers(0, 48, -1), "b": weights(1)}
    return model(nodes, {"x": ("batch", 3, "h", "w")}, constants)


def few() -> ModelProto:
    """Of the first eight places."""
    bounds = {"begin": integers(0), "end": integers(8), "axis": integers(1)}
    return model(node("Slice", "x begin end axis"), {"x": ("batch", "s", 4)}, bounds)


def words() -> ModelProto:
    """Scores of many words are large."""
    return model(
        node("Expand", "x wide"), {"x": ("batch", "s", 1)}, {"wide": integers(1, 1, 150000)}
    )


def pixels() -> ModelProto:
    """Every place of an image, of three channels that are normalised as one, beside every other."""
    nodes = [
        node("Reshape", "x all", "flat"),
        node("InstanceNormalization", "flat unit shift", "even"),
        node("Reshape", "even channels", "places"),
        node("Transpose", "places", "turned", perm=[0, 2, 1]),
        node("MatMul", "turned places", "scores"),
        node("ReduceMax", "scores", "y", axes=[1, 2], keepdims=0),
    ]
    shapes = {"all": integers(0, 1, -1), "channels": integers(0, 3, -1)}
    return model(
        nodes, {"x": ("b", 3, "h", "w")}, {**shapes, "unit": weights(1), "shift": weights(1)}
    )


NEEDS: dict[str, tuple[Callable[[], ModelProto], dict[str, tuple[int | str, ...]], str]] = {
    "the height of a line": (line, {"x": ("batch", 3, 48, "w")}, "h has one size"),
    "a few places at least": (few, {"x": ("batch", "s", 4)}, "s from 8 up to 512"),
    "less than the usual image": (pixels, {"x": ("b", 3, "h", "w")}, "h up to 80"),
    "room": (words, {"x": (1, "s", 1)}, "batch 1"),
}


@pytest.mark.parametrize("kind", NEEDS)
def test_what_cannot_be_of_any_size_has_one(tmp_path: Path, kind: str) -> None:
    made, expected, told = NEEDS[kind]
    bound = opened(tmp_path, made())
    (network,) = bound.networks()
    found = {p.name: p.extents or p.shape for p in network.inputs if p.name in expected}
    as_text = {
        n: tuple(e.name if isinstance(e, Length) else e for e in s) for n, s in found.items()
    }
    assert as_text == expected
    assert any(told in text for text in bound.notes)
