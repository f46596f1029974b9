"""Networks for CPUs of other architectures compute the same numbers, under emulation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import autotune
from autotune.errors import MissingDependency
from autotune.network.export.library import write_library
from autotune.network.runtime.runtime import random_inputs
from autotune.target import parse_target
from autotune.toolchain import Toolchain
from benchmarks.foreign import FarCompiler, runner
from benchmarks.outcomes import Compiler

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
MODELS = {
    "product": "(float[48, 96] x, float[96, 64] w) => (float[48, 64] y) { y = MatMul(x, w) }",
    "bytes": "(uint8[32, 64] x, int8[64, 48] w) => (int32[32, 48] y) { y = MatMulInteger(x, w) }",
    "convolution": "(float[1, 16, 14, 14] x, float[24, 16, 3, 3] w, float[24] b) => "
    "(float[1, 24, 14, 14] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c) }",
    "softmax": "(float[12, 77] x) => (float[12, 77] y) { y = Softmax(x) }",
    "functions": "(float[3, 100] x) => (float[3, 100] y) "
    "{ e = Erf(x) s = Sigmoid(e) t = Tanh(x) u = Sin(t) y = Mul(s, u) }",
    "rows": "(float[8, 64] x, float[64] s) => (float[8, 64] y) { y = LayerNormalization(x, s) }",
    "windows": "(float[1, 8, 13, 13] x) => (float[1, 8, 6, 6] y) "
    "{ y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(x) }",
    "masks": "(int64[7, 9] x, int64[7, 9] z) => (float[7, 9] y) "
    "{ m = Equal(x, z) y = Cast<to = 1>(m) }",
    "brain": "(bfloat16[32, 64] x, bfloat16[64, 48] w) => (bfloat16[32, 48] y) "
    "{ y = MatMul(x, w) }",
}
HALVES = "(float16[5, 33] x, float16[33, 16] w) => (float16[5, 16] y) { y = MatMul(x, w) }"
OTHERS = ("neoverse-n1", "neoverse-v2", "rv64gcv-zvl256b", "rv64gcv", "armv8-a-sve512")
_MAIN = """
#include "net.h"
#include <stdio.h>
int main(void) {
  static float x[3 * 40], w[40 * 24], y[3 * 24];
  net_options options = {0};
  net_model *model;
  net_inputs in = {0};
  net_outputs out = {0};
  options.threads = 2;
  if (fread(x, sizeof x, 1, stdin) != 1 || fread(w, sizeof w, 1, stdin) != 1) return 2;
  in.x = x, in.w = w, out.y = y;
  if (net_create(&options, &model) || net_run(model, &in, &out)) return 1;
  net_destroy(model);
  return fwrite(y, sizeof y, 1, stdout) != 1;
}
"""


@contextmanager
def compiler(target: str) -> Iterator[FarCompiler]:
    """Of a target whose emulator is here."""
    try:
        runner(target)
        found = FarCompiler(parse_target(target))
    except (LookupError, MissingDependency) as error:
        pytest.skip(str(error))
    try:
        yield found
    finally:
        found.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "target", ["neoverse-v1", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_networks_compute_elsewhere_what_they_compute_here(target: str) -> None:
    with compiler(target) as far:
        is_arm = far.target.arch == "aarch64"
        compare(far, MODELS | ({"halves": HALVES} if is_arm else {}))


def compare(far: FarCompiler, models: Mapping[str, str]) -> None:
    here = Compiler()
    for name, text in models.items():
        model = onnx.parser.parse_model(f"{HEAD} {name} {text}").SerializeToString()
        expected, found = here(model), far(model)
        inputs = random_inputs(expected.artifact.inputs, 1)
        pairs = expected.run(inputs), found.run(inputs)
        for output, array in pairs[0].items():
            wide = [pair[output].astype(np.float64) for pair in pairs]
            tolerance = 1e-2 if array.dtype.itemsize == 2 else 1e-5
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("target", ["neoverse-n1", "neoverse-v1", "rv64gcv-zvl256b"])
def test_an_exported_library_is_linked_into_a_static_program(target: str, tmp_path: Path) -> None:
    with compiler(target):
        command = runner(target)
    text = "f (float[3, 40] x, float[40, 24] w) => (float[3, 24] y) { y = MatMul(x, w) }"
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    artifact = autotune.compile(model, check=False, threads=2, target=target).artifact
    zig = (sys.executable, "-m", "ziglang")
    cc = (*zig, "cc", "-target", f"{artifact.target.arch}-linux-musl")
    write_library(artifact, "net", tmp_path, Toolchain(cc, (*zig, "ar")), False)
    (tmp_path / "main.c").write_text(_MAIN)
    files = [str(tmp_path / name) for name in ("main.c", "libnet.a", "main")]
    subprocess.run([*cc, "-static", *files[:2], "-o", files[2], "-lpthread"], check=True)
    rng = np.random.default_rng(0)
    inputs = {n: rng.random(s, np.float32) for n, s in (("x", (3, 40)), ("w", (40, 24)))}
    given = b"".join(array.tobytes() for array in inputs.values())
    done = subprocess.run([*command.split(), files[2]], input=given, capture_output=True)
    assert done.returncode == 0, done.stderr
    found = np.frombuffer(done.stdout, np.float32).reshape(3, 24)
    np.testing.assert_allclose(found, inputs["x"] @ inputs["w"], rtol=1e-5)
