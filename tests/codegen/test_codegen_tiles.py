"""Matrix tiles (AMX): the same numbers by emulated registers, by expanded loops, by NumPy."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from autotune import te
from autotune.codegen.compile import assembly
from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.schedule.replay import replay
from autotune.schedule.steps import (
    Annotate,
    ComputeAt,
    Pack,
    Parallel,
    Reorder,
    Split,
    Step,
    Steps,
)
from autotune.target import Target, host_target, runs_here
from autotune.target.isa import EMULATION
from autotune.target.tiles import Permission, request_tiles, tile_permission
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from autotune.te.language import dag_of
from tests.schedule.running import Array, assert_close, assert_computes, run_compiled

HOST = host_target()
EMULATED = replace(HOST, features=f"{HOST.features},+{EMULATION}")
AMX = ("amx-tile", "amx-bf16", "amx-int8")
WITH_AMX = replace(
    HOST, features=",".join([*HOST.features.split(","), *(f"+{name}" for name in AMX)])
)
"""Code that this CPU may not be able to run."""
HAS_AMX = tile_permission() is Permission.GRANTED and runs_here(WITH_AMX)
TARGETS = [EMULATED, *([HOST] if HAS_AMX else [])]


def random_operands(dag: ComputeDAG) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    out: dict[str, Array] = {}
    for p in dag.placeholders:
        shape, dtype = p.tensor.shape, p.tensor.dtype
        if dtype == "bfloat16":
            out[p.name] = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
        else:
            limits = np.iinfo(dtype)
            out[p.name] = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return out


def matmul(m: int, n: int, k: int, a: str = "bfloat16", b: str = "bfloat16") -> ComputeDAG:
    x = te.placeholder((m, k), "x", a)
    w = te.placeholder((k, n), "w", b, constant=True)
    r = te.reduce_axis(k, "r")
    total = "float32" if a == "bfloat16" else "int32"
    s = te.compute(
        (m, n), lambda i, j: te.sum(x[i, r].astype(total) * w[r, j].astype(total), r), "s"
    )
    return dag_of(te.compute((m, n), lambda i, j: s[i, j] + 1, "y"))


def tiled(block: tuple[int, int], rows: int, groups: int, terms: int) -> Steps:
    """Blocks of `block` rows and columns, in them tiles of `rows` rows."""
    loops = ("r.0.0", "r.0.1", "i.0", "j.0", "i.1", "r.1", "j.1", "r.2")
    outer: list[Step] = [
        Split("y", "i", block[:1], "split"),
        Split("y", "j", block[1:], "split"),
        Split("y", "j.1", (16,)),
        Reorder("y", ("i.0", "j.0", "i.1", "j.1.0", "j.1.1")),
        Annotate("y", "j.1.1", "vectorize"),
        Parallel("y", 2),
        ComputeAt("s", "y", "j.0"),
    ]
    inner: list[Step] = [
        Split("s", "i", (rows,)),
        Split("s", "j", (16,)),
        Split("s", "r", (groups, terms), "split"),
        Split("s", "r.0", (1000,)),
        Reorder("s", loops),
        *(Annotate("s", name, "unroll") for name in ("i.0", "j.0")),
        *(Annotate("s", name, "tile") for name in ("i.1", "r.1")),
        Annotate("s", "j.1", "vectorize"),
        Annotate("s", "r.2", "dot"),
        Pack("w", "s"),
    ]
    return (*outer, *inner)


GEMM = matmul(64, 64, 64)


def tile_instructions(dag: ComputeDAG, steps: Steps, target: Target = WITH_AMX) -> list[str]:
    text = assembly(lower(dag, steps, verify=True), target)
    return re.findall(r"^\t(ldtilecfg|tile\w+|tdp\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS, ids=["emulated", "amx"][: len(TARGETS)])
@pytest.mark.parametrize(
    ("block", "rows"),
    [
        ((32, 32), 16),  # 2 x 2 matrices of sums
        ((16, 64), 16),  # 1 x 4
        ((64, 16), 16),  # 4 x 1
        ((32, 48), 16),  # 2 x 3: two registers for all operands; 64 columns leave a smaller block
        ((28, 32), 14),  # 64 rows = 2 x 28 + 8: a block of 8 rows, the unit configured twice
        ((20, 32), 16),  # tiles overlap
        ((1, 32), 16),  # one row
    ],
)
def test_every_shape_of_accumulators_computes_the_sum(
    block: tuple[int, int], rows: int, target: Target
) -> None:
    inputs = random_operands(GEMM)
    program = lower(GEMM, tiled(block, rows, 16, 2), verify=True)
    found = run_compiled(program, inputs, target, 2)
    assert_close(found, evaluate(GEMM, inputs), 3e-6)


@pytest.mark.parametrize("target", TARGETS, ids=["emulated", "amx"][: len(TARGETS)])
@pytest.mark.parametrize(
    ("a", "b"), [("uint8", "int8"), ("int8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]
)
def test_sums_of_bytes_are_exact_whatever_their_signs(a: str, b: str, target: Target) -> None:
    dag = matmul(20, 32, 128, a, b)
    inputs = random_operands(dag)
    steps = tiled((20, 32), 10, 16, 4)
    signs = {"uint8": "u", "int8": "s"}
    assert f"tdpb{signs[a]}{signs[b]}d" in tile_instructions(dag, steps)
    assert_close(run_compiled(lower(dag, steps), inputs, target), evaluate(dag, inputs), 0.0)


def test_a_cpu_without_tiles_expands_the_loops() -> None:
    dag = matmul(8, 16, 16)
    inputs = random_operands(dag)
    program = lower(dag, tiled((8, 16), 4, 4, 2), verify=True)
    assert_computes(program, inputs, evaluate(dag, inputs), HOST, (1,))


def test_sums_stay_in_registers_over_the_whole_reduction() -> None:
    found = tile_instructions(GEMM, tiled((32, 32), 16, 16, 2))
    step = [
        "tileloadd",
        "tileloadd",
        "tdpbf16ps",
        "tileloadd",
        "tdpbf16ps",
        "tileloadd",
        "tdpbf16ps",
        "tdpbf16ps",
    ]
    ends = ["ldtilecfg", *["tilezero"] * 4], [*["tilestored"] * 4, "tilerelease"]
    assert found == [*ends[0], *step, *ends[1]]


def test_a_sum_in_parts_is_loaded_again() -> None:
    dag = matmul(32, 32, 128)
    steps = tiled((32, 32), 16, 16, 2)
    blocked = [
        replace(s, factors=(2,)) if isinstance(s, Split) and s.iter == "r.0" else s for s in steps
    ]
    order = ("r.0.0", "i.0", "j.0", "r.0.1", "i.1", "r.1", "j.1", "r.2")
    rolled = [
        replace(s, iters=order) if isinstance(s, Reorder) and s.stage == "s" else s
        for s in blocked
        if not (isinstance(s, Annotate) and s.stage == "s" and s.kind == "unroll")
    ]
    inputs = random_operands(dag)
    found = tile_instructions(dag, tuple(rolled))
    assert (found.count("tilezero"), found.count("tileloadd")) == (1, 3)
    program = lower(dag, tuple(rolled), verify=True)
    assert_close(run_compiled(program, inputs, EMULATED), evaluate(dag, inputs), 3e-6)


def test_more_accumulators_than_registers_are_memory() -> None:
    steps = tiled((64, 64), 16, 16, 2)
    assert not tile_instructions(GEMM, steps)


def test_tile_loops_are_the_four_innermost_ones() -> None:
    steps = (Split("s", "r", (16, 2), "split"), Annotate("s", "r.1", "tile"))
    with pytest.raises(ScheduleError, match="no loop over rows, or over groups"):
        replay(GEMM, steps)


def test_a_system_answers_whether_this_process_may_use_tiles() -> None:
    assert request_tiles() == HAS_AMX
    assert (tile_permission() is Permission.GRANTED) == HAS_AMX
