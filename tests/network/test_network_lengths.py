"""Artifacts with lengths: one for every size, whatever lies behind the lengths."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ArtifactError, UsageError
from autotune.extent import Length
from autotune.graph.network import Network
from autotune.network.artifact.artifact import Artifact
from autotune.network.runtime.loading import load
from autotune.network.runtime.runtime import Model
from tests.network.artifact_mutations import read_parts, write_parts
from tests.network.sized_networks import (
    IN,
    OUT,
    drawn,
    expected,
    sized_artifact,
    sized_network,
)

BATCH, ROWS = Length("batch", 4), Length("rows", 40)


@pytest.fixture(scope="module")
def network() -> Network:
    return sized_network(BATCH, ROWS)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return sized_artifact((BATCH, ROWS))


@pytest.fixture
def model(artifact: Artifact) -> Model:
    return Model(artifact)


def require_close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].shape == array.shape
        assert found[name].flags.c_contiguous
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def test_any_size_up_to_the_most_is_computed(
    model: Model, network: Network, rng: np.random.Generator
) -> None:
    sizes = [(1, 1), (4, 40), (1, 40), (4, 1)]
    sizes += [(int(rng.integers(1, 5)), int(rng.integers(1, 41))) for _ in range(30)]
    for b, n in sizes:
        inputs = drawn(rng, b, n)
        require_close(model.run(inputs), expected(network, inputs))
        y, s, same = model(*inputs.values())
        assert (y.shape, s.shape, same.shape) == ((b, n, OUT), (b, OUT), (n, IN))


def test_results_share_no_memory(model: Model, network: Network, rng: np.random.Generator) -> None:
    given = [drawn(rng, int(b), int(n)) for b, n in [(1, 40), (1, 40), (2, 7), (4, 40), (4, 40)]]
    found = [model.run(inputs) for inputs in given]
    arrays = [array for outputs in found for array in outputs.values()]
    arrays += [array for inputs in given for array in inputs.values()]
    for k, array in enumerate(arrays):
        assert not any(np.may_share_memory(array, other) for other in arrays[:k])
    for inputs, outputs in zip(given, found, strict=True):
        require_close(outputs, expected(network, inputs))


def test_a_small_result_does_not_keep_the_memory_of_the_longest() -> None:
    rows = Length("rows", 40_000)
    model = Model(sized_artifact((1, rows)))
    found = model.run({"x": np.zeros((1, 7, IN), "f4"), "z": np.zeros((7, IN), "f4")})
    for array in found.values():
        base = array if array.base is None else array.base
        assert base.nbytes <= 2 * array.nbytes
    longer = model.run({"x": np.zeros((1, 39_000, IN), "f4"), "z": np.zeros((39_000, IN), "f4")})
    assert longer["y"].shape == (1, 39_000, OUT)


def test_arrays_of_out_have_the_size_of_the_call(
    model: Model, network: Network, rng: np.random.Generator
) -> None:
    for b, n in [(1, 3), (3, 17), (4, 40), (1, 1)]:
        inputs = drawn(rng, b, n)
        guarded = np.full((b + 1, n, OUT), 7.0, np.float32)
        out = {"y": guarded[:b], "same": np.empty((n, IN), np.float32)}
        found = model.run(inputs, out)
        assert found["y"] is out["y"]
        require_close(found, expected(network, inputs))
        assert (guarded[b:] == 7).all()
    with pytest.raises(UsageError, match="`out` of 'y' is float32"):
        model.run(inputs, {"y": np.empty((4, 40, OUT), np.float32)})


def test_an_input_may_be_the_array_of_an_output(
    model: Model, network: Network, rng: np.random.Generator
) -> None:
    inputs = drawn(rng, 2, 9)
    wanted = expected(network, {name: array.copy() for name, array in inputs.items()})
    require_close(model.run(inputs, {"same": inputs["z"]}), wanted)


def test_callers_of_other_sizes_do_not_meet(
    model: Model, network: Network, rng: np.random.Generator
) -> None:
    given = [
        [drawn(rng, int(rng.integers(1, 5)), int(rng.integers(1, 41))) for _ in range(20)]
        for _ in range(8)
    ]
    failures: list[BaseException] = []

    def call(own: list[dict[str, Any]]) -> None:
        try:
            for inputs in own:
                require_close(model.run(inputs), expected(network, inputs))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(own,)) for own in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_it_is_the_same_from_a_file_and_from_a_pickle(
    artifact: Artifact, network: Network, rng: np.random.Generator, tmp_path: Path
) -> None:
    artifact.save(tmp_path / "m.atn")
    loaded = load(tmp_path / "m.atn")
    assert loaded.artifact.lengths == network.lengths
    assert loaded.input_info == Model(artifact).input_info
    inputs = drawn(rng, 3, 11)
    of_one_size = loaded.at({name: array.shape for name, array in inputs.items()})
    for model in (loaded, pickle.loads(pickle.dumps(loaded)), of_one_size):
        require_close(model.run(inputs), expected(network, inputs))
    again = pickle.loads(pickle.dumps(of_one_size))
    assert again.input_info == of_one_size.input_info
    require_close(again.run(inputs), expected(network, inputs))


@pytest.mark.parametrize("seed", range(4))
def test_what_takes_no_size_below_a_least_number_is_loaded_from_its_file(
    tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    least, factor = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    offset = -int(rng.integers(factor, factor * least + 1))
    rows = Length("rows", least + int(rng.integers(0, 9)), factor, offset, least)
    sized_artifact((BATCH, rows)).save(tmp_path / "m.atn")
    model, network = load(tmp_path / "m.atn"), sized_network(BATCH, rows)
    for n in range(least, rows.most + 1):
        if rows.at(n):
            inputs = drawn(rng, 2, rows.at(n))
            found, wanted = model.run(inputs), expected(network, inputs)
            np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-5)


def test_runs_in_a_loop_and_bound_are_the_same(
    model: Model, network: Network, rng: np.random.Generator
) -> None:
    inputs = drawn(rng, 2, 5)
    wanted = expected(network, inputs)
    require_close(asyncio.run(model.run_async(inputs)), wanted)
    require_close(model.sized({"batch": 2, "rows": 5}).run_bound(inputs, {}, {}), wanted)


def test_ports_name_their_lengths(model: Model) -> None:
    assert [end.name for end in model.input_info] == ["x", "z"]
    assert model.input_info[0].extents == (BATCH, ROWS, IN)
    assert model.input_info[0].shape == (4, 40, IN)
    assert model.lengths == {"batch": 4, "rows": 40}
    text = "batch ≤ 4, rows ≤ 40: x float32[batch, rows, 5], z float32[rows, 5] -> y float32[batch,"
    assert text in repr(model)
    one = model.sized({"batch": 1, "rows": 2})
    assert [end.shape for end in one.output_info] == [(1, 2, OUT), (1, OUT), (2, IN)]
    assert one.lengths == {}


def test_profiles_are_of_the_size_of_their_inputs(model: Model, rng: np.random.Generator) -> None:
    times = model.profile(drawn(rng, 2, 5))
    assert len(times) == len(model.artifact.kernels)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"x": (2, 41, 5), "z": (41, 5)}, "'x' has 41 in dimension 1 (rows), at most 40 are"),
        ({"x": (2, 0, 5), "z": (0, 5)}, "'x' has 0 in dimension 1 (rows), at least 1 are needed"),
        ({"x": (2, 3, 5), "z": (4, 5)}, "'x' and 'z' disagree about 'rows': 3 and 4"),
        ({"x": (2, 3, 6), "z": (3, 5)}, "'x' has shape (2, 3, 6), expected (batch, rows, 5)"),
        ({"x": (3, 5), "z": (3, 5)}, "'x' has shape (3, 5), expected (batch, rows, 5)"),
        ({"x": (2, 3, 5)}, "'z' is missing"),
        ({"x": (2, 3, 5), "z": (3, 5), "w": ()}, "there is no input 'w'"),
        ({"x": (2, 3, 5), "z": (3, 5), "rows?": (1,)}, "there is no input 'rows?'"),
    ],
)
def test_other_shapes_are_refused_in_a_line(
    model: Model, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    inputs = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(UsageError) as failure:
        model.run(inputs)
    assert says in str(failure.value)
    assert failure.value.hint


def test_arrays_in_order_are_looked_at_as_those_by_name(
    model: Model, network: Network, rng: np.random.Generator
) -> None:
    inputs = drawn(rng, 2, 3)
    x, z = inputs.values()
    for _ in range(2):  # of a size that is new, and known
        require_close(model.run([x, z]), expected(network, inputs))
        with pytest.raises(UsageError, match="1 arrays are given, expected 2"):
            model(x)
        with pytest.raises(UsageError, match="3 arrays are given, expected 2"):
            model.run((x, z, x))
        with pytest.raises(UsageError, match="'x' has shape"):
            model(z, x)
        with pytest.raises(UsageError, match="'x' is a list"):
            model(x.tolist(), z)


def test_sizes_between_those_of_a_grid_are_refused(rng: np.random.Generator) -> None:
    model = Model(sized_artifact((1, Length("width", 5, 8, -3))))
    assert model.run(drawn(rng, 1, 21))["y"].shape == (1, 21, OUT)
    with pytest.raises(UsageError, match=r"has 22 in dimension 1 \(8·width -3\)") as failure:
        model.run(drawn(rng, 1, 22))
    assert failure.value.hint == "give 21 or 29, as by padding"


def test_a_wrong_type_is_named(model: Model, rng: np.random.Generator) -> None:
    inputs = drawn(rng, 2, 3)
    with pytest.raises(UsageError, match="input 'z' has dtype float64"):
        model.run({**inputs, "z": inputs["z"].astype(np.float64)})


def test_variants_have_lengths_of_their_own(
    network: Network, rng: np.random.Generator, tmp_path: Path
) -> None:
    made = sized_artifact((BATCH, ROWS), (2, Length("rows", 8)), (1, Length("few", 3)))
    made.save(tmp_path / "m.atn")
    model = load(tmp_path / "m.atn")
    assert [v.artifact.lengths for v in model.variants] == [
        {"batch": "batch?", "rows": "rows?"},
        {"rows": "rows?"},
        {"few": "few?"},
    ]
    for b, n, variant in [(4, 30, 0), (2, 8, 1), (2, 9, 0), (1, 3, 2), (1, 4, 0), (2, 1, 1)]:
        inputs = drawn(rng, b, n)
        require_close(model.run(inputs), expected(network, inputs))
        of_size = model.variant(inputs).artifact
        assert of_size.entry == model.variants[variant].artifact.entry
    with pytest.raises(UsageError, match="at most 40"):
        model.run(drawn(rng, 1, 41))


def _extents(manifest: dict[str, Any], extents: Any, kind: str = "inputs", n: int = 0) -> None:
    manifest[kind][n]["extents"] = extents


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.pop("lengths"), "'x' follows a number that is not known"),
        (lambda m: m["lengths"].update(rows="z"), "'z' is no number"),
        (lambda m: m["lengths"].update(rows="?"), "a number of it is no input"),
        (lambda m: m["lengths"].update(rows="batch?"), "a number of it is no input"),
        (lambda m: m["lengths"].update(more="x"), "'x' is no number"),
        (lambda m: m["inputs"][2].update(shape=[2]), "'batch?' is no number"),
        (lambda m: _extents(m, [4, 40, 5]), "'x' has other extents"),
        (lambda m: _extents(m, [{"name": "batch", "most": 4}, 40]), "'x' has other extents"),
        (lambda m: m["inputs"][0]["extents"][0].update(most=5), "'x' has other extents"),
        (lambda m: m["inputs"][0]["extents"][0].update(offset=1), "'x' has other extents"),
        (lambda m: m["inputs"][0]["extents"][0].update(factor=0), "'inputs'"),
        (lambda m: m["inputs"][0]["extents"][0].update(most=2, factor=2), "follows a number"),
        (lambda m: m["inputs"][1].update(window=[[5, 40], [40, 1]]), "'z' lies in another shape"),
    ],
)
def test_a_manifest_whose_lengths_cannot_be_is_refused(
    artifact: Artifact, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    artifact.save(tmp_path / "m.atn")
    parts = read_parts(tmp_path / "m.atn")
    manifest = json.loads(parts["manifest.json"])
    change(manifest)
    write_parts(tmp_path / "m.atn", parts, manifest)
    with pytest.raises(ArtifactError, match=says.replace("?", r"\?")):
        load(tmp_path / "m.atn")


def test_a_number_that_no_input_tells_is_refused(artifact: Artifact, tmp_path: Path) -> None:
    artifact.save(tmp_path / "m.atn")
    parts = read_parts(tmp_path / "m.atn")
    manifest = json.loads(parts["manifest.json"])
    for end in manifest["inputs"]:
        end.pop("extents", None)
    write_parts(tmp_path / "m.atn", parts, manifest)
    with pytest.raises(ArtifactError, match="no input tells a number"):
        load(tmp_path / "m.atn")


def test_what_does_not_take_lengths_says_so(artifact: Artifact) -> None:
    with pytest.raises(UsageError, match="has no state"):
        Model(artifact).session()
