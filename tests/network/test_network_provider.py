"""ONNX Runtime runs exported libraries as nodes of a model, by its plug-in interface."""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import autotune
from autotune.errors import ArtifactError, UsageError
from autotune.network.artifact.hybrid import HybridArtifact, HybridControl
from autotune.network.provider.library import digest_of
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import random_inputs
from tests.cli.conftest import mlp
from tests.forking import Cli
from tests.hybrid_models import DETECTOR, TREES
from tests.hybrid_models import saved as hybrid
from tests.network.provider_client import MODELS, Client, changed, exported, inputs_of, parsed


@pytest.mark.parametrize("name", MODELS)
def test_a_session_computes_what_onnxruntime_does(
    name: str, tmp_path: Path, client: Client
) -> None:
    out = exported(name, tmp_path)
    for n in (1, 7, 16):
        feeds = inputs_of(name, n)
        ours = client(out, feeds, threads="2", callers="2")
        theirs = client(tmp_path, feeds, f"{name}.onnx")
        assert isinstance(ours, list), ours
        library = autotune.ExportedModel(out / "libnet.so").run(feeds)
        assert [x.shape for x in library.values()] == [np.shape(x) for x in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert np.shape(one) == np.shape(other)
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)


def test_the_model_tells_types_lengths_and_whose_node_it_is(lengths: Path) -> None:
    model = onnx.load(lengths / "net_ctx.onnx")
    (node,) = model.graph.node
    told = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    dims = [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
            for i in model.graph.input]  # fmt: skip
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")
    assert dims == [["b", 64], ["b"]]
    assert told["ep_cache_context"] == b"libnet.so"
    assert told["onnx_model_filename"] == b"lengths.onnx"
    notes = told["notes"].decode().split("\n")
    assert notes == [digest_of(lengths / "libnet.so"), "x", "s", "y", "z"]


def test_a_length_that_the_network_does_not_take_is_told(lengths: Path, client: Client) -> None:
    for n in (0, 17):
        said = client(lengths, inputs_of("lengths", n))
        assert "b from 1 to 16" in said
    feeds = inputs_of("lengths", 3) | {"s": np.zeros(4, np.float32)}
    assert "autotune: net: " in client(lengths, feeds)


@pytest.mark.parametrize("shape", [(3, 64), (64,), (3, 63)])
def test_arrays_that_do_not_fit_are_errors(
    shape: Sequence[int], lengths: Path, client: Client
) -> None:
    feeds = {"x": np.zeros(shape, np.float64 if shape == (3, 64) else np.float32),
             "s": np.zeros(3, np.float32)}  # fmt: skip
    assert isinstance(client(lengths, feeds), str)


def test_options_that_are_not_there_are_told(lengths: Path, client: Client) -> None:
    feeds = inputs_of("lengths", 2)
    assert "hint: threads, callers, fallback, cache, command" in client(
        lengths, feeds, colour="red"
    )
    assert "give a number" in client(lengths, feeds, threads="many")


def test_a_model_without_its_original_falls_back_to_an_error(
    lengths: Path, tmp_path: Path, client: Client
) -> None:
    shutil.copytree(lengths, tmp_path / "to")
    (tmp_path / "to/libnet.so").unlink()
    (tmp_path / "to/lengths.onnx").unlink()
    assert "lengths.onnx" in client(tmp_path / "to", inputs_of("lengths", 2), fallback="1")


def test_the_command_writes_a_context(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parsed(MODELS["halves"][0]), model)
    artifact = tmp_path / "m.atn"
    autotune.compile(model, check=False, threads=1).artifact.save(artifact)
    done = cli("export", artifact, "-o", tmp_path / "out", "--onnx", "--format", "json")
    assert {"m_ctx.onnx", "libautotune_provider.so"} <= json.loads(done.out)["files"].keys()


