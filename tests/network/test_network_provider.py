"""ONNX Runtime runs exported libraries as nodes of a model, by its plug-in interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import autotune
from autotune.errors import ArtifactError, UsageError
from autotune.network.provider.library import digest_of
from tests.forking import Cli

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
}
_CHILD = """
import json, sys
import numpy as np, onnxruntime as ort

ort.set_default_logger_severity(4)
ort.register_execution_provider_library("autotune", sys.argv[1])
devices = [d for d in ort.get_ep_devices() if d.ep_name == "AutotuneExecutionProvider"]
for line in sys.stdin:
    path, options, feeds = json.loads(line)
    try:
        settings = ort.SessionOptions()
        settings.add_provider_for_devices(devices, options)
        session = ort.InferenceSession(path, settings)
        given = {n: np.array(v, d).reshape(s) for n, v, d, s in feeds}
        found = [x.tolist() for x in session.run(None, given)]
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
    assert "hint: threads, callers, fallback" in client(lengths, feeds, colour="red")
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


def test_without_its_original_nothing_is_written(tmp_path: Path) -> None:
    artifact = autotune.compile(parsed(MODELS["halves"][0]), check=False, threads=1).artifact
    with pytest.raises(UsageError, match=r"none\.onnx"):
        autotune.export(artifact, tmp_path / "out", onnx=True, original=tmp_path / "none.onnx")
    assert not (tmp_path / "out").exists()
