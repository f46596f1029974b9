"""Several programs of a task: the number of a call decides which of them runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.extent import Length
from autotune.graph.network import Network, Port, TaskCall
from autotune.graph.storage import Activation
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.table import ARENA, FIRST_BOUND
from autotune.network.compile.compiler import compile_variants
from autotune.network.compile.entry import Launch, Pointer, When
from autotune.network.runtime.runtime import Model
from autotune.schedule.ranged import Ranged, rest_of, runs_of
from autotune.schedule.steps import Annotate, Pack, Parallel, Reorder, Split, Steps
from autotune.target import host_target
from tests.lengths_tasks import NUMBER, product
from tests.network.hand_made import N, artifact, launches
from tests.network.small_networks import network, value

ROWS, DEPTH, WIDTH = 40, 12, 24


def test_ranges_and_the_rest_cover_every_number_once() -> None:
    others = [Ranged((), "n", ((1, 3), (9, 9))), Ranged((), "n", ((4, 6),))]
    taken = [r for o in others for r in o.ranges] + [*rest_of(others)]
    for n in range(1, 30):
        assert sum(first <= n <= last for first, last in taken) == 1
    assert runs_of([1, 2, 3, 7, 9, 10]) == ((1, 3), (7, 7), (9, 10))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_program_of_the_range_runs_and_no_other(n_threads: int) -> None:
    at, y = Pointer(ARENA, 4096), Pointer(FIRST_BOUND + 1, 0)
    ranged = [Ranged((), "n", ((1, 3), (9, 9))), Ranged((), "n", ((4, 6),))]
    ways = [rest_of(ranged), *(one.ranges for one in ranged)]
    bumps = [Launch("bump", 10**k, (y,), when=When(at, r)) for k, r in enumerate(ways)]
    ends = Endpoint("x", (N,), "float32", FIRST_BOUND), Endpoint("y", (N,), "float32", y.base)
    number = Endpoint("n", (1,), "int64", ARENA, 4096, ((1,), (1,)))
    made = artifact([*launches(1), *bumps], [ends[0], number], [ends[1]], 8192, n_threads)
    model = Model(made, n_threads)
    x = np.zeros(N, np.float32)
    for n in range(1, 14):
        found = model.run({"x": x, "n": np.array([n])})["y"]
        expected = [1, 10, 100][0 if n in (7, 8) or n > 9 else 2 if n in (4, 5, 6) else 1]
        assert found[0] == 1 + expected


def _network() -> Network:
    rng, dag = np.random.default_rng(0), product(ROWS, DEPTH, WIDTH)
    w = rng.standard_normal((DEPTH, WIDTH)).astype(np.float32)
    b = rng.standard_normal(WIDTH).astype(np.float32)
    length = Length("rows", ROWS)
    number = Activation("rows?", (1,), "int64", (1,), None, 0)
    values = [value("x", (ROWS, DEPTH)), value("y", (ROWS, WIDTH)), number]
    call = TaskCall(dag.key, {"x": "x", NUMBER: "rows?"}, {"w": w, "b": b}, {"y": "y"}, "MatMul")
    x = Port("x", (ROWS, DEPTH), "float32", "x", extents=(length, DEPTH))
    y = Port("y", (ROWS, WIDTH), "float32", "y", extents=(length, WIDTH))
    inputs = [x, Port("rows?", (1,), "int64", "rows?")]
    found = network(inputs, [y], values, [call], {dag.key: dag})
    return replace(found, lengths={"rows": "rows?"})


MAIN: Steps = (
    Split("c", "j", (8,)),
    Reorder("c", ("i", "j.0", "k", "j.1")),
    Annotate("c", "j.1", "vectorize"),
    Pack("w", "c"),
    Parallel("c", 2),
    Parallel("y", 2),
)
SMALL = MAIN[:-2]
"""In no parts."""


@pytest.mark.parametrize("n_threads", [1, 2])
def test_every_size_is_right_whichever_program_it_has(
    n_threads: int, rng: np.random.Generator
) -> None:
    made, target = _network(), host_target()
    (key,) = made.tasks
    ranged = {key: [Ranged(SMALL, NUMBER, ((1, 4), (8, 9))), Ranged((), NUMBER, ((5, 5),))]}
    alone = compile_variants([made], {key: MAIN}, target, n_threads)
    several = compile_variants([made], {key: MAIN}, target, n_threads, ranged=ranged)
    assert len(several.kernels) == 3 * len(alone.kernels)
    model, w = Model(several, n_threads), made.calls[0].constants
    for n in range(1, ROWS + 1):
        x = rng.standard_normal((n, DEPTH)).astype(np.float32)
        expected = np.maximum(x @ w["w"] + w["b"], 0)
        np.testing.assert_allclose(model.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_programs_that_read_constants_in_one_order_share_them() -> None:
    made, target = _network(), host_target()
    (key,) = made.tasks
    alone = compile_variants([made], {key: MAIN}, target)
    several = compile_variants(
        [made], {key: MAIN}, target, ranged={key: [Ranged(SMALL, NUMBER, ((1, 4),))]}
    )
    assert len(several.constants) == len(alone.constants)
