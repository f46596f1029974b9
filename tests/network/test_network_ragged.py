"""Rows of different lengths: equal to ONNX Runtime where the mask is 1, and to each row alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import autotune
from autotune.errors import UsageError
from autotune.extent import Length
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.imports import NotLifted
from autotune.graph.ragged.model import ragged_network
from autotune.network.runtime import row_parts
from autotune.network.runtime.ragged import places_of
from autotune.network.runtime.runtime import Model
from tests.small_encoders import LONGEST, MOST_ROWS, WIDTH, WORDS, Encoder

Array = NDArray[Any]


Compiled = tuple[Model, Any, list[str]]


def _compiled(folder: Path, n_layers: int, longest: int = LONGEST, **how: bool) -> Compiled:
    ort = pytest.importorskip("onnxruntime")
    path, notes = folder / "encoder.onnx", list[str]()
    onnx.save(Encoder(n_layers, longest=longest, **how).proto(), str(path))
    dims = {"batch": f"..{MOST_ROWS}", "sequence": f"..{longest}"}
    done = autotune.compile(path, dims=dims, ragged=True, note=notes.append)
    done.artifact.save(folder / "encoder.atn")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return autotune.load(folder / "encoder.atn"), session, notes


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return _compiled(tmp_path_factory.mktemp("ragged"), 2)


def _feeds(mask: Array, seed: int = 0) -> dict[str, Array]:
    ids = np.random.default_rng(seed).integers(0, WORDS, mask.shape)
    return {"ids": ids, "mask": mask}


def _padded(counts: Sequence[int]) -> Array:
    return (np.arange(max(counts)) < np.array(counts)[:, None]).astype(np.int64)


def _require_equal(compiled: Compiled, counts: Sequence[int], seed: int = 0) -> None:
    model, session, _ = compiled
    feeds = _feeds(_padded(counts), seed)
    hidden, mean = session.run(None, feeds)
    found, counted = model.run(feeds), feeds["mask"] != 0
    assert np.allclose(found["hidden"][counted], hidden[counted], atol=2e-5)
    assert np.allclose(found["mean"], mean, atol=2e-5)


def test_packed_batches_are_those_of_the_file(encoder: Compiled) -> None:
    assert encoder[0].is_ragged
    assert [p.name for p in encoder[0].input_info] == ["ids", "mask"]
    rng = np.random.default_rng(1)
    for seed in range(20):
        counts = rng.integers(1, LONGEST + 1, rng.integers(1, MOST_ROWS + 1)).tolist()
        _require_equal(encoder, counts, seed)


@pytest.mark.parametrize("counts", [[1], [1, 1, 1], [LONGEST] * MOST_ROWS, [1, LONGEST]])
def test_shortest_and_longest_rows(encoder: Compiled, counts: list[int]) -> None:
    _require_equal(encoder, counts)


@pytest.mark.parametrize("rows", [["101", "111"], ["100", "000"], ["0101", "0110"]])
def test_masks_that_are_no_padding_give_what_the_file_gives(
    encoder: Compiled, rows: list[str]
) -> None:
    model, session, _ = encoder
    feeds = _feeds(np.array([[int(c) for c in row] for row in rows]))
    for found, wanted in zip(model.run(feeds).values(), session.run(None, feeds), strict=True):
        assert np.allclose(found, wanted, atol=2e-5, equal_nan=True)


def test_rows_that_end_a_batch_are_packed_too(encoder: Compiled) -> None:
    model, session, _ = encoder
    mask = (np.arange(7) >= np.array([0, 6, 3])[:, None]).astype(np.int64)
    feeds = _feeds(mask)
    hidden, mean = session.run(None, feeds)
    found = model.run(feeds)
    assert np.allclose(found["hidden"][mask != 0], hidden[mask != 0], atol=2e-5)
    assert np.allclose(found["mean"], mean, atol=2e-5)
    tokens, _ = places_of(mask)
    assert np.array_equal(tokens, np.argwhere(mask))


def test_rows_whose_first_token_is_read_begin_a_batch(tmp_path: Path) -> None:
    """What a model takes from the first place is padding where a row ends a batch."""
    ort = pytest.importorskip("onnxruntime")
    path = tmp_path / "first.onnx"
    onnx.save(Encoder(1).proto(("first",)), str(path))
    dims = {"batch": "..3", "sequence": "..8"}
    done = autotune.compile(path, dims=dims, ragged=True, check=False)
    assert done.artifact.ragged is not None
    assert not done.artifact.ragged.is_anywhere
    assert min(done.artifact.ragged.work) > 0
    done.artifact.save(tmp_path / "first.atn")
    model = autotune.load(tmp_path / "first.atn")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for mask in (_padded([3, 7, 1]), _padded([3, 7, 1])[:, ::-1].copy()):
        (wanted,) = session.run(None, _feeds(mask))
        assert np.allclose(model.run(_feeds(mask))["first"], wanted, atol=2e-5)


def test_rows_of_like_lengths_run_together(encoder: Compiled, monkeypatch: Any) -> None:
    """A batch in parts is laid out as one, in arrays and in lists."""
    model = encoder[0]
    counts = [LONGEST, 2, 1, LONGEST - 1, 2]
    feeds = _feeds(_padded(counts))
    whole = {name: array.copy() for name, array in model.run(feeds).items()}
    rows = [row[:n] for row, n in zip(feeds["ids"], counts, strict=True)]
    lists = model.run_ragged(rows)
    monkeypatch.setattr(row_parts, "_CALL", 0)
    assert len(row_parts.parts_of(np.array(counts), (1, 0, 1))) == 4
    out = {name: np.full_like(array, np.nan) for name, array in whole.items()}
    for found in (model.run(feeds), model.run(feeds, out=out), out):
        for name, array in found.items():
            assert np.allclose(array, whole[name], atol=1e-6)
    parted = model.run_ragged(rows)
    assert np.allclose(parted["mean"], lists["mean"], atol=1e-6)
    for one, other in zip(parted["hidden"], lists["hidden"], strict=True):
        assert np.allclose(one, other, atol=1e-6)


def test_parts_are_the_best_of_all() -> None:
    rng = np.random.default_rng(4)
    work = (10, 3, 1)

    def cost(parts: Sequence[Array], counts: Array) -> float:
        def one(n: int) -> float:
            return n * 3 + n * n * row_parts._MIXING

        calls = len(parts) * row_parts._CALL * 10
        return calls + sum(len(p) * one(int(counts[p].max())) for p in parts)

    for _ in range(30):
        counts = rng.integers(1, 60, 6)
        found = row_parts.parts_of(counts, work)
        assert sorted(np.concatenate(found)) == [*range(6)]
        order = np.argsort(counts, kind="stable")
        ways = (
            [list(w) for w in np.split(order, [k + 1 for k in range(5) if bits >> k & 1])]
            for bits in range(32)
        )
        best = min(cost([np.array(w) for w in way], counts) for way in ways)
        assert cost(found, counts) == best


def test_rows_in_a_batch_are_those_alone(encoder: Compiled) -> None:
    model = encoder[0]
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, WORDS, n) for n in (3, 1, LONGEST, 7, 2, 11, 5, 1)]
    found = model.run_ragged(rows)
    assert [x.shape for x in found["hidden"]] == [(len(row), WIDTH) for row in rows]
    for row, hidden, mean in zip(rows, found["hidden"], found["mean"], strict=True):
        alone = model.run_ragged({"ids": [row]})
        assert np.allclose(alone["hidden"][0], hidden, atol=1e-6)
        assert np.allclose(alone["mean"][0], mean, atol=1e-6)


def test_no_rows_give_no_results(encoder: Compiled) -> None:
    found = encoder[0].run_ragged([])
    assert found["hidden"] == []
    assert found["mean"].shape == (0, WIDTH)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2], []], "row 1 of 'ids' is no list of one token or more"),
        ([[[1]]], "row 0 of 'ids' is no list"),
        ([[1], [0.5]], "row 1 of 'ids' has dtype float64"),
        ([[1] * (LONGEST + 1)], f"row 0 of 'ids' has {LONGEST + 1} tokens, more than {LONGEST}"),
        ({"words": [[1]]}, "there is no input 'words'"),
        ({"ids": [[1]], "mask": [[1, 1]]}, "rows of different lengths"),
    ],
)
def test_rows_that_are_none_are_refused(encoder: Compiled, rows: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encoder[0].run_ragged(rows)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (MOST_ROWS + 1, 3), (2, LONGEST + 1)])
def test_batches_that_are_none_are_refused(encoder: Compiled, shape: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        encoder[0].run(_feeds(np.ones(shape, np.int64)))


def test_a_model_that_reads_padding_is_not_packed(tmp_path: Path) -> None:
    model, session, notes = _compiled(tmp_path, 1, masked=False)
    assert not model.is_ragged
    assert any("rows are padded, not packed" in note for note in notes)
    with pytest.raises(UsageError):
        model.run_ragged([[1]])
    feeds = _feeds(_padded([3, 5]))
    for found, wanted in zip(model.run(feeds).values(), session.run(None, feeds), strict=True):
        assert np.allclose(found, wanted, atol=2e-5)


@pytest.mark.slow
def test_a_runner_checks_networks_over_tokens(tmp_path: Path) -> None:
    dims, runner = {"batch": "..2", "sequence": "..4"}, "env A=1"
    done = autotune.compile(Encoder(1, True).proto(), dims=dims, ragged=True, runner=runner)
    assert done.report is not None
    assert done.artifact.ragged is not None


@pytest.mark.slow
def test_long_rows_whose_positions_count_ids_are_packed(tmp_path: Path) -> None:
    """As RoBERTa, XLM-R and MPNet count them: a running sum of one form at every length."""
    compiled = _compiled(tmp_path, 1, longest=200, by_ids=True)
    assert compiled[0].is_ragged
    for counts in ([127, 128, 1], [200, 3], [64, 65]):
        _require_equal(compiled, counts)
    model, session, _ = compiled
    rows = [np.array([5, 1, 7]), np.arange(2, 40).repeat(4)]
    for row, found in zip(rows, model.run_ragged({"ids": rows})["hidden"], strict=True):
        ids = row[None].astype(np.int64)
        (wanted,) = session.run(["hidden"], {"ids": ids, "mask": np.ones_like(ids)})
        assert np.allclose(found, wanted[0], atol=2e-5)


def test_a_third_size_is_named(tmp_path: Path) -> None:
    onnx.save(Encoder(1).proto(), str(tmp_path / "encoder.onnx"))
    sizes = [Length("batch", 2), Length("sequence", 4), Length("rows", 2)]
    dims = {"ids": (sizes[0], sizes[1]), "mask": (sizes[2], sizes[1])}
    with pytest.raises(NotLifted, match=r"'rows' is a size beside.*dims={'rows': 'batch'}"):
        ragged_network(BoundModel(tmp_path / "encoder.onnx"), dims)


@pytest.mark.slow
def test_rows_that_other_runtimes_refuse_are_checked_by_definitions(tmp_path: Path) -> None:
    """The table of positions ends in front of the longest row."""
    proto, dims = Encoder(1, longest=4).proto(), {"batch": "..2", "sequence": "..8"}
    done = autotune.compile(proto, dims=dims, ragged=True)
    assert done.artifact.ragged is not None
    assert done.report is not None


@pytest.mark.slow
def test_twelve_layers(tmp_path: Path) -> None:
    compiled = _compiled(tmp_path, 12)
    for counts in ([4, 1, LONGEST], [LONGEST, 2]):
        _require_equal(compiled, counts)


def _holes(mask: Array) -> bool:
    runs = ["".join(map(str, row)).strip("0") for row in mask]
    return any(not run or "0" in run for run in runs)


def test_places_are_those_of_the_mask() -> None:
    rng = np.random.default_rng(3)

    def random(shape: tuple[int, int]) -> Array:
        return rng.integers(0, 2, shape)

    for n in range(200):
        shape = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        mask = random(shape) if n % 2 else _padded(rng.integers(1, 9, shape[0]).tolist())
        tokens, slots = places_of(mask)
        counted = np.ones_like(mask) if _holes(mask) else mask
        assert np.array_equal(tokens, np.argwhere(counted))
        at = slots[counted != 0]
        assert np.array_equal(at, np.arange(len(tokens)))
        assert slots.shape == mask.shape
        assert 0 <= slots.min() <= slots.max() < len(tokens)
