"""Exports of networks with lengths: every size, in C and in WebAssembly, and what no size is."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray

import autotune
from autotune.errors import MissingDependency, OutputError, UsageError
from autotune.extent import Length
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.library import write_library
from autotune.network.export.module import write_module
from autotune.network.runtime.baselines import onnxruntime_runner
from autotune.network.runtime.exported import ExportedModel
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.toolchain import toolchain
from tests.network.sized_networks import drawn, sized_artifact
from tests.network.test_network_export import HEAD, STRICT, same_bits, tools, written
from tests.node import node, run_script

Arrays = Mapping[str, NDArray[Any]]

BATCH, ROWS = Length("batch", 4), Length("rows", 40)
HALVES = """f (float16[b, n, 8] x, uint8[n] i) => (float16[b, n, 8] y, uint8[n] j,
    float16[n, b, 8] t, int64[b] k) {
    y = Softmax(x)  j = Max(i, i)  t = Transpose<perm = [1, 0, 2]>(x)
    a = Constant<value_ints = [1, 2]>()  c = Cast<to = 7>(x)
    k = ReduceMax<keepdims = 0>(c, a) }"""


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return sized_artifact((BATCH, ROWS))


@pytest.fixture(scope="module")
def library(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sized")
    written(artifact, folder)
    return folder


def some_sizes(
    possible: Mapping[str, range], rng: np.random.Generator, n: int
) -> list[dict[str, int]]:
    """The longest first, which leaves something behind all others."""
    ends = [{k: v[i] for k, v in possible.items()} for i in (-1, 0)]
    return ends + [{k: int(rng.choice(v)) for k, v in possible.items()} for _ in range(n)]


def test_every_size_has_the_bits_of_python(
    artifact: Artifact, library: Path, rng: np.random.Generator
) -> None:
    model, exported = Model(artifact), ExportedModel(library / "libnet.so")
    for numbers in some_sizes(model.artifact.possible, rng, 20):
        inputs = drawn(rng, numbers["batch"], numbers["rows"])
        assert same_bits(model.run(inputs), exported.run(inputs))


def test_half_precision_bytes_and_steps(tmp_path: Path, rng: np.random.Generator) -> None:
    parsed = onnx.parser.parse_model(f"{HEAD} {HALVES}")
    dims = {"b": "..3", "n": "..24/3"}
    artifact = autotune.compile(parsed, check=False, threads=2, dims=dims).artifact
    written(artifact, tmp_path)
    model, exported = Model(artifact), ExportedModel(tmp_path / "libnet.so")
    for seed, numbers in enumerate(some_sizes(model.artifact.possible, rng, 10)):
        inputs = random_inputs(model.sized(numbers).input_info, seed)
        assert same_bits(model.run(inputs), exported.run(inputs))
    header = (tmp_path / "net.h").read_text()
    assert "Lengths: b from 1 to 3, 3*n from 3 to 24 in steps of 3." in header
    assert "COUNT 576 /* b x 3*n x 8 */" in header


def test_variants_have_lengths_of_their_own(tmp_path: Path, rng: np.random.Generator) -> None:
    made = sized_artifact((BATCH, ROWS), (2, Length("rows", 8)), (1, Length("few", 3)))
    written(made, tmp_path)
    model, exported = Model(made), ExportedModel(tmp_path / "libnet.so")
    for b, n in [(4, 40), (2, 8), (2, 9), (1, 3), (1, 4), (2, 1)]:
        inputs = drawn(rng, b, n)
        assert same_bits(model.run(inputs), exported.run(inputs))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((2, 41, 5), (41, 5)), "'x' has 41 in dimension 1 (rows), at most 40 are possible"),
        (((2, 0, 5), (0, 5)), "at least 1 are needed"),
        (((2, 3, 5), (4, 5)), "'x' and 'z' disagree about 'rows': 3 and 4"),
        (((2, 3, 6), (3, 5)), "'x' has shape (2, 3, 6), expected (batch, rows, 5)"),
    ],
)
def test_other_shapes_are_refused_in_python(
    library: Path, shapes: tuple[tuple[int, ...], ...], says: str
) -> None:
    with pytest.raises(UsageError) as failure:
        ExportedModel(library / "libnet.so").run([np.zeros(s, np.float32) for s in shapes])
    assert says in str(failure.value)


PROGRAM = """
#include "net.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static net_model *model;

