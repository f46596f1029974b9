"""`autotune quantise`: the written model is as alike as claimed, and what does not fit is told."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from autotune.api.compile.selection import no_progress
from autotune.api.quantising import QuantiseRequest, Quantising
from tests.cli.conftest import mlp
from tests.forking import Cli, Outcome
from tests.graph.onnx_models import model, node, save
from tests.network.test_network_precision import conv_net

pytest.importorskip("onnxruntime.quantization")

N_SAMPLES = 48
Array = NDArray[Any]


def scorer(rng: np.random.Generator) -> ModelProto:
    """Four layers without labels: one number a row."""
    names = ("x", "a", "b", "c", "y")
    nodes = []
    for n, (before, after) in enumerate(itertools.pairwise(names)):
        nodes += [node("MatMul", f"{before} w{n}", f"{after}{'' if after == 'y' else 's'}")]
        nodes += [] if after == "y" else [node("Relu", f"{after}s", after)]
    shapes = [(64, 64)] * 3 + [(64, 1)]
    weights = {f"w{n}": rng.standard_normal(s).astype(np.float32) / 8 for n, s in enumerate(shapes)}
    return model(nodes, {"x": (4, 64)}, weights)


MODELS: dict[str, tuple[Callable[[np.random.Generator], ModelProto], tuple[int, ...]]] = {
    "labels": (conv_net, (N_SAMPLES, 4, 8, 8)),
    "values": (scorer, (4 * N_SAMPLES, 64)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and samples for each."""
    place = tmp_path_factory.mktemp("quantise")
    for name, (make, shape) in MODELS.items():
        rng = np.random.default_rng(7)
        save(make(rng), place).rename(place / f"{name}.onnx")
        np.savez(place / f"{name}.npz", x=rng.standard_normal(shape).astype(np.float32))
    onnx.save(mlp(batch="rows"), place / "open.onnx")
    return place


def quantise(cli: Cli, folder: Path, name: str, *more: object) -> Outcome:
    given = (f"{name}.onnx", "--data", f"{name}.npz", "-o", "q.onnx", "--threads", 1)
    return cli("quantise", *given, *more, cwd=folder)


def outputs(path: Path, samples: Array) -> Array:
    """Of ONNX Runtime, node by node as the file has them."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: Array = np.concatenate([session.run(None, {"x": x})[0] for x in samples])
    return found


def held_back(folder: Path, name: str) -> Array:
    x = np.load(folder / f"{name}.npz")["x"]
    return x.reshape(N_SAMPLES, -1, *x.shape[1:])[1::2]


def test_labels_are_equal_in_as_many_rows_as_claimed(cli: Cli, folder: Path) -> None:
    done = quantise(cli, folder, "labels", "--agreement", 0.5, "--format", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    samples = held_back(folder, "labels")
    ours, theirs = (outputs(folder / f"{n}.onnx", samples) for n in ("q", "labels"))
    n_equal = int((ours.argmax(1) == theirs.argmax(1)).sum())
    claimed = found["likeness"]
    assert claimed["n_samples"] == claimed["n_rows"] == len(samples)
    assert abs(n_equal - claimed["n_agreeing"]) <= 1  # a value in the middle of two steps
    assert found["slowest"] <= found["speed"] <= found["fastest"]
    last = done.err.splitlines()[-1]
    assert last.startswith("measured in turns: ")
    assert f"labels are equal in {100 * claimed['n_agreeing'] / len(samples):.2f} %" in last
    compiled = cli("compile", "q.onnx", "-o", "q.atn", "--threads", 1, cwd=folder)
    assert compiled.code == 0, compiled.err


def test_the_error_is_that_of_the_written_model(cli: Cli, folder: Path) -> None:
    done = quantise(cli, folder, "values", "--max-error", 0.5, "--format", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    samples = held_back(folder, "values")
    ours, theirs = (outputs(folder / f"{n}.onnx", samples) for n in ("q", "values"))
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error == pytest.approx(found["likeness"]["error"], rel=0.2)
    weights = onnx.load(folder / "q.onnx").graph.initializer
    in_bytes = [t for t in weights if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1]
    assert len(found["integers"]) == len(in_bytes)


def test_products_go_back_to_float32_until_the_outputs_are_alike(
    folder: Path, tmp_path: Path
) -> None:
    path, data = folder / "values.onnx", dict(np.load(folder / "values.npz"))
    request = QuantiseRequest(path, data, tmp_path / "q.onnx", threads=1)
    work = Quantising(request, path, tmp_path, no_progress)
    everything = work.candidate(work.form.products)
    first = work.likeness(everything.model.run)
    work.request = replace(request, max_error=0.75 * first.error)
    fewer, found = work.alike(everything, dict.fromkeys(everything.products, 1e-6), first)
    assert 0 < len(fewer.products) < len(everything.products) == 4
    assert found.error <= 0.75 * first.error


def test_where_nothing_is_alike_nothing_is_written(cli: Cli, folder: Path) -> None:
    (folder / "q.onnx").unlink(missing_ok=True)
    done = quantise(cli, folder, "values", "--max-error", 1e-9)
    assert done.code == 5
    assert "no product can be in bytes: with all of them largest error" in done.err
    assert "--max-error 1e-09" in done.err
    assert not (folder / "q.onnx").exists()


def test_what_does_not_fit_is_told_in_a_line(cli: Cli, folder: Path) -> None:
    x = np.load(folder / "labels.npz")["x"]
    np.savez(folder / "one.npz", x=x[:1])
    np.savez(folder / "named.npz", x=x, z=x)
    np.savez(folder / "shape.npz", x=x[:, :, :7])
    np.savez(folder / "nan.npz", x=np.where(x > 3, np.nan, x))
    np.savez(folder / "wide.npz", x=x.astype(np.float64))
    np.savez(folder / "open.npz", x=np.zeros((4, 8), np.float32))
    (folder / "text.npz").write_text("no array")
    assert quantise(cli, folder, "labels", "--agreement", 0.5).code == 0
    data = ("--data", "labels.npz")
    wrong = {
        ("labels.onnx", "--data", "no.npz"): (2, "no.npz"),
        ("labels.onnx", "--data", "text.npz"): (2, "no NumPy array"),
        ("labels.onnx", "--data", "one.npz"): (2, "too few to calibrate"),
        ("labels.onnx", "--data", "named.npz"): (2, "'z'"),
        ("labels.onnx", "--data", "shape.npz"): (2, "shape"),
        ("labels.onnx", "--data", "nan.npz"): (2, "NaN or infinity in 'x'"),
        ("labels.onnx", "--data", "wide.npz"): (2, "float64"),
        ("labels.onnx", *data, "-o", "labels.onnx"): (2, "labels.onnx"),
        ("labels.onnx", *data, "--labels", "z"): (2, "no output 'z'"),
        ("q.onnx", *data): (2, "quantised already"),
        ("open.onnx", "--data", "open.npz"): (2, "--dim rows="),
        ("no.onnx", *data): (2, "no.onnx"),
        ("labels.npz", *data): (1, "not an ONNX model"),
    }
    for words, (code, text) in wrong.items():
        done = cli("quantise", *words, cwd=folder)
        lines = done.err.strip().splitlines()
        assert (done.code, done.out) == (code, ""), (words, done.err)
        assert text in done.err, (words, done.err)
        assert lines[-2].startswith("error: "), (words, done.err)
        assert lines[-1].startswith("hint: "), (words, done.err)
