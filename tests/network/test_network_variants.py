"""One artifact for several shapes: shared constants and code, picked by the arguments."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.errors import ArtifactError, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.table import FIRST_BOUND
from autotune.network.compile.sharing import Option, SharedWeights, prefer_shared
from autotune.network.runtime.loading import read_artifact
from autotune.network.runtime.runtime import Model
from tests.cli.conftest import mlp
from tests.forking import Cli
from tests.network.artifact_mutations import read_parts, write_parts
from tests.network.hand_made import N, image_of, launches, reversing

HIDDEN, HEADS, VOCAB = 128, 4, 500
LENGTHS = (16, 48)


def encoder(path: Path) -> Path:
    """One layer of a text encoder over `ids` and `mask` of shape [batch, sequence]."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "words": rng.standard_normal((VOCAB, HIDDEN)),
        "up": rng.standard_normal((HIDDEN, 4 * HIDDEN)) / HIDDEN**0.5,
        "down": rng.standard_normal((4 * HIDDEN, HIDDEN)) / HIDDEN,
        "bias": rng.standard_normal(4 * HIDDEN),
        "scale": rng.standard_normal(HIDDEN),
        "low": np.array(-1e4),
        "one": np.array(1.0),
        "root": np.array((HIDDEN / HEADS) ** 0.5),
    }
    weights |= {n: rng.standard_normal((HIDDEN, HIDDEN)) / HIDDEN**0.5 for n in "qkvo"}
    tensors = {n: np.asarray(a, np.float32) for n, a in weights.items()}
    tensors |= {"axes": np.array([1, 2])}
    tensors |= {"split": np.array([0, 0, HEADS, HIDDEN // HEADS]), "join": np.array([0, 0, HIDDEN])}
    nodes: list[onnx.NodeProto] = []

    def op(kind: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"t{len(nodes)}"], **attrs))
        return str(nodes[-1].output[0])

    def heads(x: str, weight: str, perm: tuple[int, ...]) -> str:
        return op("Transpose", op("Reshape", op("MatMul", x, weight), "split"), perm=perm)

    x = op("Gather", "words", "ids")
    hidden = op("Mul", op("Sub", "one", op("Cast", "mask", to=TensorProto.FLOAT)), "low")
    q, v = (heads(x, w, (0, 2, 1, 3)) for w in "qv")
    score = op("Div", op("MatMul", q, heads(x, "k", (0, 2, 3, 1))), "root")
    share = op("Softmax", op("Add", score, op("Unsqueeze", hidden, "axes")), axis=-1)
    mixed = op("Transpose", op("MatMul", share, v), perm=(0, 2, 1, 3))
    x = op("Add", x, op("MatMul", op("Reshape", mixed, "join"), "o"))
    x = op("LayerNormalization", x, "scale", axis=-1)
    up = op("Relu", op("Add", op("MatMul", x, "up"), "bias"))
    nodes.append(helper.make_node("Add", [x, op("MatMul", up, "down")], ["y"]))
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info(n, TensorProto.INT64, ("batch", "sequence"))
            for n in ("ids", "mask")
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in tensors.items()],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def feeds(batch: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    mask = np.ones((batch, length), np.int64)
    mask[:, length // 2 :] = 0
    return {"ids": rng.integers(0, VOCAB, (batch, length)), "mask": mask}


@pytest.fixture(scope="module")
def folder(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """encoder.onnx, and all.atn, which the command has compiled of it for all `LENGTHS`."""
    path = tmp_path_factory.mktemp("variants")
    model = encoder(path / "encoder.onnx")
    command = ["compile", model, "-o", "all.atn", "--threads", 1]
    command += ["--dim", "batch=1", "--dim", f"sequence={','.join(map(str, LENGTHS))}"]
    command += ["--max-error", "1e-5"]  # on no CPU parts of weights beside them
    done = cli(*command, cwd=path)
    assert done.code == 0, done.err
    assert "2 variants" in done.err
    return path


@pytest.mark.slow
def test_every_variant_computes_what_onnxruntime_does(folder: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "encoder.onnx")
    model = autotune.load(folder / "all.atn")
    assert len(model.variants) == len(LENGTHS)
    for length in (*LENGTHS, *reversed(LENGTHS)):
        x = feeds(1, length)
        (want,) = session.run(None, x)
        got = model.run(x)["y"]
        assert got.shape == (1, length, HIDDEN)
        assert np.allclose(got, want, atol=1e-5)


def test_a_shape_that_is_not_there_names_those_that_are(folder: Path) -> None:
    model = autotune.load(folder / "all.atn")
    with pytest.raises(UsageError, match="no variant is for inputs of shape ids 1x17") as caught:
        model.run(feeds(1, 17))
    assert "ids 1x16, mask 1x16; ids 1x48" in caught.value.hint
    for wrong in ({"ids": feeds(1, 16)["ids"]}, {}):
        with pytest.raises(UsageError, match="the inputs are"):
            model.run(wrong)
    with pytest.raises(UsageError, match="dtype"):
        model.run({n: a.astype(np.int32) for n, a in feeds(1, 16).items()})
    with pytest.raises(UsageError):
        model.run({**feeds(1, 16), "mask": feeds(1, 48)["mask"]})


def test_a_file_of_a_former_version_that_split_batches_has_its_variants(
    folder: Path, tmp_path: Path
) -> None:
    parts = read_parts(folder / "all.atn")
    manifest = json.loads(parts["manifest.json"])
    split = {"dimension": "batch", "axes": {n: [0, 1] for n in ("ids", "mask", "y")}}
    write_parts(tmp_path / "former.atn", parts, {**manifest, "split": split})
    model = autotune.load(tmp_path / "former.atn")
    assert model.run(feeds(1, 16))["y"].shape == (1, 16, HIDDEN)
    with pytest.raises(UsageError, match="no variant is for inputs of shape ids 2x16") as caught:
        model.run(feeds(2, 16))
    assert "compile the model for more" in caught.value.hint


def test_threads_with_different_shapes_do_not_disturb_each_other(folder: Path) -> None:
    model = autotune.load(folder / "all.atn")
    want = {n: model.run(feeds(1, n))["y"] for n in LENGTHS}
    wrong: list[int] = []

    def work(length: int) -> None:
        for _ in range(30):
            found = model.run(feeds(1, length))["y"]
            wrong.extend([] if np.array_equal(found, want[length]) else [length])

    threads = [threading.Thread(target=work, args=(n,)) for n in LENGTHS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_variants_share_their_weights_and_code(folder: Path) -> None:
    model_bytes = (folder / "encoder.onnx").stat().st_size
    # columns that fill no whole tile of a program are packed with some that are not read
    assert read_artifact(folder / "all.atn").constants.nbytes <= 1.06 * model_bytes
    assert (folder / "all.atn").stat().st_size <= 1.15 * model_bytes


def test_a_weight_has_one_form_where_that_costs_little() -> None:
    def option(name: str, latency_s: float, form: str) -> Option:
        return Option((), latency_s, {"w": form, "id": name})

    tasks = {
        "short": [option("fast", 1.0, "a"), option("near", 1.02, "b"), option("slow", 1.1, "c")],
        "long": [option("fast", 2.0, "b"), option("near", 2.01, "c")],
        "longer": [option("fast", 3.0, "c"), option("slow", 3.2, "b")],
        "longest": [option("fast", 4.0, "b")],
    }
    users = frozenset((key, "w") for key in tasks)
    picked = prefer_shared([SharedWeights(1 << 20, users)], tasks)
    # b for three of four: it is more than 3 % slower for the other
    assert {key: o.forms["w"] for key, o in picked.items()} == {
        "short": "b",
        "long": "b",
        "longer": "c",
        "longest": "b",
    }


# --- the file ---------------------------------------------------------------------------------


def two() -> Artifact:
    """A hand-made artifact for x of shape [2, N/2], and for [3, N/3] with other code."""
    image = image_of(launches(4), launches(2))
    one = replace(reversing(4), image=image)
    x = replace(one.inputs[0], shape=(3, N // 3))
    other = replace(reversing(2), inputs=(x,), constants=one.constants, image=image, entry=1)
    assert x.base == FIRST_BOUND
    return replace(one, others=(other,))


def test_variants_are_saved_with_their_code_once(tmp_path: Path) -> None:
    two().save(tmp_path / "two.atn")
    loaded = read_artifact(tmp_path / "two.atn")
    assert [v.inputs[0].shape for v in loaded.variants] == [(2, N // 2), (3, N // 3)]
    assert loaded.variants[1].manifest() == two().variants[1].manifest()
    assert len(loaded.image.symbols) > len(reversing(4).image.symbols)
    assert loaded.image.n_code_bytes < 2 * reversing(4).image.n_code_bytes
    model = Model(loaded)
    x = np.arange(N, dtype=np.float32)
    assert np.array_equal(model.run({"x": x.reshape(2, -1)})["y"], x + 4)
    assert np.array_equal(model.run({"x": x.reshape(3, -1)})["y"], x + 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.pop(),
        lambda v: v.append(v[1]),
        lambda v: v[1].update(entry=v[0]["entry"]),
        lambda v: v[1].update(entry=9),
        lambda v: v[1].update(entry=None),
        lambda v: v[1].pop("kernels"),
        lambda v: v[1].update(inputs=v[0]["inputs"]),
        lambda v: v[1]["inputs"][0].update(name="z"),
        lambda v: v[1]["inputs"][0].update(shape=[4, N // 4]),
        lambda v: v[1].update(arena_bytes=1),
        lambda v: v.reverse() or v[0].update(entry=1),
    ],
)
def test_variants_that_were_tampered_with_are_refused(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "two.atn"
    two().save(path)
    parts = read_parts(path)
    manifest = json.loads(parts["manifest.json"])
    change(manifest["variants"])
    write_parts(path, parts, manifest)
    with pytest.raises(ArtifactError, match="damaged"):
        read_artifact(path)


# --- tuning -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_tuning_weighs_shapes_by_their_shares(tmp_path: Path) -> None:
    """Σ share·latency: a task of the rare shape counts less; the log knows all shapes."""
    onnx.save(mlp(batch="n"), tmp_path / "m.onnx")
    log, shares = tmp_path / "log.jsonl", {1: 0.75, 16: 0.25}
    autotune.tune(tmp_path / "m.onnx", log, trials=4, threads=1, dims={"n": shares}, compare=False)
    header = autotune.read_log(log).header
    assert [(v.shapes, v.share) for v in header.variants] == [
        ({"x": (n, 8)}, share) for n, share in shares.items()
    ]
    assert [header.weights[key] for key, _ in header.tasks] == [0.75, 0.75, 0.25, 0.25]
    autotune.resume(log, trials=1, compare=False)
    assert autotune.read_log(log).headers[-1].variants == header.variants
    done = autotune.compile(log=log, threads=1)
    assert [v.inputs[0].shape for v in done.artifact.variants] == [(1, 8), (16, 8)]
    assert done.report is not None
    one = autotune.compile(log=log, threads=1, dims={"n": 16}, check=False).artifact
    assert [end.shape for end in one.inputs] == [(16, 8)]
    assert not one.others
