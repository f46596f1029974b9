"""Products over the filled places of a state: all threads have parts of them."""

from __future__ import annotations

import onnx
import pytest

from autotune.graph.bound_model import BoundModel
from autotune.graph.grown_networks import grown_networks
from autotune.graph.reader.grown import grown
from autotune.search.defaults import default_candidate
from autotune.search.sketch import generate_sketches
from autotune.target import host_target
from autotune.te.dag import ComputeDAG
from tests.decoders import decoder

PLACES, THREADS = 2048, 8


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[ComputeDAG]:
    """Those of a decode step whose four heads have one head of keys and values."""
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(decoder(shared=1), path)
    step = grown(path, PLACES)
    (network,) = grown_networks(BoundModel(path, False, None, {}), [step])
    return list(network.tasks.values())


def test_a_product_with_one_head_of_values_runs_on_all_threads(tasks: list[ComputeDAG]) -> None:
    """Its results are fewer than the threads have registers for; its sum ends at the length."""
    products = (d for d in tasks if d.outputs == ("matmul",))
    (values,) = (d for d in products if [a.extent for a in d.computes[0].reduce_axes] == [PLACES])
    steps = default_candidate(values, host_target(), THREADS).steps
    assert "Parts" in [type(step).__name__ for step in steps]


def test_a_softmax_over_places_has_sketches(tasks: list[ComputeDAG]) -> None:
    """The length is a single number."""
    (dag,) = (d for d in tasks if d.outputs == ("softmax",))
    assert generate_sketches(dag, host_target())


def test_whatever_has_room_for_all_places_ends_at_the_length(tasks: list[ComputeDAG]) -> None:
    """Masks, keys and scores: a token takes as long at any capacity."""
    ends = [a.limit for d in tasks for op in d.computes for a in op.axes if a.extent == PLACES]
    assert ends
    assert None not in ends
