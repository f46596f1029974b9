"""One network for every length computes what the networks for single lengths compute."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from autotune.errors import ModelError
from autotune.extent import Extents, Length
from autotune.graph.lengths.imports import ImportedModel, NotLifted
from autotune.graph.lengths.merging import Merger, NotFollowed
from autotune.graph.lengths.numbers import AffineExtent, Points, few_points_of, points_of
from autotune.te.dag import ComputeDAG, compute
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Const, Expr, idx, substitute
from autotune.te.numbers import variable
from tests.graph.lifted import assert_lifted, lifted
from tests.graph.onnx_models import model, node
from tests.graph.open_graphs import CHANNELS, OpenGraph

B, S = Length("batch", 6), Length("sequence", 20)
W = Length("width", 5, 8)
SEQUENCES = ({"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 7}, {"batch": 6, "sequence": 20})
BATCHES = ({"batch": 1}, {"batch": 4}, {"batch": 6})
IMAGES = ({"batch": 1, "width": 1}, {"batch": 4, "width": 3}, {"batch": 6, "width": 5})


def weights(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32) / 3


def integers(*values: int) -> Any:
    return np.array(values, np.int64)


class Case(NamedTuple):
    """A model, the dimensions of its inputs, and numbers that it is run with."""

    proto: ModelProto
    dims: Mapping[str, Extents]
    numbers: Sequence[Mapping[str, int]]


def encoder(n_layers: int = 2) -> Case:
    """As BERT: positions, a mask, attention, LayerNorm; pooled by the first token and the mean."""
    nodes = [
        node("Gather", "table ids", "words"),
        node("Shape", "ids", "shape"),
        node("Gather", "shape one", "length"),
        node("Unsqueeze", "length first", "end"),
        node("Slice", "positions first end second", "places"),
        node("Add", "words places", "sum"),
        node("LayerNormalization", "sum gain shift", "x0"),
        node("Cast", "mask", "floats", to=1),
        node("Unsqueeze", "floats heads", "wide"),
        node("Sub", "unit wide", "unset"),
        node("Mul", "unset far", "bias"),
    ]
    for n in range(n_layers):
        nodes += _attention(n)
    x = f"x{n_layers}"
    nodes += [
        node("ReduceMean", x, "mean", axes=[1], keepdims=0),
        node("Gather", f"{x} zero", "token", axis=1),
        node("Gemm", "token wq bq", "pooled"),
    ]
    constants = {
        **{"table": weights(30, 8), "positions": weights(1, 64, 8)},
        **{f"w{t}": weights(8, 8) for t in "qkvo"},
        **{name: weights(8) for name in ("gain", "shift", "bq", "bk", "bv")},
        **{"one": np.int64(1), "zero": np.int64(0), "first": integers(0), "second": integers(1)},
        **{"heads": integers(1, 2), "unit": np.float32(1), "far": np.float32(-1e4)},
        **{"apart": integers(0, 0, 2, 4), "joined": integers(0, 0, 8), "half": np.float32(0.5)},
    }
    types = {"ids": "int64", "mask": "int64"}
    inputs = {"ids": ("batch", "sequence"), "mask": ("batch", "sequence")}
    proto = model(nodes, inputs, constants, f"{x} mean pooled", types=types)
    return Case(proto, {"ids": (B, S), "mask": (B, S)}, SEQUENCES)


def _attention(n: int) -> list[NodeProto]:
    x, nodes = f"x{n}", []
    for t, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", f"{x} w{t}", f"{t}{n}.product"),
            node("Add", f"{t}{n}.product b{t}", f"{t}{n}.sum"),
            node("Reshape", f"{t}{n}.sum apart", f"{t}{n}.heads"),
            node("Transpose", f"{t}{n}.heads", f"{t}{n}", perm=perm),
        ]
    return [
        *nodes,
        node("MatMul", f"q{n} k{n}", f"scores{n}"),
        node("Mul", f"scores{n} half", f"scaled{n}"),
        node("Add", f"scaled{n} bias", f"masked{n}"),
        node("Softmax", f"masked{n}", f"shares{n}", axis=-1),
        node("MatMul", f"shares{n} v{n}", f"mixed{n}"),
        node("Transpose", f"mixed{n}", f"back{n}", perm=[0, 2, 1, 3]),
        node("Reshape", f"back{n} joined", f"whole{n}"),
        node("MatMul", f"whole{n} wo", f"out{n}"),
        node("Add", f"out{n} {x}", f"residual{n}"),
        node("LayerNormalization", f"residual{n} gain shift", f"x{n + 1}"),
    ]


def flat_rows() -> Case:
    """Gemm has rows of all sequences; the result has the shape of the operand."""
    nodes = [
        node("Reshape", "x flat", "rows"),
        node("Gemm", "rows w c", "product"),
        node("Relu", "product", "positive"),
        node("Shape", "x", "shape", end=2),
        node("Concat", "shape five", "whole", axis=0),
        node("Reshape", "positive whole", "y"),
    ]
    constants = {"flat": integers(-1, 8), "w": weights(8, 5), "c": weights(5), "five": integers(5)}
    return Case(model(nodes, {"x": ("b", "s", 8)}, constants), {"x": (B, S, 8)}, SEQUENCES)


def causal() -> Case:
    """A mask of the length made of nodes, sums that run along it, places of extrema."""
    ones = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [
        node("MatMul", "x w", "q"),
        node("Transpose", "q", "k", perm=[0, 2, 1]),
        node("MatMul", "q k", "scores"),
        node("Shape", "x", "length", start=1, end=2),
        node("Concat", "length length", "square", axis=0),
        node("ConstantOfShape", "square", "ones", value=ones),
        node("Trilu", "ones", "seen", upper=0),
        node("Equal", "seen zero", "unseen"),
        node("Where", "unseen low scores", "masked"),
        node("Softmax", "masked", "shares", axis=-1),
        node("MatMul", "shares q", "y"),
        node("ArgMax", "y", "peak", axis=1),
        node("CumSum", "x one", "sums"),
        node("ReduceMax", "x", "top", axes=[1]),
    ]
    constants = {"w": weights(8, 8), "zero": np.float32(0), "low": np.float32(-1e9)}
    outputs, types = "y peak sums top", {"peak": "int64"}
    proto = model(
        nodes, {"x": ("b", "s", 8)}, constants | {"one": np.int64(1)}, outputs, types=types
    )
    return Case(proto, {"x": (B, S, 8)}, SEQUENCES)


def running() -> Case:
    """Sums and products of a length beyond any block, in all ways, along the last axis and not."""
    ways = [(op, e, r, a) for op in ("CumSum", "CumProd") for e, r, a in RUNNING_WAYS]
    nodes = [
        node(op, f"x {'two' if axis == 2 else 'one'}", f"y{n}", exclusive=e, reverse=r)
        for n, (op, e, r, axis) in enumerate(ways)
    ]
    constants = {"one": np.int64(1), "two": np.int64(2)}
    outputs = " ".join(f"y{n}" for n in range(len(ways)))
    proto = model(nodes, {"x": ("b", "s", "t")}, constants, outputs, opset=26)
    dims = {"x": (B, Length("s", 300), Length("t", 130))}
    numbers = [dict(zip(("batch", "s", "t"), n, strict=True)) for n in RUNNING_SIZES]
    return Case(proto, dims, numbers)


RUNNING_WAYS = ((0, 0, 1), (1, 0, 2), (0, 1, 2), (1, 1, 1))
RUNNING_SIZES = ((1, 1, 1), (2, 127, 128), (1, 300, 129), (3, 5, 64))


def joined() -> Case:
    """What lies behind a length in a Concat, and the last of its places."""
    nodes = [
        node("Concat", "x z", "longer", axis=1),
        node("MatMul", "longer w", "y"),
        node("Slice", "x last end along", "tail"),
        node("Concat", "x x2", "both", axis=1),
        node("Concat", "z x", "after", axis=1),
    ]
    constants = {"w": weights(8, 5), "last": integers(-1), "end": integers(1 << 40)}
    shapes = {"x": ("b", "s", 8), "z": ("b", 1, 8), "x2": ("b", "s", 8)}
    proto = model(nodes, shapes, constants | {"along": integers(1)}, "y tail both after")
    return Case(proto, {"x": (B, S, 8), "z": (B, 1, 8), "x2": (B, S, 8)}, SEQUENCES)


def patches() -> Case:
    """As ViT: patches of images, a class token in front of them, positions."""
    nodes = [
        node("Conv", "x w bias", "grid", strides=[4, 4]),
        node("Reshape", "grid flat", "channels"),
        node("Transpose", "channels", "tokens", perm=[0, 2, 1]),
        node("Shape", "x", "batch", end=1),
        node("Concat", "batch one", "shape", axis=0),
        node("Expand", "token shape", "first"),
        node("Concat", "first tokens", "whole", axis=1),
        node("Add", "whole positions", "sum"),
        node("LayerNormalization", "sum gain shift", "normed"),
        node("Gather", "normed zero", "y", axis=1),
    ]
    constants = {"w": weights(8, 3, 4, 4), "bias": weights(8), "flat": integers(0, 8, 16)}
    constants |= {"one": integers(1, 8), "token": weights(1, 1, 8), "positions": weights(1, 17, 8)}
    constants |= {"gain": weights(8), "shift": weights(8), "zero": np.int64(0)}
    proto = model(nodes, {"x": ("b", 3, 16, 16)}, constants)
    return Case(proto, {"x": (B, 3, 16, 16)}, BATCHES)


def image() -> Case:
    """Convolutions with borders and strides, pools, up and down again, at widths in steps."""
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("MaxPool", "r1", "m1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "m1 w2", "c2", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Resize", "c2 _ scales", "up", mode="nearest"),
        node("Add", "up m1", "sum"),
        node("ConvTranspose", "sum wt", "larger", strides=[2, 2]),
        node("GlobalAveragePool", "sum", "mean"),
        node("Pad", "larger amounts", "y", mode="reflect"),
        node("AveragePool", "m1", "pooled", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    constants = {"w1": weights(4, 3, 3, 3), "b1": weights(4), "w2": weights(4, 4, 3, 3)}
    constants |= {"scales": np.array([1, 1, 2, 2], np.float32), "wt": weights(4, 2, 2, 2)}
    constants |= {"amounts": integers(0, 0, 0, 1, 0, 0, 0, 2)}
    proto = model(nodes, {"x": ("b", 3, 16, "w")}, constants, "y mean pooled")
    return Case(proto, {"x": (B, 3, 16, W)}, IMAGES)


def relative() -> Case:
    """Scores of relative positions (Transformer-XL, Conformer): rows of a table around its middle,
    and each row of scores is moved by its number."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape one", "t"),
        node("Sub", "middle t", "begin"),
        node("Add", "middle t", "behind"),
        node("Sub", "behind unit", "end"),
        *(node("Unsqueeze", f"{n} first", f"{n}.row") for n in ("t", "begin", "end")),
        node("Slice", "table begin.row end.row first", "near"),
        node("MatMul", "near w", "keys"),
        node("Transpose", "keys", "turned", perm=[1, 0]),
        node("MatMul", "x turned", "scores"),
        node("Pad", "scores amounts", "wide"),
        node("Concat", "keep minus t.row", "tall", axis=0),
        node("Reshape", "wide tall", "slanted"),
        node("Slice", "slanted second far second", "without"),
        node("Shape", "scores", "before"),
        node("Reshape", "without before", "moved"),
        node("Slice", "moved first t.row last", "near.scores"),
        node("Softmax", "near.scores", "shares", axis=-1),
        node("MatMul", "shares x", "y"),
    ]
    constants = {
        **{"table": weights(2 * 24 - 1, 8), "w": weights(8, 8), "middle": np.int64(24)},
        **{"one": np.int64(1), "unit": np.int64(1), "first": integers(0), "second": integers(1)},
        **{"amounts": integers(0, 0, 1, 0, 0, 0), "keep": integers(0), "minus": integers(-1)},
        **{"far": integers(2**31 - 1), "last": integers(2)},
    }
    proto = model(nodes, {"x": ("batch", "sequence", 8)}, constants, "y near.scores")
    return Case(proto, {"x": (B, S, 8)}, SEQUENCES)


