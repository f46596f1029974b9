"""⑩ Names of tensors as identifiers of C."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterable

from autotune.errors import UsageError

_WORDS = """
Self alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
char8_t class co_await co_return co_yield compl complex concept const const_cast consteval constexpr
constinit continue crate decltype default delete do double dynamic_cast else enum errno explicit
export extern false float for friend goto if imaginary inline int linux long math_errhandling
mutable namespace new noexcept noreturn not not_eq nullptr operator or or_eq private protected
public register reinterpret_cast requires restrict return sched_priority self short signed sizeof
static static_assert static_cast stderr stdin stdout struct super switch template this thread_local
throw true try typedef typeid typename typeof typeof_unqual union unix unsigned using virtual void
volatile wchar_t while xor xor_eq
BUFSIZ BYTE_ORDER CSIGNAL EHWPOISON EOF I INFINITY MAXFLOAT MAX_CANON MAX_INPUT MINSIGSTKSZ NAN
NFDBITS NGREG NSIG NULL NZERO PIPE_BUF WCONTINUED WEOF WEXITED WNOHANG WNOWAIT WSTOPPED WUNTRACED
"""
_KEYWORDS = frozenset(_WORDS.split()) | {n for n in (*dir(errno), *dir(signal)) if n.isupper()}
"""Of C and C++, macros of their headers and of GNU's dialect, and names that no field of Rust can
have."""
_FAMILIES = re.compile(
    r"""
    (ADJ|BUS|CLD|CLOCK|CLONE|CLOSE_RANGE|EXIT|F|FE|FP|FPE|ILL|L|LC|MATH|MOD|NL|POLL|PTHREAD|REG
        |RENAME|SA|SCHED|SEEK|SEGV|SI|SIG|SIGEV|SS|STA|STDERR|STDIN|STDOUT|TIME|TIMER|TRAP)_[A-Z0-9_]+
    | [RWX]_OK | HUGE_VAL\w* | SNANL? | SNANF\w*
    | M_(E|PI|LN|LOG|SQRT|[12]_)\w*
    | SIG[A-Z]{2,7}[12]?
    | (PRI|SCN)[dioxuX](FAST|LEAST|MAX|PTR)?[0-9]*
    | [A-Z0-9_]+_(BIT|CUR|DELTA_MAX|DIG|ENDIAN|EPSILON|FREE|INIT|MAX|MIN|ITERATIONS|METHOD|RADIX
        |ROUNDS|SETSIZE|SUBNORM|PER_SEC|EXP|WIDTH)
    | MB_\w+ | (DBL|FLT|LDBL)_\w+ | [LP]_(ctermid|cuserid|tmpnam|tmpdir)
    | U?INT(MAX|[0-9]+)_C
    | (sa|si|sigev)_[a-z_]+
    """,
    re.VERBOSE,
)
"""Macros of the headers of C by their names: constants of types, signals, errors and formats."""


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """An identifier for each name, all different, also from those with `_shape` behind others."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "tensor"
        text = f"x{text}" if text[0].isdigit() else text
        text = f"{text}_" if _is_taken(text) else text
        n, base = 1, text
        while not taken.isdisjoint(_words_of(text)):
            n += 1
            text = f"{base}_{n}"
        taken.update(_words_of(text))
        found[name] = text
    return found


def _words_of(text: str) -> tuple[str, str]:
    """What a tensor takes of a record of C, for macros in capitals: itself, and its shape."""
    return text.upper(), f"{text}_shape".upper()


def library_name(text: str) -> str:
    """The name of a library from that of a file: `resnet50-v1.5` -> `resnet50_v1_5`."""
    return identifiers([text])[text]


def require_library_name(name: str) -> None:
    """Raise UsageError for what is no identifier of C."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or _is_taken(name):
        raise UsageError(
            f"'{name}' cannot be the name of a library",
            f"its functions begin with it: letters, digits and _, such as {library_name(name)}",
        )


def _is_taken(text: str) -> bool:
    """Whether C, C++ or Rust, or a macro of their headers, has a meaning for a word."""
    return text in _KEYWORDS or _FAMILIES.fullmatch(text) is not None
