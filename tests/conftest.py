"""Fixtures for every test: golden files, and small tasks that need no model."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from autotune.network.runtime.apart import apart
from autotune.target import Target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, mul
from tests.forking import UNCOMPARED, Cli, ForkServer
from tests.targets import CPUS, take_for

GOLDEN = Path(__file__).parent / "golden"
ASSETS = Path(__file__).parent / "assets"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from what is printed now"
    )
    parser.addoption("--cpu", choices=CPUS, help="take this machine for a made-up CPU")
    parser.addoption(
        "--sample",
        choices=("values", "one"),
        help="of a test with parameters, as many cases as have every value once, or one case",
    )


def pytest_collection_finish() -> None:
    """What is there when tests begin stays: no collection of garbage looks at it again."""
    gc.freeze()


_TAKEN_FOR = pytest.StashKey[pytest.MonkeyPatch]()


def pytest_configure(config: pytest.Config) -> None:
    """Before modules are collected: some ask for `host_target()` when they are imported.

    Many import onnxruntime, which is not to send anything either.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    config.stash[_TAKEN_FOR] = pytest.MonkeyPatch()
    if name := config.getoption("--cpu"):
        take_for(CPUS[name], config.stash[_TAKEN_FOR])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--sample`, leave out cases without a new value, and all but `n` of `sampled(n)`."""
    if sample := config.getoption("--sample"):
        kept = _sample(items, sample == "one")
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _sample(items: list[pytest.Item], one: bool) -> dict[pytest.Item, None]:
    seen: set[object] = set()

    def is_new(item: pytest.Item) -> bool:
        values = set() if one else set(_values(item))
        values.add(item.nodeid.partition("[")[0])
        found = not values <= seen
        seen.update(values)
        return found

    kept = [item for item in items if is_new(item)]
    families: dict[tuple[str, tuple[int, ...]], list[pytest.Item]] = {}
    for item in kept:
        if mark := item.get_closest_marker("sampled"):
            key = item.nodeid.partition("[")[0], mark.args
            families.setdefault(key, []).append(item)
    left: set[pytest.Item] = set()
    for (_, (n,)), family in families.items():
        left.update(family)
        left.difference_update(family[k * len(family) // n] for k in range(n))
    return {item: None for item in kept if item not in left}


def _values(item: pytest.Item) -> Iterator[object]:
    """What identifies the value that each `parametrize` of a test has in one of its cases."""
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.split(",") if isinstance(names, str) else names
        values = tuple(id(item.callspec.params[name.strip()]) for name in names)  # type: ignore[attr-defined]
        yield item.nodeid.partition("[")[0], tuple(names), values


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_TAKEN_FOR].undo()


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither tests nor the processes that they start touch the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        zig = Path.home() / ".cache/zig"  # a libc for each foreign target, half a minute each
        patch.setenv("ZIG_GLOBAL_CACHE_DIR", os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(zig)))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("AUTOTUNE_STORE", raising=False)
        for name, value in UNCOMPARED.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True, scope="session")
def _process_of_onnxruntime(_cache_of_its_own: None) -> Iterator[None]:
    """One process serves the checks of all tests, which saves the start of one for each."""
    process = apart()
    yield
    del process


@pytest.fixture(scope="session")
def cli(_cache_of_its_own: None) -> Iterator[Cli]:
    """`cli("tasks", path)` runs the real command in a fork of a process that has imported it."""
    server = ForkServer()
    yield server.run
    server.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.txt", text)` compares text with tests/golden/name.txt."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; this is the text:\n{text}"
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of this test alone: it draws the same numbers whichever tests run before it."""
    return np.random.default_rng(list(request.node.nodeid.encode()))


@pytest.fixture
def assets() -> Path:
    """Files that tests read and never write."""
    return ASSETS


@pytest.fixture
def any_target() -> Target:
    """A made-up CPU, the same on every machine."""
    return Target("testcpu", "+avx2,+fma", 256, 16, 32 << 10, 1 << 20, 32 << 20, 4)


@pytest.fixture
def matmul_of() -> Callable[[int], ComputeDAG]:
    """`matmul_of(n)`: the computation of an n x n matrix product with a constant operand."""

    def make(n: int) -> ComputeDAG:
        a, b = placeholder("a", (n, n)), placeholder("b", (n, n), constant=True)
        i, j, k = Axis("i", n), Axis("j", n), Axis("k", n)
        body = mul(a.tensor[i, k], b.tensor[k, j])
        return ComputeDAG((a, b, compute("c", (i, j), Reduce("sum", body, (k,)))), ("c",))

    return make
