"""Small models that ask for a lot: right, or refused by node and limit, at little cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from autotune.graph import limits
from tests.graph.onnx_models import model, node

N, HUGE = 10**8, 2**40
F32, BOOL, I64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64

SCRIPT = """
import json, resource, signal, sys, time
from pathlib import Path
from autotune.errors import AutotuneError
from autotune.graph.network import build_network
most = 3 << 30
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for path in sorted(Path(sys.argv[1]).iterdir()):
    signal.setitimer(signal.ITIMER_PROF, 30)  # seconds of CPU; ends the process
    start = time.process_time()
    try:
        told = f"ok {len(build_network(path).calls)}"
    except AutotuneError as error:
        told = f"{type(error).__name__} {error.message}"
    except BaseException as error:
        told = f"UNTYPED {error!r}"
    status = Path("/proc/self/status").read_text()  # what rusage says begins with the parent's
    peak = int(status.split("VmHWM:")[1].split()[0]) >> 10
    print(json.dumps([path.stem, told, time.process_time() - start, peak]), flush=True)
"""


def one(op: str, inputs: str, constants: dict[str, object], **attrs: object) -> ModelProto:
    """An operator of x and constants, its result added up and added to x."""
    nodes = [
        node(op, inputs, "t", **attrs),
        node("Cast", "t", "f", to=F32),
        node("ReduceSum", "f", "s", keepdims=0),
        node("Add", "x s", "y"),
    ]
    return model(nodes, {"x": (1, 1, 4, 4)}, constants, opset=18)


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def fill(op: str, inputs: str, shape: tuple[int, ...], **attrs: object) -> ModelProto:
    """An operator of constants that a ConstantOfShape declares."""
    nodes = [
        node("ConstantOfShape", "n", "c"),
        node(op, inputs, "t", **attrs),
        node("ReduceSum", "t", "s", keepdims=0),
        node("Add", "x s", "y"),
    ]
    return model(nodes, {"x": (1,)}, {"n": ints(*shape), "one": np.float32(1)}, opset=18)


def found_in(op: str, n: int) -> ModelProto:
    """An operator whose result has a length that its operand decides."""
    nodes = [
        node("ConstantOfShape", "n", "c"),
        node(op, "c", "t"),
        node("Cast", "t", "f", to=F32),
        node("ReduceSum", "f", "s", keepdims=0),
        node("Add", "x s", "y"),
    ]
    return model(nodes, {"x": (1,)}, {"n": ints(n)}, opset=18)


def loops(levels: int, count: int) -> ModelProto:
    def body(level: int) -> onnx.GraphProto:
        inner = node("Loop", "n c v", "w", body=body(level - 1)) if level else node("Neg", "v", "w")
        nodes = [inner, node("Identity", "k", "again")]
        inputs = [("i", I64, []), ("k", BOOL, []), ("v", F32, [4])]
        outputs = [("again", BOOL, []), ("w", F32, [4])]
        ports = [[helper.make_tensor_value_info(*p) for p in group] for group in (inputs, outputs)]
        return helper.make_graph(nodes, f"b{level}", *ports)

    constants = {"n": np.array(count), "c": np.array(True)}
    return model(node("Loop", "n c x", body=body(levels - 1)), {"x": (4,)}, constants, opset=16)


def functions(levels: int) -> ModelProto:
    """Every function calls the one below twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    made = []
    for n in range(levels):
        ends = (("a", "t"), ("t", "b"))
        below = [helper.make_node(f"F{n - 1}", [a], [b], domain="my") for a, b in ends]
        nodes = below if n else [node("Relu", "a", "b")]
        made.append(helper.make_function("my", f"F{n}", ["a"], ["b"], nodes, imports))
    proto = model(helper.make_node(f"F{levels - 1}", ["x"], ["y"], domain="my"), {"x": (4,)})
    proto.functions.extend(made)
    proto.opset_import.append(imports[1])
    return proto


def declared(n: int) -> ModelProto:
    return model(node("Relu", "x"), {"x": (n, 4)})


