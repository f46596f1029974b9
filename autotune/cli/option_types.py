"""⑪ Values of options: read, checked and completed where they are parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from autotune.config import MOST_SEED, MOST_THREADS, MOST_TRIALS, PRESETS
from autotune.errors import UsageError
from autotune.units import parse_duration

V = TypeVar("V")


class Parsed(click.ParamType[V]):
    """A value that `read` makes of the text of an option; `name` in the help says of what form."""

    def __init__(self, name: str, read: Callable[[str], V]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> V:
        """Once: click calls it on what it has given as well."""
        return self._read(value) if isinstance(value, str) else value


def _times(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)x", text)
    if match is None or not float(match[1]):
        raise UsageError(f"'{text}' is not a multiple", "write it like 1.2x")
    return float(match[1])


def _shape_text(text: str) -> tuple[str, tuple[int, ...]]:
    """`name:1x3x224x224`: an input, whose name may hold colons itself, and its extents."""
    match = re.fullmatch(r"(.+):(\d+(?:[x,]\d+)*)", text)
    if match is None:
        raise UsageError(f"'{text}' is not a shape", "write it like --shape input:1x3x224x224")
    return match[1], tuple(int(d) for d in re.split("[x,]", match[2]))


_Dimension: TypeAlias = tuple[str, "dict[int, float] | str"]


def _dimensions(value: str) -> list[_Dimension]:
    """`batch=4`, `batch=..32,sequence=..512`: one or more, see `_dimension`."""
    return [_dimension(part) for part in re.split(_NEXT_DIMENSION, value)]


def _dimension(value: str) -> _Dimension:
    """`batch=1,4,8`, `sequence=16..256:16`, `sequence=16:0.5,128:0.5`, `sequence=..512` or
    `mask_length=sequence`: a name, which may hold `=`, and its extents, each with its share, the
    text of a range, or the name of the dimension that it equals."""
    from autotune.api.ranges import is_name, length_of

    name, found, text = value.rpartition("=")
    if found and name and is_name(text):
        return name, text
    if found and name and text.startswith("..") and "," not in text:
        length_of(name, text)
        return name, text
    extents: dict[int, float] = {}
    parts = [_extents(part.strip()) for part in text.split(",")]
    if not found or not name or not all(parts):
        raise UsageError(
            f"'{value}' gives a dimension no extents",
            "write it like --dim batch=4, --dim batch=1,4,8, --dim sequence=16..256:16, "
            "--dim sequence=16:0.5,128:0.5, for all up to a most --dim sequence=..512 or, equal to "
            "another, --dim mask_length=sequence",
        )
    for extent, share in (pair for part in parts for pair in part.items()):
        if extent in extents:
            raise UsageError(f"--dim {name} has {extent} twice", "give every extent once")
        extents[extent] = share
    return name, extents


def _extents(text: str) -> dict[int, float]:
    """`4`, `4:0.5` or `16..256:16` as extents with their shares; nothing where it is no such."""
    if span := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})(?::(\d{1,9}))?", text):
        first, last, step = int(span[1]), int(span[2]), int(span[3] or 1)
        found = range(first, last + 1, step) if step else range(0)
        if len(found) > _MOST_EXTENTS:
            raise UsageError(f"'{text}' is {len(found)} extents", "give a larger step: 16..256:16")
        return dict.fromkeys(found, 1.0)
    one = re.fullmatch(r"(\d{1,15})(?::(\d+\.?\d*|\.\d+))?", text)
    return {int(one[1]): float(one[2] or 1)} if one else {}


def _constant_input(value: str) -> tuple[str, Any]:
    """`sr=16000`, `size=1,2`, `flag=true` or `table=x.npy`: the name of an input, which may hold
    `=`, and its value: numbers, or the path of a file."""
    name, found, text = value.rpartition("=")
    number = [_number(part.strip()) for part in text.split(",")]
    if not found or not name or (None in number and not text.endswith(".npy")):
        raise UsageError(
            f"'{value}' gives an input no value",
            "write it like --const sr=16000, --const size=480,640 or --const table=x.npy",
        )
    if None in number:
        return name, Path(text)
    return name, number[0] if len(number) == 1 else number


def _number(text: str) -> int | float | bool | None:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d{1,19}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None


def _named_file(value: str) -> tuple[str, Path]:
    """`name=x.npy`, or `x.npy` alone where there is only one: its name is empty then."""
    name, found, path = value.partition("=")
    return (name, Path(path)) if found else ("", Path(value))


def _numbers(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
    if len(sizes) != text.count(",") + 1 or not all(1 <= n <= MOST_CAPACITY for n in sizes):
        raise UsageError(f"'{text}' is no list of numbers", "write them as 4,2")
    return sizes


def no_chunks(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Refuse `--chunks`, which there was once."""
    if value is not None:
        raise UsageError(
            "there are no chunks any more: a prompt of any number of tokens is one call",
            "leave the option out",
        )