static void *array(int64_t n) { return malloc((size_t)n * sizeof(float)); }

static void shape_of(net_inputs *in, int64_t b, int64_t n) {
  int64_t x[] = {b, n, 5}, z[] = {n, 5};
  memcpy(in->x_shape, x, sizeof x);
  memcpy(in->z_shape, z, sizeof z);
}

/* Arrays of just the size of the call: a sanitiser sees what is read or written behind them. */
static int differs(int64_t b, int64_t n, float scale) {
  net_inputs in = {0};
  net_outputs out = {0};
  net_result_shapes shapes;
  float *x = array(b * n * 5), *z = array(n * 5);
  int wrong = 0;
  shape_of(&in, b, n);
  in.x = x, in.z = z;
  for (int64_t k = 0; k < b * n * 5; k++) x[k] = scale * (float)(k % 11 - 5);
  for (int64_t k = 0; k < n * 5; k++) z[k] = scale * (float)k;
  if (net_shapes(&in, &shapes)) return 1;
  wrong |= shapes.y[0] != b || shapes.y[1] != n || shapes.y[2] != 6;
  wrong |= shapes.s[0] != b || shapes.same[0] != n;
  out.y = array(b * n * 6), out.s = array(b * 6), out.same = array(n * 5);
  wrong |= net_run(model, &in, &out) != 0;
  wrong |= memcmp(out.same, z, (size_t)n * 5 * sizeof(float)) != 0;
  for (int64_t k = 0; k < b * 6; k++) {
    double sum = 0;
    for (int64_t r = 0; r < n; r++) sum += out.y[(k / 6 * n + r) * 6 + k % 6];
    if (scale == 1) wrong |= !(fabs(sum - out.s[k]) < 1e-3);
  }
  free(out.y), free(out.s), free(out.same), free(x), free(z);
  return wrong;
}

static void told(int64_t b, int64_t n, int64_t features, int64_t other) {
  net_inputs in = {0};
  net_outputs out = {0};
  net_result_shapes shapes;
  int status;
  shape_of(&in, b, n);
  in.x_shape[2] = features;
  in.z_shape[0] = other;
  status = net_run(model, &in, &out);
  if (status == NET_OK || net_shapes(&in, &shapes) != (status == NET_NO_ARGUMENT ? 0 : status))
    puts("another status");
  printf("%d: %s\\n", status, net_strerror(status));
}