def chosen(op: str, inputs: str, n: int = 9_000, gather: str = "Gather") -> ModelProto:
    """A matrix of two for each of `n` rows, gathered, and an operator that reads it."""
    is_plain = gather == "Gather"
    nodes = [
        *(() if is_plain else (node("Unsqueeze", "e one", "e1"),)),
        node(gather, "table e" if is_plain else "table e1", "m"),
        node("Transpose", "m", "w", perm=[0, 2, 1]),
        node(op, inputs, "t"),
        node("ReduceSum", "t", "y", keepdims=0),
    ]
    table = np.ones((2, 512, 512), "f4")
    known = {"table": table, "one": ints(1)}
    return model(nodes, {"rows": (n, 1, 512), "e": (n,)}, known, types={"e": "int64"})


def recurrent(steps: int) -> ModelProto:
    weights: dict[str, object] = {"w": np.ones((1, 4, 1), "f4"), "r": np.ones((1, 4, 1), "f4")}
    lstm = node("LSTM", "x w r", hidden_size=1)
    return model(lstm, {"x": (steps, 1, 1)}, weights)


def pieces(n: int) -> ModelProto:
    nodes = [
        node("SplitToSequence", "x", "q"),
        node("SequenceAt", "q i", "y"),
    ]
    return model(nodes, {"x": (n,)}, {"i": np.array(0)})


def split_of(n: int) -> ModelProto:
    return model(node("Split", "x", "y", num_outputs=n), {"x": (4,)}, opset=18)


def joined(n: int) -> ModelProto:
    return model(node("Concat", " ".join("x" * n), axis=0), {"x": (4,)})


def copies(n: int) -> ModelProto:
    proto = model(node("Relu", "x"), {"x": (4,)})
    proto.graph.node.extend([helper.make_node("Identity", ["x"], ["z"])] * n)
    return proto


def typed(kind: int) -> ModelProto:
    proto = model(node("Relu", "x"), {"x": (4,)})
    proto.graph.input[0].type.tensor_type.elem_type = kind
    return proto


