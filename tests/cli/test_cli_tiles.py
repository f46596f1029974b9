"""A network by matrix tiles, from the model file to the check, in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.codegen.image.link import Image
from autotune.network.compile import compiler
from autotune.network.compile.compiler import link_networks
from autotune.target import parse_target
from tests.cli.conftest import Cli

TILES = parse_target("emulated-amx")


def _model(path: Path) -> Path:
    """x[37, 64] @ w1[64, 96] -> relu -> @ w2[96, 32]."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (64, 96), "w2": (96, 32)}
    weights = [
        numpy_helper.from_array(0.1 * rng.standard_normal(s).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [37, e])]
        for n, e in (("x", 64), ("y", 32))
    ]
    graph = helper.make_graph(nodes, "g", *ends, weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.skipif(not any(f.unit for f in TILES.isa.forms), reason="they take AVX-512")
def test_a_network_of_emulated_tiles_agrees_with_its_model(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = _model(tmp_path / "m.onnx"), tmp_path / "m.atn"
    settings = ("--precision", "bf16", "--target", "emulated-amx")
    done = cli("compile", model, *settings, "-o", out)
    assert done.code == 0, done.err
    assert "outputs agree" in done.err
    linked: list[bytes] = []

    def link(objects: Sequence[bytes], entries: Sequence[bytes], threads: bool = True) -> Image:
        linked.extend(objects)
        return link_networks(objects, entries, threads)

    monkeypatch.setattr(compiler, "link_networks", link)
    autotune.compile(model, precision="bf16", target="emulated-amx", check=False, cache=False)
    assert b"emulated.tdpbf16ps" in b"".join(linked)