int main(void) {
  if (net_create(NULL, &model)) return 2;
  if (differs(4, 40, NAN)) puts("at the most");
  for (int64_t b = 1; b <= 4; b++)
    for (int64_t n = 1; n <= 40; n++)
      if (differs(b, n, 1)) printf("differs at %d %d\\n", (int)b, (int)n);
  told(1, 1, 5, 1);
  told(1, 41, 5, 41);
  told(0, 1, 5, 1);
  told(1, 3, 5, 4);
  told(1, 3, 6, 3);
  told(5, 40, 5, 40);
  told(-1, 40, 5, 40);
  net_destroy(model);
  return 0;
}
"""
TOLD = """\
3: an argument is missing, or cannot be
8: a dimension is longer than the network was compiled for: batch from 1 to 4, rows from 1 to 40
9: a dimension is shorter than the network can have: batch from 1 to 4, rows from 1 to 40
11: inputs disagree about a length: batch from 1 to 4, rows from 1 to 40
4: the network was not compiled for inputs of these shapes
8: a dimension is longer than the network was compiled for: batch from 1 to 4, rows from 1 to 40
9: a dimension is shorter than the network can have: batch from 1 to 4, rows from 1 to 40
"""


def built(artifact: Artifact, folder: Path, program: str, flags: tuple[str, ...]) -> Path:
    cc = shlex.join([*tools().cc, *flags])
    write_library(artifact, "net", folder, toolchain(cc, "x86_64"), False)
    (folder / "program.c").write_text(program)
    command = [*shlex.split(cc), "-std=c99", *STRICT, "program.c", "libnet.a", "-I.", "-lpthread"]
    subprocess.run([*command, "-lm", "-o", "program"], check=True, cwd=folder)
    return folder / "program"


@pytest.mark.parametrize("flags", [(), ("-g", "-fsanitize=address,undefined")])
def test_a_program_in_c_calls_every_size(
    artifact: Artifact, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    try:
        program = built(artifact, tmp_path, PROGRAM, flags)
    except (OutputError, subprocess.CalledProcessError):
        if not flags:
            raise
        pytest.skip("the compiler has no such sanitiser")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, TOLD, "")


BETWEEN = """
#include "net.h"
#include <stdio.h>
int main(void) {
  net_inputs in = {0};
  net_result_shapes shapes;
  for (in.x_shape[1] = 4; in.x_shape[1] < 7; in.x_shape[1]++) {
    in.x_shape[0] = 1, in.x_shape[2] = 5;
    in.z_shape[0] = in.x_shape[1], in.z_shape[1] = 5;
    puts(net_strerror(net_shapes(&in, &shapes)));
  }
  printf("%d %d\\n", (int)shapes.y[1], NET_INPUT_Z_COUNT);
  return 0;
}
"""


def test_a_size_between_two_steps_is_an_error(tmp_path: Path) -> None:
    artifact = sized_artifact((1, Length("width", 5, 8, -3)))
    program = built(artifact, tmp_path, BETWEEN.replace("< 7", "<= 13"), ())
    *others, last = subprocess.run([program], capture_output=True, text=True).stdout.splitlines()
    text = "a dimension is between two steps: 8*width -3 from 5 to 37 in steps of 8"
    short = "a dimension is shorter than the network can have: "
    assert [o.startswith(short) for o in others] == [True] + [False] * 9
    assert others[1:] == ["no error", *[text] * 7, "no error"]
    assert last == "13 185"


def test_the_companions_of_a_library_say_the_longest(library: Path) -> None:
    readme = (library / "README.md").read_text()
    assert "| in `x` | float32 | [batch, rows, 5] |" in readme
    cc = tools().cc
    command = [*cc, "-std=c99", *STRICT, "example.c", "-I.", "-L.", "-lnet", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*command, "-o", "example"], check=True, cwd=library)
    shown = subprocess.run(["./example"], capture_output=True, text=True, check=True, cwd=library)
    assert shown.stdout.count(":") == 3
    cpp = ["-std=c++17", *STRICT, "-fsyntax-only", "-x", "c++", "net.h"]
    subprocess.run([*cc, *cpp], check=True, cwd=library)


def deep(layers: int) -> onnx.ModelProto:
    """Attention without weights, a product and a sum in each layer; names sort badly."""
    rng = np.random.default_rng(0)
    graph = onnx.helper.make_graph(
        [],
        "deep",
        [onnx.helper.make_tensor_value_info("x", 1, ("batch", "sequence", 16))],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
    )
    x = "x"

    def op(kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(graph.node)}"
        graph.node.append(onnx.helper.make_node(kind, inputs, [name], **attrs))
        return name

    for k in range(layers):
        w = (rng.standard_normal((16, 16)) / 4).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(w, f"w{k}"))
        scores = op("MatMul", x, op("Transpose", x, perm=[0, 2, 1]))
        mixed = op("MatMul", op("Softmax", scores), x)
        x = op("Tanh", op("Add", x, op("MatMul", mixed, f"w{k}")))
    graph.node.append(onnx.helper.make_node("Identity", [x], ["y"]))
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


SCRIPT = """
import fs from "node:fs";
import {create, signature} from "./net.mjs";
const kinds = {float32: Float32Array, int64: BigInt64Array, uint8: Uint8Array,
  float16: Uint16Array};
