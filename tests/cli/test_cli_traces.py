"""What each command sends and writes, in a home of its own: nothing but what docs/files.md names.

The system calls are watched by `strace`; where there is none, the files that are left tell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from autotune.cli.main import _COMMANDS
from tests.forking import ROOT, UNCOMPARED, in_process
from tests.graph.onnx_models import model, node

_CALLS = (
    "connect,bind,sendto,sendmsg,sendmmsg,openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,"
    "link,linkat,symlink,symlinkat,mknod,mknodat,truncate,unlink,unlinkat"
)
_WRITES = re.compile(r"O_(CREAT|WRONLY|RDWR|TRUNC|TMPFILE)")
_NETWORK = re.compile(r"sa_family=AF_INET6?\b")
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<path>[^"]*)"')
_OF_PATHS = set(_CALLS.split(",")) - {"connect", "bind", "sendto", "sendmsg", "sendmmsg"}
_NO_FILES = ("/dev/", "/proc/", "/var/lib/libuuid/")
"""The last has the clock of the system's library for unique names, which the quantiser uses."""
_SCHEDULE = "def schedule(s):\n    pass\n"
_DROP_IN = """
import time
from pathlib import Path
import numpy as np
import autotune as ort

session = ort.InferenceSession("model.onnx")
feeds = {"x": np.load("x.npy")}
end_s = time.monotonic() + 120
while not [*Path.home().rglob("*.entry")] and time.monotonic() < end_s:
    session.run(None, feeds)
    time.sleep(0.05)
"""
_LENIENT = ("--agreement", "0.5")
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "demo": (("demo", "-o", "made", "--time", "4s"),),
    "tune": (("tune", "model.onnx", "--trials", "4", "--log", "made.jsonl"),),
    "resume": (("resume", "log.jsonl", "--trials", "1"),),
    "distill": (("distill", "log.jsonl", "-o", "made.jsonl", "--store"),),
    "compile": (("compile", "model.onnx", "--log", "log.jsonl", "-o", "made.atn"),),
    "quantise": (("quantise", "model.onnx", "--data", "x.npz", "-o", "made.onnx", *_LENIENT),),
    "run": (("run", "model.atn", "--input", "x=x.npy", "-o", "made.npz"),),
    "bench": (
        ("bench", "model.atn", "--time", "1s", "--against", "onnxruntime", "--save", "made.json"),
        ("bench", "model.onnx", "--time", "1s", "--against", "openvino"),
    ),
    "tasks": (("tasks", "model.onnx"),),
    "target": (("target", "-o", "made.json"),),
    "worker": (("worker", "dask://127.0.0.1:1"),),
    "export": (("export", "model.atn", "-o", "made"),),
    "measure": (("measure", "mine.py", "--log", "log.jsonl", "--task", "0"),),
    "store": (("store", "list", "--store", "store"), ("store", "verify", "--store", "store")),
    "explain": (("explain", "log.jsonl", "--task", "0", "--stage", "asm"),),
    "info": (("info",),),
    "schema": (("schema", "bench"),),
    "report": (("report", "log.jsonl", "-o", "made.html"),),
}
"""Of each command, calls in a folder with the files of `given`; what they make is `made…`."""
_CONNECTS = {"worker": 'inet_addr("127.0.0.1")'}
"""Commands that are asked to connect, and where."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its log, what was compiled of it, and inputs."""
    folder = tmp_path_factory.mktemp("given")
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(64, 32)).astype("f")}
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a")]
    onnx.save(model(nodes, {"x": (4, 64)}, weights), folder / "model.onnx")
    x = rng.normal(size=(4, 64)).astype("f")
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=rng.normal(size=(256, 64)).astype("f"))
    (folder / "mine.py").write_text(_SCHEDULE)
    for words in (
        ("tune", "model.onnx", "--trials", "2", "--log", "log.jsonl"),
        ("compile", "--log", "log.jsonl", "--no-check", "-o", "model.atn"),
        ("distill", "log.jsonl", "--store", "store"),
    ):
        done = in_process(*words, cwd=folder)
        assert done.code == 0, done.err
    return folder


