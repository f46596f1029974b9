"""Memory for kernels: alignment, zeros, large pages, and giving it back."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pytest

from autotune.codegen.memory import ALIGNMENT, Recycled, aligned

SMALL, LARGE = 1000, 5 << 20


def mapping(address: int) -> str:
    """What the kernel says of the mapping that holds `address`; "" when there is none."""
    parts = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    for part in parts[1:]:
        low, high = (int(x, 16) for x in part.split()[0].split("-"))
        if low <= address < high:
            return part
    return ""


@pytest.mark.parametrize("n_bytes", [SMALL, LARGE])
def test_is_aligned_zeroed_and_writable(n_bytes: int) -> None:
    array = aligned((n_bytes // 4,), "float32")
    assert array.ctypes.data % ALIGNMENT == 0
    assert not array.any()
    array.fill(1.0)
    assert array.sum() == n_bytes // 4


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no large pages here"
)
def test_large_arrays_ask_for_large_pages() -> None:
    array = aligned((LARGE,), "uint8")
    flags = re.search(r"VmFlags:(.*)", mapping(array.ctypes.data))
    assert flags is not None
    assert "hg" in flags[1].split()


def test_memory_goes_back_with_the_last_view() -> None:
    array = aligned((64 << 20,), "uint8")
    view, address = array[1:].view(), array.ctypes.data
    del array
    gc.collect()
    assert mapping(address)
    del view
    gc.collect()
    assert not mapping(address)


def test_large_memory_is_handed_out_again_when_nobody_has_it() -> None:
    recycled = Recycled((9 << 20,), "float32")
    first = recycled.take()
    address = first.ctypes.data
    del first
    assert recycled.take().ctypes.data == address


@pytest.mark.parametrize("kept", ["itself", "view", "memoryview"])
@pytest.mark.parametrize("n", [SMALL, 9 << 20])
def test_memory_that_somebody_has_is_not_handed_out(kept: str, n: int) -> None:
    recycled = Recycled((n,), "float32")
    first = recycled.take()
    first.fill(1.0)
    held = {"itself": first, "view": first[5:][::2].reshape(-1, 1), "memoryview": memoryview(first)}
    mine = held[kept]
    del first, held
    for _ in range(3):
        recycled.take().fill(2.0)
    assert (np.asarray(mine) == 1.0).all()


def test_too_much_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        aligned((1 << 60,), "uint8")


def test_has_shape_and_dtype() -> None:
    array = aligned((3, 2, 4), "int64")
    assert array.shape == (3, 2, 4)
    assert array.dtype == np.int64
