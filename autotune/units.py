"""Floor 0: numbers with units as people write them. Inside everything is seconds, bytes, FLOPs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from autotune.errors import UsageError

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `10m`, `1h30m`, `0.5d`.

    Raises UsageError for anything else and for zero.
    """
    compact = text.strip().lower().replace(" ", "")
    seconds = float(compact) if re.fullmatch(r"\d+(\.\d+)?", compact) else _sum_parts(compact)
    if seconds is None or not 0 < seconds < math.inf:
        raise UsageError(f"'{text}' is not a duration", "write for example 90s, 10m, 2h or 1h30m")
    return seconds


def _sum_parts(text: str) -> float | None:
    parts = _PART.findall(text)
    if not parts or "".join(n + unit for n, unit in parts) != text:
        return None
    return sum(float(n) * _SECONDS[unit] for n, unit in parts)


def format_duration(seconds: float) -> str:
    """A span of wall-clock time to the second: `8s`, `2m05s`, `1h02m`."""
    total = max(0, round(seconds))
    hours, rest = divmod(total, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{secs:02d}s" if minutes else f"{secs}s"


def counted(n: int, what: str) -> str:
    """A number of things: `1 task`, `2 tasks`, `2 entries`."""
    if n == 1:
        return f"1 {what}"
    return f"{n} {what[:-1]}ies" if what.endswith("y") else f"{n} {what}s"


def counted_of(n: int, total: int, what: str, verb: str) -> str:
    """A number of so many things, and what they do: `1 of 1 task takes`, `2 of 3 tasks take`."""
    return f"{n} of {counted(total, what)} {verb}{'s' if n == 1 else ''}"


def format_seconds(seconds: float | None) -> str:
    """A latency with four significant digits: `1.234 ms`; `-` when there is none."""
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{_four_digits(seconds / scale)} {unit}"
    return f"{_four_digits(seconds / 1e-9)} ns"


def format_bytes(n_bytes: float) -> str:
    """A size in powers of 1024: `97.5 MiB`."""
    return _prefixed(n_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def format_flops(flops: float) -> str:
    """A count of floating-point operations: `231.2 MFLOP`."""
    return _prefixed(flops, 1000, ("FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def format_shape(shape: Iterable[int | str]) -> str:
    """`1x16`, or `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def format_shapes(shapes: Mapping[str, Iterable[int | str]]) -> str:
    """`ids 1x16, mask 1x16`."""
    return ", ".join(f"{name} {format_shape(shape)}" for name, shape in shapes.items())


def gflops(flops: float, seconds: float | None) -> float | None:
    """Rate in 1e9 FLOP per second, None without a time."""
    return flops / seconds / 1e9 if seconds else None


def _four_digits(value: float) -> str:
    return f"{value:.{max(0, 4 - len(str(int(value))))}f}"


def _prefixed(value: float, base: int, units: tuple[str, ...]) -> str:
    index = 0
    while abs(value) >= base and index < len(units) - 1:
        value /= base
        index += 1
    return f"{value:.0f} {units[0]}" if index == 0 else f"{value:.1f} {units[index]}"
