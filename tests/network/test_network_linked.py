"""Networks whose code is linked here compute what they compute when LLVM links it, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.codegen.image.link import Image
from autotune.errors import ArtifactError
from autotune.network.compile import compiler
from autotune.network.compile.compiler import link_networks
from autotune.network.runtime import working_memory
from autotune.network.runtime.runtime import Model, random_inputs
from tests.codegen.test_codegen_link import Llvm
from tests.network.hand_made import reversing

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
NETWORKS = {
    "convolutions": """
      n (float[1,3,19,23] x, float[8,3,3,3] w, float[8,1,3,3] d) => (float[1,8] y) {
        a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w)
        b = Sigmoid (a)
        c = Conv <pads = [1,1,1,1], group = 8> (b, d)
        e = MaxPool <kernel_shape = [2,2]> (c)
        f = GlobalAveragePool (e)
        y = Flatten (f) }""",
    "attention": """
      n (float[2,13,16] x, float[16,16] w) => (float[2,13,16] y) {
        q = MatMul (x, w)
        t = Transpose <perm = [0,2,1]> (x)
        s = MatMul (q, t)
        p = Softmax (s)
        v = MatMul (p, x)
        y = LayerNormalization (v, g) }""",
    "functions": """
      n (float[5,37] x) => (float[5,37] y, int64[5] k) {
        a = Exp (x)
        b = Erf (a)
        c = Sin (x)
        d = Pow (b, c)
        e = Tanh (d)
        f = Softplus (e)
        y = Add (f, x)
        k = ArgMax <axis = 1, keepdims = 0> (y) }""",
    "integers": """
      n (int32[7,33] x, int64[7] i) => (int32[7,33] y, double[7,33] z) {
        a = Mul (x, x)
        b = Gather (a, i)
        y = Sub (b, x)
        c = Cast <to = 11> (y)
        z = Sqrt (c) }""",
}


class LlvmLibrary(Llvm):
    """What a model needs of a library, by LLVM; there is one entry, of number 0."""

    def has(self, symbol: str) -> bool:
        return bool(self.address(symbol))

    def address(self, symbol: str) -> int:
        return super().address(symbol.removesuffix(".0"))


def compiled(text: str, patch: pytest.MonkeyPatch) -> tuple[autotune.Model, list[bytes]]:
    """A model, and the objects that it was linked of."""
    proto = onnx.parser.parse_model(HEAD + text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(16, np.float32), "g"))
    linked: list[bytes] = []

    def link(objects: Sequence[bytes], entries: Sequence[bytes], threads: bool = True) -> Image:
        linked[:] = [*objects, *entries]
        return link_networks(objects, entries, threads)

    patch.setattr(compiler, "link_networks", link)
    source: Any = proto.SerializeToString()
    artifact = autotune.compile(source, threads=2, check=False, cache=False).artifact
    return Model(artifact, 2), linked


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_the_same_when_llvm_links_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, objects = compiled(NETWORKS[name], monkeypatch)
    library: Callable[..., Any] = lambda artifact: LlvmLibrary(objects)  # noqa: E731
    monkeypatch.setattr(working_memory, "_library", library)
    theirs = Model(ours.artifact, 2)
    for seed in range(5):
        inputs = random_inputs(ours.input_info, seed)
        expected = theirs.run(inputs)
        for output, found in ours.run(inputs).items():
            assert found.tobytes() == expected[output].tobytes()


def test_code_that_calls_what_no_library_has_is_refused_by_name() -> None:
    artifact = reversing(1)
    wanting = replace(artifact.image, imports={**artifact.image.imports, "nobody_has_this": ()})
    with pytest.raises(ArtifactError, match="it calls 'nobody_has_this'") as caught:
        Model(replace(artifact, image=wanting))
    assert "compile the model on this machine" in caught.value.hint
