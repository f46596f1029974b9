"""⑪ Status of a session: calls that compiled networks answer, and reasons for the others.

print(session.autotune_status())
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.units import format_shapes

if TYPE_CHECKING:
    from autotune.ort.entries import Entry
    from autotune.ort.programs import Programs


@dataclass(frozen=True, slots=True)
class ShapeStatus:
    """Calls of one network: of one shape, or of all sizes: `shapes` has "..512" for a most then.

    `state`: "waiting", "compiling", "loaded" (waits for a first call to be compared), "compiled"
    (answers) or "onnxruntime", with a `reason`. `ratio`: median latency over ONNX Runtime's in
    the calls that compared them last, None where none did; over sizes the geometric mean. `values`:
    of inputs that decide.
    """

    shapes: Mapping[str, tuple[int | str, ...]]
    values: Mapping[str, object]
    state: str
    ratio: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session. `reason`: why further shapes are not compiled, empty where they are.

    `is_busy`: whether something is being compiled or waits for it. `notes`: what the compiler told,
    as the operators that stay in ONNX Runtime. `n_compilations`: networks that were compiled for
    it, or found in the cache folder, so far.
    """

    name: str
    mode: str
    threads: int
    is_busy: bool
    reason: str
    shapes: tuple[ShapeStatus, ...]
    notes: tuple[str, ...]
    n_compilations: int = 0

    @property
    def n_compiled(self) -> int:
        """Shapes that compiled networks answer."""
        return sum(shape.state == "compiled" for shape in self.shapes)

    @property
    def line(self) -> str:
        """All of it in a line."""
        told = f", {self.reason}" if self.reason else ", compiling" if self.is_busy else ""
        text = f"{self.name}: {self.n_compiled} of {len(self.shapes)} shapes compiled{told}"
        return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"

    def __str__(self) -> str:
        return "\n".join([self.line, *map(_text, self.shapes), *(f"  {n}" for n in self.notes)])

    def __repr__(self) -> str:
        return f"SessionStatus({self.line})"


_MOST_CHARACTERS = 250


def status_of(programs: Programs) -> SessionStatus:
    """The status of a session's programs."""
    shapes = tuple(
        ShapeStatus(
            dict(entry.shapes) if entry.sizes is None else entry.sizes.text(entry.shapes),
            {name: value.tolist() for name, value in entry.values.items()},
            str(entry.state),
            _ratio(entry),
            entry.reason,
        )
        for entry in programs.entries()
    )
    request = programs.request
    return SessionStatus(
        request.name,
        str(programs.setting.mode),
        request.n_running,
        programs.is_busy,
        programs.reason,
        shapes,
        programs.notes,
        programs.n_compilations,
    )


def _ratio(entry: Entry) -> float | None:
    ratios = [contest.ratio for contest in entry.live if contest.ratio is not None]
    return statistics.geometric_mean(ratios) if ratios else None


def _text(shape: ShapeStatus) -> str:
    extents = format_shapes(shape.shapes)
    values = "".join(f", {name} = {value}" for name, value in shape.values.items())
    ratio = "" if shape.ratio is None else f", {shape.ratio:.2f} x ONNX Runtime's time"
    if shape.ratio is not None and shape.ratio > 1.0 and shape.state == "compiled":
        ratio += ", which answers"
    reason = f": {shape.reason}" if shape.reason else ""
    return f"  {extents}{values}: {shape.state}{ratio}{reason}"
