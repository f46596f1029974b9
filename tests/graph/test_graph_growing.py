"""What may stand on a tensor that grows with a state."""

from __future__ import annotations

from pathlib import Path

import onnx.defs
import onnx.parser
import pytest

from autotune.graph.bound_model import BoundModel
from autotune.graph.grown_networks import grown_networks
from autotune.graph.ir import OPSET
from autotune.graph.operators.table import OPERATORS
from autotune.graph.reader.grown import grown
from autotune.graph.reader.opsets import schema_of

CAPACITY = 48
DECODER = """<ir_version: 10, opset_import: ["" : {opset}]>
decoder (int64[1, n] input_ids, float[1, p, 8] past)
    => (float[1, n, 8] logits, float[1, t, 8] present) {{
  last = Constant <value_ints = [2]> ()
  row = Constant <value_floats = [1.0, 0.5, 0.25, 2.0, -1.0, 0.1, 0.2, 0.3]> ()
  ids = Cast <to = 1> (input_ids)
  column = Unsqueeze (ids, last)
  x = Mul (column, row)
  present = Concat <axis = 1> (past, x)
  keys = Transpose <perm = [0, 2, 1]> (present)
  scores = MatMul (x, keys)
  {casts}
  changed = {op} {attributes} ({operands})
  numbers = Cast <to = 1> (changed)
  shares = Softmax <axis = -1> (numbers)
  logits = MatMul (shares, present)
}}"""
ATTRIBUTES = {"BitShift": '<direction = "LEFT">', "Cast": "<to = 6>"}
TYPES = {"float": 1, "bool": 9, "int32": 6, "uint8": 2}


def decoder_with(op: str) -> str:
    """An attention whose scores go through an elementwise operator, in types that it takes."""
    schema = schema_of(op, OPSET)
    assert schema is not None
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    names, casts = [], []
    for n in range(schema.min_input):
        port = schema.inputs[min(n, len(schema.inputs) - 1)]
        kinds = allowed.get(port.type_str, [port.type_str])
        kind = next(kind for kind in TYPES if f"tensor({kind})" in kinds)
        casts.append(f"x{n} = Cast <to = {TYPES[kind]}> (scores)")
        names.append(f"x{n}")
    return DECODER.format(
        opset=OPSET, op=op, casts="\n  ".join(casts), operands=", ".join(names),
        attributes=ATTRIBUTES.get(op, ""),
    )  # fmt: skip


ELEMENTWISE = [
    op
    for op, operator in OPERATORS.items()
    if operator.is_elementwise and onnx.defs.has(op) and schema_of(op, OPSET) is not None
]


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_every_elementwise_operator_may_stand_on_scores(op: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(decoder_with(op)), path := tmp_path / "m.onnx")
    (network,) = grown_networks(BoundModel(path), [grown(path, CAPACITY)])
    assert any(CAPACITY in value.shape for value in network.values.values())
