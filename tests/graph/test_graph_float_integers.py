"""Products of integers as products of floats: every bit, or not offered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, save

from autotune.graph.bound_model import BoundModel
from autotune.graph.mixture import Mixture
from autotune.graph.network import Network, build_network
from autotune.schedule.steps import NarrowProducts, Winograd
from autotune.search.rules.algorithms import algorithms
from tests.graph.onnx_models import execute
from tests.graph.test_graph_quantised import (
    TYPES,
    Samples,
    dtypes_of,
    integers,
    model_of,
    normal,
    quantization,
    small_network,
)
from tests.targets import AMX

pytestmark = pytest.mark.target


@pytest.mark.parametrize("per_channel", [True, False])
def test_floats_give_every_bit_of_integers(
    rng: np.random.Generator, per_channel: bool, tmp_path: Path
) -> None:
    path = tmp_path / "static.onnx"
    save(small_network(rng), tmp_path / "float.onnx")
    quantization.quantize_static(
        tmp_path / "float.onnx",
        path,
        Samples(rng),
        weight_type=TYPES.QInt8,
        per_channel=per_channel,
    )
    mixture, feeds = Mixture(BoundModel(path)), {"x": normal(rng, 1, 3, 16, 16)}
    assert len(mixture.integers) == 3
    assert not mixture.narrowable & mixture.integers
    want = execute(mixture.network("f32"), feeds)["y"]
    wide = mixture.network("f32", floats=mixture.integers)
    assert "int8" not in dtypes_of(wide)
    assert algorithms_of(wide) == set()
    assert algorithms_of(mixture.network("f32")) == set()
    assert algorithms_of(build_network(tmp_path / "float.onnx")) == {Winograd, NarrowProducts}
    np.testing.assert_array_equal(execute(wide, feeds)["y"], want)
    narrow = mixture.network("bf16", mixture.narrowable, mixture.integers)
    assert sum(call.label.endswith(", bf16") for call in narrow.calls) == 3
    np.testing.assert_array_equal(execute(narrow, feeds)["y"], want)
    one = mixture.network("f32", floats=frozenset(sorted(mixture.integers)[:1]))
    assert {"int8", "float32"} <= dtypes_of(one)
    np.testing.assert_array_equal(execute(one, feeds)["y"], want)


def algorithms_of(network: Network) -> set[type]:
    """What sums may be rewritten into where there are matrix tiles."""
    found = [p for dag in network.tasks.values() for p in algorithms(dag, AMX)]
    return {type(s) for p in found for s in p.steps if isinstance(s, Winograd | NarrowProducts)}


@pytest.mark.parametrize(("extra", "is_exact"), [(0, True), (1, False)])
@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
def test_sums_that_floats_do_not_hold_stay_integers(
    rng: np.random.Generator, op: str, extra: int, is_exact: bool, tmp_path: Path
) -> None:
    """At most 2²⁴ // 255 times the largest byte: 518 weights of 127 and one of 7."""
    weights = np.zeros(520, np.int8)
    weights[:518], weights[518], weights[519] = 127, 7 + extra, -128
    x, w = integers(rng, "uint8", 1, 520), weights[:, None]
    if op == "ConvInteger":
        x, w = x[..., None, None], w.T[..., None, None]
    proto = model_of([helper.make_node(op, ["x", "w"], ["y"])], {"x": x}, {"y": "int32"}, {"w": w})
    save(proto, tmp_path / "m.onnx")
    mixture = Mixture(BoundModel(tmp_path / "m.onnx"))
    assert len(mixture.integers) == is_exact
    floats = mixture.network("f32", floats=mixture.integers)
    for feed in (np.full_like(x, 255), x, rng.integers(0, 2, x.shape).astype(np.uint8) * 255):
        found = execute(floats, {"x": feed})["y"]
        want = execute(mixture.network("f32"), {"x": feed})["y"]
        np.testing.assert_array_equal(found, want)
