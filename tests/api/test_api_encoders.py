"""Decoders beside an encoder: what it gives is taken once, steps give what the file gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import DynamicShape, UsageError
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.session import ModelSession
from tests.decoders import VOCABULARY, WIDTH, decoder, encoder_caches, merged

CAPACITY, PLACES = 12, 6
MODELS = {
    "hidden states": decoder(cross="hidden"),
    "merged": merged(),
    "caches": decoder(cross="caches"),
}


@pytest.fixture(scope="module", params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def artifact(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoders") / "decoder.atn"
    told = {"capacity": CAPACITY, "dims": {"encoder": PLACES}, "sessions": (2,)}
    autotune.compile(MODELS[kind], **told).artifact.save(path)
    return path


@pytest.fixture
def session(artifact: Path) -> ModelSession:
    return autotune.load(artifact).session()


def encoded(seed: int = 0) -> dict[str, np.ndarray]:
    """What an encoder gives, and the mask of its places."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(1, PLACES, WIDTH)).astype(np.float32)
    mask = np.array([[1] * (PLACES - 2) + [0] * 2])
    return {"encoder_hidden_states": states, "encoder_attention_mask": mask}


def begun(session: ModelSession, seed: int = 0) -> None:
    given = encoded(seed)
    _, caches = plain_loop(seed)(tokens_of(1, 5))
    session.begin({end.name: (given | caches)[end.name] for end in session.begin_info})


def tokens_of(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (1, n))


