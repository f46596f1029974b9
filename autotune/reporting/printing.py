"""⑧ Texts of logs as a page may hold them."""

from __future__ import annotations

import re

_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text` without control characters and halves of surrogate pairs, which logs may hold.

    What changes the direction of writing is marked likewise: a label could look like another one.
    """
    whole = text.encode("utf-8", "backslashreplace").decode()
    return _ODD.sub("�", whole)
