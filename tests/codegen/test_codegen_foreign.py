"""Code for other architectures: the instructions of inner loops, and relocations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import autotune
from autotune.codegen.compile import assembly
from autotune.codegen.image.relocations import AARCH64, RISCV64
from autotune.errors import ArtifactError, CodegenError
from autotune.graph.network import build_network
from autotune.loopir.lower import lower
from autotune.search.defaults import default_steps
from autotune.target import Target, parse_target
from autotune.target.isa import HOST, NAMES, architecture_of

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
KERNELS = {
    "product": "(float[256, 256] x, float[256, 256] w) => (float[256, 256] y) { y = MatMul(x, w) }",
    "batched": "(float[4, 64, 64] x, float[4, 64, 96] w) => (float[4, 64, 96] y) "
    "{ y = MatMul(x, w) }",
    "transposed": "(float[64, 256] x, float[128, 256] w) => (float[64, 128] y) "
    "{ y = Gemm<transB = 1>(x, w) }",
    "dense": "(float[1, 512] x, float[512, 1000] w) => (float[1, 1000] y) { y = MatMul(x, w) }",
    "pointwise": "(float[1, 128, 14, 14] x, float[256, 128, 1, 1] w) => (float[1, 256, 14, 14] y) "
    "{ y = Conv(x, w) }",
    "strided": "(float[1, 3, 112, 112] x, float[32, 3, 3, 3] w) => (float[1, 32, 56, 56] y) "
    "{ y = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) }",
    "fused": "(float[96, 128] x, float[128, 192] w) => (float[96, 192] y) "
    "{ p = MatMul(x, w) y = Relu(p) }",
    "sequence": "(float[1, 64, 400] x, float[96, 64, 1] w) => (float[1, 96, 400] y) "
    "{ y = Conv(x, w) }",
    "depthwise": "(float[1, 64, 28, 28] x, float[64, 1, 3, 3] w) => (float[1, 64, 28, 28] y) "
    "{ y = Conv<pads = [1, 1, 1, 1], group = 64>(x, w) }",
    "bytes": "(uint8[64, 256] x, int8[256, 128] w) => (int32[64, 128] y) "
    "{ y = MatMulInteger(x, w) }",
}
"""Ten typical kernels; `w` is constant."""
_MULTIPLY_ADD = re.compile(r"fmla|fmad|[us]+dot|smlal|umlal|bfdot|mla|vfmacc|vfmadd|vmacc|vmadd")
_NO_ARITHMETIC = re.compile(
    r"(ld|st|mov|dup|fmov|movi|ptrue|prf|vl|vs\d|vse|vmv|vfmv|vset|zip|uzp|trn|ext|ins|shll|[us]shll)"
)
_ENDS = re.compile(r"(\.?\w+:|b\.|(b|j|ret|cbn?z|tbn?z|b(eq|ne|ge|lt)[uz]?)\s)")
_VECTOR = re.compile(r"\b(z\d+|v\d+|q\d+)\b")


def blocks(text: str) -> Iterator[list[str]]:
    """The vector instructions of each basic block."""
    found: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if _ENDS.match(line):
            yield found
            found = []
        elif _VECTOR.search(line) and not line.startswith("."):
            found.append(line.split()[0])


def code(name: str, target: str, folder: Path) -> str:
    """Assembly of a kernel by its default schedule."""
    model = onnx.parser.parse_model(f"{HEAD} {name} {KERNELS[name]}")
    port = next(i for i in model.graph.input if i.name == "w")
    kind = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    weights = (9 * np.random.default_rng(0).standard_normal(shape)).astype(kind)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.input.remove(port)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    cpu = parse_target(target)
    tasks = build_network(path).tasks.values()
    return "\n".join(assembly(lower(dag, default_steps(dag, cpu, 1)), cpu) for dag in tasks)


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("target", ["neoverse-n1", "neoverse-v1", "rv64gcv-zvl256b"])
@pytest.mark.parametrize("name", KERNELS)
def test_inner_loops_multiply_and_add(name: str, target: str, tmp_path: Path) -> None:
    """Of the arithmetic on vectors in the largest block of sums at least nine tenths do."""
    if name == "bytes" and target != "neoverse-v1":
        pytest.skip("no instruction there multiplies unsigned by signed bytes")
    counts = []
    for block in blocks(code(name, target, tmp_path)):
        n_sums = sum(bool(_MULTIPLY_ADD.match(i)) for i in block)
        counts.append((n_sums, sum(not _NO_ARITHMETIC.match(i) for i in block)))
    n_sums, n_arithmetic = max(counts)
    assert n_sums >= 8
    assert n_sums >= 0.9 * n_arithmetic


def test_distances_are_in_the_bits_of_jumps_and_branches() -> None:
    """Of words that LLVM's disassembler shows as jumps by so many bytes."""
    known = (  # machine, kind, distance; instruction of n bytes without and with it
        (AARCH64, 283, 0x1000, 0x94000000, 0x94000400, 4),
        (AARCH64, 282, -4, 0x14000000, 0x17FFFFFF, 4),
        (AARCH64, 280, -8, 0x54000000, 0x54FFFFC0, 4),
        (RISCV64, 17, 0x800, 0x0000006F, 0x0010006F, 4),
        (RISCV64, 17, -4, 0x0000006F, 0xFFDFF06F, 4),
        (RISCV64, 16, -8, 0x00000063, 0xFE000CE3, 4),
        (RISCV64, 45, 8, 0xA001, 0xA021, 2),
        (RISCV64, 44, -2, 0xC001, 0xDC7D, 2),
    )
    for machine, kind, distance, before, after, n_bytes in known:
        image = bytearray(before.to_bytes(n_bytes, "little"))
        machine.forms[kind].store(image, 0, distance, 0)
        assert int.from_bytes(image, "little") == after, (machine.name, kind)


def test_what_is_out_of_reach_is_an_error() -> None:
    for machine, kind, distance in ((AARCH64, 283, 1 << 27), (RISCV64, 17, 1 << 20)):
        with pytest.raises(CodegenError, match="too far apart"):
            machine.forms[kind].store(bytearray(4), 0, distance, 0)


def test_targets_of_other_architectures_do_not_depend_on_this_machine() -> None:
    """Nor do keys of targets here change: they have no architecture in their JSON."""
    for name in NAMES.keys() - HOST.processors.keys():
        target = parse_target(name)
        assert target == Target.from_json(target.to_json())
        assert (target.arch, target.n_cores) == (architecture_of(name).name, 1)
    assert "arch" not in parse_target("haswell").to_json()


def test_an_artifact_of_another_architecture_says_so_when_it_is_loaded(tmp_path: Path) -> None:
    notes: list[str] = []
    model = onnx.parser.parse_model(f"{HEAD} f (float[4] x) => (float[4] y) {{ y = Exp(x) }}")
    done = autotune.compile(model, target="neoverse-v1", note=notes.append, cache=False)
    assert done.report is None
    assert notes[-1].startswith("not checked: this CPU cannot run code for neoverse-v1")
    path = tmp_path / "far.atn"
    done.artifact.save(path)
    with pytest.raises(ArtifactError, match="whose architecture is aarch64") as caught:
        autotune.load(path)
    assert "autotune export" in caught.value.hint
