"""Functions of one byte become tables: the numbers of the definition, on every kind of CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, save

from autotune.codegen.compile import assembly
from autotune.graph.network import Network, build_network
from autotune.loopir.lower import lower
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.target import host_target, parse_target, runs_here
from autotune.te.evaluate import evaluate
from tests.graph.onnx_models import execute
from tests.graph.test_graph_quantised import model_of, normal
from tests.schedule.running import assert_computes, random_inputs

pytestmark = pytest.mark.target

HOST = host_target()
TARGETS = [t for t in (HOST, parse_target("haswell")) if runs_here(t)]
SCALES = {"s": 0.04, "t": 1 / 127, "u": 0.03, "one": 1.0, "half": 0.5}
ZEROS = {"z": np.uint8(120), "v": np.int8(-3), "w": np.uint8(7)}
CONSTANTS = {n: np.float32(v) for n, v in SCALES.items()} | ZEROS


def _node(op: str, inputs: str, output: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attrs)


GELU = [
    _node("QuantizeLinear", "x s z", "q"),
    _node("DequantizeLinear", "q s z", "d"),
    _node("Erf", "d", "e"),
    _node("QuantizeLinear", "e t v", "eq"),
    _node("DequantizeLinear", "eq t v", "ed"),
    _node("Add", "ed one", "a"),
    _node("Mul", "d a", "m"),
    _node("Mul", "m half", "h"),
    _node("QuantizeLinear", "h u w", "r"),
    _node("DequantizeLinear", "r u w", "y"),
]
SAME = [
    _node("QuantizeLinear", "x s z", "q"),
    _node("DequantizeLinear", "q s z", "d"),
    _node("QuantizeLinear", "d s z", "again"),
    _node("DequantizeLinear", "again s z", "y"),
]
PICTURES = [
    _node("QuantizeLinear", "x t v", "q"),
    _node("DequantizeLinear", "q t v", "d"),
    _node("MaxPool", "d", "p", kernel_shape=[3, 3], pads=[1] * 4),
    _node("QuantizeLinear", "p t v", "pq"),
    _node("DequantizeLinear", "pq t v", "pd"),
    _node("HardSwish", "pd", "h"),
    _node("QuantizeLinear", "h u w", "r"),
    _node("DequantizeLinear", "r u w", "y"),
]
LONG = [
    _node("QuantizeLinear", "x s z", "q"),
    _node("DequantizeLinear", "q s z", "c0"),
    *(_node("Mul" if n % 2 else "Add", f"c{n} half", f"c{n + 1}") for n in range(500)),
    _node("QuantizeLinear", "c500 u w", "r"),
    _node("DequantizeLinear", "r u w", "y"),
]
CASES: dict[str, tuple[list[Any], tuple[int, ...], int]] = {
    "gelu": (GELU, (5, 67), 1),
    "rows_of_64": (GELU, (3, 128), 1),
    "quantised_again": (SAME, (4, 33), 0),
    "channels_last": (PICTURES, (1, 20, 6, 5), 1),
    "longer_than_the_stack": (LONG, (4, 33), 1),
}


def _built(
    rng: np.random.Generator, name: str, folder: Path
) -> tuple[ModelProto, Network, dict[str, Any]]:
    nodes, shape, _ = CASES[name]
    x = {"x": 3 * normal(rng, *shape)}
    proto = model_of(nodes, x, {"y": "float32"}, CONSTANTS, {"y": list(shape)})
    save(proto, folder / "model.onnx")
    return proto, build_network(folder / "model.onnx"), x


def _defined(proto: ModelProto, feeds: Mapping[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, dict(feeds))[0]


@pytest.mark.parametrize("name", CASES)
def test_the_table_has_the_values_of_the_definition(
    rng: np.random.Generator, name: str, tmp_path: Path
) -> None:
    proto, network, feeds = _built(rng, name, tmp_path)
    np.testing.assert_array_equal(execute(network, feeds)["y"], _defined(proto, feeds))
    labels = "+".join(c.label for c in network.calls).split("+")
    assert labels.count("Lookup") == CASES[name][2]
    assert not {"Erf", "HardSwish"} & set(labels)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: str(t.cpu))
@pytest.mark.parametrize("name", ["gelu", "rows_of_64", "channels_last"])
def test_every_structure_looks_up(
    rng: np.random.Generator, name: str, target: Any, tmp_path: Path
) -> None:
    _, network, _ = _built(rng, name, tmp_path)
    for dag in network.tasks.values():
        inputs = random_inputs(dag)
        for sketch in generate_sketches(dag, target)[:2]:
            rows = sketch.sample(64, rng)
            rows = rows[analyse(dag, sketch, rows, target).valid][:2]
            for row in rows:
                program = lower(dag, sketch.bind(row))
                assert_computes(program, inputs, evaluate(dag, inputs), target, (2,))


def test_a_cpu_that_permutes_bytes_does_it(rng: np.random.Generator, tmp_path: Path) -> None:
    _, network, _ = _built(rng, "rows_of_64", tmp_path)
    (dag,) = network.tasks.values()
    for name, has in (("znver4", True), ("skylake-avx512", False), ("haswell", False)):
        target = parse_target(name)
        texts = []
        for sketch in generate_sketches(dag, target):
            rows = sketch.sample(64, np.random.default_rng(0))
            row = rows[analyse(dag, sketch, rows, target).valid][0]
            texts.append(assembly(lower(dag, sketch.bind(row)), target))
        assert any("vpermi2b" in t or "vpermt2b" in t for t in texts) == has
