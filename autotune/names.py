"""Floor 0: what is said of a name that is none: those that there are, and the nearest of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from autotune.errors import UsageError

_MOST_SHOWN = 12


def require_known(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError for the first name, of an `input` say, that is none of `known`."""
    for name in given:
        if name not in known:
            raise unknown_name(what, name, known)


def unknown_name(what: str, name: str, known: Collection[str]) -> UsageError:
    """The error for a name, of an `input` say, that is none of `known`."""
    near = get_close_matches(name, known, n=1) or [n for n in known if n.lower() == name.lower()]
    if near:
        hint = f"did you mean '{near[0]}'?"
    elif len(known) == 1:
        hint = f"give it by its name, '{next(iter(known))}'"
    else:
        hint = f"give every {what} by its name"
    return UsageError(f"there is no {what} '{name}'; {listed(what, known)}", hint)


def listed(what: str, known: Collection[str]) -> str:
    """`the input is 'x'`, `the inputs are 'x', 'y'`, `the model has no inputs`; long ones cut."""
    names = [f"'{name}'" for name in known]
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    text = ", ".join(names[:_MOST_SHOWN]) + more
    if not names:
        return f"there are no {what}s"
    return f"the {what} is {text}" if len(names) == 1 else f"the {what}s are {text}"
