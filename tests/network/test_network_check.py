"""The check of a compiled network: what it must refuse, and what it must not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import autotune
from autotune.errors import WrongNumbers
from autotune.graph.bound_model import BoundModel
from autotune.graph.network import Network, build_network
from autotune.network.check import oracles
from autotune.network.check.check import Report, check_model
from autotune.network.check.check_inputs import check_inputs
from autotune.network.check.differences import difference, max_error
from autotune.network.check.oracles import Original, onnxruntime_oracle, reference_oracle
from autotune.network.check.rounding import rounded_anew
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.baselines import apart_runner
from autotune.network.runtime.runtime import Model
from autotune.target import host_target

pytestmark = pytest.mark.target

pytest.importorskip("onnxruntime")

Array = NDArray[Any]
Fault = Callable[[dict[str, Array]], None]

CLIPPED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 64] x) => (float[1, 64] y, int64[1, 1] best)
    { l = Log(x) y = Mul(l, x) best = ArgMax<axis = 1>(x) }
"""
"""NaN below zero, -0 at zero; and a position."""


class Faulty(Model):
    """A compiled network whose last kernel has a fault: `fault` changes the outputs in place."""

    fault: Fault

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = super().run(inputs)
        self.fault(outputs)
        return outputs


def text(tmp_path: Path, source: str, **weights: Array) -> Path:
    proto = onnx.parser.parse_model(source)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def compiled(path: Path, fault: Fault = lambda outputs: None) -> tuple[Faulty, Network]:
    network = build_network(path)
    steps: dict[str, Any] = dict.fromkeys(network.tasks, ())
    model = Faulty(compile_network(network, steps, host_target()), 1)
    model.fault = fault
    return model, network


def check(path: Path, fault: Fault = lambda outputs: None, **options: Any) -> Report:
    return check_model(*compiled(path, fault), Original(BoundModel(path)), **options)


def swap_nan(outputs: dict[str, Array]) -> None:
    y = outputs["y"]
    nan, number = (np.flatnonzero(m)[0] for m in (np.isnan(y), ~np.isnan(y)))
    y.flat[nan], y.flat[number] = y.flat[number], y.flat[nan]


def shift(outputs: dict[str, Array]) -> None:
    outputs["y"][...] = np.roll(outputs["y"], 1)


def next_best(outputs: dict[str, Array]) -> None:
    outputs["best"] += 1


def lose_nan(outputs: dict[str, Array]) -> None:
    outputs["y"][...] = np.nan_to_num(outputs["y"])


def one_percent(outputs: dict[str, Array]) -> None:
    outputs["y"] *= np.float32(1.01)


def narrow(outputs: dict[str, Array]) -> None:
    outputs["y"] = outputs["y"].astype(np.float16)


@pytest.mark.parametrize("fault", [swap_nan, shift, next_best, lose_nan, one_percent, narrow])
def test_a_fault_beside_nan_is_found(tmp_path: Path, fault: Fault) -> None:
    path = text(tmp_path, CLIPPED)
    assert check(path).error < 1e-6
    with pytest.raises(WrongNumbers, match="differs from the oracle") as caught:
        check(path, fault)
    assert "ill-conditioned" not in caught.value.message
    assert "report the model" in caught.value.hint


INFINITE = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 6] x) => (float[1, 8] y)
    <float[1, 1] low = {-inf}, float[1, 1] high = {inf}>
    { y = Concat<axis = 1>(low, x, high) }
"""


def test_an_infinity_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ends = {"low": -np.inf, "high": np.inf}
    tensors = [numpy_helper.from_array(np.full((1, 1), v, np.float32), n) for n, v in ends.items()]
    node = helper.make_node("Concat", ["low", "x", "high"], ["y"], axis=1)
    x, y = (helper.make_tensor_value_info(n, 1, [1, k]) for n, k in (("x", 6), ("y", 8)))
    graph = helper.make_graph([node], "g", [x], [y], tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    assert check(path).error == 0

    def scale_middle(outputs: dict[str, Array]) -> None:
        outputs["y"][:, 1:-1] *= np.float32(1.001)

    def drop(outputs: dict[str, Array]) -> None:
        outputs["y"][:, 0] = -3e38

    def flip(outputs: dict[str, Array]) -> None:
        outputs["y"] *= np.float32([-1, 1, 1, 1, 1, 1, 1, 1])

    for fault in (scale_middle, drop, flip, shift):
        with pytest.raises(WrongNumbers):
            check(path, fault)


# --- conditioning -----------------------------------------------------------------------------

CANCELS = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 256] x) => (float[1, 1] y)
    <float big = {20000.0}>
    { a = Add(x, big) m = ReduceMean<axes = [1]>(a) y = Sub(m, big) }
"""
"""A mean of which rounding leaves three digits."""