def chosen_rows() -> Case:
    """One row of each sequence, as exporters of PyTorch index flattened ones: the row in which an
    element is largest, and the last."""
    nodes = [
        node("ReduceMax", "x", "tops", axes=[2], keepdims=0),
        node("ArgMax", "tops", "at", axis=1, keepdims=0),
        node("Flatten", "x", "rows", axis=2),
        node("Shape", "x", "b", end=1),
        node("Shape", "x", "s", start=1, end=2),
        node("Squeeze", "b", "n"),
        node("Range", "zero n one", "numbers"),
        node("Mul", "numbers s", "begins"),
        node("Add", "begins at", "places"),
        node("Gather", "rows places", "y"),
        node("Sub", "s one", "end"),
        node("Add", "begins end", "ends"),
        node("Gather", "rows ends", "z"),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1)}
    return Case(model(nodes, {"x": ("b", "s", 8)}, constants, "y z"), {"x": (B, S, 8)}, SEQUENCES)


CASES = (encoder, flat_rows, causal, running, joined, patches, image, relative, chosen_rows)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_one_network_computes_what_that_of_each_length_does(
    case: Callable[[], Case], tmp_path: Path
) -> None:
    assert_lifted(*case(), tmp_path)


def test_random_graphs_of_two_open_dimensions(tmp_path: Path) -> None:
    """Most random graphs have one network, and that computes what those of single sizes do."""
    lengths = Length("b", 5), Length("s", 14)
    every = ({"b": 3, "s": 7}, {"b": 1, "s": 1}, {"b": 5, "s": 14}, {"b": 2, "s": 2})
    n_lifted = 0
    for seed in range(12):
        try:
            assert_lifted(OpenGraph(seed).drawn(6), {"x": (*lengths, CHANNELS)}, every, tmp_path)
            n_lifted += 1
        except NotLifted:
            continue
    assert n_lifted >= 6


