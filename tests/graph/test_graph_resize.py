"""Resize and Upsample: extents, coordinates and kernels, against two other implementations."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from autotune.errors import UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import (
    assert_matches,
    error_against_reference,
    execute,
    model,
    node,
    onnxruntime_outputs,
    save,
)

EXTENTS = [(10, 2.3), (10, 0.7), (5, 1.4), (20, 0.35), (4, 0.6), (6, 3.1), (8, 0.5), (7, 1.0)]
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def along_a_row(extent: int, scale: float, opset: int, **attrs: object) -> ModelProto:
    """Resize of the last dimension alone; before opset 13 a region has to be given."""
    constants = {"s": np.array([1, 1, 1, scale], "f4"), "r": np.zeros(0, "f4")}
    op = node("Resize", "x r s" if opset < 13 else "x _ s", **attrs)
    return model(op, {"x": (1, 1, 3, extent)}, constants, opset=opset)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", [*NEAREST, "linear", "cubic"])
def test_extents_and_coordinates_are_those_of_float32(
    mode: str, coordinates: str, tmp_path: Path
) -> None:
    """10 * 2.3 is 23 in float32 and 22.999 beyond."""
    how = {"mode": "nearest", "nearest_mode": mode} if mode in NEAREST else {"mode": mode}
    for (extent, scale), opset in product(EXTENTS, (11, 13, 19)):
        if opset < 19 and coordinates == "half_pixel_symmetric":
            continue
        attrs = {"coordinate_transformation_mode": coordinates, **how}
        assert_matches(along_a_row(extent, scale, opset, **attrs), tmp_path, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("extent", "scale"), [(4, 0.6), (6, 3.1), (9, 0.4), (5, 2.5)])
def test_corners_are_those_of_a_length_that_need_not_be_whole(
    extent: int, scale: float, mode: str, tmp_path: Path
) -> None:
    """As ONNX's own cases have it; ONNX Runtime takes the whole part."""
    attrs = {"coordinate_transformation_mode": "align_corners", "mode": mode}
    assert error_against_reference(along_a_row(extent, scale, 19, **attrs), tmp_path) < 1e-5


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("extent", "scale"), EXTENTS)
def test_before_opset_11(extent: int, scale: float, mode: str, tmp_path: Path) -> None:
    """Asymmetric; the nearest one is behind where an image shrinks and in front where it grows."""
    op = node("Resize", "x s", mode=mode)
    constants = {"s": np.array([1, 1, 1, scale], "f4")}
    proto = model(op, {"x": (1, 1, 3, extent)}, constants, opset=10)
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2]])
def test_sizes_of_some_axes(axes: list[int], policy: str, tmp_path: Path) -> None:
    attrs = {"axes": axes, "keep_aspect_ratio_policy": policy, "mode": "linear"}
    op = node("Resize", "x _ _ n", **attrs)
    proto = model(op, {"x": (1, 2, 6, 9)}, {"n": np.array([5, 14])}, opset=19)
    assert error_against_reference(proto, tmp_path) < 1e-5


@pytest.mark.parametrize("attrs", [{"cubic_coeff_a": -0.5}, {"exclude_outside": 1}], ids=str)
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("scale", [0.4, 0.75, 1.6])
def test_cubic_kernels(
    attrs: dict[str, object], antialias: int, scale: float, tmp_path: Path
) -> None:
    proto = along_a_row(10, scale, 19, mode="cubic", antialias=antialias, **attrs)
    assert error_against_reference(proto, tmp_path) < 1e-5


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("roi", [(0.2, 0.1, 0.8, 0.9), (-0.3, 0.4, 1.2, 0.6), (0.6, 0.9, 0.3, 0.1)])
def test_a_region_is_cropped_and_what_is_outside_of_it_is_a_constant(
    roi: tuple[float, ...], mode: str, tmp_path: Path
) -> None:
    names = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    op = node("Resize", "x r _ n", mode=mode, **names)
    constants = {"r": np.array([0, 0, *roi[:2], 1, 1, *roi[2:]], "f4"), "n": np.array([1, 2, 3, 5])}
    proto = model(op, {"x": (1, 2, 6, 7)}, constants, opset=13)
    assert_matches(proto, tmp_path, 1e-5)


def test_a_long_row_needs_no_matrix(tmp_path: Path) -> None:
    """A matrix of 100,000 by 150,000 weights would take 60 GB."""
    assert_matches(along_a_row(100_000, 1.5, 19, mode="linear"), tmp_path, 1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("shape", [(1, 2, 4, 6), (1, 2, 24, 24)], ids=["taps", "matrices"])
def test_integers_are_interpolated_in_float32(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Without their fraction; a sum that is whole but for its last digit falls on either side."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(max(info.min, -999), min(info.max, 999), shape, dtype)

    def resized(mode: str) -> ModelProto:
        constants, types = {"s": np.array([1, 1, 2, 1.5], "f4")}, {"x": dtype, "y": dtype}
        return model(node("Resize", "x _ s", mode=mode), {"x": shape}, constants, types=types)

    proto = resized("linear")
    found = execute(build_network(save(proto, tmp_path)), {"x": x})["y"]
    want = onnxruntime_outputs(proto, {"x": x})["y"]
    apart = np.abs(found.astype(np.int64) - want)
    assert found.dtype == want.dtype
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= 0.02 * apart.size
    with pytest.raises(UnsupportedOperator, match="integers"):
        build_network(save(resized("cubic"), tmp_path))
