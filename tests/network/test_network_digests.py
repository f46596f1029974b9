"""Digests of large constants: whatever is changed or moved in them is another digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from autotune.network.artifact.digests import KINDS, described, digest, kind_of

Bytes = NDArray[np.uint8]

N_BYTES = (1 << 20) + 3 * 4096 + 20
"""Above the size from which pages are summed up, and no whole number of pages or words."""


def moved(rng: Generator, data: Bytes, n_bytes: int) -> None:
    """Permute a few pieces of so many bytes."""
    n = data.size // n_bytes
    pieces = data[: n * n_bytes].reshape(n, n_bytes)
    chosen = rng.choice(n, int(rng.integers(2, min(n, 9))), replace=False)
    pieces[chosen] = pieces[np.roll(chosen, 1)]


def within_a_page(rng: Generator, data: Bytes, n_bytes: int) -> None:
    """Permute pieces of one page: what a plain sum of the page does not see."""
    start = 4096 * int(rng.integers(data.size // 4096))
    moved(rng, data[start : start + 4096], n_bytes)


def given_and_taken(rng: Generator, data: Bytes, n_bits: int) -> None:
    """Add to one word what another one loses."""
    words = data[: data.size // 8 * 8].view("<u8")
    page = 512 * int(rng.integers(words.size // 512))
    one, other = page + rng.choice(512, 2, replace=False)
    value = np.full(1, 1, np.uint64) << rng.integers(n_bits, 64, dtype=np.uint64)
    words[[one]] += value
    words[[other]] -= value


def flipped(rng: Generator, data: Bytes, n_words: int) -> None:
    """Flip the same one to three bits of several words of a page, as a faulty line does."""
    words = data[: data.size // 8 * 8].view("<u8")
    page = 512 * int(rng.integers(words.size // 512))
    bits = rng.choice(64, int(rng.integers(1, 4)), replace=False)
    mask = np.bitwise_or.reduce(np.uint64(1) << bits.astype(np.uint64))
    words[page + rng.choice(512, n_words, replace=False)] ^= mask


def signs(rng: Generator, data: Bytes, n_words: int) -> None:
    """Flip the signs of pairs of floats."""
    words = data[: data.size // 8 * 8].view("<u8")
    page = 512 * int(rng.integers(words.size // 512))
    words[page + rng.choice(512, n_words, replace=False)] ^= np.uint64(1 << 63 | 1 << 31)


DAMAGES: tuple[tuple[Callable[[Generator, Bytes, int], None], int], ...] = (
    *((moved, n) for n in (1, 4, 8, 64, 512, 4096, 1 << 16)),
    *((within_a_page, n) for n in (1, 4, 8, 64, 512, 1024)),
    *((given_and_taken, n) for n in (0, 32, 56, 63)),
    *((flipped, n) for n in (1, 2, 3, 4, 64)),
    *((signs, n) for n in (1, 2, 4, 128)),
)


def contents(rng: Generator, kind: str) -> Bytes:
    match kind:
        case "floats":
            data = rng.standard_normal(N_BYTES // 4 + 1, np.float32).view(np.uint8)
        case "halves":
            data = (rng.standard_normal(N_BYTES // 2 + 1) / 32).astype(np.float16).view(np.uint8)
        case "few values":
            data = rng.choice(np.array([0, 1, 0x80, 0xFF], np.uint8), N_BYTES)
        case _:
            data = np.zeros(N_BYTES, np.uint8)
            data[rng.choice(N_BYTES, 2000)] = 0x80
    return data[:N_BYTES].copy()


@pytest.mark.parametrize("kind", ["floats", "halves", "few values", "nearly empty"])
def test_whatever_changes_or_moves_is_seen(rng: Generator, kind: str) -> None:
    data = contents(rng, kind)
    known = described(data)
    assert kind_of(known) == "pages"
    n_seen = 0
    for damage, n in DAMAGES:
        for _ in range(4):
            found = data.copy()
            damage(rng, found, n)
            assert (described(found) == known) == np.array_equal(found, data), damage
            n_seen += described(found) != known
    assert n_seen > len(DAMAGES)


@pytest.mark.parametrize("at", [0, 4095, 1 << 19, N_BYTES - 21, N_BYTES - 1])
def test_every_bit_of_a_byte_is_seen(rng: Generator, at: int) -> None:
    data = contents(rng, "floats")
    found = {digest(data, "pages")}
    for bit in range(8):
        data[at] ^= 1 << bit
        found.add(digest(data, "pages"))
        data[at] ^= 1 << bit
    assert len(found) == 9


def test_a_digest_is_the_same_for_ever() -> None:
    """Files have them."""
    data = (np.arange(N_BYTES) ** 2 % 251).astype(np.uint8)
    assert {kind: digest(data, kind)[:16] for kind in KINDS} == {
        "pages": "111458c5cc3ce82f",
        "sums": "d808b32fa7c5684c",
        "sha256": "3f1815d011894bcd",
    }


def test_the_value_of_a_page_is_that_of_its_formula(rng: Generator) -> None:
    data = contents(rng, "floats")
    drawn = hashlib.shake_128(b"autotune: places of a page").digest(4096)
    factors = [int.from_bytes(drawn[at : at + 8], "little") | 1 for at in range(0, 4096, 8)]
    padded = data.tobytes() + bytes(-data.size % 4096)
    words = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
    mixed = [(w ^ w >> 29) * k for w, k in zip(words, factors * (len(words) // 512), strict=True)]
    values = [sum(mixed[at : at + 512]) % (1 << 64) for at in range(0, len(mixed), 512)]
    told = b"".join(value.to_bytes(8, "little") for value in values)
    assert digest(data, "pages") == hashlib.sha256(told).hexdigest()


def test_blocks_are_read_as_they_are_digested(rng: Generator) -> None:
    source = contents(rng, "floats")
    for kind in KINDS:
        data = np.zeros_like(source)

        def read(begin: int, end: int, data: Bytes = data) -> None:
            data[begin:end] = source[begin:end]

        assert digest(data, kind, read) == digest(source, kind)
        assert np.array_equal(data, source)