def off_by(error: float) -> Fault:
    def fault(outputs: dict[str, Array]) -> None:
        outputs["y"] += np.float32(error) * np.abs(outputs["y"]).max()

    return fault


def test_what_rounding_explains_is_ill_conditioned(tmp_path: Path) -> None:
    path = text(tmp_path, CANCELS)

    def other_sum(outputs: dict[str, Array]) -> None:
        outputs["y"] += np.float32(2.0**-9)  # two units in the last place of 20000

    report = check(path, other_sum)
    assert report.error > 1e-3
    assert report.allowed > report.error
    note = next(n for n in report.notes if "'y'" in n)
    assert note.startswith("ill-conditioned here: output 'y' on ")
    assert "ONNX Runtime itself differs by" in note


def test_a_sum_of_inputs_that_cancel_is_ill_conditioned(tmp_path: Path) -> None:
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 4096] x, float[1, 4096] z) => (float[1, 1] y)
        { d = Concat<axis = 1>(x, z) y = ReduceSum<keepdims = 1>(d) }
    """
    x = np.random.default_rng(0).standard_normal((1, 4096)).astype(np.float32)
    z = -x + np.float32(2.0**-24)

    def other_sum(outputs: dict[str, Array]) -> None:
        outputs["y"] += np.float32(2.0**-19)

    report = check(text(tmp_path, source), other_sum, given={"x": x, "z": z})
    assert report.notes[0].startswith("ill-conditioned here: output 'y' on given inputs")


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    """Rounding leaves no digit of the output, so any number would pass."""

    def double(outputs: dict[str, Array]) -> None:
        outputs["y"] += np.float32(2.0**-4)

    path = text(tmp_path, CANCELS.replace("20000.0", "2000000.0"))
    notes = check(path, double).notes
    assert any(
        "too much to tell right from wrong: give `check_inputs=ARRAYS`" in note for note in notes
    )
    assert not any("too much to tell" in note for note in check(path).notes)


def test_newer_opsets_have_a_conditioning_too(tmp_path: Path) -> None:
    source = """
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[4, 256] x, bool c) => (float[4, 32] y)
        <float big = {20000.0}>
        {
            p = MatMul(x, w)
            a = If(c) <
                then_branch = t () => (float[4, 32] u) { u = Add(p, big) },
                else_branch = e () => (float[4, 32] v) { v = Add(p, big) }
            >
            y = Sub(a, big)
        }
    """
    w = np.random.default_rng(0).standard_normal((256, 32)).astype(np.float32)
    original = Original(BoundModel(text(tmp_path, source, w=w)))
    x = np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)
    inputs = {"x": x, "c": np.array(True)}
    oracle = onnxruntime_oracle(original, 1)
    found = [
        max_error(y["y"], oracle.run(inputs)["y"]) for y in oracle.rounded(inputs, range(3), 1)
    ]
    assert len(found) == 3
    assert all(2e-5 < error < 1e-3 for error in found), "2⁻²³·20000 of about 50"


def test_a_fault_of_an_ill_conditioned_model_is_found(tmp_path: Path) -> None:
    with pytest.raises(WrongNumbers, match="differs from the oracle"):
        check(text(tmp_path, CANCELS), off_by(1.0))


def test_a_well_conditioned_model_has_no_more_than_the_floor(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 64] x) => (float[2, 32] y) { p = MatMul(x, w) y = Relu(p) }
    """
    path = text(tmp_path, source, w=w)
    assert check(path, off_by(5e-5)).notes == ()
    with pytest.raises(WrongNumbers, match=r"0\.0001 is allowed"):
        check(path, off_by(2e-4))


def test_programs_that_round_too_much_are_told_apart(tmp_path: Path) -> None:
    """An error that Winograd explains is no bug, but no result either: the hint is a limit."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 64] x) => (float[2, 64] y)
        { p = MatMul(x, w) q = MatMul(x, v) y = Sub(p, q) }
    """
    path = text(tmp_path, source, w=w, v=w + np.float32(1e-3))
    with pytest.raises(WrongNumbers, match="ill-conditioned here: ") as caught:
        check(path, off_by(0.05))
    assert "`max_error=1e-6`" in caught.value.hint
    with pytest.raises(WrongNumbers, match=r"^output 'y'"):
        check(path, off_by(20.0))


