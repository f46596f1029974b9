"""A network as a module of WebAssembly: its script in Node computes what Python computes here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from numpy.typing import NDArray

import autotune
from autotune.codegen.team import team_code as code
from autotune.errors import ArtifactError, MissingDependency, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.module import write_module
from autotune.network.export.source import WEIGHTS_HEADER
from autotune.network.runtime.runtime import Model, random_inputs
from tests.hybrid_models import DETECTOR, saved
from tests.network.test_network_export import HEAD, MODELS, nasty, parsed, sums
from tests.node import node, run_script

MORE = {
    "convolution": "f (float[1, 16, 14, 14] x, float[24, 16, 3, 3] w, float[24] b) => "
    "(float[1, 24, 14, 14] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c) }",
    "bytes": "f (uint8[32, 64] x, int8[64, 48] w) => (int32[32, 48] y) { y = MatMulInteger(x, w) }",
    "functions": "f (float[3, 100] x) => (float[3, 100] y) "
    "{ e = Erf(x) s = Sigmoid(e) t = Tanh(x) u = Sin(t) y = Mul(s, u) }",
    "remainders": "f (double[3, 5] x, double[3, 5] z) => (double[3, 5] y) "
    "{ y = Mod<fmod = 1>(x, z) }",
    "quantised": """f (float[4, 50] x) => (float[4, 50] y) {
        s = Constant<value_float = 0.1>()
        q = QuantizeLinear<output_dtype = 3>(x, s)  y = DequantizeLinear(q, s) }""",
}
_SCRIPT = """
import fs from "node:fs";
import {create, signature} from "./net.mjs";
const kinds = {float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array,
  float64: Float64Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array,
  int8: Int8Array, bool: Uint8Array};