def test_what_does_not_follow_a_length_is_refused_by_its_node(tmp_path: Path) -> None:
    """And names the dimension, with what to do."""
    window = {"kernel_shape": [2], "strides": [2], "pads": [0, 1]}
    pool = node("AveragePool", "x", "y", name="pool", **window)  # of one at an odd end
    proto, wide = model(pool, {"x": (1, 3, "w")}), {"x": (1, 3, Length("width", 40))}
    with pytest.raises(NotLifted, match="AveragePool 'pool' cannot follow 'width': ") as found:
        lifted(proto, wide, tmp_path)
    assert "steps" in found.value.hint
    assert lifted(proto, {"x": (1, 3, Length("width", 20, 2))}, tmp_path).lengths


@pytest.mark.parametrize("most", [40, 13, 9])
def test_lengths_begin_where_a_model_is_the_same(tmp_path: Path, most: int) -> None:
    """At 11 and 13 the first eight places are eight; below eight there are fewer."""
    bounds = {"begin": integers(0), "end": integers(8), "axis": integers(1)}
    nodes = [node("Slice", "x begin end axis", "y"), node("Softmax", "y", "z", axis=1)]
    proto = model(nodes, {"x": ("b", "s", 4)}, bounds)
    dims = {"x": (B, Length("sequence", most), 4)}
    every = [{"batch": b, "sequence": s} for b, s in ((1, 8), (6, 9), (3, most))]
    network = assert_lifted(proto, dims, every, tmp_path)
    assert network.inputs[0].extents[:2] == (B, Length("sequence", most, least=8))


CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", [*CELLS, "GRU before"])
def test_steps_of_a_recurrent_operator_end_at_a_length(
    tmp_path: Path, op: str, direction: str
) -> None:
    """Its states too: where all sequences end, or those of which the ends are an input."""
    op, _, is_linear = op.partition(" ")
    n, gates = 1 + (direction == "bidirectional"), CELLS[op]
    constants = {"w": weights(n, gates * 5, 6), "r": weights(n, gates * 5, 5)}
    constants["b"] = weights(n, gates * 10)
    attrs = {"linear_before_reset": 1} if is_linear else {}
    outputs = "y h c" if op == "LSTM" else "y h"
    short = node(op, "x w r", outputs, hidden_size=5, direction=direction, **attrs)
    dims: dict[str, Extents] = {"x": (Length("sequence", 6), B, 6)}
    every = [{"batch": b, "sequence": s} for b, s in ((1, 1), (3, 4), (6, 6))]
    network = assert_lifted(
        model(short, {"x": ("s", "b", 6)}, constants, outputs), dims, every, tmp_path
    )
    assert len(network.tasks) < len(network.calls)
    whole = node(op, "x w r b lens h0", outputs, hidden_size=5, direction=direction, **attrs)
    inputs = {"x": ("s", "b", 6), "lens": ("b",), "h0": (n, "b", 5)}
    proto = model(whole, inputs, constants, outputs, types={"lens": "int32"})
    assert_lifted(proto, dims | {"lens": (B,), "h0": (n, B, 5)}, every, tmp_path)


