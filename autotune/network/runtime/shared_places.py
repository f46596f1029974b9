"""⑩ Places of a KV cache that several sessions read: one memory until one of them writes.

shared = SharedPlaces(buffers, axes, 1024)
arrays = shared.arrays(buffers, 1024)   # of another session, with the same pages
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.pages import Bytes, SharedPages, private_pages

Array = NDArray[Any]
_PAGE = mmap.PAGESIZE


class SharedPlaces:
    """The first `length` places of buffers, as far as they are whole pages.

    `axes`: the dimension of each that places are along. The sessions that show them own them: they
    go with the last one. Raises OSError without room.
    """

    def __init__(self, buffers: Mapping[str, Array], axes: Mapping[str, int], length: int) -> None:
        self.length, self._axes = length, axes
        self._begins, self._n_bytes = dict[str, int](), 0
        for name, array in buffers.items():
            self._begins[name] = self._n_bytes
            self._n_bytes += -(-array.nbytes // _PAGE) * _PAGE
        whole = private_pages(self._n_bytes)
        spans = list(self._spans(buffers, length))
        for name, begin, end in spans:
            _copy(buffers[name], self._begins[name], whole, begin, end)
        runs = ((-(-begin // _PAGE) * _PAGE, end // _PAGE * _PAGE) for _, begin, end in spans)
        self._pages = SharedPages(whole, [run for run in runs if run[0] < run[1]])

    def covers(self, buffers: Mapping[str, Array], length: int) -> bool:
        """Whether they are half of so many places and more."""
        filled = sum(end - begin for _, begin, end in self._spans(buffers, length))
        shared = sum(end - begin for begin, end in self._pages.runs)
        return self.length <= length and 2 * shared >= filled

    def arrays(self, buffers: Mapping[str, Array], length: int) -> dict[str, Array]:
        """Buffers that begin with `length` places of others, which have these in front."""
        pages, found = private_pages(self._n_bytes), dict[str, Array]()
        self._pages.show_in(pages)
        ends = dict(self._pages.runs)
        for name, begin, end in self._spans(buffers, length):
            first = -(-begin // _PAGE) * _PAGE
            behind = ends.get(first, begin)
            if behind > begin:
                _copy(buffers[name], self._begins[name], pages, begin, first)
            _copy(buffers[name], self._begins[name], pages, behind, end)
        for name, array in buffers.items():
            begin = self._begins[name]
            found[name] = pages[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        return found

    def _spans(self, buffers: Mapping[str, Array], length: int) -> Iterator[tuple[str, int, int]]:
        """The bytes of so many places, for each index of the dimensions before."""
        for name, array in buffers.items():
            axis = self._axes[name]
            outer, step = int(np.prod(array.shape[:axis])), array.strides[axis]
            for n in range(outer):
                begin = self._begins[name] + n * array.shape[axis] * step
                yield name, begin, begin + length * step


def _copy(array: Array, offset: int, pages: Bytes, begin: int, end: int) -> None:
    """Bytes of an array, which begins at `offset` of the pages."""
    source = array.reshape(-1).view(np.uint8)
    pages[begin:end] = source[begin - offset : end - offset]
