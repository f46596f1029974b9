"""ONNX Runtime runs exported libraries as nodes of a model, by its plug-in interface."""

from __future__ import annotations

import json
import shutil
import subprocess
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

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'
MODELS = {
    "lengths": (
        """f (float[b, 64] x, float[b] s) => (float[b, 64] y, float[b] z) {
            y = Relu(x)  a = Constant<value_ints = [-1]>()
            t = ReduceSum<keepdims = 0>(y, a)  z = Add(t, s) }""",
        {"b": "..16"},
    ),
    "halves": (
        "f (float16[5, 33] x, bool[4] m) => (float16[5, 33] y, bool[4] n) "
        "{ y = Softmax(x) n = Not(m) }",
        None,
    ),
    "cache": (  # a decoder's step whose cache is an input and an output
        """f (float[1, 1, 8] x, float[1, past, 8] past_key) => (float[1, 1, 8] y,
                float[1, total, 8] present_key) {
            present_key = Concat<axis = 1>(past_key, x)
            t = Transpose<perm = [0, 2, 1]>(present_key)
            s = MatMul(x, t)  p = Softmax(s)  y = MatMul(p, present_key) }""",
        {"past": "..32"},
    ),
    "halved": (  # lengths that the network computes, and such that data decide
        """f (float[1, 2, w] x) => (float[1, 2, v] y) {
            y = MaxPool<kernel_shape = [3], strides = [2], pads = [1, 1]>(x) }""",
        {"w": "..32"},
    ),
    "chosen": (
        """f (float[2, 9] x) => (int64[2, k] y) {
            g = Constant<value_float = 0.0>()  b = Greater(x, g)  y = NonZero(b) }""",
        None,
    ),
}
_CHILD = """
import json, sys
import numpy as np, onnxruntime as ort

ort.set_default_logger_severity(4)
ort.register_execution_provider_library("autotune", sys.argv[1])
devices = [d for d in ort.get_ep_devices() if d.ep_name == "AutotuneExecutionProvider"]
for line in sys.stdin:
    path, options, feeds = json.loads(line)
    is_told = options.pop("told", "")
    try:
        settings = ort.SessionOptions()
        settings.enable_profiling, settings.profile_file_prefix = bool(is_told), is_told
        settings.add_provider_for_devices(devices, options)
        session = ort.InferenceSession(path, settings)
        given = {n: np.array(v, d).reshape(s) for n, v, d, s in feeds}
        found = [x.tolist() for x in session.run(None, given)]
        if is_told:
            found.append("AutotuneExecutionProvider" in open(session.end_profiling()).read())
    except Exception as error:
        found = str(error)
    print(json.dumps(found), flush=True)
"""


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} {text}")


def exported(name: str, folder: Path, **options: Any) -> Path:
    """The folder of a model's library, with the model beside it."""
    text, dims = MODELS[name]
    model = folder / f"{name}.onnx"
    onnx.save(parsed(text), model)
    done = autotune.compile(model, dims=dims, check=False, threads=2)
    out = folder / "out"
    autotune.export(done.artifact, out, "net", onnx=True, original=model, **options)
    return out


def inputs_of(name: str, n: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(n)
    if name == "halves":
        return {"x": rng.standard_normal((5, 33)).astype(np.float16), "m": rng.random(4) > 0.5}
    if name == "cache":
        past, x = ((1, n, 8), (1, 1, 8))
        return {
            "x": rng.standard_normal(x).astype(np.float32),
            "past_key": rng.standard_normal(past).astype(np.float32),
        }
    if name in ("halved", "chosen"):
        shape = (1, 2, n) if name == "halved" else (2, 9)
        return {"x": rng.standard_normal(shape).astype(np.float32)}
    return {
        "x": rng.standard_normal((n, 64)).astype(np.float32),
        "s": rng.standard_normal(n).astype(np.float32),
    }


class Client:
    """A process that ONNX Runtime and the provider live in; asked by lines."""

    def __init__(self, provider: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(provider)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def __call__(
        self, folder: Path, feeds: dict[str, Any], model: str = "net_ctx.onnx", **options: str
    ) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        given = [(n, x.tolist(), str(x.dtype), x.shape) for n, x in feeds.items()]
        print(
            json.dumps([str(folder / model), options, given]), file=self.process.stdin, flush=True
        )
        line = self.process.stdout.readline()
        assert line, "the host process is gone"
        return json.loads(line)


@pytest.fixture(scope="module")
def client() -> Any:
    pytest.importorskip("onnxruntime", minversion="1.23")
    made = Client(autotune.onnxruntime_provider())
    with made.process:
        yield made
        made.process.kill()


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("lengths", tmp_path_factory.mktemp("lengths"))


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


def changed(folder: Path, to: Path, **attributes: str) -> Path:
    """A copy of an export whose node has other attributes."""
    shutil.copytree(folder, to)
    model = onnx.load(to / "net_ctx.onnx")
    for a in model.graph.node[0].attribute:
        if a.name in attributes:
            a.s = attributes[a.name].encode()
    onnx.save(model, to / "net_ctx.onnx")
    return to


FOREIGN = {
    "a name that leaves the folder": {"ep_cache_context": "../out/libnet.so"},
    "a path of the system": {"ep_cache_context": "/etc/passwd"},
    "no name": {"ep_cache_context": ""},
    "another file": {"ep_cache_context": "net.h"},
    "a file that is not there": {"ep_cache_context": "libother.so"},
    "another network": {"partition_name": "other"},
    "no digest": {"notes": ""},
    "another digest": {"notes": "1:2\nx\ns\ny\nz"},
    "another provider": {"source": "OpenVINOExecutionProvider"},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_context_is_an_error_of_the_session(
    what: str, lengths: Path, tmp_path: Path, client: Client
) -> None:
    folder = changed(lengths, tmp_path / "to", **FOREIGN[what])
    said = client(folder, inputs_of("lengths", 3))
    assert isinstance(said, str)
    if "source" not in FOREIGN[what]:
        assert "autotune: " in said
        assert isinstance(client(folder, inputs_of("lengths", 3), fallback="1"), list) or (
            "notes" in FOREIGN[what]
        )


def test_damaged_libraries_never_end_the_host(
    lengths: Path, tmp_path: Path, client: Client
) -> None:
    whole = (lengths / "libnet.so").read_bytes()
    rng = np.random.default_rng(7)
    for n in range(20):
        folder = tmp_path / str(n)
        shutil.copytree(lengths, folder)
        data = bytearray(whole)
        if n % 2:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        else:
            del data[int(rng.integers(len(data))) :]
        (folder / "libnet.so").write_bytes(data)
        assert "is damaged" in client(folder, inputs_of("lengths", 3))
        assert isinstance(client(folder, inputs_of("lengths", 3), fallback="1"), list)


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
        """What the background left, as soon as it has ended."""
        for _ in range(1200):
            found = [p for p in self.cache.glob("*") if p.is_dir() or p.suffix == ".failed"]
            found = [p for p in found if p.suffix != ".part"]
            if len(found) >= n:
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
