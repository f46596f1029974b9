"""The models of ONNX's own backend tests: each gives the right numbers or is refused."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from autotune.errors import AutotuneError
from autotune.graph.network import build_network, chosen
from autotune.graph.operators.table import NATIVE
from autotune.graph.reader.onnx_reader import drop_initializers_from_inputs
from tests.graph.onnx_models import LIGHT, Array, execute, save

REFUSED = ("test_strnorm", "test_gradient", "test_sequence_model8")
"""Models of strings, of derivatives and of a dynamic shape."""
STORED = [
    pytest.param(path, id=path.name)
    for kind in ("pytorch-converted", "pytorch-operator", "simple")
    for path in sorted((LIGHT.parent / kind).iterdir())
    if (path / "model.onnx").exists() and not path.name.startswith(REFUSED)
]
NOT_ASKED = {"GlobalLpPool"}
"""Operators of which ONNX has no case."""


@dataclass(frozen=True)
class Case:
    """A model, and what it gives for some inputs."""

    name: str
    model: ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]


def from_folder(path: Path) -> Case:
    def read(kind: str) -> list[Array]:
        files = sorted((path / "test_data_set_0").glob(f"{kind}_*.pb"))
        return [numpy_helper.to_array(TensorProto.FromString(f.read_bytes())) for f in files]

    model = onnx.load(path / "model.onnx")
    drop_initializers_from_inputs(model)
    return Case(path.name, model, read("input"), read("output"))


def of_the_standard() -> Iterator[Case]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        inputs, outputs = case.data_sets[0]
        yield Case(case.name, case.model, [*map(_array, inputs)], [*map(_array, outputs)])


def _array(value: object) -> object:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def results(case: Case, folder: Path) -> list[Array]:
    """What the network of a case computes, in NumPy. Raises AutotuneError where it is refused."""
    network = chosen(build_network(save(case.model, folder)), {})
    names = [p.name for p in case.model.graph.input]
    with np.errstate(all="ignore"):
        found = execute(network, dict(zip(names, case.inputs, strict=True)))
    return [found[o.name] for o in case.model.graph.output]


def with_constants(case: Case) -> Case:
    """The case with all inputs but the first as constants of the model, as exporters write them."""
    model = ModelProto()
    model.CopyFrom(case.model)
    kept = list(case.inputs[:1])
    for port, value in list(zip(model.graph.input, case.inputs, strict=True))[1:]:
        if isinstance(value, np.ndarray | np.generic):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), port.name))
            model.graph.input.remove(port)
        else:
            kept.append(value)
    return Case(case.name, model, kept, case.outputs)


def answer(case: Case, folder: Path) -> list[Array] | None:
    """The results of a case, of its second form where the first is refused; None if both are.

    Texts are numbers inside of a network: `test_graph_texts` has them.
    """
    if any(getattr(value, "dtype", np.dtype(int)).kind in "OU" for value in case.inputs):
        return None
    for variant in (case, with_constants(case)):
        try:
            return results(variant, folder)
        except AutotuneError:
            continue
    return None


def assert_right(case: Case, found: Sequence[Array]) -> None:
    """With ONNX's own tolerance; half precision is computed in single."""
    for got, given in zip(found, case.outputs, strict=True):
        want = np.asarray(given)
        assert got.shape == want.shape, case.name
        tolerance = 1e-2 if want.dtype.itemsize == 2 else 1e-3
        if "quantize" in case.name and want.dtype.kind in "iu":
            tolerance = 1.0  # evaluated in double precision: the other side of a tie
        np.testing.assert_allclose(
            got.astype(float), want.astype(float), tolerance, tolerance, err_msg=case.name
        )


@pytest.mark.parametrize("path", STORED)
def test_a_model_that_came_with_its_results(path: Path, tmp_path: Path) -> None:
    case = from_folder(path)
    found = answer(case, tmp_path)
    assert found is not None
    assert_right(case, found)


DISPUTED = {"test_maxunpool_export_with_output_shape"}
"""Its indices count in the inferred shape, those of ONNX Runtime and PyTorch in the result's."""


@pytest.mark.slow
def test_operators_of_the_standard_are_right_or_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two cases of the same operators, four of `make test-all`.

    docs/results/conformance.csv has all.
    """
    n_each = 2 if request.config.getoption("--sample") else 4
    right: set[str] = set()
    tried: Counter[tuple[str, ...]] = Counter()
    n_right = 0
    for case in of_the_standard():
        operators = tuple(node.op_type for node in case.model.graph.node)
        tried[operators] += 1
        if tried[operators] > n_each:
            continue
        found = None if case.name in DISPUTED else answer(case, tmp_path)
        if found is None:
            continue
        assert_right(case, found)
        right |= set(operators)
        n_right += 1
    of_onnx = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert (NATIVE & of_onnx) - right == NOT_ASKED
    assert n_right > 175 * n_each