const given = JSON.parse(fs.readFileSync("inputs.json"));
const model = await create();
const inputs = Object.fromEntries(signature.inputs.map(({name, dtype}) => {
  const bytes = Buffer.from(given[name].data, "base64");
  const whole = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  return [name, {data: new kinds[dtype](whole), dims: given[name].dims}];
}));
const dims = model.dims(inputs), once = model.run(inputs);
const told = Object.entries(model.run(inputs, once)).map(([name, data]) => {
  if (data !== once[name]) throw new Error("another array");
  return [name, {dims: dims[name], data: Buffer.from(data.buffer).toString("base64")}];
});
console.log(JSON.stringify(Object.fromEntries(told)));
"""

Array = NDArray[Any]


def compiled(model: onnx.ModelProto, **options: Any) -> Artifact:
    try:
        return autotune.compile(model, check=False, target="wasm32", **options).artifact
    except MissingDependency as error:
        pytest.skip(error.message)


def bits(array: Array) -> Array:
    return array if array.dtype.kind in "fiu" else array.view(f"u{array.dtype.itemsize}")


def in_node(folder: Path, inputs: Mapping[str, Array]) -> dict[str, tuple[list[int], bytes]]:
    """Shapes and bytes of outputs of the module in `folder`."""
    given = {
        name: {"dims": array.shape, "data": base64.b64encode(array.tobytes()).decode()}
        for name, array in inputs.items()
    }
    (folder / "inputs.json").write_text(json.dumps(given))
    told = json.loads(run_script(_SCRIPT, folder))
    return {name: (t["dims"], base64.b64decode(t["data"])) for name, t in told.items()}


def assert_equal_in_node(model: onnx.ModelProto, folder: Path, is_separate: bool = False) -> None:
    node()
    write_module(compiled(model), "net", folder, is_separate)
    here = Model(autotune.compile(model, check=False, threads=1).artifact)
    assert_same(folder, here, random_inputs(here.artifact.inputs, 1))


def assert_same(folder: Path, here: Model, inputs: Mapping[str, Array]) -> None:
    found = in_node(folder, inputs)
    for name, expected in here.run(inputs).items():
        shape, data = found[name]
        assert shape == list(expected.shape)
        array = np.frombuffer(data, expected.dtype).reshape(expected.shape)
        tolerance = 1e-2 if expected.dtype.itemsize == 2 else 1e-5
        wide = (x.astype(np.float64) for x in (array, expected))
        np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*MODELS, *MORE])
def test_a_module_computes_what_python_computes(name: str, tmp_path: Path) -> None:
    assert_equal_in_node(parsed((MODELS | MORE)[name]), tmp_path, is_separate="product" in name)


def test_a_module_of_any_names_computes(rng: np.random.Generator, tmp_path: Path) -> None:
    assert_equal_in_node(sums(nasty(rng)), tmp_path)
    run_script((tmp_path / "example.mjs").read_text(), tmp_path)


def test_weights_are_a_section_of_the_module_or_a_file(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"{HEAD} f (float[2, 64] x) => (float[2, 32] y) {{ y = MatMul(x, w) }}"
    )
    w = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    node()
    artifact, sizes = compiled(model), list[int]()
    for is_separate in (False, True):
        folder = tmp_path / str(is_separate)
        done = write_module(artifact, "net", folder, is_separate)
        here = Model(autotune.compile(model, check=False, threads=1).artifact)
        assert_same(folder, here, random_inputs(here.artifact.inputs, 1))
        sizes.append(done.sizes["net.wasm"])
        assert run_script('await import("./example.mjs")', folder).startswith("y Float32Array(4)")
        types = {(folder / f"net{suffix}").read_text() for suffix in (".d.ts", ".d.mts")}
        assert len(types) == 1
        assert "  x: Input<Float32Array>;\n" in types.pop()
    assert sizes[0] - sizes[1] >= w.nbytes
    assert done.sizes["net.weights"] == WEIGHTS_HEADER + artifact.constants.nbytes
    path = tmp_path / "True" / "net.weights"
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    text = 'import {create} from "./net.mjs"; await create().catch((e) => console.log(e.message));'
    assert "those of another network" in run_script(text, path.parent)


def test_a_call_takes_the_variant_of_its_shapes(tmp_path: Path) -> None:
    node()
    text = "f (float[n, m] x, float[m, n] z) => (float[n, n] y) { y = MatMul(x, z) }"
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    dims = {"n": (2, 3), "m": (6, 4)}
    write_module(compiled(model, dims=dims), "net", tmp_path, False)
    rng = np.random.default_rng(0)
    for n, m in ((2, 6), (3, 4), (2, 4), (3, 6)):
        inputs = {k: rng.random(s, np.float32) for k, s in (("x", (n, m)), ("z", (m, n)))}
        shape, data = in_node(tmp_path, inputs)["y"]
        assert shape == [n, n]
        found = np.frombuffer(data, np.float32).reshape(n, n)
        np.testing.assert_allclose(found, inputs["x"] @ inputs["z"], rtol=1e-5)
    script = _calls(
        "{x: new Float32Array(8), z: new Float32Array(8)}",  # 2 by 4 alone
        "{x: new Float32Array(12), z: new Float32Array(12)}",  # 2 by 6, or 3 by 4
        "{x: new Float32Array(5), z: new Float32Array(5)}",
    )
    told = run_script(script, tmp_path).splitlines()
    assert told[0] == "4"
    assert "give {data, dims}" in told[1]
    assert "no variant is for inputs of these shapes" in told[2]


def _calls(*inputs: str) -> str:
    """A script that tells, for each of `inputs`, how many elements come out, or the error."""
    return f"""
    import {{create}} from "./net.mjs";
    const model = await create();
    for (const inputs of [{", ".join(inputs)}])
      try {{ console.log(model.run(inputs).y.length); }}
      catch (error) {{ console.log(error.message); }}
    """


def test_wrong_calls_say_what_is_wrong(tmp_path: Path) -> None:
    node()
    write_module(compiled(parsed(MODELS["floats"])), "net", tmp_path, False)
    w = "w: new Float32Array(960)"
    told = run_script(
        _calls(
            f"{{{w}}}",
            f"{{x: new Float32Array(119), {w}}}",
            f"{{x: new Float64Array(120), {w}}}",
            f"{{x: {{data: new Float32Array(120), dims: [40, 3]}}, {w}}}",
            f"{{x: new Float32Array(120), z: 1, {w}}}",
        ),
        tmp_path,
    ).splitlines()
    expected = (
        "input 'x' is missing",
        "'x' Float32Array [3,40] has 120 elements, not Float32Array of 119",
        "not Float64Array of 120",
        "is not of shape [40,3]",
        "there is no input 'z', but x, w",
    )
    assert len(told) == len(expected)
    for text, part in zip(told, expected, strict=True):
        assert part in text


THREADED = """f (float[n, 48] x, float[48, 96] w, float[96, 48] v) => (float[n, 48] y)
    { a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) d = Softmax(c) y = Add(d, x) }"""


def test_any_number_of_threads_computes_the_same_bits(tmp_path: Path) -> None:
    node()
    model = parsed(THREADED)
    write_module(compiled(model, threads=2, dims={"n": (64, 200)}), "net", tmp_path, True)
    script = """
    import {create} from "./net.mjs";
    let seed = 1;
    const numbers = (n) => Float32Array.from({length: n}, () => {
      seed = seed * 16807 % 2147483647;
      return seed / 2147483647 - 0.5;
    });
    const [w, v] = [numbers(48 * 96), numbers(96 * 48)];
    const all = [64, 200].map((n) => ({x: numbers(n * 48), w, v}));
    const results = async (threads) => {
      const model = await create({threads}), found = [];
      if (model.threads !== (threads ?? 2)) throw new Error(`${model.threads} threads`);
      for (let k = 0; k < 50; k++) found.push(all.map((inputs) => String(model.run(inputs).y)));
      model.close();
      return found;
    };
    const alone = await results(1);
    if (new Set(alone.map(String)).size !== 1) throw new Error("other bits on one thread");
    for (const threads of [undefined, 2, 3])
      console.log(String(await results(threads)) === String(alone));
    await create({threads: 0}).catch((error) => console.log(error.message));
    await create({worker: new URL("./none.mjs", import.meta.url)})
        .catch(({message}) => console.log(message));
    let sent;
    globalThis.Worker = class extends (await import("node:worker_threads")).Worker {
      postMessage(data) { super.postMessage(sent = data); }
    };
    const helped = await create({threads: 2});
    const seat = new BigInt64Array(sent.memory.buffer, sent.team + SEAT, 1);
    for (let k = 0; k < 1e5 && !seat[0]; k++) helped.run(all[0]);
    console.log(`helped: ${seat[0] !== 0n}`);
    await import("./example.mjs");  // its worker does not keep the process
    """
    rooms = code.TEAM_BYTES, code.SETTINGS_BYTES, *[code.SEAT_BYTES] * 2, code.JOB_BYTES
    seat = sum(-(-n // code.LINE) * code.LINE for n in rooms) + code.LINE
    told = run_script(script.replace("SEAT", str(seat)), tmp_path).splitlines()
    assert told[:4] == [*["true"] * 3, "0 is no number of threads"]
    assert told[4].startswith("net: no thread: ")
    assert told[5] == "helped: true"
    assert told[6].startswith("y Float32Array(4)")
    assert "`net.worker.mjs`" in (tmp_path / "README.md").read_text()


def test_what_a_module_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of one thread"):
        autotune.compile(parsed(MODELS["floats"]), target="wasm32", threads=2, runner="node")
    try:
        hybrid = autotune.compile(saved(DETECTOR, tmp_path), check=False, target="wasm32")
    except MissingDependency as error:
        pytest.skip(error.message)
    with pytest.raises(ArtifactError, match="ONNX Runtime computes a part"):
        autotune.export(hybrid.artifact, tmp_path / "out", "net")