KERNEL: dict[str, object] = {"w": np.ones((1, 1, 3, 3), "f4")}
BOMBS: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "range": (lambda: one("Range", "a b c", _range(N)), "'Range'.*MOST_FOLDED_BYTES"),
    "range_far": (lambda: one("Range", "a b c", _range(HUGE)), "'Range'.*MOST_ELEMENTS"),
    "tile": (lambda: one("Tile", "x r", {"r": ints(1, 1, 1, HUGE)}), "'Tile'.*MOST_ELEMENTS"),
    "tile_known": (
        lambda: one("Tile", "w r", {**KERNEL, "r": ints(1, 1, 1, N)}),
        "'Tile'.*MOST_FOLDED_BYTES",
    ),
    "expand": (lambda: one("Expand", "x e", {"e": ints(N, 1, 4, 4)}), "ok|'Expand'"),
    "expand_far": (lambda: one("Expand", "x e", {"e": ints(HUGE, 1, 4, 4)}), "MOST_ELEMENTS"),
    "pad": (lambda: one("Pad", "x p", {"p": ints(0, 0, 0, HUGE, 0, 0, 0, 0)}), "MOST_ELEMENTS"),
    "one_hot": (
        lambda: one("OneHot", "i d v", {"i": ints(3), "d": ints(N), "v": np.array([0, 1], "f4")}),
        "'OneHot'.*MOST_FOLDED_BYTES",
    ),
    "resize": (
        lambda: one("Resize", "x _ _ z", {"z": ints(1, 1, N, 4)}, mode="nearest"),
        "'Resize'.*MOST_FOLDED_BYTES",
    ),
    "resize_far": (
        lambda: one("Resize", "x _ _ z", {"z": ints(1, 1, HUGE, 4)}, mode="linear"),
        "'Resize'.*MOST_ELEMENTS",
    ),
    "conv_padding": (lambda: one("Conv", "x w", KERNEL, pads=[N, 0, N, 0]), "ok"),
    "conv_padding_far": (
        lambda: one("Conv", "x w", KERNEL, pads=[HUGE, 0, HUGE, 0]),
        "'Conv'.*MOST_ELEMENTS",
    ),
    "average_padding": (
        lambda: one("AveragePool", "x", {}, kernel_shape=[3, 3], pads=[N, 1, N, 1]),
        "'AveragePool'.*MOST_FOLDED_BYTES",
    ),
    "transposed_holes": (
        lambda: one("ConvTranspose", "x w", KERNEL, dilations=[N, 1], output_shape=[4, 4]),
        "'ConvTranspose'.*MOST_FOLDED_BYTES",
    ),
    "transposed_far": (
        lambda: one("ConvTranspose", "x w", KERNEL, output_shape=[N, 4]),
        "'ConvTranspose'.*MOST_FOLDED_BYTES",
    ),
    "eye": (lambda: fill("EyeLike", "c", (30_000, 30_000)), "'EyeLike'.*MOST_FOLDED_BYTES"),
    "fill": (lambda: fill("Identity", "c", (N,)), "ok"),
    "fill_far": (lambda: fill("Identity", "c", (HUGE,)), "'ConstantOfShape'.*MOST_ELEMENTS"),
    "fill_dimensions": (lambda: fill("Identity", "c", (1,) * 60), "MOST_DIMENSIONS"),
    "fill_sum": (lambda: fill("Add", "c one", (N,)), "'Add'.*MOST_FOLDED_BYTES"),
    "fill_read": (lambda: fill("Mul", "c x", (2 * N,)), "'Mul'.*MOST_DECLARED_BYTES"),
    "fill_product": (lambda: fill("MatMul", "c c", (40_000, 40_000)), "MOST_FOLDED_BYTES"),
    "fill_exp": (lambda: fill("Exp", "c", (2**31,)), "'Exp'.*MOST_FOLDED_BYTES"),
    "nonzero": (lambda: found_in("NonZero", 2**31 - 1), "'NonZero'.*MOST_FOLDED_BYTES"),
    "unique": (lambda: found_in("Unique", 2**30), "'Unique'.*MOST_FOLDED_BYTES"),
    "split": (lambda: split_of(10**9), "'Split'.*says num_outputs"),
    "operands": (lambda: joined(20_000), "'Concat'.*MOST_OPERANDS"),
    "nodes": (lambda: copies(200_001), "MOST_NODES"),
    "type": (lambda: typed(77), "ModelError .*type 77|NotCompilable .*'77'"),
    "loop": (lambda: loops(1, 1000), "ok"),
    "loop_far": (lambda: loops(1, HUGE), "'Loop'.*MOST_ITERATIONS"),
    "loop_nested": (lambda: loops(3, 1000), "'Loop'.*MOST_UNFOLDED"),
    "functions": (lambda: functions(25), "'my.F.*MOST_UNFOLDED"),
    "declared": (lambda: declared(HUGE), "'Relu'.*MOST_ELEMENTS"),
    "chosen": (lambda: chosen("MatMul", "rows w"), "ok"),
    "chosen_nd": (lambda: chosen("MatMul", "rows w", gather="GatherND"), "ok"),
    "chosen_left": (lambda: chosen("Mul", "m m"), "'Gather'.*MOST_ELEMENTS"),
    "chosen_far": (lambda: chosen("MatMul", "rows w", 2**34), "'Gather'.*MOST_ELEMENTS"),
    "recurrent": (lambda: recurrent(N), "'LSTM'.*MOST_STEPS"),
    "sequence": (lambda: pieces(N), "'SplitToSequence'.*MOST_UNFOLDED"),
    "einsum": (
        lambda: model(
            node("Einsum", " ".join("x" * 10), equation="a,b,c,d,e,f,g,h,i,j->"), {"x": (64,)}
        ),
        "ok",
    ),
}


def _range(n: int) -> dict[str, object]:
    return {"a": np.array(0), "b": np.array(n), "c": np.array(1)}


@pytest.mark.slow
def test_a_bomb_is_right_or_refused_by_node_and_limit(tmp_path: Path) -> None:
    """In one process: what import says of each, seconds of CPU, and MiB of memory up to then."""
    for name, (make, _) in BOMBS.items():
        (tmp_path / f"{name}.onnx").write_bytes(make().SerializeToString())
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert {line[0] for line in lines} == BOMBS.keys()
    for name, text, seconds, peak in lines:
        assert re.search(BOMBS[name][1], text), f"{name}: {text}"
        assert seconds < 20, name
        assert peak < 700, name


def test_limits_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    for name, value in vars(limits).items():
        if name.startswith("MOST_"):
            assert f"| `{name}` | {value:,} |" in page


def test_what_is_broadcast_is_counted_once() -> None:
    assert limits.n_stored_bytes(np.broadcast_to(np.float32(1), (10, 10))) == 4
    assert limits.n_stored_bytes(np.zeros((10, 10), np.float32)) == 400
