"""What a check reports of outputs: RMS, top-1, steps of quantised models, precisions too narrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

import autotune
from autotune.errors import WrongNumbers
from autotune.network.artifact.artifact import Endpoint
from autotune.network.check.accuracy import Report, agreement, is_classifier
from autotune.network.check.check_inputs import inferences
from autotune.network.check.undefined_outputs import undefined_outputs
from tests.graph.onnx_models import model, node, save
from tests.network.test_network_check import Fault, check

Array = NDArray[Any]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def test_the_place_of_the_highest_score_is_compared_row_by_row() -> None:
    theirs = np.zeros((4, 12), np.float32)
    theirs[0, 3] = theirs[1, 4] = theirs[2, 5] = theirs[2, 6] = 1.0
    theirs[3, 0] = np.nan
    ours = theirs.copy()
    ours[1] = np.roll(ours[1], 1)
    ours[2, 5] = 0.5  # the other one of two that are as high
    assert agreement(ours, theirs) == (3, 2), "a row with NaN has no highest score"
    assert is_classifier("y", theirs)
    assert not is_classifier("y", theirs[:, :9])
    assert not is_classifier("hidden", np.zeros((1, 4, 12), np.float32))
    assert is_classifier("lm_logits", np.zeros((1, 4, 12), np.float32))


def dense(rng: np.random.Generator, tmp_path: Path) -> Path:
    proto = model([node("MatMul", "x w", "y")], {"x": (2, 16)}, {"w": normal(rng, 16, 12)})
    return Path(save(proto, tmp_path))


def test_random_numbers_are_found_in_branches_too(rng: np.random.Generator) -> None:
    draws = model([node("RandomNormal", "", "r", shape=[2, 16])], {}, None, "r").graph
    keeps = model([node("Identity", "x", "k")], {}, None, "k").graph
    nodes = [
        node("RandomUniformLike", "x", "u"),
        node("Add", "x u", "y"),
        node("If", "c", "b", then_branch=draws, else_branch=keeps),
        node("Neg", "b", "v"),
        node("MatMul", "x w", "z"),
    ]
    types = {"c": "bool"}
    inputs = {"x": (2, 16), "c": ()}
    proto = model(nodes, inputs, {"w": normal(rng, 16, 12)}, "y z v", types=types)
    assert undefined_outputs(proto.graph) == {
        "y": "depends on random numbers (node RandomUniformLike 'u')",
        "v": "depends on random numbers (node RandomNormal 'r')",
    }


def test_places_of_a_cache_that_nothing_fills_are_no_result() -> None:
    given = "q k v pk pv last total"
    nodes = [
        node("GroupQueryAttention", given, "y pk1 pv1", sliding_window_cache=1),
        node("GroupQueryAttention", given, "z pk2 pv2"),
    ]
    proto = model(nodes, {"q": (1, 1, 8)}, {}, "y pk1 z pk2")
    why = "has places that nothing fills (node GroupQueryAttention 'y')"
    assert undefined_outputs(proto.graph) == {"pk1": why}


def test_what_cannot_be_compared_does_not_agree(tmp_path: Path) -> None:
    def report_of(outputs: str) -> Report:
        nodes = [
            node("RandomUniformLike", "x", "u"),
            node("Add", "x u", "y"),
            node("MatMul", "x w", "z"),
        ]
        weights = {"w": np.eye(16, dtype=np.float32)}
        path = save(model(nodes, {"x": (2, 16)}, weights, outputs), tmp_path)
        report = autotune.compile(path, threads=1).report
        assert report is not None
        return report

    report = report_of("y z")
    assert [o.name for o in report.outputs if o.is_decided] == ["z"]
    assert report.error < 1e-5
    assert str(report).endswith("; 1 of 2 cannot be compared")
    assert "y: cannot be compared" in report.lines
    told = "output 'y' depends on random numbers (node RandomUniformLike 'u'): it is not checked"
    assert told in report.notes
    assert (
        str(report_of("y"))
        == "outputs cannot be compared with ONNX Runtime on normal, uniform inputs"
    )


def test_every_output_has_its_errors(rng: np.random.Generator, tmp_path: Path) -> None:
    def fault(outputs: dict[str, Array]) -> None:
        outputs["y"][0, 0] += 5e-5 * np.abs(outputs["y"]).max()

    report = check(dense(rng, tmp_path), fault, given=[{"x": normal(rng, 2, 16)} for _ in range(3)])
    (found,) = report.outputs
    assert str(report).startswith("outputs agree with ONNX Runtime on 3 given, normal, uniform")
    assert found.error == pytest.approx(5e-5, rel=0.1)
    assert 2e-6 < found.rms < found.error, "one element of 24 is off"
    assert (found.n_rows, found.n_agreeing) == (6, 6), "rows of the user's inputs alone"
    assert "top-1 agrees in 6 of 6 rows" in report.lines[0]
    assert report.to_json()["outputs"][0]["rms"] == found.rms


def test_arrays_of_several_inferences_are_split(rng: np.random.Generator) -> None:
    ports = (Endpoint("x", (2, 3), "float32", 0), Endpoint("t", (), "float32", 0))
    x, t = normal(rng, 6, 3), normal(rng)
    for stacked in (x, x.reshape(3, 2, 3)):
        found = inferences([ports], {"x": stacked, "t": t})
        assert len(found) == 3
        np.testing.assert_array_equal(found[1]["x"], x[2:4])
    assert len(inferences([ports], {"x": x, "t": normal(rng, 3)})) == 3
    assert inferences([ports], {"x": x, "t": normal(rng, 2)}) == []
    assert inferences([ports], {"x": normal(rng, 5, 3), "t": t}) == []


# --- quantised models ------------------------------------------------------------------------


def quantised(rng: np.random.Generator, layers: int = 1, scale: float = 0.05) -> ModelProto:
    """Dense layers between QuantizeLinear and DequantizeLinear, as quantisers write them."""
    constants: dict[str, Array] = {
        "s": np.float32(scale),
        "z": np.uint8(128),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
    }
    nodes = [node("QuantizeLinear", "x s z", "q0"), node("DequantizeLinear", "q0 s z", "d0")]
    for n in range(layers):
        w = rng.integers(-60, 60, (64, 64)).astype(np.int8)
        constants[f"w{n}"] = w
        nodes += [
            node("DequantizeLinear", f"w{n} ws wz", f"dw{n}"),
            node("MatMul", f"d{n} dw{n}", f"m{n}"),
            node("Tanh", f"m{n}", f"t{n}"),
            node("QuantizeLinear", f"t{n} s z", f"q{n + 1}"),
            node("DequantizeLinear", f"q{n + 1} s z", f"d{n + 1}"),
        ]
    nodes.append(node("Identity", f"d{layers}", "y"))
    return model(nodes, {"x": (32, 64)}, constants)


def steps(n: int, share: float) -> Fault:
    def fault(outputs: dict[str, Array]) -> None:
        flat = outputs["y"].reshape(-1)
        flat[: max(1, int(share * flat.size))] += np.float32(0.05 * n)

    return fault


def test_one_step_of_the_output_is_no_error_of_a_quantised_model(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    path = save(quantised(rng), tmp_path)
    report = check(path, steps(1, 0.002))
    assert report.notes == ()
    assert report.outputs[0].step == np.float32(0.05)
    assert report.outputs[0].n_steps == 1
    assert "at most 1 step of 0.05" in report.lines[0]
    for n, share in [(1, 0.5), (5, 0.002)]:
        with pytest.raises(WrongNumbers, match="output 'y' differs from the oracle"):
            check(path, steps(n, share))


def test_steps_inside_of_a_quantised_model_are_told_in_its_words(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """Layers behind a value that fell on the other side differ by more than one step."""
    path = save(quantised(rng, layers=6), tmp_path)

    def flip(outputs: dict[str, Array]) -> None:
        outputs["y"][0, :8] += np.float32(0.1)

    report = check(path, flip)
    assert all(n.startswith("quantised model: output 'y' on ") for n in report.notes)
    assert report.notes
    assert "halfway between two steps" in report.notes[0]

    def wrong_scale(outputs: dict[str, Array]) -> None:
        outputs["y"] *= np.float32(0.5)

    with pytest.raises(WrongNumbers):
        check(path, wrong_scale)


# --- precisions that are too narrow ----------------------------------------------------------


def far_apart(rng: np.random.Generator, size: float) -> ModelProto:
    """A product beyond float16, normalised again, so that outputs alone look harmless."""
    nodes = [
        node("MatMul", "x w", "large"),
        node("MatMul", "large v", "m"),
        node("Mul", "m small", "y"),
    ]
    small = np.float32(1 / size)
    constants = {"w": size * normal(rng, 32, 32), "v": normal(rng, 32, 32), "small": small}
    return model(nodes, {"x": (4, 32)}, constants)


def cancelling(rng: np.random.Generator) -> ModelProto:
    """The difference of two products that have seven binary digits in common and more."""
    w = normal(rng, 64, 64)
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "x v", "b"), node("Sub", "a b", "y")]
    return model(nodes, {"x": (4, 64)}, {"w": w, "v": w + np.float32(1e-4) * normal(rng, 64, 64)})


@pytest.mark.parametrize(
    ("make", "precision", "hint"),
    [
        (lambda rng: far_apart(rng, 1e5), "f16", "precision='bf16'"),
        (cancelling, "bf16", "precision='f16'"),
    ],
    ids=["beyond 65504", "beyond the digits of bfloat16"],
)
def test_a_precision_too_narrow_is_refused(
    rng: np.random.Generator,
    make: Callable[[np.random.Generator], ModelProto],
    precision: str,
    hint: str,
    tmp_path: Path,
) -> None:
    path = save(make(rng), tmp_path)
    with pytest.raises(WrongNumbers, match=f"precision {precision} is too narrow") as caught:
        autotune.compile(path, precision=precision, threads=1)
    assert caught.value.exit_code == 5
    assert hint in caught.value.hint
    assert autotune.compile(path, threads=1).report is not None
