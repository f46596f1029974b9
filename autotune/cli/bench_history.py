"""⑪ `autotune bench --append FILE`: a line for each measurement, and the curve of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.cli.console import columns
from autotune.errors import UsageError
from autotune.files import cannot_write, open_input
from autotune.units import format_seconds

_SHOWN = 20
_WIDTH = 24
_MOST_BYTES = 64 << 20
_SAME = ("model", "precision", "target_key", "n_threads", "inputs", "processor")
"""What has to be the same for two lines to be of one curve."""

Line = Mapping[str, Any]


def commit_of(folder: Path) -> str:
    """The commit of the tree that holds `folder`, `-dirty` where it has changes; "" for none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def line_of(found: Line, about: Line, inputs: Mapping[str, Sequence[int]], commit: str) -> Line:
    """What is kept of a measurement, as `to_json` of result and provenance have it."""
    kept = {name: about[name] for name in ("date", "model", "precision", "target_key", "n_threads")}
    processor = about["conditions"]["processor"]
    sizes = {name: list(shape) for name, shape in inputs.items()}
    ours = {name: found["autotune"][name] for name in ("min_s", "median_s", "p95_s", "runs")}
    more = {"ratio": found.get("ratio"), "noisy": found.get("noise") is not None}
    version = about["versions"].get("autotune", "")
    own = {"commit": commit, "version": version, "processor": processor, "inputs": sizes}
    return {**kept, **own, **ours, **more}


def appended(path: Path, line: Line) -> list[Line]:
    """The lines of `path` of the same model, sizes and machine, `line` as the last, which is added.

    Raises UsageError for a file of another kind, OutputError where it cannot be written.
    """
    known = _read(path) if path.exists() else []
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise cannot_write(path, error) from error
    return [*(one for one in known if all(one.get(k) == line.get(k) for k in _SAME)), line]


def _read(path: Path) -> list[Line]:
    with open_input(path) as file:
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    lines = [_line(part) for part in text.splitlines() if part.strip()]
    if not all(lines) or (text and not text.endswith("\n")):
        raise UsageError(f"{path} is no file of `bench --append`", "name another, or a new one")
    return [line for line in lines if line]


def _line(text: str) -> Line | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_one = isinstance(found, dict) and isinstance(found.get("median_s"), float)
    return found if is_one else None


def curve_text(lines: Sequence[Line]) -> str:
    """The last measurements: commit, median, and a bar whose end is the slowest of them."""
    shown = lines[-_SHOWN:]
    slowest = max(line["median_s"] for line in shown)
    rows = [
        (
            str(line["date"])[:10],
            line["commit"],
            format_seconds(line["median_s"]),
            f"{line['median_s'] / shown[0]['median_s']:.3f}",
            "█" * max(1, round(_WIDTH * line["median_s"] / slowest))
            + (" others disturbed" if line["noisy"] else ""),
        )
        for line in shown
    ]
    return columns(("date", "commit", "median", "ratio", ""), rows, ("median", "ratio"))