const model = await create(), told = [];
const read = (text) => {
  const bytes = Buffer.from(text, "base64");
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
};
for (const given of JSON.parse(fs.readFileSync("inputs.json"))) {
  const inputs = Object.fromEntries(signature.inputs.map(({name, dtype}) =>
      [name, {data: new kinds[dtype](read(given[name].data)), dims: given[name].dims}]));
  const dims = model.dims(inputs), once = model.run(inputs), again = model.run(inputs, once);
  told.push(Object.fromEntries(Object.entries(again).map(([name, one]) => {
    if (one.data !== once[name].data || `${one.dims}` !== `${dims[name]}`) throw new Error(name);
    const {buffer, byteOffset, byteLength} = one.data;
    return [name, {dims: one.dims,
                   data: Buffer.from(buffer, byteOffset, byteLength).toString("base64")}];
  })));
}
console.log(JSON.stringify(told));
"""


def in_node(folder: Path, cases: list[Arrays]) -> list[dict[str, tuple[list[int], bytes]]]:
    """Shapes and bytes of the results of each call, one after another."""
    given = [
        {n: {"dims": a.shape, "data": base64.b64encode(a.tobytes()).decode()} for n, a in c.items()}
        for c in cases
    ]
    (folder / "inputs.json").write_text(json.dumps(given))
    told = json.loads(run_script(SCRIPT, folder))
    return [
        {n: (t["dims"], base64.b64decode(t["data"])) for n, t in outputs.items()}
        for outputs in told
    ]


def module(model: onnx.ModelProto | Path, folder: Path, dims: Mapping[str, Any]) -> None:
    node()
    try:
        made = autotune.compile(model, check=False, target="wasm32", dims=dims).artifact
    except MissingDependency as error:
        pytest.skip(error.message)
    write_module(made, "net", folder, False)


DEEP = {"batch": "..3", "sequence": "..24"}


def deep_cases(folder: Path, rng: np.random.Generator) -> list[tuple[Arrays, NDArray[Any]]]:
    """Inputs of some sizes, and what ONNX Runtime computes of them."""
    pytest.importorskip("onnxruntime")
    oracle, found = onnxruntime_runner(folder / "deep.onnx", 1), []
    for size in some_sizes({"batch": range(1, 4), "sequence": range(1, 25)}, rng, 4):
        x = rng.standard_normal((size["batch"], size["sequence"], 16), np.float32)
        found.append(({"x": x}, oracle({"x": x})["y"]))
    return found


@pytest.mark.slow
def test_twelve_layers_in_c_are_what_the_file_computes_at_every_size(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    onnx.save(deep(12), tmp_path / "deep.onnx")
    made = autotune.compile(tmp_path / "deep.onnx", check=False, threads=2, dims=DEEP).artifact
    written(made, tmp_path)
    exported = ExportedModel(tmp_path / "libnet.so")
    for case, y in deep_cases(tmp_path, rng):
        np.testing.assert_allclose(exported.run(case)["y"], y, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_layers_of_a_module_are_what_the_file_computes_at_every_size(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    onnx.save(deep(2), tmp_path / "deep.onnx")
    module(tmp_path / "deep.onnx", tmp_path, DEEP)
    cases = deep_cases(tmp_path, rng)
    for found, (_, y) in zip(in_node(tmp_path, [case for case, _ in cases]), cases, strict=True):
        shape, data = found["y"]
        assert shape == list(y.shape)
        array = np.frombuffer(data, np.float32).reshape(shape)
        np.testing.assert_allclose(array, y, rtol=0, atol=1e-5)


def test_a_module_takes_half_precision_bytes_and_steps(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    parsed = onnx.parser.parse_model(f"{HEAD} {HALVES}")
    dims = {"b": "..3", "n": "..24/3"}
    module(parsed, tmp_path, dims)
    model = Model(autotune.compile(parsed, check=False, threads=1, dims=dims).artifact)
    numbers = some_sizes(model.artifact.possible, rng, 5)
    cases = [random_inputs(model.sized(n).input_info, k) for k, n in enumerate(numbers)]
    for inputs, found in zip(cases, in_node(tmp_path, cases), strict=True):
        for name, array in model.run(inputs).items():
            shape, data = found[name]
            assert shape == list(array.shape)
            here = np.frombuffer(data, array.dtype).reshape(shape)
            tolerance = 1e-2 if array.dtype == np.float16 else 0
            wide = (x.astype(np.float64) for x in (here, array))
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


REFUSED = {
    "{x: {data: f(40), dims: [1, 5, 8]}, i: u(5)}": "'x' has 5 in dimension 1 (3·n), whose steps",
    "{x: {data: f(216), dims: [1, 27, 8]}, i: u(27)}": "27 in dimension 1 (3·n), at most 24 are",
    "{x: {data: f(0), dims: [1, 0, 8]}, i: u(0)}": "at least 3 are needed",
    "{x: {data: f(24), dims: [1, 3, 8]}, i: u(6)}": "'i' has 6 in dimension 0 (3·n), about which",
    "{x: {data: f(24), dims: [1, 24]}, i: u(3)}": "is of shape [b,3·n,8], not [1,24]",
    "{x: {data: f(21), dims: [1, 3, 7]}, i: u(3)}": "is of shape [b,3·n,8], not [1,3,7]",
    "{x: f(24), i: u(3)}": "'x' Uint16Array is of shape [b,3·n,8]: give {data, dims}",
    "{x: {data: f(25), dims: [1, 3, 8]}, i: u(3)}": "has 24 elements, not Uint16Array of 25",
    "{x: {data: u(24), dims: [1, 3, 8]}, i: u(3)}": "has 24 elements, not Uint8Array of 24",
    "{x: {data: f(24), dims: [1, 3, 8]}}": "input 'i' is missing",
    "{x: {data: f(24), dims: [1, 3, 8]}, i: null}": "'i' Uint8Array is of shape [3·n] has not",
    "{x: {data: f(24), dims: [1, 1.5, 8]}, i: u(3)}": "is of shape [b,3·n,8], not [1,1.5,8]",
    "{x: {data: f(24), dims: [1, -3, 8]}, i: u(3)}": "at least 3 are needed",
    "{x: {data: f(24), dims: [1, 3, 8]}, i: u(3)}": "1,3,8",
}


def test_a_module_says_which_sizes_there_are(tmp_path: Path) -> None:
    module(onnx.parser.parse_model(f"{HEAD} {HALVES}"), tmp_path, {"b": "..3", "n": "..24/3"})
    script = f"""
    import {{create}} from "./net.mjs";
    const f = (n) => new Uint16Array(n), u = (n) => new Uint8Array(n);
    const model = await create();
    for (const inputs of [{", ".join(REFUSED)}])
      try {{ console.log(`${{model.run(inputs).y.dims}}`); }}
      catch (error) {{ console.log(error.message); }}
    """
    told = run_script(script, tmp_path).splitlines()
    assert len(told) == len(REFUSED)
    for text, part in zip(told, REFUSED.values(), strict=True):
        assert part in text
    run_script((tmp_path / "example.mjs").read_text(), tmp_path)
    types = (tmp_path / "net.d.ts").read_text()
    assert "  y: {data: Uint16Array; dims: number[]};\n" in types