def test_positions_of_a_short_table_are_followed(tmp_path: Path) -> None:
    """No point is beyond the table, though it is shorter than the primes."""
    nodes = [
        node("Shape", "x", "n", start=1, end=2),
        node("Slice", "table zero n zero", "rows"),
        node("Add", "x rows", "y"),
    ]
    proto = model(nodes, {"x": (1, "s", 4)}, {"table": weights(9, 4), "zero": integers(0)})
    every = [{"sequence": n} for n in (1, 4, 9)]
    assert_lifted(proto, {"x": (1, Length("sequence", 9), 4)}, every, tmp_path)


def test_constants_over_a_length_are_divided(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "n", start=1, end=2),
        node("Squeeze", "n", "end"),
        node("Range", "zero end one", "places"),
        node("Cast", "places", "floats", to=1),
        node("Add", "floats half", "centres"),
        node("Cast", "end", "length", to=1),
        node("Div", "centres length", "shares"),
        node("Add", "x shares", "y"),
    ]
    numbers = {"zero": np.int64(0), "one": np.int64(1), "half": np.float32(0.5)}
    proto = model(nodes, {"x": (1, "s")}, numbers)
    every = [{"sequence": n} for n in (1, 4, 40)]
    assert_lifted(proto, {"x": (1, Length("sequence", 40))}, every, tmp_path)


FOLLOWED: tuple[Callable[[int, int], float], ...] = (
    lambda n, m: 1 / (3 * n * m),
    lambda n, m: -1 / (7 * m),
    lambda n, m: 2.5 / n,
    lambda n, m: 12 / (n * n),
    lambda n, m: float(3 * n + 1),
)
NOT_FOLLOWED: tuple[Callable[[int, int], float], ...] = (
    lambda n, m: np.inf if n > 17 else -np.inf,
    lambda n, m: np.nan if n > 17 else 0.5,
    lambda n, m: 1e-42 * n + 1e-41,
    lambda n, m: np.sqrt(n) / m,
)


