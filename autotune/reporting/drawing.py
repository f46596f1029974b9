"""⑧ Specifications of Vega-Lite to SVG, in a process of its own.

The converter holds a JavaScript engine, which reserves up to 100 GiB of addresses and ends its
process where it does not get them (`ulimit -v`), or where it does not like a text. What it cannot
draw is left out of a page, with the reason.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from autotune.errors import MissingDependency
from autotune.reporting.printing import printable

_TIME_OUT_S = 120.0
_DRAW = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import vl_convert
for line in sys.stdin:
    print(json.dumps(vl_convert.vegalite_to_svg(json.loads(line))), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Drawings:
    """SVG of each specification; None where it could not be drawn, for `reason`."""

    svgs: tuple[str | None, ...]
    reason: str = ""

    @property
    def n_missing(self) -> int:
        """Number of those that could not be drawn."""
        return self.svgs.count(None)


def drawings(specs: Sequence[dict[str, Any]]) -> Drawings:
    """Draw specifications. Raises MissingDependency without the extra `report`."""
    require_plots()
    lines = [json.dumps(_clean(spec)) for spec in specs]
    found: list[str | None] = []
    reason, n_drawn = "", -1
    while len(found) < len(lines) and n_drawn:
        drawn, why = _drawn(lines[len(found) :])
        n_drawn = len(drawn)
        found += drawn
        if len(found) < len(lines):
            found.append(None)
            reason = why
    return Drawings((*found, *(None for _ in lines[len(found) :])), reason)


def require_plots() -> None:
    """Raise MissingDependency where plots cannot be drawn."""
    if not has_plots():
        raise MissingDependency(
            "plots need vl-convert-python, which is not installed",
            "pip install 'autotune-compiler[report]'; Markdown needs no plots",
        )


def has_plots() -> bool:
    """Whether what draws plots is installed."""
    return find_spec("vl_convert") is not None


def _drawn(lines: Sequence[str]) -> tuple[list[str], str]:
    """SVG of the first lines, as many as a process draws, and how it ended."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DRAW, json.dumps(sys.path)],
            input="\n".join(lines).encode(),
            capture_output=True,
            timeout=_TIME_OUT_S,
            check=False,
        )
        output, ended = done.stdout, _ended(done.returncode)
    except subprocess.TimeoutExpired as error:
        output, ended = error.stdout or b"", f"took more than {_TIME_OUT_S:.0f} s"
    except OSError as error:
        output, ended = b"", f"cannot be started: {error.strerror}"
    texts = [line for line in output.split(b"\n")[:-1] if line.startswith(b'"')]
    return [json.loads(text) for text in texts], ended


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    known = {s.value: s.name for s in signal.Signals}
    return f"was ended by {known.get(-code, f'signal {-code}')}"


def _clean(value: Any) -> Any:
    """A specification whose texts are those that a page shows."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {key: _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
    return value