def _pair(text: str) -> tuple[str, str]:
    name, found, other = text.partition("=")
    if not (name and found and other):
        raise UsageError(f"'{text}' is no pair of an input and an output", "write past=present")
    return name, other


class Names(Parsed[tuple[str, ...]]):
    """One or more of some names, with commas between them, in the order given."""

    def __init__(self, known: Sequence[str]) -> None:
        super().__init__("name[,name]", self._names)
        self.known = tuple(known)

    def _names(self, text: str) -> tuple[str, ...]:
        names = tuple(part.strip() for part in text.split(","))
        for name in names:
            if name not in self.known:
                raise UsageError(f"there is no '{name}' here", f"known: {', '.join(self.known)}")
        return names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Names."""
        return _completions(self.known, incomplete)


class Preset(click.ParamType[str]):
    """A preset by name or by path; names are completed in the shell."""

    name = "preset"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Names of presets."""
        return _completions(PRESETS, incomplete)


class TargetName(click.ParamType[str]):
    """A CPU by name, or a file that describes it; names are completed in the shell."""

    name = "cpu"

    def __init__(self, *more: str) -> None:
        self._more = more

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Names of CPUs, and files."""
        from click.shell_completion import CompletionItem

        from autotune.target.naming import target_names

        names = _completions(sorted([*self._more, *target_names()]), incomplete)
        return names or [CompletionItem(incomplete, type="file")]


def _completions(names: Iterable[str], incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def shapes_of(pairs: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Shapes by input name. Raises UsageError when a name comes twice."""
    return _named(pairs, "--shape", lambda name: "give every input once")


def dims_of(given: Iterable[list[_Dimension]]) -> dict[str, dict[int, float] | str]:
    """Extents by name of the dimension. Raises UsageError when a name comes twice."""
    pairs = (pair for several in given for pair in several)
    return _named(pairs, "--dim", lambda name: f"write --dim {name}=1,4,8")


def constants_of(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values of constant inputs by name; files are read. Raises UsageError."""
    from autotune.cli.arrays import read_array

    found = _named(pairs, "--const", lambda name: "give every input once")
    for name, value in found.items():
        found[name] = read_array(value) if isinstance(value, Path) else value
        if isinstance(found[name], dict):
            raise UsageError(f"{value} holds several arrays", "give an .npy file")
    return found


def arrays_like(pairs: Iterable[tuple[str, Path]]) -> dict[str, Any] | None:
    """Arrays by name, without one for the only input; None where there are none."""
    found: dict[str, Any] = {}
    for name, path in pairs:
        from autotune.cli.arrays import read_array  # imports NumPy

        array = read_array(path)
        found |= array if isinstance(array, dict) else {name: array}
    return found or None


def _named(pairs: Iterable[tuple[str, V]], option: str, hint: Callable[[str], str]) -> dict[str, V]:
    found: dict[str, V] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option} {name} is given twice", hint(name))
        found[name] = value
    return found


def as_field(convert: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback: the field of a request from the given text."""
    return lambda context, parameter, value: convert(value)


FILE = click.Path(path_type=Path)
COUNT = click.IntRange(min=1, max=MOST_TRIALS)
THREADS = click.IntRange(min=1, max=MOST_THREADS)
SEED = click.IntRange(min=0, max=MOST_SEED)
DURATION = Parsed("duration", parse_duration)
"""`90s`, `10m`, `2h`: seconds."""
TIMES = Parsed("times", _times)
"""`1.2x`: so many times as much, above 0."""
NAMED_FILE = Parsed("name=file", _named_file)
_MOST_EXTENTS = 10_000
_NEXT_DIMENSION = r"(?<=\d),(?=[^,=]*[^\d\s.,:/=][^,=]*=)"
"""A comma behind extents, before another name."""
MOST_CAPACITY = 1 << 20
"""Places of a state."""
SHAPE = Parsed("name:dims", _shape_text)
DIMENSIONS = Parsed("name=extents", _dimensions)
CONSTANT_INPUT = Parsed("name=value", _constant_input)
NUMBERS = Parsed("n,…", _numbers)
PAIR = Parsed("input=output", _pair)
