"""⑩ Digests of the parts of an artifact: they tell damage, not malice.

    described(part) = {"bytes": 4096, "sha256": "…"}        up to 1 MiB: SHA-256
    described(part) = {"bytes": 1 << 28, "pages": "…"}      above: SHA-256 over a value of each page

The value of a page of 4 KiB is Σ (w ^ w >> 29) · k over its 64-bit words, modulo 2^64, where k is
an odd constant of each place, so that every changed word and every word that moved changes it. The
shift brings the upper bits of a word down: a product modulo 2^64 carries differences up only, and
flipped signs of two words would cancel. Pages have their places in the SHA-256. This takes a fifth
of the time of SHA-256 over all bytes.

Files of former versions have plain sums of words there ("sums"), which do not see words that
change places, or SHA-256 over pieces of 16 MiB ("sha256").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.machine import read_limits

CHUNK = 16 << 20
"""Bytes that a thread takes at a time."""
_BLOCK = 256 << 10
"""Bytes that are read and summed up at a time: whole pages."""
PAGE = 4 << 10
_WORDS = PAGE // 8
_BY_PAGES_FROM = 1 << 20
SHIFT = 29  # divides no size of an element, so no flipped bits of neighbours cancel
_MOST_THREADS = 8

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]


def described(data: Bytes, kind: str | None = None) -> dict[str, int | str]:
    """A part as a manifest describes it; `kind` as files of today have it, or that of another."""
    kind = kind or ("pages" if data.nbytes > _BY_PAGES_FROM else "sha256")
    return {"bytes": data.nbytes, kind: digest(data, kind)}


def digest(
    data: Bytes, kind: str = "sha256", read: Callable[[int, int], None] | None = None
) -> str:
    """The digest of a part, in hexadecimal.

    `read`: called with the borders of each block, to read what is then still in the cache.
    """
    n_block, value = KINDS[kind]

    def of_chunk(begin: int) -> bytes:
        end, found = min(begin + CHUNK, data.nbytes), []
        for start in range(begin, max(end, 1), n_block):
            stop = min(start + n_block, end)
            if read is not None:
                read(start, stop)
            found.append(value(data[start:stop]))
        return b"".join(found)

    values = _on_threads(of_chunk, range(0, max(data.nbytes, 1), CHUNK))
    is_whole = kind == "sha256" and len(values) == 1
    return (values[0] if is_whole else hashlib.sha256(b"".join(values)).digest()).hex()


def kind_of(described: Mapping[str, Any]) -> str:
    """The kind of digest in the description of a part."""
    return next(kind for kind in KINDS if kind in described)


def page_values(block: Bytes) -> Words:
    """The value of each page: see the module."""
    words = _pages(block)
    mixed = words >> np.uint64(SHIFT)
    mixed ^= words
    found: Words = np.einsum("pw,w->p", mixed, factors())
    return found


def _folded(block: Bytes) -> bytes:
    return page_values(block).tobytes()


def _summed(block: Bytes) -> bytes:
    """Values of pages in files of former versions: the sums of their words."""
    found: Words = _pages(block).sum(axis=1, dtype="<u8")
    return found.tobytes()


def _hashed(block: Bytes) -> bytes:
    return hashlib.sha256(block.data).digest()


@cache
def factors() -> Words:
    """The constants of the places of a page. They never change: files have digests of them."""
    drawn = hashlib.shake_128(b"autotune: places of a page").digest(PAGE)
    return np.frombuffer(drawn, "<u8") | np.uint64(1)


def _pages(block: Bytes) -> Words:
    """The words of each page, (pages, words); missing bytes of the last one count as zero."""
    missing = -block.nbytes % PAGE
    whole = np.concatenate((block, np.zeros(missing, np.uint8))) if missing else block
    words: Words = whole.view("<u8").reshape(-1, _WORDS)
    return words


KINDS: dict[str, tuple[int, Callable[[Bytes], bytes]]] = {
    "pages": (_BLOCK, _folded),
    "sums": (_BLOCK, _summed),
    "sha256": (CHUNK, _hashed),
}
"""Bytes of a block, and what of it goes into the SHA-256, by kind of digest."""


def _on_threads(function: Callable[[int], bytes], starts: range) -> list[bytes]:
    if len(starts) < 2:
        return [function(start) for start in starts]
    n_threads = min(_MOST_THREADS, read_limits().n_busy, len(starts))
    from concurrent.futures import ThreadPoolExecutor  # only large files are worth its import

    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(function, starts))
