"""Each step: what it makes of the loops (golden text), its JSON form, and when it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from autotune.errors import LogMismatch, ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.printer import print_program
from autotune.loopir.python_text import print_python
from autotune.schedule.replay import bind, replay
from autotune.schedule.steps import (
    NEXT_PANEL,
    Annotate,
    CacheRead,
    CacheTerms,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FlatTaps,
    Fuse,
    Hole,
    Interleave,
    Pack,
    Parallel,
    Parts,
    Prefetch,
    Reorder,
    RFactor,
    Split,
    Step,
    Steps,
    WholeTerms,
    steps_from_json,
    steps_to_json,
)
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce
from tests.schedule.small_dags import gemm

TILED: Steps = (
    ComputeInline("d"),
    Split("e", "i", (4,), "split"),
    Split("e", "j", (8,), "shift"),
    Reorder("e", ("i.0", "j.0", "i.1", "j.1")),
    Parallel("e", 2),
    ComputeAt("c", "e", "j.0"),
    Reorder("c", ("k", "i", "j")),
    Annotate("c", "i", "unroll"),
    Annotate("c", "j", "vectorize"),
    Annotate("e", "j.1", "vectorize"),
    Pack("b", "c"),
    Prefetch("b", "c", 256),
)
SHARED_CHUNK: Steps = (
    ComputeInline("d"),
    Split("e", "i", (2,)),
    Split("e", "j", (8,)),
    Reorder("e", ("j.0", "i.0", "i.1", "j.1")),
    Parallel("e", 1),
    ComputeAt("c", "e", "i.0"),
    Reorder("c", ("k", "i", "j")),
    Annotate("c", "i", "unroll"),
    Annotate("c", "j", "vectorize"),
    Pack("b", "c"),
    Prefetch("b", "c", NEXT_PANEL),
)
EXAMPLES: dict[str, Steps] = {
    "nothing": (),
    "split_shift": (Split("c", "j", (2, 8)),),
    "split_split": (Split("c", "j", (2, 8), "split"),),
    "fuse": (
        Split("e", "j", (8,)),
        Fuse("e", "i", "j.0"),
        Split("e", "i+j.0", (4,)),
        Parallel("e", 1),
        ComputeAt("d", "e", "i+j.0.1"),
        Annotate("e", "j.1", "vectorize"),
    ),
    "reorder": (Reorder("c", ("k", "j", "i")),),
    "parallel": (Parallel("e", 2),),
    "annotate": (Annotate("e", "i", "unroll"), Annotate("e", "j", "vectorize")),
    "compute_inline": (ComputeInline("d"),),
    "compute_at": (ComputeAt("d", "e", "i"), ComputeAt("c", "d", "i")),
    "cache_read": (CacheRead("a", "c", "a.copy"), ComputeAt("a.copy", "c", "i")),
    "cache_terms": (CacheTerms("b", "c", "b.terms", 2), ComputeAt("b.terms", "c", "j")),
    "whole_terms": (WholeTerms("c", 8), ComputeAt("c.a", "c", "i"), ComputeAt("c.b", "c", "j")),
    "cache_write": (CacheWrite("e", "e.cache"), ComputeAt("e.cache", "e", "i")),
    "rfactor": (RFactor("c", 2, "c.parts"), ComputeAt("c.parts", "c", "j")),
    "rfactor_uneven": (RFactor("c", 4, "c.parts"), ComputeAt("c.parts", "c", "j")),
    "parts": (Parts("c", 3, "c.parts"), ComputeAt("c.parts", "c", "i")),
    "interleave": (
        Interleave("c", 2, "c.parts"),
        ComputeInline("c"),
        ComputeInline("d"),
        ComputeAt("c.parts", "e", "i"),
        Split("c.parts", "j", (16,)),
        Reorder("c.parts", ("i", "k", "j.0", "j.1")),
        Annotate("c.parts", "j.0", "unroll"),
        Annotate("c.parts", "j.1", "vectorize"),
        Pack("b", "c.parts"),
    ),
    "pack": (Pack("b", "c"),),
    "prefetch": (Pack("b", "c"), Prefetch("b", "c", 128)),
    "prefetch_next_chunk": SHARED_CHUNK,
    "blocked_reduction": (Split("c", "k", (4,), "split"), Reorder("c", ("k.0", "i", "j", "k.1"))),
    "tiled": TILED,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_rewrite(name: str, golden: Callable[[str, str], None]) -> None:
    steps = EXAMPLES[name]
    state = replay(gemm(), steps)
    golden(f"schedule/{name}.txt", f"{state}\n\n{print_program(lower(gemm(), steps))}")


def test_python_text(golden: Callable[[str, str], None]) -> None:
    golden("schedule/tiled.py.txt", print_python(lower(gemm(), TILED)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_json_round_trip(name: str) -> None:
    text = json.dumps(steps_to_json(EXAMPLES[name]))
    assert steps_from_json(json.loads(text)) == EXAMPLES[name]


def test_unknown_step_in_a_log() -> None:
    for item in ({"step": "skew", "stage": "c"}, {"step": "parallel", "stage": "c", "depth": 1}):
        with pytest.raises(LogMismatch, match="does not know"):
            steps_from_json([item])


def test_bind_fills_the_holes() -> None:
    sketch = (Split("e", "j", (Hole("outer"), 8)), Prefetch("b", "c", Hole("far")))
    bound = bind(sketch, {"outer": 3, "far": 64})
    assert bound == (Split("e", "j", (3, 8)), Prefetch("b", "c", 64))


REFUSED: list[tuple[Step, str]] = [
    (Split("x", "i", (4,)), "no stage 'x'"),
    (Split("c", "z", (4,)), "stage c has no loop 'z'"),
    (Split("c", "i", (4,), "guard"), "unknown tail 'guard'"),
    (Fuse("c", "i", "k"), "loop k of c is not directly in i"),
    (Fuse("c", "j", "k"), "j and k: one is reduced, the other is not"),
    (Reorder("c", ("i", "j")), "must name all of its loops once"),
    (Reorder("c", ("i", "j", "j")), "must name all of its loops once"),
    (Parallel("c", 3), "only outer spatial loops"),
    (Parallel("e", 3), "only outer spatial loops"),
    (Annotate("c", "k", "vectorize"), "vectorised by rfactor"),
    (Annotate("c", "j", "pipeline"), "unknown annotation 'pipeline'"),
    (ComputeInline("c"), "c reduces or is an output"),
    (ComputeInline("e"), "e reduces or is an output"),
    (ComputeAt("e", "c", "i"), "e is an output and stays at the root"),
    (ComputeAt("c", "e", "i"), "d reads outside"),
    (CacheRead("bias", "c", "copy"), "c does not read a tensor 'bias'"),
    (CacheRead("a", "c", "copy", "int16"), "a copy as int16 does not hold the float32 of a"),
    (CacheRead("a", "c", "copy", "wide"), "a copy as wide does not hold the float32 of a"),
    (CacheRead("a", "c", "d"), "there is a tensor 'd' already"),
    (CacheTerms("b", "c", "copy", 4), "c does not read b in groups of 4 terms"),
    (CacheTerms("b", "d", "copy", 2), "d is no sum that reads a tensor 'b'"),
    (WholeTerms("c", 6), "c has 6 terms, no fewer than 6"),
    (WholeTerms("d", 8), "d is no sum of products"),
    (FlatTaps("c"), "c is no sum along two axes"),
    (CacheWrite("c", "a"), "there is a tensor 'a' already"),
    (RFactor("c", 7, "parts"), "rfactor 7 is more than k<6"),
    (RFactor("d", 2, "parts"), "rfactor needs a reduction"),
    (Parts("c", 4, "parts"), "4 parts do not divide k<6"),
    (Parts("d", 2, "parts"), "parts need a reduction"),
    (Interleave("c", 4, "parts"), "interleave 4 does not divide k<6"),
    (Interleave("d", 2, "parts"), "interleave needs a sum"),
    (Pack("a", "c"), "a is not a constant"),
]


@pytest.mark.parametrize(("step", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused_step(step: Step, message: str) -> None:
    with pytest.raises(ScheduleError, match=message.replace("(", r"\(")):
        replay(gemm(), (step,))


REFUSED_LATER: list[tuple[Steps, str]] = [
    ((Split("d", "i", (2,)), ComputeAt("d", "e", "i")), "place d before splitting"),
    ((ComputeAt("d", "e", "i"), Split("e", "i", (2,))), "before placing stages in it"),
    ((ComputeAt("d", "e", "i"), Fuse("e", "i", "j")), "before placing stages in them"),
    ((Split("e", "i", (2,), "split"), Fuse("e", "i.0", "i.1")), "remainders shift"),
    ((Fuse("e", "i", "j"), Split("e", "i+j", (2,), "split")), "remainders shift"),
    ((Fuse("e", "i", "j"), Annotate("e", "i+j", "vectorize")), "neighbours in it are none"),
    ((Annotate("e", "i", "unroll"), Fuse("e", "i", "j")), "before they are annotated"),
    ((ComputeAt("d", "e", "i"), Parallel("d", 1)), "only outer spatial loops of a root stage"),
]
NO_PROGRAM: list[tuple[Steps, str]] = [
    ((Split("c", "k", (4,), "shift"),), "a reduction over k must not overlap"),
    (
        (
            Split("c", "j", (8,)),
            Split("c", "k", (2,)),
            Reorder("c", ("k.0", "i", "j.0", "k.1", "j.1")),
        ),
        "blocked reduction with overlapping tiles",
    ),
    (
        (Split("e", "i", (4,), "split"), Reorder("e", ("i.1", "i.0", "j"))),
        "the tile of i must be inside of its number",
    ),
    ((Split("e", "i", (4,), "split"), Parallel("e", 2)), "the tile of i must be inside"),
    ((Annotate("e", "i", "vectorize"),), "only unrolled loops fit inside vector loop i"),
    (
        (Parallel("c", 1), Reorder("c", ("k", "i", "j"))),
        "a reduction loop cannot be parallel",
    ),
]


@pytest.mark.parametrize(("steps", "message"), REFUSED_LATER, ids=[m for _, m in REFUSED_LATER])
def test_refused_sequence(steps: Steps, message: str) -> None:
    replay(gemm(), steps[:-1])
    with pytest.raises(ScheduleError, match=message):
        replay(gemm(), steps)


@pytest.mark.parametrize(("steps", "message"), NO_PROGRAM, ids=[m for _, m in NO_PROGRAM])
def test_schedule_without_program(steps: Steps, message: str) -> None:
    replay(gemm(), steps)
    with pytest.raises(ScheduleError, match=message):
        lower(gemm(), steps)


def test_stack_is_limited() -> None:
    i, k = Axis("i", 4), Axis("k", 600_000)
    x = placeholder("x", (4, 600_000))
    copied = compute("copied", (i, k), x.tensor[i, k])
    total = compute("total", (i,), Reduce("sum", copied.tensor[i, k], (k,)))
    dag = ComputeDAG((x, copied, total), ("total",))
    with pytest.raises(ScheduleError, match="local buffers need 2400004 bytes"):
        lower(dag, (ComputeAt("copied", "total", "i"),))
