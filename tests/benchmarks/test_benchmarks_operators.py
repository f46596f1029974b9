"""Single operators: what is written in `te` is what the ONNX model of the others computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator

import autotune
from autotune.network.runtime.runtime import random_inputs
from benchmarks.budget import share_s
from benchmarks.operator_cases import CASES, capsule
from benchmarks.operators import FIELDS, cases_of, main
from benchmarks.results import append_row


@pytest.mark.slow
def test_capsule_convolution_is_the_convolution_between_transposes() -> None:
    model = capsule(2, (6, 5), (3, 2, 3, 2, 1))
    assert model.expression is not None
    task = autotune.Task(model.expression.output, threads=1)
    ours = task.build(constants=model.expression.constants(model.arrays())).model
    inputs = random_inputs(ours.input_info)
    (expected,) = ReferenceEvaluator(model.proto()).run(None, inputs)
    np.testing.assert_allclose(ours.run(inputs)["y"], expected, rtol=1e-4, atol=1e-5)


def test_every_operator_has_four_shapes_and_both_batches_come_first() -> None:
    assert {len(shapes) for shapes in CASES.values()} == {4}
    cases = list(cases_of("M", ("C2D", "CAP"), (1, 16), 1, 4))
    assert len({case.identity for case in cases}) == len(cases) == 16
    assert [case.key["batch"] for case in cases[:4]] == ["1", "1", "16", "16"]
    assert len({case.key["shape"] for case in cases[:4]}) == 2


def test_a_case_of_the_table_is_not_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "operators.csv"
    for case in cases_of("M", ("NRM",), (1,), 1, 4):
        append_row(out, FIELDS, case.key)
    before = out.read_text(encoding="utf-8")
    arguments = ["--machine", "M", "--only", "NRM", "--batch", "1", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.output) == (0, "")
    result = CliRunner().invoke(main, [*arguments, "--batch", "2", "--budget", "1s"])
    assert result.output == "4 cases are left: run the same command again\n"
    assert out.read_text(encoding="utf-8") == before


def test_a_budget_is_shared_by_what_is_left() -> None:
    assert share_s(300, 10, 1.0) == pytest.approx(22)
    assert share_s(100, 50, 1.0) == 10.0
    assert share_s(5, 1, 1.0) == 0.0