def test_a_position_may_move_where_two_are_as_large(tmp_path: Path) -> None:
    """ArgMax of a tie but for rounding; of nothing near a tie it may not."""
    w = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[64, 64] x) => (int64[64, 1] best)
        { p = MatMul(x, w) best = ArgMax<axis = 1>(p) }
    """
    twins = np.concatenate([w, w * np.float32(1 + 2**-22)], axis=1)

    def other(outputs: dict[str, Array]) -> None:
        outputs["best"][...] = (outputs["best"] + 8) % 16

    report = check(text(tmp_path, source, w=twins), other)
    assert any("ill-conditioned" in n and "and in 64" in n for n in report.notes)
    with pytest.raises(WrongNumbers, match="64 of 64 elements are not what they should be"):
        check(text(tmp_path, source, w=np.concatenate([w, -w], axis=1)), other)


@pytest.mark.parametrize("opset", [17, 23])
def test_noise_leaves_shapes_alone(tmp_path: Path, opset: int) -> None:
    """A size that is computed in floats: rounded a bit down it would be one less."""
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 8, 8] x) => (float[1, 2, 16, 16] y)
        <float[4] two = {1, 1, 2, 2}, float[2] s = {2.0, 2.0}>
        {
            shape = Shape<start = 2>(x) f = Cast<to = 1>(shape) g = Mul(f, s) h = Floor(g)
            i = Cast<to = 7>(h) front = Shape<end = 2>(x) full = Concat<axis = 0>(front, i)
            r = Resize<mode = "nearest">(x, , two) y = Reshape(r, full)
        }
    """.replace('"" : 17', f'"" : {opset}')
    proto = onnx.load(text(tmp_path, source))
    noisy = rounded_anew(proto, 1, 256.0)
    assert sum(n.output[0].endswith("#factor") for n in noisy.graph.node) == 3  # x, r and y
    original = Original(BoundModel(tmp_path / "m.onnx"))
    x = np.ones((1, 2, 8, 8), np.float32)
    for oracle in (onnxruntime_oracle(original, 1), reference_oracle(original)):
        found = list(oracle.rounded({"x": x}, range(1, 3), 256.0))
        assert len(found) == 2, oracle.name
        assert all(0 < max_error(y["y"], oracle.run({"x": x})["y"]) < 1e-4 for y in found)
        again = next(oracle.rounded({"x": x}, range(1, 2), 256.0))
        assert np.array_equal(again["y"], found[0]["y"])


# --- oracles ----------------------------------------------------------------------------------

MLP = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] x) => (float[N, 4] y) { y = MatMul(x, w) }
"""


def test_the_oracle_runs_the_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the conversion is in the network and in the converted model, not in the file."""
    w = np.eye(4, dtype=np.float32)
    path = text(tmp_path, MLP, w=w)
    network = build_network(path, {"x": (2, 4)})
    wrong = text(tmp_path, MLP, w=2 * w)
    other = build_network(wrong, {"x": (2, 4)})
    model = Model(compile_network(other, dict.fromkeys(other.tasks, ()), host_target()), 1)
    text(tmp_path, MLP, w=w)
    with pytest.raises(WrongNumbers, match=r"oracle .ONNX Runtime, normal inputs"):
        check_model(model, other, Original(BoundModel(path), {"x": (2, 4)}))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(WrongNumbers, match=r"oracle .onnx.reference"):
        check_model(model, network, Original(BoundModel(path), {"x": (2, 4)}))


def test_other_shapes_than_the_file_states(tmp_path: Path) -> None:
    path = text(tmp_path, MLP.replace("N", "1"), w=np.eye(4, dtype=np.float32))
    network = build_network(path, {"x": (3, 4)})
    model = Model(compile_network(network, dict.fromkeys(network.tasks, ()), host_target()), 1)
    report = check_model(model, network, Original(BoundModel(path), {"x": (3, 4)}))
    assert report.oracles == ("ONNX Runtime",)
    assert report.notes == ()


def test_weights_of_eight_bits_are_those_of_the_file(tmp_path: Path) -> None:
    """With optimisations, ONNX Runtime rounds the activations to eight bits as well."""
    rng = np.random.default_rng(0)
    w = rng.integers(-127, 128, (64, 64)).astype(np.int8)
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 64] x) => (float[4, 64] y)
        { d = DequantizeLinear<axis = 1>(w, s) y = MatMul(x, d) }
    """
    scale = rng.random(64).astype(np.float32) / 100
    assert check(text(tmp_path, source, w=w, s=scale)).error < 1e-5


def test_half_precision_has_a_tolerance_of_its_own(tmp_path: Path) -> None:
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float16[8, 64] x) => (float16[8, 8] y) { p = MatMul(x, w) y = Relu(p) }
    """
    w = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float16)
    report = check(text(tmp_path, source, w=w))
    assert report.oracles == ("ONNX Runtime",)
    with pytest.raises(WrongNumbers):
        check(tmp_path / "m.onnx", off_by(0.05))


