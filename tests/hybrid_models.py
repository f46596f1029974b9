"""Small models of which a part cannot be compiled: a detector, branches, trees, strings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]

OPSETS = '"" : 17, "ai.onnx.ml" : 3, "com.microsoft" : 1, "nobody" : 1'
HEAD = f"<ir_version: 8, opset_import: [{OPSETS}]>\n"

DETECTOR = """
detector (float[1,3,64,64] image) => (int64[n,3] selected, float[1,m,4] picked) {
  a = Conv <pads = [1,1,1,1], strides = [2,2]> (image, w0)
  b = Relu (a)
  c = Conv <pads = [1,1,1,1]> (b, w1)
  features = Relu (c)
  d = Conv (features, w2)
  e = Sigmoid (d)
  f = Conv (features, w3)
  g = Sigmoid (f)
  h = Reshape (e, by_box)
  boxes = Transpose <perm = [0,2,1]> (h)
  scores = Reshape (g, by_class)
  selected = NonMaxSuppression <center_point_box = 1> (boxes, scores, most, overlap, least)
  box = Gather <axis = 1> (selected, two)
  of_classes = Squeeze (box, one)
  numbers = Cast <to = 1> (of_classes)
  occurring, firsts, counts = com.microsoft.Unique (numbers)
  places = Cast <to = 7> (occurring)
  picked = Gather <axis = 1> (boxes, places)
}"""

BRANCH = """
branch (float[32,256] x) => (float[32,256] y) {
  a = MatMul (x, w1)
  b = Relu (a)
  m = MatMul (b, w2)
  total = ReduceSum <keepdims = 0> (m)
  is_more = Greater (total, zero)
  chosen = If (is_more) <
    then_branch = then () => (float[32,256] t) { t = Mul (m, m) },
    else_branch = other () => (float[32,256] e) {
      f = Cast <to = 1> (m)
      g = com.microsoft.SampleOp (f)
      h = CastLike (g, m)
      e = Sub (h, m)
    }
  >
  z = MatMul (chosen, w3)
  y = Tanh (z)
}"""

DECIDED = """
decided (float[32,256] x) => (float[32,256] y) {
  a = MatMul (x, w1)
  b = Relu (a)
  m = MatMul (b, w2)
  total = ReduceSum <keepdims = 0> (m)
  is_more = Greater (total, zero)
  chosen = If (is_more) <
    then_branch = then () => (float[32,256] t) { t = Mul (m, m) },
    else_branch = other () => (float[32,256] e) { e = Neg (m) }
  >
  z = MatMul (chosen, w3)
  y = Tanh (z)
}"""

TREES = """
trees (float[64,256] x) => (float[64,1] y) {
  a = MatMul (x, w1)
  b = Relu (a)
  c = MatMul (b, w2)
  f = Relu (c)
  y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, post_transform = "LOGISTIC",
    nodes_treeids = [0,0,0,0,0], nodes_nodeids = [0,1,2,3,4], nodes_featureids = [0,1,0,0,0],
    nodes_values = [0.1,0.2,0.0,0.0,0.0], nodes_truenodeids = [1,3,0,0,0],
    nodes_modes = ["BRANCH_LEQ","BRANCH_LEQ","LEAF","LEAF","LEAF"],
    nodes_falsenodeids = [2,4,0,0,0], target_treeids = [0,0,0], target_nodeids = [2,3,4],
    target_ids = [0,0,0], target_weights = [1.0,2.0,3.0]> (f)
}"""

WORDS = """
words (string[32] word) => (float[32,256] y, string[32] again) {
  id = ai.onnx.ml.CategoryMapper <cats_strings = ["cat","dog"], cats_int64s = [0,1],
    default_int64 = 2> (word)
  a = Gather (table, id)
  b = MatMul (a, w1)
  c = Relu (b)
  d = MatMul (c, w2)
  y = Tanh (d)
  again = Identity (word)
}"""

ENCODED = """
encoded (float[4] x) => (int64[2,n] places, seq(float[k]) parts) {
  places = NonZero (x)
  parts = SplitToSequence (x, lengths)
}"""

SCALED = f"""
scaled (float[64,256] x) => (seq(map(int64, float[])) y) {{
  a = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x)
  b = MatMul (a, w1)
  c = Relu (b)
  d = MatMul (c, w2)
  e = Softmax (d)
  y = ai.onnx.ml.ZipMap <classlabels_int64s = {list(range(256))}> (e)
}}"""

_SHAPES = {
    "detector": {
        "w0": (32, 3, 3, 3),
        "w1": (32, 32, 3, 3),
        "w2": (4, 32, 1, 1),
        "w3": (5, 32, 1, 1),
    },
    "branch": {"w1": (256, 256), "w2": (256, 256), "w3": (256, 256)},
    "decided": {"w1": (256, 256), "w2": (256, 256), "w3": (256, 256)},
    "trees": {"w1": (256, 256), "w2": (256, 256)},
    "scaled": {"w1": (256, 256), "w2": (256, 256)},
    "words": {"table": (3, 256), "w1": (256, 256), "w2": (256, 256)},
}
_CONSTANTS: Mapping[str, Any] = {
    "by_box": np.array([1, 4, -1]),
    "by_class": np.array([1, 5, -1]),
    "most": np.array([20]),
    "overlap": np.array(0.5, np.float32),
    "least": np.array(0.5, np.float32),
    "one": np.array([1]),
    "two": np.array([2]),
    "zero": np.array(0, np.float32),
    "lengths": np.array([1, 3]),
}


def parsed(text: str) -> onnx.ModelProto:
    """A model from the text of its graph, with random weights and the constants it reads."""
    model = onnx.parser.parse_model(HEAD + text)
    read = {name for node in model.graph.node for name in node.input}
    rng = np.random.default_rng(0)
    for name, shape in _SHAPES.get(model.graph.name, {}).items():
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        weight = (rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    for name in sorted(read & _CONSTANTS.keys()):
        model.graph.initializer.append(onnx.numpy_helper.from_array(_CONSTANTS[name], name))
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}_{number}"
    return model


def saved(text: str, folder: Path) -> Path:
    """The file of a model."""
    model = parsed(text)
    path = folder / f"{model.graph.name}.onnx"
    onnx.save(model, path)
    return path


def expected(path: Path, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """What ONNX Runtime computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