@pytest.mark.parametrize("value", [*FOLLOWED, *NOT_FOLLOWED])
def test_numbers_over_lengths_are_divided_as_in_the_file(
    value: Callable[[int, int], float],
) -> None:
    """Bit for bit; a number that is not finite, or hardly one, follows nothing."""
    points = points_of({"n": 40, "m": 56})
    atoms = [a for name in points.most if (a := points.plain(_numbers_of(name, points)))]
    merger = Merger(points, atoms, {})
    parts = [Const(float(np.float32(value(at["n"], at["m"]))), "float32") for at in points.at]
    if value in NOT_FOLLOWED:
        with pytest.raises(NotFollowed, match="a number in it is"):
            merger.merged(parts)
        return
    found = merger.merged(parts)
    for n, m in ((1, 1), (5, 31), (40, 56)):
        told: dict[str, Expr] = {variable("n").name: idx(n), variable("m").name: idx(m)}
        op = compute("y", (Axis("i", 1),), substitute(found, told))
        (result,) = evaluate(ComputeDAG((op,), ("y",)), {})["y"]
        assert result == np.float32(value(n, m))


def _numbers_of(name: str, points: Points) -> tuple[int, ...]:
    return tuple(at[name] for at in points.at)


def test_a_refusal_keeps_nothing_of_the_model(tmp_path: Path) -> None:
    """What is read at the most may be gigabytes, and sizes that are refused are many."""
    pool = node("MaxPool", "x", "y", kernel_shape=[2], strides=[2])
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(NotLifted):
            lifted(model(pool, {"x": (1, 3, "w")}), {"x": (1, 3, Length("width", 40))}, tmp_path)
        assert not [x for x in gc.get_objects() if isinstance(x, ImportedModel)]
    finally:
        gc.enable()


def test_a_rank_that_depends_on_a_length_is_for_longer_ones(tmp_path: Path) -> None:
    """Squeeze without axes drops a batch of one."""
    proto = model(node("Squeeze", "x"), {"x": ("b", 1, 4)})
    network = assert_lifted(proto, {"x": (B, 1, 4)}, [{"batch": 2}, {"batch": 6}], tmp_path)
    assert network.inputs[0].extents[0] == Length("batch", 6, least=2)


def test_places_are_mirrored_once(tmp_path: Path) -> None:
    """Where there are fewer of them than are asked for, they are mirrored again, as never else."""
    amounts = {"amounts": integers(0, 2, 0, 2)}
    proto = model(node("Pad", "x amounts", mode="reflect"), {"x": (1, "s")}, amounts)
    every = [{"sequence": n} for n in (3, 9, 40)]
    network = assert_lifted(proto, {"x": (1, Length("sequence", 40))}, every, tmp_path)
    assert network.inputs[0].extents[1] == Length("sequence", 40, least=3)
    steps = Length("sequence", 20, 4)
    every = [{"sequence": n} for n in (1, 2, 20)]
    assert_lifted(proto, {"x": (1, steps)}, every, tmp_path)


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND"])
@pytest.mark.parametrize(("place", "least"), [(-1, 1), (0, 1), (1, 2), (-2, 2), (7, 8)])
def test_lengths_that_a_model_does_not_take_are_none(
    tmp_path: Path, op: str, place: int, least: int
) -> None:
    """An element behind the length is no answer. Other lengths may be as short as ever."""
    shape = {"Gather": (1,), "GatherElements": (1, 4), "GatherND": (1, 1)}[op]
    nodes = [node(op, "x k", "y"), node("Add", "y b", "z")]
    proto = model(nodes, {"x": ("n", 4), "b": ("m", 4)}, {"k": np.full(shape, place)})
    dims = {"x": (Length("n", 64), 4), "b": (Length("m", 16), 4)}
    assert_lifted(proto, dims, [{"n": n, "m": 1} for n in (least, 9, 64)], tmp_path)
    ports = {p.name: p for p in lifted(proto, dims, tmp_path).inputs}
    assert ports["x"].extents[0] == Length("n", 64, least=least)
    assert ports["b"].extents[0] == Length("m", 16)


