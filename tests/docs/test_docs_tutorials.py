"""Every block of docs/tutorials/ runs, page by page, and prints what the page says.

`python`: run in one namespace per page, or written to the file that its first line names.
`sh`: commands of autotune. `text`: exactly what the block before printed; `console`: what a real
run printed, which depends on the machine. A comment `<!-- tests: OLD → NEW -->` makes a page
smaller. `--update-golden` writes what is printed into the `text` blocks.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.main import run

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
EXAMPLES = {path.name: path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SMALLER = re.compile(r"<!-- tests: (.+?) → (.+?) -->")
_FILE = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    smaller = _SMALLER.findall(text)
    found = []
    for match in _FENCE.finditer(text):
        kind, code = match.groups()
        line = text[: match.start()].count("\n") + 2
        found.append(Block(kind, code, line))
    for old, new in smaller:
        assert any(old in b.text for b in found), f"{page.name}: nothing says {old}"
        found = [Block(b.kind, b.text.replace(old, new), b.line) for b in found]
    return found


def run_python(block: Block, page: Path, names: dict[str, Any]) -> str:
    named = _FILE.match(block.text)
    if named:
        Path(named[1]).write_text(block.text)
        return ""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue()


def run_shell(block: Block, page: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["autotune"]:
            assert not words, f"{page.name}:{block.line}: {line} is no command of autotune"
            continue
        words, place = (words[:-2], words[-1]) if ">" in words else (words, None)
        status = run(words[1:])
        output = capsys.readouterr()
        assert status == 0, f"{page.name}:{block.line}: {line}\n{output.err}"
        if place:
            Path(place).write_text(output.out)
    return output.out


def write_text(page: Path, block: Block, printed: str) -> None:
    """Replace the text of a block; those behind it are found by what they say, not by line."""
    old = f"```text\n{block.text}```\n"
    text = page.read_text()
    place = text.index(old)
    text = f"{text[:place]}```text\n{printed}```\n{text[place + len(old) :]}"
    page.write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    update = request.config.getoption("--update-golden")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in EXAMPLES:
        shutil.copy(ROOT / "examples" / name, tmp_path)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        match block.kind:
            case "python":
                printed = run_python(block, page, names)
            case "sh":
                printed = run_shell(block, page, capsys)
            case "text" if update:
                write_text(page, block, printed)
            case "text":
                assert printed == block.text, f"{page.name}:{block.line}"
            case kind:
                assert kind == "console", f"{page.name}:{block.line}: what is '{kind}'?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_shown_are_those_of_the_examples(page: Path) -> None:
    for match in _FENCE.finditer(page.read_text()):
        named = _FILE.match(match[2])
        if named and named[1] in EXAMPLES:
            _, _, code = match[2].partition("\n")
            assert code.strip() in EXAMPLES[named[1]]


@pytest.mark.slow
def test_the_steps_of_a_matrix_product_are_measured_and_drawn(tmp_path: Path) -> None:
    for name in EXAMPLES:
        shutil.copy(ROOT / "examples" / name, tmp_path)
    command = [sys.executable, "matmul_steps.py", "64", "2", "1", "0", "speeds.svg"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[0] == "naive"
    assert names[-1] == "tuned"
    assert (tmp_path / "speeds.svg").read_text().count("<rect") == 1 + 2 * len(names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_how_to_run_it(name: str) -> None:
    said = ast.get_docstring(ast.parse(EXAMPLES[name])) or ""
    assert re.search(rf"{name}|autotune (tune|measure|compile)", said)
