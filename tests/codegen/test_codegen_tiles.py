"""Matrix tiles (AMX): the same numbers by emulated registers and by NumPy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from autotune import te
from autotune.codegen.compile import assembly
from autotune.codegen.emission.emit import emit_program
from autotune.codegen.image.jit import Library
from autotune.errors import ArtifactError, ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.nodes import with_strides
from autotune.measure.timing.peak import form_peaks
from autotune.network.artifact.artifact import require_features
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
from autotune.search.cost.analysis import analyse
from autotune.search.cost.analytic import analytic_seconds
from autotune.search.sketch import generate_sketches
from autotune.target import Target, cpuid, host_target, runs_here, tiles
from autotune.target.isa import EMULATION, FEATURES
from autotune.target.tiles import Permission, denial, request_tiles, tile_permission
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from autotune.te.language import dag_of
from autotune.tuner import dots_of
from tests.schedule.running import Array, assert_close, run_compiled
from tests.targets import AMX

pytestmark = pytest.mark.target

HOST = host_target()
_FEATURES = [f for f in HOST.features.split(",") if "amx" not in f]
WITHOUT = replace(HOST, features=",".join(_FEATURES))
EMULATED = replace(HOST, features=",".join([*_FEATURES, f"+{EMULATION}"]))
HAS_AMX = tile_permission() is Permission.GRANTED and runs_here(AMX)
IS_EMULATED = any(f.unit for f in EMULATED.isa.forms)
"""With AVX-512: the functions in place of tiles take its vectors."""
TARGETS = [*([EMULATED] if IS_EMULATED else []), *([HOST] if HAS_AMX else [])]
needs_emulation = pytest.mark.skipif(not IS_EMULATED, reason="emulated tiles take AVX-512")


def random_operands(dag: ComputeDAG) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    out: dict[str, Array] = {}
    for p in dag.placeholders:
        shape, dtype = p.tensor.shape, p.tensor.dtype
        if dtype in ("bfloat16", "float32"):
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
            out[p.name] = rng.standard_normal(shape).astype(kind)
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


def tile_instructions(dag: ComputeDAG, steps: Steps, target: Target = AMX) -> list[str]:
    text = assembly(lower(dag, steps, verify=True), target)
    return re.findall(r"^\t(ldtilecfg|tile\w+|tdp\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: "emulated" if t == EMULATED else "amx")
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


def convolution(stride: int, kernel: int, a: str, b: str, n: int = 64) -> ComputeDAG:
    """Kernel x kernel on 8 x 9 pixels of `n` channels, with padding around them."""
    pad, total = kernel // 2, "float32" if a == "bfloat16" else "int32"
    x = te.placeholder((8, 9, n), "x", a)
    w = te.placeholder((kernel, kernel, n, 32), "w", b, constant=True)
    u, v, c = te.reduce_axis(kernel, "u"), te.reduce_axis(kernel, "v"), te.reduce_axis(n, "c")

    def inside(i: te.Expression, j: te.Expression, k: te.Expression) -> te.Expression:
        is_pixel = (i >= pad) & (i < 8 + pad) & (j >= pad) & (j < 9 + pad)
        return te.where(is_pixel, x[i - pad, j - pad, k], 0)

    p = te.compute((8 + 2 * pad, 9 + 2 * pad, n), inside, "p") if pad else x

    def term(i: te.Expression, j: te.Expression, o: te.Expression) -> te.Expression:
        product = p[i * stride + u, j * stride + v, c].astype(total) * w[u, v, c, o].astype(total)
        return te.sum(product, [u, v, c])

    shape = (-(-8 // stride), -(-9 // stride), 32)
    s = te.compute(shape, term, "s")
    return dag_of(te.compute(shape, lambda i, j, o: s[i, j, o] + 1, "y"))


def wide(m: int, n: int, k: int) -> ComputeDAG:
    """A product of float32: three of bfloat16 in the space."""
    x, w = te.placeholder((m, k), "x"), te.placeholder((k, n), "w", constant=True)
    r = te.reduce_axis(k, "r")
    s = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], r), "s")
    return dag_of(te.compute((m, n), lambda i, j: s[i, j] + 1, "y"))


def attention(transposed: bool, n_terms: int = 32) -> ComputeDAG:
    """Products of two activations: scores of three heads, or their sums of values."""
    m, n, k = (20, 32, 64) if transposed else (20, 64, n_terms)
    q = te.placeholder((3, m, k), "q", "bfloat16")
    v = te.placeholder((3, n, k) if transposed else (3, k, n), "v", "bfloat16")
    r = te.reduce_axis(k, "r")

    def element(h: te.Expression, i: te.Expression, j: te.Expression) -> te.Expression:
        other = v[h, j, r] if transposed else v[h, r, j]
        return te.sum(q[h, i, r].astype("float32") * other.astype("float32"), r)

    s = te.compute((3, m, n), element, "s")
    return dag_of(te.compute((3, m, n), lambda h, i, j: s[h, i, j] * 0.125, "y"))


def fused_attention(keys: int = 32) -> ComputeDAG:
    """Two heads of 20 queries and of keys, of 64 numbers each."""
    q = te.placeholder((2, 20, 64), "q", "bfloat16")
    k = te.placeholder((2, keys, 64), "k", "bfloat16")
    v = te.placeholder((2, keys, 64), "v", "bfloat16")
    extents = {"d": 64, "m": keys, "n": keys, "t": keys}
    d, j, n, t = (te.reduce_axis(e, x) for x, e in extents.items())
    s = te.compute(
        (2, 20, keys),
        lambda h, i, c: te.sum(q[h, i, d].astype("float32") * k[h, c, d].astype("float32"), d),
        "s",
    )
    e = te.compute((2, 20, keys), lambda h, i, c: s[h, i, c] * 0.125, "e")
    top = te.compute((2, 20), lambda h, i: te.max(e[h, i, j], j), "top")
    x = te.compute((2, 20, keys), lambda h, i, c: te.exp(e[h, i, c] - top[h, i]), "x")
    total = te.compute((2, 20), lambda h, i: te.sum(x[h, i, n], n), "total")
    p = te.compute(
        (2, 20, keys), lambda h, i, c: (x[h, i, c] / total[h, i]).astype("bfloat16"), "p"
    )

    def value(h: te.Expression, i: te.Expression, c: te.Expression) -> te.Expression:
        return te.sum(p[h, i, t].astype("float32") * v[h, t, c].astype("float32"), t)

    o = te.compute((2, 20, 64), value, "o")
    return dag_of(te.compute((2, 20, 64), lambda h, i, c: o[h, i, c] + 1, "y"))


def separable() -> ComputeDAG:
    """3 x 3 for each of 32 channels on 8 x 10 pixels, then a product over the channels."""
    x = te.placeholder((8, 10, 32), "x", "bfloat16")
    f = te.placeholder((3, 3, 32), "f", constant=True)
    w = te.placeholder((32, 48), "w", "bfloat16", constant=True)
    u, v, c = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(32, "c")
    window = te.compute(
        (6, 8, 32),
        lambda i, j, k: te.sum(x[i + u, j + v, k].astype("float32") * f[u, v, k], [u, v]),
        "window",
    )
    kept = te.compute(
        (6, 8, 32), lambda i, j, k: te.maximum(window[i, j, k], 0).astype("bfloat16"), "kept"
    )

    def term(i: te.Expression, j: te.Expression, o: te.Expression) -> te.Expression:
        return te.sum(kept[i, j, c].astype("float32") * w[c, o].astype("float32"), c)

    s = te.compute((6, 8, 48), term, "s")
    return dag_of(te.compute((6, 8, 48), lambda i, j, o: s[i, j, o] + 1, "y"))


def decoded() -> ComputeDAG:
    """Weights of 4 bits, eight to a word, with a scale for every 32 of them."""
    x = te.placeholder((37, 96), "x", "bfloat16")
    q = te.placeholder((12, 48), "q", "int32", constant=True)
    scale = te.placeholder((3, 48), "scale", constant=True)
    r = te.reduce_axis(96, "r")

    def weight(k: te.Expression, j: te.Expression) -> te.Expression:
        number = (q[k // 8, j] >> (k % 8 * 4).astype("int32")) & 15
        return ((number.astype("float32") - 8) * scale[k // 32, j]).astype("bfloat16")

    w = te.compute((96, 48), weight, "w")
    s = te.compute(
        (37, 48), lambda i, j: te.sum(x[i, r].astype("float32") * w[r, j].astype("float32"), r), "s"
    )
    return dag_of(te.compute((37, 48), lambda i, j: s[i, j] + 1, "y"))


SEARCHED = {
    "decoded": decoded(),
    "separable": separable(),
    "attention": fused_attention(),
    "attention to 37": fused_attention(37),
    "scores": attention(True),
    "values": attention(False),
    "values of 37": attention(False, 37),
    "float32 by bfloat16": wide(37, 48, 96),
    "product": matmul(37, 48, 96),
    "product of bytes": matmul(37, 48, 128, "uint8", "int8"),
    "convolution": convolution(1, 3, "bfloat16", "bfloat16"),
    "strided": convolution(2, 3, "bfloat16", "bfloat16"),
    "few channels": convolution(2, 7, "uint8", "int8", 4),
    "rows of windows": convolution(2, 7, "bfloat16", "bfloat16", 4),
    "pixel by pixel": convolution(1, 1, "int8", "int8"),
}


@pytest.mark.sampled(4)
@needs_emulation
@pytest.mark.parametrize("name", SEARCHED)
def test_the_space_has_tiles_for_every_sum_of_products(name: str) -> None:
    dag, rng = SEARCHED[name], np.random.default_rng(0)
    inputs = random_operands(dag)
    wanted = evaluate(dag, inputs)
    sketches = [s for s in generate_sketches(dag, EMULATED) if "matrices" in s.tags]
    assert sketches
    for n in rng.permutation(len(sketches))[:4]:
        rows = sketches[n].sample(64, rng)
        rows = rows[analyse(dag, sketches[n], rows, EMULATED).valid]
        program = lower(dag, sketches[n].bind(rows[0]), verify=True)
        assert "call void @emulated.tdp" in emit_program(program, isa=EMULATED.isa)
        limits = {"float32 by bfloat16": 3e-5, "separable": 5e-3}
        limit = 5e-3 if name.startswith("attention") else limits.get(name, 3e-6)
        assert_close(run_compiled(program, inputs, EMULATED, 2), wanted, limit)


def test_what_only_the_order_of_matrices_reads_is_no_stage() -> None:
    dag = SEARCHED["decoded"]
    for sketch in generate_sketches(dag, AMX):
        state = replay(dag, sketch.bind(sketch.sample(1, np.random.default_rng(0))[0]))
        stages = state.stages.keys()
        assert ("w" in stages) != ("matrices" in sketch.tags)


def test_the_first_draft_is_of_tiles() -> None:
    dag, rng = matmul(128, 512, 512), np.random.default_rng(0)
    best: dict[bool, float] = {}
    for sketch in generate_sketches(dag, AMX):
        rows = sketch.sample(64, rng)
        seconds = analytic_seconds(analyse(dag, sketch, rows, AMX), AMX, 1)
        tiles = "matrices" in sketch.tags
        best[tiles] = min(best.get(tiles, np.inf), seconds.min())
    assert best[True] < 0.5 * best[False]


def test_a_cpu_without_tiles_never_sees_them() -> None:
    assert not any("matrices" in s.tags for s in generate_sketches(GEMM, WITHOUT))
    names = [f.name for f in dots_of([GEMM], WITHOUT)]
    assert not any(name.startswith("tdp") for name in names)


@pytest.mark.parametrize("name", SEARCHED)
def test_whatever_tiles_compute_is_bounded_by_their_peak(name: str) -> None:
    (sketch, *_) = (s for s in generate_sketches(SEARCHED[name], AMX) if "matrices" in s.tags)
    assert "bf16x3" in sketch.tags or any(f.unit for f in dots_of([SEARCHED[name]], AMX))


@needs_emulation
def test_the_peak_of_tiles_bounds_a_task() -> None:
    (form,) = (f for f in dots_of([GEMM], EMULATED) if f.unit)
    ((same, rate),) = form_peaks(EMULATED, 1, [form])
    assert same is form
    assert rate > 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: "emulated" if t == EMULATED else "amx")
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


def test_a_cpu_without_tiles_refuses_the_schedule() -> None:
    program = lower(matmul(8, 16, 16), tiled((8, 16), 4, 4, 2), verify=True)
    with pytest.raises(ScheduleError, match="tdpbf16ps, which the CPU has not"):
        assembly(program, WITHOUT)


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


@needs_emulation
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


@pytest.mark.parametrize(
    ("size", "steps", "reason"),
    [
        ((28, 16, 8), tiled((28, 16), 4, 4, 2), "7 matrices and two operands are more"),
        ((32, 16, 64), tiled((32, 16), 32, 16, 2), "a register has 16 rows of 16 sums"),
        ((16, 16, 64), tiled((16, 16), 16, 16, 2)[:-1], "of such factors where they lie"),
    ],
    ids=["too many matrices", "too many rows", "constant in another order"],
)
def test_matrices_that_no_register_holds_are_refused_with_the_reason(
    size: tuple[int, int, int], steps: Steps, reason: str
) -> None:
    with pytest.raises(ScheduleError, match=reason):
        lower(matmul(*size), steps)


def test_a_window_that_tears_rows_apart_is_multiplied_in_memory() -> None:
    """Of an input of four channels, which a network stores as a part of eight."""
    x = te.placeholder((9, 16, 4), "x", "uint8")
    w = te.placeholder((4, 4, 16), "w", "int8", constant=True)
    v, c = te.reduce_axis(4, "v"), te.reduce_axis(4, "c")
    s = te.compute(
        (9, 13, 16),
        lambda i, j, o: te.sum(x[i, j + v, c].astype("int32") * w[v, c, o].astype("int32"), [v, c]),
        "s",
    )
    dag = dag_of(te.compute((9, 13, 16), lambda i, j, o: s[i, j, o] + 1, "y"))
    (sketch, *_) = (s for s in generate_sketches(dag, AMX) if "matrices" in s.tags)
    rows = sketch.sample(64, np.random.default_rng(0))
    rows = rows[analyse(dag, sketch, rows, AMX).valid]
    program = lower(dag, sketch.bind(rows[0]), verify=True)
    assert "tdpbusd" in emit_program(program, isa=AMX.isa)
    torn = with_strides(program, {"x": (128, 8, 1)})
    assert "tdpbusd" not in emit_program(torn, isa=AMX.isa)


def test_tile_loops_are_the_four_innermost_ones() -> None:
    steps = (Split("s", "r", (16, 2), "split"), Annotate("s", "r.1", "tile"))
    with pytest.raises(ScheduleError, match="no loop over rows, or over groups"):
        replay(GEMM, steps)


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A CPU with tiles whose system does not permit them; how often it was asked."""
    asked: list[str] = []
    features = {**cpuid.features(), **dict.fromkeys(FEATURES[AMX.cpu], True)}
    monkeypatch.setattr(cpuid, "features", lambda: features)
    monkeypatch.setattr(tiles, "request_tiles", lambda: bool(asked.append("asked")))
    tile_permission.cache_clear()
    yield asked
    tile_permission.cache_clear()


def test_a_system_that_denies_tiles_is_a_cpu_without_them(denied: list[str]) -> None:
    target = host_target()
    assert not any(f.unit for f in target.isa.forms)
    assert any("does not let" in text for text in denial())
    with pytest.raises(ArtifactError, match="amx-tile: the system does not let"):
        require_features(AMX, "model.atn")
    assert denied == ["asked"]


def test_whoever_loads_machine_code_asks_for_tiles(denied: list[str]) -> None:
    Library([])
    assert denied == ["asked"]


def test_an_artifact_with_tiles_names_what_this_cpu_lacks() -> None:
    if HAS_AMX:
        pytest.skip("this CPU has tiles")
    with pytest.raises(ArtifactError, match=r"this CPU lacks .*amx-tile"):
        require_features(AMX, "model.atn")


def test_a_system_answers_whether_this_process_may_use_tiles() -> None:
    assert request_tiles() == HAS_AMX
    assert (tile_permission() is Permission.GRANTED) == HAS_AMX
