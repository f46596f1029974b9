"""Rows of activations that would share a set of the cache are a line further apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from autotune.strides import dense, padded_strides, spanned

shapes = (
    st.lists(st.sampled_from([1, 2, 3, 7, 1024]), max_size=4)
    .map(tuple)
    .filter(lambda shape: math.prod(shape) <= 1 << 16)
)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((196, 1024), (1040, 1)),
        ((196, 2048), (2064, 1)),
        ((14, 14, 1024), (14 * 1040, 1040, 1)),
        ((1, 14, 1024, 1), (14 * 1040, 1040, 1, 1)),
        ((196, 512), (512, 1)),
        ((196, 1000), (1000, 1)),
        ((1, 1024), (1024, 1)),
        ((1024,), (1,)),
        ((), ()),
    ],
)
def test_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert padded_strides(shape, "float32") == strides


def test_what_counts_is_bytes() -> None:
    assert padded_strides((8, 512), "float64") == (520, 1)
    assert padded_strides((8, 1024), "int8") == (1024, 1)


@given(shapes)
def test_elements_are_apart_in_row_major_order(shape: tuple[int, ...]) -> None:
    strides = padded_strides(shape, "float32")
    at = as_strided(np.arange(spanned(shape, strides)), shape, [8 * s for s in strides])
    places = at.ravel()
    assert (np.diff(places) > 0).all()
    assert places[-1] == spanned(shape, strides) - 1


@given(shapes)
def test_dense_is_what_numpy_does(shape: tuple[int, ...]) -> None:
    assert np.zeros(shape, np.int8).strides == dense(shape)
    assert spanned(shape, dense(shape)) == np.prod(shape, dtype=int)