def test_what_no_node_can_be_is_refused(tmp_path: Path) -> None:
    model = parsed(MODELS["halves"][0])
    model.graph.output[0].name = model.graph.node[0].output[0] = "a\nb"
    artifact = autotune.compile(model, check=False, threads=1).artifact
    with pytest.raises(ArtifactError, match="line break"):
        autotune.export(artifact, tmp_path / "out", onnx=True)
    with pytest.raises(UsageError, match="for ONNX Runtime alone"):
        autotune.export(artifact, tmp_path / "out", original=tmp_path / "m.onnx")
    foreign = autotune.compile(model, check=False, target="wasm32").artifact
    with pytest.raises(ArtifactError, match="WebAssembly"):
        autotune.export(foreign, tmp_path / "out", onnx=True)
    assert not (tmp_path / "out").exists()


class Cached:
    """Sessions of a model whose only setting is where the provider keeps what it compiles."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder, self.client = folder, client
        self.cache, self.command = folder / "cache", folder / "autotune"
        text = f'#!/bin/sh\nexec {sys.executable} -m autotune "$@"\n'
        self.command.write_text(text)
        self.command.chmod(0o755)

    def __call__(self, feeds: dict[str, Any], options: str = "") -> Any:
        """Outputs, then whether the provider took part."""
        words = f"{self.command} compile --threads 1 --no-check {options}".strip()
        told = str(self.folder / "profile")
        return self.client(
            self.folder, feeds, "m.onnx", cache=str(self.cache), command=words, told=told
        )

    def made(self, n: int = 1) -> list[Path]:
        """What the background left, as soon as it has ended: nobody holds the lock any more."""
        for _ in range(1200):
            found = [p for p in self.cache.glob("*") if p.is_dir() or p.suffix == ".failed"]
            found = [p for p in found if p.suffix != ".part"]
            if len(found) >= n:
                with (self.cache / "lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                return found
            time.sleep(0.1)
        raise AssertionError(list(self.cache.glob("*")))


@pytest.mark.slow
def test_sessions_find_what_is_compiled_in_the_background(tmp_path: Path, client: Client) -> None:
    onnx.save(parsed(MODELS["halves"][0]), tmp_path / "m.onnx")
    run, feeds = Cached(tmp_path, client), inputs_of("halves", 1)
    *first, by_us = run(feeds)
    assert not by_us
    (made,) = run.made()
    *second, by_us = run(feeds)
    assert by_us
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)
    library = made / "libmodel.so"  # damaged, foreign, gone: ONNX Runtime runs the model
    for data in (b"", b"no library", library.read_bytes()[:-9]):
        library.unlink()
        library.write_bytes(data)
        assert run(feeds)[-1] is False
    (made / "model.digest").unlink()
    assert run(feeds)[-1] is False
    onnx.save(parsed(MODELS["lengths"][0]), tmp_path / "m.onnx")
    feeds = inputs_of("lengths", 3)
    assert run(feeds)[-1] is False
    run.made(2)
    assert run(feeds)[-1] is False  # it is for one size
    assert run(feeds, "--dim b=..16")[-1] is False
    run.made(3)
    for n in (3, 16):
        assert run(inputs_of("lengths", n), "--dim b=..16")[-1] is True
    assert run(feeds, "--dim nothing=2")[-1] is False
    assert {place.suffix for place in run.made(4)} == {"", ".failed"}
    assert run(feeds, "--dim nothing=2")[-1] is False


@pytest.mark.slow
def test_other_weights_in_files_beside_the_model_are_another_model(
    tmp_path: Path, client: Client
) -> None:
    model = mlp()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0,
              location="weights")  # fmt: skip
    run, feeds = Cached(tmp_path, client), {"x": np.ones((4, 8), np.float32)}
    run(feeds)
    run.made()
    assert run(feeds)[-1] is True
    data = bytearray((tmp_path / "weights").read_bytes())
    data[3] ^= 0x80
    (tmp_path / "weights").write_bytes(data)
    assert run(feeds)[-1] is False
    run.made(2)
    assert run(feeds)[-1] is True


def test_without_a_command_or_a_folder_onnxruntime_runs_the_model(
    tmp_path: Path, client: Client
) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    feeds = {"x": np.ones((4, 8), np.float32)}
    run = Cached(tmp_path, client)
    run.command.unlink()
    assert run(feeds)[-1] is False
    assert run.made()[0].suffix == ".failed"
    assert run(feeds)[-1] is False
    run.cache = tmp_path / "m.onnx/cache"
    assert run(feeds)[-1] is False
    assert "option 'cache'" in client(tmp_path, feeds, "m.onnx", cache="x" * 5000)


@pytest.mark.slow
@pytest.mark.parametrize("text", [DETECTOR, TREES], ids=["detector", "trees"])
def test_parts_are_nodes_between_those_of_onnxruntime(
    text: str, tmp_path: Path, client: Client
) -> None:
    model = hybrid(text, tmp_path)
    target = "x86-64-v3,cascadelake" if text == TREES else "native"
    done = autotune.compile(model, threads=2, target=target, keep_cut=True, check=False)
    assert isinstance(done.artifact, HybridArtifact)
    out = tmp_path / "out"
    made = autotune.export(done.artifact, out, "net", onnx=True)
    assert {"libnet.so", "net_ctx.onnx", "README.md"} <= made.sizes.keys()
    nodes = onnx.load(out / "net_ctx.onnx").graph.node
    contexts = [node for node in nodes if node.op_type == "EPContext"]
    assert len(contexts) == len(done.artifact.networks()) < len(nodes)
    for _ in range(2):
        feeds = random_inputs(model_of(done.artifact).input_info)
        ours, theirs = client(out, feeds), client(tmp_path, feeds, model.name)
        assert isinstance(ours, list), ours
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)
    assert "lib" in client(changed(out, tmp_path / "to", notes="1:2"), feeds)
    autotune.export(done.artifact, out, "net", onnx=True, weights="separate")
    assert isinstance(client(out, feeds), list)


_WRITTEN = (
    TREES.split("  y = ")[0].replace("(float[64,1] y)", "(float[k,1] y)")
    + """
  level = Constant <value_float = 102.0> ()
  m = ReduceSum <keepdims = 0> (b, one)
  is_more = Greater (m, level)
  rows = Compress <axis = 0> (f, is_more)
  y = """
    + TREES.split("  y = ")[1].replace("> (f)", "> (rows)")
)


def test_rows_that_data_choose_run_between_compiled_parts(tmp_path: Path, client: Client) -> None:
    model = hybrid(_WRITTEN, tmp_path)
    done = autotune.compile(model, threads=2, keep_cut=True, check=False)
    assert isinstance(done.artifact, HybridArtifact)
    assert not any(one.written for one in done.artifact.networks())  # ONNX Runtime chooses them
    out = tmp_path / "out"
    autotune.export(done.artifact, out, "net", onnx=True)
    counts = set()
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((64, 256)).astype(np.float32)
        feeds = {"x": x if seed else np.zeros_like(x)}
        ours, theirs = client(out, feeds), client(tmp_path, feeds, model.name)
        assert isinstance(ours, list), ours
        np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-3, atol=1e-4)
        counts.add(len(ours[0]))
    assert 0 in counts
    assert len(counts) > 1


def test_what_no_nodes_can_be_is_refused(tmp_path: Path) -> None:
    done = autotune.compile(hybrid(TREES, tmp_path), threads=1, keep_cut=True, check=False)
    with pytest.raises(UsageError, match="place of a part"):
        autotune.export(done.artifact, tmp_path / "out", onnx=True, original=tmp_path / "a.onnx")
    with pytest.raises(ArtifactError, match="ONNX Runtime computes a part"):
        autotune.export(done.artifact, tmp_path / "out")
    artifact = done.artifact
    assert isinstance(artifact, HybridArtifact)
    control = HybridControl("If", "", (), (), (), {})
    decided = replace(artifact.segments[0], network=None, control=control)
    with pytest.raises(ArtifactError, match="data decide"):
        autotune.export(replace(artifact, segments=(decided,)), tmp_path / "out", onnx=True)
    whole = replace(artifact, segments=tuple(s for s in artifact.segments if s.network is None))
    with pytest.raises(ArtifactError, match="nothing of"):
        autotune.export(whole, tmp_path / "out", onnx=True)


def test_without_its_original_nothing_is_written(tmp_path: Path) -> None:
    artifact = autotune.compile(parsed(MODELS["halves"][0]), check=False, threads=1).artifact
    with pytest.raises(UsageError, match=r"none\.onnx"):
        autotune.export(artifact, tmp_path / "out", onnx=True, original=tmp_path / "none.onnx")
    assert not (tmp_path / "out").exists()
