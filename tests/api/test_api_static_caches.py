"""Caches of a fixed shape, written at positions, are states: steps give what growing ones give."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import NotCompilable, UsageError
from autotune.network.runtime.loading import model_of
from tests.api.test_api_sessions import plain_loop, tokens_of
from tests.decoders import decoder

PLACES = 16


def for_one_token(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with one new place in every step, as exporters write what they trace."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "sequence":
                dim.dim_value = 1
    return model


@pytest.mark.parametrize(
    ("is_single", "cache_type", "atol"),
    [(False, "f32", 1e-5), (True, "f32", 1e-5), (True, "int8", 0.2)],
)
def test_steps_give_what_a_growing_cache_gives(
    is_single: bool, cache_type: str, atol: float
) -> None:
    made = decoder(mask=False, places=PLACES)
    told = {"capacity": PLACES, "cache_type": cache_type}
    if is_single:
        made = for_one_token(made)
    compiled = autotune.compile(made, **told)  # checks it beside ONNX Runtime
    session, expected = model_of(compiled.artifact).session(), plain_loop(decoder(mask=False))
    assert [end.name for end in session.input_info] == ["input_ids"]
    single = compiled.artifact.variants[-1]  # a step of one place reads keys where they are
    assert not [k.label for k in single.kernels if k.label.startswith("Transpose")]
    for n in (5, 1, 6):
        found, wanted = session.step(tokens_of(n, n)), expected(tokens_of(n, n))
        np.testing.assert_allclose(found, wanted[:, -1:], atol=atol)
    session.step(tokens_of(PLACES - 12))
    with pytest.raises(UsageError, match="do not fit"):
        session.step(tokens_of(1))


def test_what_is_no_such_cache_is_refused() -> None:
    made = decoder(mask=False, places=PLACES)
    with pytest.raises(UsageError, match=f"has {PLACES} places in the file"):
        autotune.compile(made, capacity=8)
    other = decoder(mask=False, places=PLACES)
    index = next(node for node in other.graph.node if node.op_type == "ScatterND")
    one = onnx.numpy_helper.from_array(np.array([[-1]]), "one")
    other.graph.initializer.append(one)
    moved = onnx.helper.make_node("Add", [index.input[1], "one"], ["moved"])
    other.graph.node.insert(list(other.graph.node).index(index), moved)
    index.input[1] = "moved"
    with pytest.raises(NotCompilable, match="writes other places of a cache than the new ones"):
        autotune.compile(other, capacity=PLACES)