def test_every_command_is_watched() -> None:
    assert COMMANDS.keys() == _COMMANDS.keys()


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words", [words for calls in COMMANDS.values() for words in calls], ids="-".join
)
def test_a_command_sends_nothing_and_writes_what_it_names(
    given: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    if "--against" in words:
        pytest.importorskip(words[words.index("--against") + 1])
    place = _place(given, tmp_path)
    done = place.run("-m", "autotune", *words)
    connects = _CONNECTS.get(words[0], "")
    assert done.returncode == (1 if connects else 0), done.stderr
    place.require_clean(connects)
    new = {p.name for p in place.work.iterdir()} - {p.name for p in given.iterdir()}
    assert {name.partition(".")[0] for name in new} <= {"made"}


@pytest.mark.slow
def test_a_session_compiles_beside_its_calls_and_writes_its_cache_alone(
    given: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    place = _place(given, tmp_path)
    done = place.run("-c", _DROP_IN)
    assert done.returncode == 0, done.stderr
    place.require_clean()
    assert [*place.cache.rglob("*.entry")]


def _place(given: Path, folder: Path) -> _Place:
    place = _Place(folder / "work", folder / "home", folder / "temporary")
    shutil.copytree(given, place.work)
    for each in (place.home, place.temporary):
        each.mkdir()
    return place


@dataclass(frozen=True)
class _Place:
    """The folders of a call: where it works, its home, and that for temporary files."""

    work: Path
    home: Path
    temporary: Path

    @property
    def cache(self) -> Path:
        """What docs/files.md says of the home."""
        return self.home / ".cache" / "autotune"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python, watched where that is possible."""
        watch = [] if not _watches() else ["strace", "-f", "-qq", "-y", "--seccomp-bpf"]
        watch += ["-s", "300", "-e", f"trace={_CALLS}", "-o", str(self._trace)] if watch else []
        known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        known |= {"PYTHONDONTWRITEBYTECODE": "1"} | UNCOMPARED
        known |= {"HOME": str(self.home), "TMPDIR": str(self.temporary)}
        return subprocess.run(
            [*watch, sys.executable, *arguments], cwd=self.work, env=known,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def require_clean(self, connects: str = "") -> None:
        """Nothing was sent, but to `connects`, and nothing written that has no business there."""
        calls = [call for call in self.calls() if _NETWORK.search(call)]
        assert [call for call in calls if not connects or connects not in call] == []
        assert sorted(self.strange_writes()) == []
        assert [*self.temporary.iterdir()] == []
        files = [path for path in self.home.rglob("*") if path.is_file()]
        assert [path for path in files if not path.is_relative_to(self.cache)] == []

    @property
    def _trace(self) -> Path:
        return self.work.parent / "trace"

    def calls(self) -> list[str]:
        """Lines of the trace: calls that were begun."""
        lines = self._trace.read_text(errors="replace").splitlines() if _watches() else []
        return [line.partition(" ")[2].strip() for line in lines]

    def strange_writes(self) -> Iterator[str]:
        """Calls that write what nothing names."""
        own: set[Path] = set()
        for call in self.calls():
            name = call.partition("(")[0]
            is_open = name in ("open", "openat")
            if name not in _OF_PATHS or (is_open and not _WRITES.search(call)):
                continue
            for match in _PATH.finditer(call):
                path = Path(match["folder"] or self.work, match["path"])
                if name.startswith("mkdir") or "O_EXCL" in call or "O_TMPFILE" in call:
                    own.add(path)
                if not self._may_write(path, call, own):
                    yield call

    def _may_write(self, path: Path, call: str, own: set[Path]) -> bool:
        """`own`: what the command has made, none of which was there before."""
        if str(path).startswith(_NO_FILES):
            return True
        if path.is_relative_to(self.temporary):  # no name that another user may have taken
            return not own.isdisjoint((path, *path.parents))
        is_above = self.cache.is_relative_to(path) and call.startswith("mkdir")
        return is_above or path.is_relative_to(self.cache) or path.is_relative_to(self.work)


@cache
def _watches() -> bool:
    """Whether this machine lets processes be watched."""
    with suppress(OSError):
        return not subprocess.run(["strace", "-qq", "true"], capture_output=True).returncode
    return False
