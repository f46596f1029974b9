"""A token reads keys and values where they are, in few kernels."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from autotune.api.bindings import bind
from autotune.api.request import CompileRequest
from autotune.graph.bound_model import BoundModel
from autotune.graph.grown_networks import grown_networks
from autotune.graph.network import Network
from autotune.graph.reader.grown import grown
from autotune.graph.state import CACHE_TYPES
from tests.decoders import SIZE, decoder

CAPACITY, SHARED = 500, 2


def token(made: onnx.ModelProto, cache_type: str, folder: Path) -> Network:
    """The network of one token."""
    onnx.save(made, path := folder / "m.onnx")
    step = grown(path, CAPACITY, cache=CACHE_TYPES[cache_type])
    (network,) = grown_networks(BoundModel(path), [step])
    return network


@pytest.mark.parametrize("cache_type", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("shared", [1, SHARED, 4])
@pytest.mark.parametrize("scaled_keys", [False, True])
def test_no_kernel_copies_a_cache(
    scaled_keys: bool, shared: int, cache_type: str, tmp_path: Path
) -> None:
    network = token(
        decoder(2, shared=shared, scaled_keys=scaled_keys, mask=False), cache_type, tmp_path
    )
    made = (network.values[value] for call in network.calls for value in call.outputs.values())
    sizes = [v.shape for v in made if v.parent is None and v.shape.count(CAPACITY)]
    assert all(SIZE not in shape for shape in sizes)


def test_nothing_is_computed_behind_the_length(tmp_path: Path) -> None:
    """Masks, scores and their shares end at it, so a capacity costs memory alone."""
    network = token(decoder(2), "f32", tmp_path)
    places = [a for dag in network.tasks.values() for op in dag.computes for a in op.axes]
    ends = [a.limit for a in places if a.extent == CAPACITY]
    assert ends
    assert None not in ends


def test_nothing_of_a_prompt_is_computed_behind_its_places(tmp_path: Path) -> None:
    onnx.save(decoder(2), tmp_path / "m.onnx")
    prefill, *_ = bind(CompileRequest(model=tmp_path / "m.onnx", capacity=CAPACITY)).networks()
    places = [a for dag in prefill.tasks.values() for op in dag.computes for a in op.axes]
    ends = [a.limit for a in places if a.extent == CAPACITY]
    assert ends
    assert None not in ends


def test_rotations_are_one_kernel_each_and_shared_parts_are_computed_once(tmp_path: Path) -> None:
    """Each further layer has the same few: five products, two rotations, rows of keys and values,
    attention in three."""
    numbers = [len(token(decoder(n), "f32", tmp_path).calls) for n in (2, 3)]
    labels = [call.label for call in token(decoder(2), "f32", tmp_path).calls]
    assert sum("Rotated" in label for label in labels) == 4
    assert numbers[1] - numbers[0] == 13
