"""`run` and `bench` of artifacts with lengths: at the most, and at the sizes that are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autotune.extent import Length
from tests.forking import Cli
from tests.network.sized_networks import IN, sized_artifact


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sized") / "m.atn"
    sized_artifact((Length("batch", 4), Length("rows", 5, 8))).save(path)
    return path


def arrays(path: Path, b: int, n: int) -> Path:
    zeros = {"x": np.zeros((b, n, IN), np.float32), "z": np.zeros((n, IN), np.float32)}
    np.savez(path, **zeros)  # type: ignore[arg-type]
    return path


def test_run_takes_any_size(cli: Cli, artifact: Path, tmp_path: Path) -> None:
    done = cli("run", artifact, "--input", arrays(tmp_path / "x.npz", 3, 16), "--format", "json")
    shapes = {output["name"]: output["shape"] for output in json.loads(done.out)["outputs"]}
    assert shapes == {"y": [3, 16, 6], "s": [3, 6], "same": [16, 5]}
    done = cli("run", artifact, "--format", "json")
    assert json.loads(done.out)["outputs"][0]["shape"] == [4, 40, 6]


def test_bench_is_at_the_most_or_as_asked(cli: Cli, artifact: Path, tmp_path: Path) -> None:
    x = arrays(tmp_path / "x.npz", 3, 16)
    for options, says in (
        ((), "x 4x40x5, z 40x5:"),
        (("--dim", "rows=24"), "x 4x24x5, z 24x5:"),
        (("--dim", "rows=8", "--dim", "batch=1"), "x 1x8x5, z 8x5:"),
        (("--input", x), "x 3x16x5, z 16x5:"),
        (("--like", x), "x 3x16x5, z 16x5:"),
        (("--dim", "rows=16", "--callers", "2"), "x 4x16x5, z 16x5:"),
        (("--dim", "rows=16", "--per-task"), "x 4x16x5, z 16x5:"),
    ):
        done = cli("bench", artifact, "--time", "1ms", *options)
        assert done.code == 0, done.err
        assert done.out.splitlines()[0] == says


def test_bench_compares_one_size_with_the_same_one(
    cli: Cli, artifact: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "base.json"
    size = ("--dim", "rows=16", "--time", "1ms")
    assert cli("bench", artifact, *size, "--save", saved).code == 0
    for base in (artifact, saved):
        done = cli("bench", artifact, *size, "--compare", base)
        assert done.code == 0, done.err
        assert "times as long as" in done.out
    done = cli("bench", artifact, "--dim", "rows=8", "--compare", saved, "--time", "1ms")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--dim", "rows=17"), "has 17 in dimension 1 (8·rows), which no 'rows' gives"),
        (("--dim", "rows=48"), "has 48 in dimension 1 (8·rows), at most 40 are possible"),
        (("--dim", "row=16"), "no length 'row'"),
        (("--dim", "rows=8,16"), "--dim rows is one size here"),
        (("--shape", "x:1x8x5"), "its shapes cannot change"),
    ],
)
def test_bench_refuses_other_sizes_in_a_line(
    cli: Cli, artifact: Path, options: tuple[str, ...], says: str
) -> None:
    done = cli("bench", artifact, "--time", "1ms", *options)
    assert done.code != 0
    assert says in done.err
    assert done.err.count("error:") == done.err.count("hint:") == 1
