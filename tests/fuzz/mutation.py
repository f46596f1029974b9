"""How many small changes of the compiler the tests notice.

    python -m tests.fuzz.mutation [--sample 60] [--seed 0] [--tests tests/te …] [--only PART]

A function of `te`, the rules of sketches, lowering and code generation at a time is changed
(`mutants.py`) in a copy of the repository, and the tests that run it are run there until one fails.
Which these are, and how long each takes, is found first, by a run of all `--tests` on a copy whose
functions tell that they run; `--map FILE` keeps that. A test of 20 s and more counts for nothing.
Survivors are named: each lacks a test, or changes nothing that matters. Exit code 1 below 85 %.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tests.fuzz.mutants import Mutant, functions, mutant

ROOT = Path(__file__).parents[2]
PARTS = ("autotune/te", "autotune/search/rules", "autotune/loopir", "autotune/codegen")
TESTS = ("tests/te", "tests/loopir", "tests/schedule", "tests/codegen", "tests/search")
KILLED = 0.85
MOST_S = 20.0
_PATIENCE_S, _MOST_TESTS = 300.0, 60
_MARKS = "mutation_marks"
_PLUGIN = """
import json, os, time
import pytest
import mutation_marks as marks

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    marks.seen.clear()
    begun = time.monotonic()
    yield
    with open(os.environ["MUTATION_MAP"], "a") as file:
        print(json.dumps([item.nodeid, time.monotonic() - begun, sorted(marks.seen)]), file=file)
"""

Map = dict[str, list[str]]
"""Tests of a function, `path:name`, the shortest first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`by`: the test that failed, or what else ended; empty for a survivor."""

    mutant: Mutant
    by: str
    n_tests: int


def copied(folder: Path) -> Path:
    """The files of the repository, those that git does not ignore, in `folder`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def sources(only: str = "") -> list[Path]:
    """Files whose functions are changed, relative to the repository."""
    found = (path.relative_to(ROOT) for part in PARTS for path in (ROOT / part).rglob("*.py"))
    return sorted(path for path in found if only in str(path))


def write_map(path: Path, tree: Path, tests: Sequence[str]) -> None:
    """Run all tests in `tree`, which it marks; a line of `path` for each, as soon as it ends."""
    for file in sources():
        (tree / file).write_text(marked(file, (tree / file).read_text("utf-8")), "utf-8")
    (tree / f"{_MARKS}.py").write_text("seen = set()\n", encoding="utf-8")
    (tree / "mutation_plugin.py").write_text(_PLUGIN, encoding="utf-8")
    _pytest(tree, ["-p", "mutation_plugin", *tests], None, MUTATION_MAP=str(path.resolve()))


def read_map(path: Path) -> dict[str, tuple[float, list[str]]]:
    """Seconds and functions of each test."""
    lines = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    return {test: (seconds, names) for test, seconds, names in lines}


def marked(path: Path, source: str) -> str:
    """The module with a mark of its name in the beginning of each function."""
    tree = ast.parse(source)
    for name, node in functions(tree):
        at = 1 if ast.get_docstring(node) else 0
        mark = f"__import__({_MARKS!r}).seen.add({f'{path}:{name}'!r})"
        node.body[at:at] = ast.parse(mark).body
    ast.fix_missing_locations(tree)
    return ast.unparse(tree)


def by_function(found: dict[str, tuple[float, list[str]]]) -> Map:
    """Tests below 20 s of each function, the shortest first, one file after the other."""
    out: Map = {}
    for test, (seconds, names) in sorted(found.items(), key=lambda item: item[1][0]):
        for name in names if seconds < MOST_S else ():
            out.setdefault(name, []).append(test)
    return {name: _spread(tests) for name, tests in out.items()}


def _spread(tests: Sequence[str]) -> list[str]:
    """In turns from each function of tests, so that many cases of one come last."""
    rank: dict[str, int] = {}
    turn = {}
    for test in tests:
        family = test.partition("[")[0]
        turn[test] = rank[family] = rank.get(family, 0) + 1
    return sorted(tests, key=turn.__getitem__)[:_MOST_TESTS]


def drawn(known: Map, n: int, seed: int, only: str) -> Iterator[Mutant]:
    """A mutant of each of `n` random functions, of those that may be changed."""
    rng = random.Random(seed)
    texts = {path: (ROOT / path).read_text("utf-8") for path in sources(only)}
    named = [(p, name) for p, text in texts.items() for name, _ in functions(ast.parse(text))]
    rng.shuffle(named)
    for path, name in named:
        if n and (made := mutant(path, texts[path], name, rng)):
            n -= 1
            yield made


def tried(tree: Path, one: Mutant, tests: Sequence[str]) -> Outcome:
    """The outcome of its tests in `tree`, which is as it was behind it."""
    if not tests:
        return Outcome(one, "", 0)
    path, before = tree / one.path, (tree / one.path).read_bytes()
    try:
        path.write_text(one.text, encoding="utf-8")
        return Outcome(one, _pytest(tree, ["-x", *tests], _PATIENCE_S), len(tests))
    finally:
        path.write_bytes(before)


def _pytest(tree: Path, words: Sequence[str], limit_s: float | None, **more: str) -> str:
    """What ended a run of tests; empty if all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sample", "values"]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", **more}
    command += ["-m", "not slow and not timing", "--no-header", "--tb=no"]
    try:
        done = subprocess.run(
            [*command, *words], cwd=tree, env=env, timeout=limit_s, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode in (0, 5):
        return ""
    failed = [ln for ln in done.stdout.splitlines() if ln.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else f"exit status {done.returncode}"


@click.command()
@click.option("--sample", default=60, help="So many mutants.")
@click.option("--seed", default=0)
@click.option("--only", default="", help="Of files whose path contains this.")
@click.option("--tests", multiple=True, default=TESTS, help="Folders or files of tests.")
@click.option("--map", "kept", type=click.Path(path_type=Path), help="What runs what, kept here.")
def main(sample: int, seed: int, only: str, tests: tuple[str, ...], kept: Path | None) -> None:
    """Change functions, one at a time, and name the changes that no test notices."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        path = kept or folder / "map.jsonl"
        if not path.exists():
            write_map(path, copied(folder / "marked"), tests)
        known, tree = by_function(read_map(path)), copied(folder / "tree")
        counts = [0, 0]
        for one in drawn(known, sample, seed, only):
            begun = time.monotonic()
            outcome = tried(tree, one, known.get(f"{one.path}:{one.function}", []))
            counts[bool(outcome.by)] += 1
            where = f"{one.path}:{one.line} {one.function}: {one.change}"
            told = f"killed by {outcome.by}" if outcome.by else f"SURVIVES {outcome.n_tests} tests"
            click.echo(f"{told} ({time.monotonic() - begun:.0f} s) | {where}")
    survived, killed = counts
    click.echo(f"{killed} of {killed + survived} killed")
    sys.exit(0 if killed >= KILLED * (killed + survived) else 1)


if __name__ == "__main__":
    main()