def test_lengths_below_constant_indices_are_none(tmp_path: Path) -> None:
    """Indices of three rows are beside three rows at least; those of a batch, of that very one."""
    proto = model(
        node("GatherElements", "x k", axis=1),
        {"x": ("n", 4)},
        {"k": integers(0, 3, 1).reshape(3, 1)},
    )
    network = assert_lifted(proto, {"x": (Length("n", 40), 4)}, [{"n": 3}, {"n": 40}], tmp_path)
    assert network.inputs[0].extents[0] == Length("n", 40, least=3)
    proto = model(
        node("GatherND", "x k", batch_dims=1),
        {"x": ("n", 4)},
        {"k": integers(0, 3, 1).reshape(3, 1)},
    )
    with pytest.raises(ModelError, match="indices of 3x1 beside 40x4"):
        lifted(proto, {"x": (Length("n", 40), 4)}, tmp_path)


def test_indices_are_below_a_length(tmp_path: Path) -> None:
    """Places that an input gives are below the number that there are, not below the most."""
    proto = model(
        node("GatherElements", "x places", axis=1),
        {"x": ("batch", "sequence"), "places": ("batch", 3)},
        types={"places": "int64"},
    )
    network = lifted(proto, {"x": (B, S), "places": (B, 3)}, tmp_path)
    assert (network.inputs[1].below, network.inputs[1].limit) == ((S,), S.most)


def test_the_order_of_two_lengths_is_looked_at(tmp_path: Path) -> None:
    """At all points but one there are fewer rows than columns: of each row so many are taken."""
    nodes = [
        node("Relu", "x", "t"),
        node("Shape", "x", "rows", start=0, end=1),
        node("Slice", "t first rows second", "y"),
    ]
    known = {"first": integers(0), "second": integers(1)}
    proto = model(nodes, {"x": ("batch", "sequence")}, known)
    with pytest.raises(NotLifted):
        lifted(proto, {"x": (Length("batch", 8), Length("sequence", 512))}, tmp_path)


@pytest.mark.parametrize("n_numbers", [1, 2, 6])
def test_what_is_affine_is_found_and_nothing_else(n_numbers: int) -> None:
    """However many numbers there are, as models whose operators write lengths have."""
    draw = Random(n_numbers)
    points = points_of({f"n{k}": draw.randint(20, 900) for k in range(n_numbers)})
    for _ in range(200):
        factors = {name: draw.randint(-2, 3) for name in points.most}
        pairs = tuple(sorted((name, f) for name, f in factors.items() if f))
        form = AffineExtent(pairs, draw.randint(-9, 9))
        values = points.vector(form)
        assert points.affine(values) == form
        wrong = draw.randrange(len(values))  # one more point than an affine function has numbers
        moved = [v + (n == wrong) for n, v in enumerate(values)]
        found = points.affine(moved)
        assert found is None or points.vector(found) == tuple(moved) != values
        assert points.affine([v * v for v in values]) is None or not pairs


def test_functions_of_many_numbers_are_told_at_few_points() -> None:
    """Multiples of one, and sums of neighbours, as what a Concat of all of them has."""
    draw = Random(0)
    names = [f"{kind}{n}" for n in range(60) for kind in ("places", "best")]
    points = few_points_of({name: draw.choice([3234, 300, 90]) for name in names})
    assert len(points.at) < 10
    for _ in range(300):
        step, factor, offset = (draw.randint(1, most) for most in (3, 6, 50))
        own = names[draw.randrange(step) :: step]
        first = draw.randrange(len(own))
        some = own[first : first + draw.choice([1, 2, 60])]
        form = AffineExtent(tuple(sorted((name, factor) for name in some)), offset)
        values = points.vector(form)
        assert points.affine(values) == form
        assert points.affine([v // 2 for v in values]) is None or factor % 2 == 0
