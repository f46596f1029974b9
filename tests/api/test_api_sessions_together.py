"""Several sessions of a model in one step: each as if it were alone, and weights are read once."""

from __future__ import annotations

import numpy as np
import pytest

import autotune
from autotune.errors import UsageError
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import Model
from tests.api.test_api_sessions import CAPACITY, MODEL, OTHER, tokens_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    told = {"capacity": CAPACITY, "sessions": (2, 3)}
    path = tmp_path_factory.mktemp("together") / "decoder.atn"
    autotune.compile(MODEL, **told).artifact.save(path)  # checks them beside ONNX Runtime
    return autotune.load(path)


@pytest.mark.sampled(0)
def test_sessions_have_masks_of_their_own() -> None:
    """Those of a model that computes them from shapes, as `compile` checks."""
    told = {"capacity": CAPACITY, "sessions": (2,)}
    report = autotune.compile(OTHER, **told).report
    assert report is not None
    assert sum("2 sessions" in kind for kind in report.kinds) == 2


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_each_session_is_as_if_it_were_alone(model: Model, n: int) -> None:
    together, alone = ([model.session() for _ in range(n)] for _ in range(2))
    for k, pair in enumerate(zip(together, alone, strict=True)):
        for session in pair:
            session.step(tokens_of(k % 3 + 1, k))
    for seed in range(3):
        tokens = tokens_of(n, seed).reshape(n, 1)
        found = model.step_together(together, tokens)
        expected = np.concatenate([s.step(t[None]) for s, t in zip(alone, tokens, strict=True)])
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [s.length for s in together] == [s.length for s in alone]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a.step([[1]]), b.step([[1]]), atol=1e-5)


def test_a_step_of_several_sessions_reads_weights_once(model: Model) -> None:
    def products(variant: Model) -> int:
        return sum("MatMul" in kernel.label for kernel in variant.artifact.kernels)

    def of(sessions: int) -> int:
        return next(products(v) for v in model.variants if is_for(v, sessions))

    def is_for(variant: Model, sessions: int) -> bool:
        state = variant.artifact.state
        assert state is not None
        first = next(end for end in variant.artifact.inputs if end.name == "input_ids")
        return state.sessions == sessions and first.shape[1] == 1

    heads = of(2) - of(1)  # products with the cache, which each session has for itself
    assert 0 < heads < of(1)
    assert of(3) - of(2) == heads


def test_what_cannot_be_stepped_together_changes_nothing(model: Model) -> None:
    first, full = model.session(), model.session()
    full.step(tokens_of(CAPACITY))
    with pytest.raises(UsageError, match="session 1 is full"):
        model.step_together([first, full], [[1], [2]])
    with pytest.raises(UsageError, match="shape"):
        model.step_together([first], [[1], [2]])
    with pytest.raises(UsageError, match="give each once"):
        model.step_together([first, first], [[1], [2]])
    with pytest.raises(UsageError, match="no sessions"):
        model.step_together([], [[1]])
    foreign = model_of(autotune.compile(MODEL, capacity=8, check=False).artifact)
    with pytest.raises(UsageError, match="of this model"):
        model.step_together([foreign.session()], [[1]])
    assert (first.length, full.length) == (0, CAPACITY)
    with pytest.raises(UsageError, match="`sessions` from 2 on"):
        autotune.compile(MODEL, capacity=8, sessions=(1,), check=False)