def plain_loop(seed: int) -> Any:
    """Logits of more tokens and caches of the encoder, by ONNX Runtime with its past fed back."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    run = runtime.InferenceSession(merged().SerializeToString(), options)
    names = [o.name for o in run.get_outputs()]
    given = encoded(seed)
    past = {n: np.zeros((1, 2, 0, 8), np.float32) for n in states_of(run)}
    caches = {n: np.zeros((1, 4, PLACES, 8), np.float32) for n in encoder_caches(1)}
    total = [0]

    def more(tokens: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        flag = {"use_cache_branch": np.array([total[0] > 0])}
        total[0] += tokens.shape[1]
        masks = {"attention_mask": np.ones((1, total[0]), np.int64)}
        feed = {"input_ids": tokens, **given, **past, **caches, **masks, **flag}
        found = dict(zip(names, run.run(None, feed), strict=True))
        past.update({n: found[n.replace("past_key_values", "present")] for n in past})
        if not flag["use_cache_branch"][0]:
            caches.update({n: found[n.replace("past_key_values", "present")] for n in caches})
        return found["logits"], dict(caches)

    return more


def states_of(run: Any) -> list[str]:
    names = [i.name for i in run.get_inputs()]
    return [n for n in names if n.startswith("past") and ".encoder." not in n]


def test_steps_give_what_the_file_gives(session: ModelSession) -> None:
    for seed in (0, 1):
        begun(session, seed)
        expected = plain_loop(seed)
        for n in (5, 1, 1, 4):
            logits, _ = expected(tokens_of(n, n))
            np.testing.assert_allclose(session.step(tokens_of(n, n)), logits[:, -1:], atol=1e-5)
    assert session.length == 11


def test_what_stays_is_computed_once(session: ModelSession) -> None:
    """Steps take tokens alone; the cross-attention of a step projects queries only."""
    assert [end.name for end in session.input_info] == ["input_ids"]
    artifact = session.model.artifact
    widest = [end.shape for end in artifact.inputs if end.name in artifact.state.held]
    assert widest
    assert all(PLACES in shape for shape in widest)
    assert not any(PLACES in shape and WIDTH in shape for shape in widest)


def test_a_sequence_has_to_begin(session: ModelSession) -> None:
    with pytest.raises(UsageError, match="no sequence has begun"):
        session.step(tokens_of(1, 0))
    with pytest.raises(UsageError, match="there is no input 'encoder'; the input"):
        session.begin({"encoder": np.zeros(3)})
    begun(session)
    first = session.step(tokens_of(2, 0))
    session.reset()  # what the encoder gave stays
    np.testing.assert_array_equal(session.step(tokens_of(2, 0)), first)
    assert len(list(session.generate(tokens_of(1, 1), 4))) == 4


def test_sessions_together_have_an_encoder_each(artifact: Path) -> None:
    model = autotune.load(artifact)
    together, alone = ([model.session() for _ in range(3)] for _ in range(2))
    with pytest.raises(UsageError, match="no sequence has begun"):
        model.step_together(together, tokens_of(3, 0).reshape(3, 1))
    for sessions in (together, alone):
        for n, session in enumerate(sessions):
            begun(session, n)
            session.step(tokens_of(n + 1, n))
    for seed in range(2):
        tokens = tokens_of(3, seed).reshape(3, 1)
        found = model.step_together(together, tokens)
        expected = np.concatenate([s.step(t[None]) for s, t in zip(alone, tokens, strict=True)])
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_forks_and_files_have_what_stays(
    session: ModelSession, artifact: Path, tmp_path: Path
) -> None:
    begun(session)
    session.step(tokens_of(3, 0))
    other = session.fork()
    session.save(tmp_path / "state.npz")
    expected = session.step(tokens_of(1, 1))
    begun(session, 1)  # the fork keeps the former
    np.testing.assert_array_equal(other.step(tokens_of(1, 1)), expected)
    third = autotune.load(artifact).session()
    third.load(tmp_path / "state.npz")
    np.testing.assert_array_equal(third.step(tokens_of(1, 1)), expected)


def test_an_unknown_length_of_the_encoder_is_asked_for() -> None:
    with pytest.raises(DynamicShape) as error:
        autotune.compile(MODELS["merged"], capacity=CAPACITY)
    assert "encoder" in str(error.value)
    assert "dims={'encoder'" in error.value.hint


def test_an_input_is_told_to_stay(tmp_path: Path) -> None:
    """Names that do not tell: a state of itself."""
    made = decoder(cross="hidden")
    names = {"encoder_hidden_states": "memory", "encoder_attention_mask": "memory_mask"}
    for value in made.graph.input:
        value.name = names.get(value.name, value.name)
    for node in made.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    told = {"capacity": CAPACITY, "dims": {"encoder": PLACES}, "check": False}
    told["state"] = {name: name for name in names.values()}
    session = model_of(autotune.compile(made, **told).artifact).session()
    assert {end.name for end in session.begin_info} == {*names.values()}
    session.begin({names[name]: array for name, array in encoded().items()})
    logits, _ = plain_loop(0)(tokens_of(3, 0))
    np.testing.assert_allclose(session.step(tokens_of(3, 0)), logits[:, -1:], atol=1e-5)
    onnx.save(made, tmp_path / "told.onnx")
    with pytest.raises(UsageError, match="no input 'memories'"):
        autotune.compile(tmp_path / "told.onnx", capacity=12, state={"memories": "memories"})


def test_a_file_for_single_places_is_not_given_several() -> None:
    """As exporters write it that trace one token: no place is hidden from another one."""
    made = decoder(2, mask=False, seed=2)
    hidden = next(node for node in made.graph.node if node.op_type == "Greater")
    hidden.op_type = "Less"
    hidden.input[:] = [hidden.input[0], hidden.input[0]]
    notes: list[str] = []
    told = {"capacity": 16, "note": notes.append}
    session = model_of(autotune.compile(made, **told).artifact).session()
    assert "a prompt is one step, or an error" in notes[-1]
    assert session.step([[3]]).shape == (1, 1, VOCABULARY)
    assert session.step([[3, 4]]).shape == (1, 1, VOCABULARY)  # as the file has it
    session.reset()
    with pytest.raises(UsageError, match="14 places are not computed as several steps of 2 to 13"):
        session.step([range(14)])