def test_where_onnxruntime_and_the_standard_differ_the_standard_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deviating(*arguments: Any, **options: Any) -> oracles.Runner:
        run = apart_runner(*arguments, **options)
        return lambda inputs: {"y": run(inputs)["y"] * np.float32(1.1)}

    path = text(tmp_path, MLP.replace("N", "1"), w=np.eye(4, dtype=np.float32))
    monkeypatch.setattr(oracles, "apart_runner", deviating)
    report = check(path)
    assert "ONNX Runtime computes MatMul (node 'y') otherwise than defined" in report.notes[0]
    with pytest.raises(WrongNumbers):
        check(path, off_by(0.05))


SAME = """
    <ir_version: 10, opset_import: ["" : 22, "com.microsoft" : 1]>
    g (float[1, 2, 9, 10] x) => (float[1, 2, 9, 5] y)
    { a = com.microsoft.Gelu(x)
      p = OP<auto_pad = "SIDE", kernel_shape = [2, 3], dilations = [2, 2], strides = [1, 2]>(a)
      y = Tanh(p) }
"""
"""An operator that `onnx.reference` lacks, in front of one that ONNX Runtime has otherwise."""


@pytest.mark.parametrize("side", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_padding_of_dilated_windows_is_as_defined(op: str, side: str, tmp_path: Path) -> None:
    path = text(tmp_path, SAME.replace("OP", op).replace("SIDE", side))
    for note in check(path).notes:
        assert f"ONNX Runtime computes {op} (node 'p') otherwise than defined" in note
    with pytest.raises(WrongNumbers):
        check(path, one_percent)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "zeros", "is_reordered"),
    [(4, "none", True), (4, "packed", True), (4, "floats", True), (8, "packed", False)],
)
def test_small_weights_are_as_defined(
    bits: int, zeros: str, is_reordered: bool, tmp_path: Path
) -> None:
    k, n, size = 96, 5, 32
    rng = np.random.default_rng(0)
    points = {
        "packed": rng.integers(0, 256, n * -(-3 * bits // 8)).astype(np.uint8),
        "floats": rng.integers(0, 1 << bits, (n, 3)).astype(np.float32),
    }
    arrays = {
        "b": rng.integers(0, 256, (n, 3, size * bits // 8)).astype(np.uint8),
        "scales": (rng.random((n, 3)) / 10 + 0.01).astype(np.float32),
        "zeros": points.get(zeros),
        "groups": rng.permutation(np.arange(k) // size).astype(np.int32) if is_reordered else None,
    }
    names = ["" if a is None else name for name, a in arrays.items()]
    attrs = {"K": k, "N": n, "bits": bits, "block_size": size}
    node = helper.make_node("MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", **attrs)
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [3, k]), ("y", [3, n])))
    tensors = [numpy_helper.from_array(a, name) for name, a in arrays.items() if a is not None]
    graph = helper.make_graph([node], "g", [x], [y], tensors)
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 17), ("com.microsoft", 1))]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    model, network = compiled(tmp_path / "m.onnx")
    check_model(model, network, Original(BoundModel(tmp_path / "m.onnx")))
    model.fault = one_percent
    with pytest.raises(WrongNumbers):
        check_model(model, network, Original(BoundModel(tmp_path / "m.onnx")))


# --- inputs -----------------------------------------------------------------------------------


def kinds(tmp_path: Path, source: str, seed: int = 0) -> dict[str, dict[str, Array]]:
    path = text(tmp_path, source)
    model, _ = compiled(path)
    return dict(check_inputs(model.input_info, onnx.load(path).graph, seed))


