"""What other programs draw: graphs of tasks, timelines of kernels, the curve of measurements."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from autotune.cli.bench_history import appended, commit_of, curve_text
from autotune.errors import UsageError
from tests.forking import Cli


@pytest.fixture
def branches(tmp_path: Path) -> Path:
    """A convolution, two of its result, and one of both in a row: the concat is no call."""
    rng = np.random.default_rng(0)
    shapes = {"k": (16, 4, 3, 3), "a": (16, 16, 3, 3), "b": (16, 16, 5, 5), "c": (8, 32, 3, 3)}
    tensors = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["t"], pads=[1] * 4),
        helper.make_node("Conv", ["t", "a"], ["u"], pads=[1] * 4),
        helper.make_node("Conv", ["t", "b"], ["v"], pads=[2] * 4),
        helper.make_node("Concat", ["u", "v"], ["w"], axis=1),
        helper.make_node("Conv", ["w", "c"], ['y "z"'], pads=[1] * 4),
    ]
    ends = [helper.make_tensor_value_info(n, 1, [1, c, 8, 8]) for n, c in (("x", 4), ('y "z"', 8))]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    path = tmp_path / "branches.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    return path


def test_a_graph_of_tasks_has_an_edge_for_each_result_that_is_read(
    here: Cli, branches: Path
) -> None:
    done = here("tasks", branches, "--format", "dot")
    assert done.code == 0, done.err
    edges = re.findall(r"^  (\w+) -> (\w+);", done.out, re.MULTILINE)
    read: dict[str, set[str]] = {}
    for one, other in edges:
        read.setdefault(other, set()).add(one)
    node = "out0"
    while len(read[node]) == 1:
        (node,) = read[node]
    assert len(read[node]) == 2  # both branches, though each writes a part of what is read
    (first,) = {maker for part in read[node] for maker in read[part]}
    while first != "in0":
        (first,) = read[first]
    assert '[label="y \\"z\\"", shape=plain' in done.out
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=done.out.encode(), check=True, capture_output=True)


def test_a_timeline_has_each_kernel_behind_the_one_before(
    cli: Cli, artifact: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    words = ("bench", artifact, "--per-task", "--time", "20ms", "--format", "json")
    done = cli(*words, "--timeline", path)
    assert done.code == 0, done.err
    tasks = {task["key"]: task for task in json.loads(done.out)["tasks"]}
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    kernels = [event for event in events if event["ph"] == "X"]
    assert {event["args"]["key"] for event in kernels} == tasks.keys()
    end = 0.0
    for event in kernels:
        assert event["ts"] == pytest.approx(end)
        assert event["name"] == tasks[event["args"]["key"]]["subgraph"]
        assert event["args"]["task"] == tasks[event["args"]["key"]]["id"]
        assert event["dur"] > 0
        end = event["ts"] + event["dur"]
    again = cli(*words, "--timeline", path)
    assert again.code == 0, again.err  # its own kind of file is replaced
    refused = cli(*words, "--timeline", artifact)
    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--timeline", "t.json"), "--per-task"),
        (("--append", "h.jsonl", "--per-task"), "--append keeps latencies of whole inferences"),
        (("--append", "h.jsonl", "--callers", "2"), "--append keeps latencies of whole"),
    ],
)
def test_options_of_files_that_do_not_fit(
    here: Cli, artifact: Path, words: tuple[str, ...], said: str
) -> None:
    done = here("bench", artifact, *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_each_append_is_a_line_and_a_row_of_the_curve(
    cli: Cli, artifact: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    own = Path(shutil.copy2(artifact, folder / "m.atn"))
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    words = ("bench", own, "--time", "20ms", "--append", tmp_path / "history.jsonl")
    rows = [cli(*words), cli(*words)][-1]
    assert rows.code == 0, rows.err
    lines = [json.loads(text) for text in (tmp_path / "history.jsonl").read_text().splitlines()]
    commit = commit_of(folder)
    assert [line["commit"] for line in lines] == [commit, commit]
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    shown = rows.out.splitlines()[-2:]
    assert all(commit in row for row in shown)
    ratio = lines[1]["median_s"] / lines[0]["median_s"]
    assert f"{ratio:.3f}" in shown[1]


def test_a_curve_is_of_one_model_and_machine(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    same = {"date": "2026-01-02T03", "model": "m", "processor": "P", "inputs": {"x": [1, 2]}}
    one = {**same, "commit": "a", "median_s": 1e-3, "noisy": False}
    appended(path, one)
    appended(path, one | {"model": "other"})
    appended(path, one | {"inputs": {"x": [1, 3]}})
    lines = appended(path, one | {"commit": "b", "median_s": 2e-3, "noisy": True})
    assert [line["commit"] for line in lines] == ["a", "b"]
    _, *rows = curve_text(lines).splitlines()
    assert [row.split()[1] for row in rows] == ["a", "b"]
    assert [row.count("█") for row in rows] == [12, 24]
    assert "2.000" in rows[1]
    assert rows[1].endswith("others disturbed")
    before = path.read_bytes()
    path.write_bytes(before[:-1])  # the last line is torn
    with pytest.raises(UsageError):
        appended(path, one)
    assert path.read_bytes() == before[:-1]
    path.write_text("x,y\n1,2\n")
    with pytest.raises(UsageError):
        appended(path, one)
