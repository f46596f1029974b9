"""The networks built here are the published ones: shapes, multiply-adds, parameters."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import onnx
import pytest

from benchmarks.models import BUILT, LIGHT, build, model_file


@functools.cache
def built(name: str) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(build(name), check_type=True, strict_mode=True)


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    values = [*model.graph.value_info, *model.graph.output]
    return {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}


def multiply_adds(model: onnx.ModelProto) -> int:
    found, weights = shapes(model), {t.name: t.dims for t in model.graph.initializer}
    return sum(
        math.prod(found[n.output[0]]) * math.prod(weights[n.input[1]][1:])
        for n in model.graph.node
        if n.op_type in ("Conv", "Gemm")
    )


@pytest.mark.parametrize(
    ("name", "m_macs", "m_parameters"),
    [("mobilenet_v1", 569, 4.2), ("mobilenet_v2", 301, 3.5), ("resnet18", 1814, 11.7)],
)
def test_a_network_is_as_large_as_published(name: str, m_macs: int, m_parameters: float) -> None:
    model = built(name)
    assert round(multiply_adds(model) / 1e6) == m_macs
    n_parameters = sum(math.prod(t.dims) for t in model.graph.initializer)
    assert round(n_parameters / 1e6, 1) == m_parameters


@pytest.mark.parametrize("name", BUILT)
def test_a_network_is_a_valid_model(name: str) -> None:
    model = built(name)
    onnx.checker.check_model(model)
    assert shapes(model)["output"] == (1, 1000)
    last = next(n for n in model.graph.node if n.op_type == "GlobalAveragePool").input[0]
    assert shapes(model)[last][2:] == (7, 7)


def test_equal_seeds_give_equal_files() -> None:
    one, same, other = (build("mobilenet_v2", seed) for seed in (0, 0, 1))
    assert one.SerializeToString() == same.SerializeToString()
    assert one.graph.initializer != other.graph.initializer


def test_every_light_model_is_in_the_wheel(tmp_path: Path) -> None:
    folder = tmp_path
    assert all(model_file(name, folder).is_file() for name in LIGHT)
    assert not list(folder.iterdir())


def test_a_built_model_is_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    path = model_file("mobilenet_v2", folder)
    path.write_bytes(b"kept")
    assert model_file("mobilenet_v2", folder).read_bytes() == b"kept"
    assert list(folder.iterdir()) == [path]
