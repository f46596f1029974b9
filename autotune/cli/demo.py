"""⑪ `autotune demo`: the first minute, on a network that it makes; commands are shown, and run."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from autotune.cli.console import common_options, invocation, put, say
from autotune.cli.option_types import DURATION, FILE
from autotune.errors import UsageError
from autotune.file_kinds import LOG, require_kind

_CHANNELS = ((32, 1), (64, 2), (128, 2))
"""Of each block, with its stride."""
_SIZE, _CLASSES = 96, 10


@click.command("demo")
@click.option("-o", "--output", type=FILE, default="autotune-demo", help="Folder.  [autotune-demo]")
@click.option("--time", "time_s", type=DURATION, default="12s", help="Time to tune.  [12s]")
@common_options
def command(output: Path, time_s: float) -> None:
    """Compile, compare and tune a small network that this command makes: half a minute.

    Every command is printed before it runs, so that it can be repeated. Files are left in a folder.
    """
    from autotune.records.reader import read_log

    output.mkdir(parents=True, exist_ok=True)
    model, untuned = output / "demo.onnx", output / "untuned.atn"
    log, tuned = output / "demo.jsonl", output / "tuned.atn"
    require_kind(log, LOG)
    _write_network(model)
    log.unlink(missing_ok=True)
    against = ["--against", "onnxruntime"] if find_spec("onnxruntime") else []
    _run("compile", model, "-o", untuned)
    _run("bench", untuned, *against, "--time", "1s")
    _run("tune", model, "--time", f"{time_s:g}s", "--log", log, "--no-compare")
    if not read_log(log).records:
        say(f"nothing was measured in {time_s:g} s: give it more `time_s`")
        return
    _run("compile", "--log", log, "-o", tuned)
    _run("bench", tuned, "--compare", untuned, "--time", "1s")
    put(f"\nwith a model of yours: autotune bench model.onnx{''.join(f' {w}' for w in against)}")


def _run(*words: object) -> None:
    """Print a command, and run it as the shell would. Raises as it does."""
    texts = [str(word) for word in words]
    put(f"\n$ autotune {shlex.join(texts)}")
    root = click.get_current_context().find_root().command
    root.main(texts, prog_name="autotune", standalone_mode=False, obj=invocation())


def _write_network(path: Path) -> None:
    """A residual network of float32 with random weights: images to the scores of ten classes.

    Raises UsageError where another file is there.
    """
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        values = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{len(weights)}"))
        return str(weights[-1].name)

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def conv(x: str, of: int, to: int, stride: int = 1, size: int = 3) -> str:
        pads = [size // 2] * 4
        return add("Conv", x, weight(to, of, size, size), pads=pads, strides=[stride, stride])

    x, of = add("Relu", conv("image", 3, 32, 2)), 32
    for to, stride in _CHANNELS:
        y = conv(add("Relu", conv(x, of, to, stride)), to, to)
        around = x if (of, stride) == (to, 1) else conv(x, of, to, stride, 1)
        x, of = add("Relu", add("Add", y, around)), to
    x = add("Flatten", add("GlobalAveragePool", x))
    nodes.append(helper.make_node("Gemm", [x, weight(_CLASSES, of)], ["scores"], transB=1))
    ends = (("image", (1, 3, _SIZE, _SIZE)), ("scores", (1, _CLASSES)))
    image, scores = ([helper.make_tensor_value_info(n, 1, shape)] for n, shape in ends)
    graph = helper.make_graph(nodes, "demo", image, scores, weights)
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    if path.exists() and path.read_bytes() != made:
        raise UsageError(f"{path} exists, and is another model", "choose another folder with -o")
    path.write_bytes(made)
