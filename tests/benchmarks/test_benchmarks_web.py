"""Both engines of the WebAssembly benchmark run in Node and in a page, and are compared."""

from __future__ import annotations

import json
from pathlib import Path

import onnx.parser
import pytest

from benchmarks.web import browser, cells, in_browser, in_node, page, prepared
from tests.node import node

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
m (float[3, 40] x) => (float[3, 40] y) { y = Relu(x) }"""
PEER = """
export const env = {wasm: {}};
export class Tensor { constructor(dtype, data, dims) { Object.assign(this, {dtype, data, dims}); } }
export const InferenceSession = {create: async () => ({
  run: async ({x}) => ({y: {data: x.data.map((value) => Math.max(value, 0) + ERROR)}}),
})};
"""


@pytest.mark.parametrize(("error", "bounds"), [(0.0, (0.0, 1e-6)), (0.5, (0.05, 1.0))])
def test_engines_are_compared_in_turns(
    tmp_path: Path, error: float, bounds: tuple[float, float]
) -> None:
    node()
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "net.onnx")
    package = tmp_path / "node_modules/onnxruntime-web"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text('{"version": "0.1"}')
    (package / "dist/ort-wasm-simd-threaded.wasm").write_bytes(b"")
    for name in ("ort.node.min.mjs", "ort.wasm.min.mjs"):
        (package / "dist" / name).write_text(PEER.replace("ERROR", str(error)))
    folder = tmp_path / "made"
    folder.mkdir()
    ready = prepared(tmp_path / "net.onnx", tmp_path / "none.jsonl", tmp_path, folder, 3, 2, "node")
    runs = [in_node(["node"], ready.folder)]
    if (command := browser()) is not None:
        runs.append(in_browser(command, ready.folder))
    for run in runs:
        assert [len(times) for times in run["times"]] == [3, 3], json.dumps(run)
        assert bounds[0] <= run["difference"] <= bounds[1]
    assert ready.trials == 0
    row = ["net", "Node", "0", "1", *cells(runs), "0"]
    assert "| net | Node | 0 |" in page([row], {"Node": runs[0]["engine"]}, tmp_path, 1, 3)
