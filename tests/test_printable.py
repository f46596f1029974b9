"""Text of files as it is shown: whatever it holds, a terminal does nothing, and it is bounded."""

from __future__ import annotations

import unicodedata

from numpy.random import Generator

from autotune.errors import UsageError
from autotune.printable import MOST_OF_MESSAGE, one_line, printable, shortened

_ODD = "\x00\x07\x08\n\r\t\x1b\x7f\x85\x9b\x9d\u200e\u2028\u202e\u2066\udc9b\udcc2\ud800\udfff"


def random_text(rng: Generator) -> str:
    letters = [*_ODD, *"ab[]\\é漢", *map(chr, rng.integers(0x250, size=12))]
    return "".join(rng.choice(letters, int(rng.integers(12))))


def controls(text: str) -> set[str]:
    """What a terminal may obey in `text` as it is written."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    odd = {c for c in shown if unicodedata.category(c) == "Cc"}
    return odd | {c for c in shown if c in "\u061c\u200e\u200f\u2028\u2029\u202e\u2066"}


def test_no_text_of_any_kind_is_obeyed(rng: Generator) -> None:
    for _ in range(2000):
        text = random_text(rng).replace("\ud800", "").replace("\udfff", "")
        assert controls(printable(text)) <= {"\n", "\t"}, ascii(text)
        assert controls(one_line(text)) == set(), ascii(text)
        assert printable(printable(text)) == printable(text)


def test_halves_of_pairs_can_be_written(rng: Generator) -> None:
    for _ in range(2000):
        text = random_text(rng)
        kept = one_line(text).encode("utf-8", "surrogateescape") if "\udc9b" in text else b""
        assert b"\x1b" not in kept


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("", "Conv+Relu", "größe 漢字 → ½", "one\ntwo\tthree", "caf\udce9.onnx"):
        assert printable(text) == text


def test_long_text_keeps_its_ends(rng: Generator) -> None:
    for _ in range(500):
        text = "".join(rng.choice([*"abc "], int(rng.integers(4000))))
        most = int(rng.integers(60, 3000))
        found = shortened(text, most)
        assert len(found) <= most
        assert found == text if len(text) <= most else f"{len(text):,}" in found
        assert text.startswith(found[:5])
        assert text.endswith(found[-5:])


def test_messages_of_errors_are_bounded() -> None:
    error = UsageError("x" * 10**7, "y" * 10**7)
    assert max(len(text) for text in (error.message, error.hint, str(error))) <= MOST_OF_MESSAGE
    assert len("\n".join(error.__notes__)) < 2 * MOST_OF_MESSAGE