def test_inputs_are_what_the_first_operators_expect(tmp_path: Path) -> None:
    table = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[2, 9] ids, float[2, 9] x, uint8[4] raw)
            => (float[2, 9, 2] y, float[2, 9] z, float[4] r)
        <float[3, 2] rows = {1, 2, 3, 4, 5, 6}, float mean = {127.5}>
        { y = Gather(rows, ids) c = Sub(x, mean) z = Div(c, mean) r = Cast<to = 1>(raw) }
    """
    found = kinds(tmp_path, table)
    assert list(found) == ["normal", "uniform", "pixels"]
    assert set(found["normal"]["ids"].flat) == {0, 1, 2}
    assert set(found["uniform"]["ids"].flat) == {0, 2}
    assert found["uniform"]["raw"].dtype == np.uint8
    assert found["uniform"]["raw"].max() > 1
    assert found["uniform"]["x"].min() >= 0 >= found["normal"]["x"].min()
    assert found["pixels"]["x"].max() > 200
    assert not (found["pixels"]["x"] % 1).any()
    again, other = kinds(tmp_path, table), kinds(tmp_path, table, seed=1)
    for kind, arrays in found.items():
        assert all(np.array_equal(a, again[kind][n]) for n, a in arrays.items())
        assert not np.array_equal(arrays["x"], other[kind]["x"])


@pytest.mark.slow
def test_masks_that_are_counted_are_of_ones(tmp_path: Path) -> None:
    path = tmp_path / "prompt.onnx"
    graph = """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1, 5, 32] q, float[1, 5, 16] k, float[1, 5, 16] v, float[1, 2, 0, 8] pk,
           float[1, 2, 0, 8] pv, int64[1, 5] mask, int64[5] flags)
            => (float[1, 5, 32] y, float[1, 2, 5, 8] ck, float[1, 2, 5, 8] cv, float[5] f)
        <int64[1] axes = {1}, int64[1] one = {1}, int32 total = {5}>
        {
            sum = ReduceSum<keepdims = 0>(mask, axes) less = Sub(sum, one)
            last = Cast<to = 6>(less) f = Cast<to = 1>(flags)
            y, ck, cv = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>
                (q, k, v, pk, pv, last, total)
        }
    """
    onnx.save(onnx.parser.parse_model(graph), path)
    model, _ = compiled(path)
    found = [arrays for _, arrays in check_inputs(model.input_info, onnx.load(path).graph)]
    assert all(arrays["mask"].all() for arrays in found)
    assert not all(arrays["flags"].all() for arrays in found)
    assert check(path).error < 1e-5


def test_a_fault_that_only_the_users_input_shows(tmp_path: Path) -> None:
    path = text(tmp_path, MLP.replace("N", "1"), w=np.eye(4, dtype=np.float32))
    given = {"x": np.full((1, 4), 7.5, np.float32)}

    def above_seven(outputs: dict[str, Array]) -> None:
        outputs["y"][outputs["y"] > 7] = 7

    assert check(path, above_seven).kinds == ("normal", "uniform")
    with pytest.raises(WrongNumbers, match="given inputs"):
        check(path, above_seven, given=given)


def test_nothing_that_could_be_compared_is_said(tmp_path: Path) -> None:
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 4] x) => (float[1, 4] y) { a = Abs(x) n = Neg(a) y = Log(n) }
    """
    assert any("has no finite element" in note for note in check(text(tmp_path, source)).notes)


# --- differences ------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("actual", "expected", "error", "n_moved"),
    [
        ([1.0, NAN], [2.0, NAN], 0.5, 0),
        ([1.0, INF], [2.0, INF], 0.5, 0),
        ([1.0, -INF], [1.0, INF], 0.0, 1),
        ([NAN, INF], [INF, NAN], 0.0, 2),
        ([1.0, 3e38], [1.0, INF], 0.0, 1),
        ([NAN, 1.0], [1.0, 1.0], 0.0, 1),
        ([-3e38, 1.0], [3e38, 1.0], 2.0, 0),
    ],
)
def test_numbers_and_what_is_none(
    actual: list[float], expected: list[float], error: float, n_moved: int
) -> None:
    found = difference(np.float32(actual), np.float32(expected))
    assert (found.error, found.n_moved) == (error, n_moved)


def test_integers_are_equal_or_not() -> None:
    found = difference(np.array([1, 2, 3]), np.array([1, 5, 4]))
    assert (found.error, found.n_moved) == (0.0, 2)
    assert found.what.endswith("at (1,) found 2, expected 5")


def test_a_shape_that_rounding_decides_is_ill_conditioned(tmp_path: Path) -> None:
    """As how many boxes a detector keeps whose scores are all but equal."""
    w = np.random.default_rng(0).standard_normal((512, 128)).astype(np.float32)
    source = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[64, 512] x) => (int64[2, n] kept)
        { a = MatMul(x, w) r = Gather<axis = 1>(x, order) b = MatMul(r, v)
          c = Sub(a, b) d = Relu(c) kept = NonZero(d) }
    """
    path = text(tmp_path, source, w=w, v=w[::-1].copy(), order=np.arange(512)[::-1].copy())
    notes: list[str] = []
    autotune.compile(path, keep_cut=True, note=notes.append)
    assert any("output 'kept'" in n and "itself returns another shape" in n for n in notes)
