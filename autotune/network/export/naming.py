"""⑩ Names of tensors as identifiers of C."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.errors import UsageError

_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue crate decltype default delete do double dynamic_cast else enum explicit export
extern false float for friend goto if inline int linux long mutable namespace new noexcept not
not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
restrict return self short signed sizeof static static_assert static_cast struct super switch
template this thread_local throw true try typedef typeid typename typeof union unix unsigned using
virtual void volatile wchar_t while xor xor_eq
"""
_KEYWORDS = frozenset(_WORDS.split())
"""Of C and C++, macros of GNU's dialect, and names that no field of Rust can have."""


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """An identifier for each name, all different."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "tensor"
        text = f"x{text}" if text[0].isdigit() else text
        text = f"{text}_" if text in _KEYWORDS else text
        n, base = 1, text
        while text.upper() in taken:
            n += 1
            text = f"{base}_{n}"
        taken.add(text.upper())
        found[name] = text
    return found


def library_name(text: str) -> str:
    """The name of a library from that of a file: `resnet50-v1.5` -> `resnet50_v1_5`."""
    return identifiers([text])[text]


def require_library_name(name: str) -> None:
    """Raise UsageError for what is no identifier of C."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in _KEYWORDS:
        raise UsageError(
            f"'{name}' cannot be the name of a library",
            f"its functions begin with it: letters, digits and _, such as {library_name(name)}",
        )
