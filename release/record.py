"""Record a command as a moving picture of a terminal: docs/demo.svg is `autotune demo`.

    python -m release.record docs/demo.svg autotune demo --time 8s

Runs the command in an empty folder, takes its lines with their times, and writes an SVG whose lines
appear as they came (pauses are cut to a second), which stays at its end. No script, no font.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

_COLUMNS, _ROWS = 126, 26
_ADVANCE, _LINE, _MARGIN = 7.8, 18, 14
_LONGEST_PAUSE_S, _PER_LINE_S = 1.0, 0.08
_HIDDEN = ("choosing programs:", "compiling programs:", "note:")
"""What is drawn over in a terminal, and what is of the machine of the day."""

Lines = list[tuple[float, str]]


def recorded(command: Sequence[str]) -> Lines:
    """Seconds since the begin and text of each line that the command writes. Raises SystemExit."""
    found: Lines = []
    with tempfile.TemporaryDirectory() as folder:
        both = subprocess.STDOUT
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, cwd=folder, text=True, env=env, stdout=subprocess.PIPE, stderr=both
        ) as process:
            assert process.stdout is not None
            begun = time.monotonic()
            for line in process.stdout:
                if not line.startswith(_HIDDEN):
                    found.append((time.monotonic() - begun, line.rstrip()[:_COLUMNS]))
    if process.returncode:
        raise SystemExit("\n".join(["error: the command failed", *(text for _, text in found)]))
    return found


def shortened(lines: Lines) -> Lines:
    """The same lines with pauses of at most a second, and a little time for each."""
    out: Lines = []
    now, before = 0.0, 0.0
    for at, text in lines:
        now += max(_PER_LINE_S, min(at - before, _LONGEST_PAUSE_S))
        before = at
        out.append((now, text))
    return out


def drawn(lines: Lines, title: str) -> str:
    """An SVG: lines appear, and move up when the screen is full."""
    width = round(_COLUMNS * _ADVANCE + 2 * _MARGIN)
    height = _ROWS * _LINE + 2 * _MARGIN
    end_s = lines[-1][0] + 0.1
    moves = [(at, n - _ROWS + 1) for n, (at, _) in enumerate(lines) if n >= _ROWS]
    moves += [(end_s, moves[-1][1])] if moves else []
    frames = "".join(
        f"{100 * at / end_s:.2f}%{{transform:translateY({-_LINE * n}px)}}" for at, n in moves
    )
    style = (
        f"text{{font:13px monospace;white-space:pre;fill:#d8dee9}}.c{{fill:#a3be8c}}"
        f".l{{opacity:0;animation:a .01s forwards}}@keyframes a{{to{{opacity:1}}}}"
        f"@keyframes s{{{frames}}}.s{{animation:s {end_s:.2f}s steps(1) forwards}}"
    )
    texts = "\n".join(_text(n, at, text) for n, (at, text) in enumerate(lines) if text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(title)}</title><style>{style}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#22272e"/>\n'
        f'<svg y="{_MARGIN}" height="{_ROWS * _LINE}"><g class="s">\n{texts}\n</g></svg>\n</svg>\n'
    )


def _text(n: int, at: float, text: str) -> str:
    kind = "l c" if text.startswith("$ ") else "l"
    place = f'x="{_MARGIN}" y="{_LINE * n + 13}"'
    return f'<text class="{kind}" style="animation-delay:{at:.2f}s" {place}>{escape(text)}</text>'


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Record a command as an SVG.")
    parser.add_argument("output", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    command = given.command
    if command[:1] == ["autotune"]:
        command = [sys.executable, "-m", "autotune", *command[1:]]
    shown = " ".join(given.command)
    lines = [(0.0, f"$ {shown}"), *recorded(command)]
    text = drawn(shortened(lines), shown)
    given.output.write_text(text, encoding="utf-8")
    print(f"{given.output}: {len(text):,} bytes, {len(lines)} lines")


if __name__ == "__main__":
    main()
