"""① Casts to half precision that round: those of values that the type may not have.

    Cast(x, to=float16) of a float32       rounds, and overflows
    Cast(Cast(h, to=float32), to=float16)  does not where h is a float16 tensor
    Cast(u, to=float16) of bytes           does not

Half precision is computed in float32 (`widening`), which needs to know the types of the file: they
follow from declarations and, node by node, from the schemas of the standard. A value of which
nothing is known may be any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import GraphProto, NodeProto, TensorProto

from autotune.dtypes import DTYPES, PORT_TYPES, DType, SmallType
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.opsets import schema_of

_BY_NUMBER: Mapping[int, DType | SmallType] = {d.onnx: d for d in PORT_TYPES.values()}
_HALVES = {d.onnx: d for d in DTYPES.values() if d.is_narrow}


class Kinds:
    """The element types of the tensors of a graph, by their numbers in a file.

    `declared` are those of the tensors themselves; `narrowest`: the type that has all their values.
    """

    def __init__(self, opset: int, outer: Kinds | None = None) -> None:
        self.opset = opset
        self.declared: dict[str, int] = dict(outer.declared) if outer else {}
        self.narrowest: dict[str, int] = dict(outer.narrowest) if outer else {}

    def declare(self, graph: GraphProto) -> None:
        """Take the declared types of a graph's own tensors."""
        for tensor in graph.initializer:
            self._set(tensor.name, tensor.data_type)
        for value in (*graph.value_info, *graph.output, *graph.input):
            self._set(value.name, value.type.tensor_type.elem_type)

    def rounding(self, node: NodeProto) -> int:
        """The half precision that a cast rounds to; 0 for nodes that round nothing."""
        to = self._goal(node)
        if to not in _HALVES or not node.input:
            return 0
        source = self.narrowest.get(node.input[0], 0)
        return 0 if _holds(_HALVES[to], source) else to

    def add(self, node: NodeProto) -> None:
        """Infer the types of the results of a node."""
        goal = self._goal(node)
        own = self.narrowest.get(node.input[0], 0) if node.input else 0
        for position, name in enumerate(filter(None, node.output)):
            if goal:
                self.declared[name] = goal
                is_held = goal in _HALVES and _holds(_HALVES[goal], own)
                is_wider = goal in (TensorProto.FLOAT, TensorProto.DOUBLE) and own in _HALVES
                self.narrowest[name] = own if is_held or is_wider else goal
                continue
            self._set(name, self.declared.get(name, 0) or self._inferred(node, position))
            if own and _moves(node.op_type):
                self.narrowest[name] = own

    def _set(self, name: str, kind: int) -> None:
        if kind:
            self.declared[name] = self.narrowest[name] = kind

    def _goal(self, node: NodeProto) -> int:
        """Target type of a cast, if known; 0 for other nodes."""
        if node.op_type == "CastLike" and len(node.input) > 1:
            return self.declared.get(node.input[1], 0)
        if node.op_type != "Cast":
            return 0
        return next((a.i for a in node.attribute if a.name == "to"), 0)

    def _inferred(self, node: NodeProto, position: int) -> int:
        """The type of a result that is that of an operand."""
        schema = schema_of(node.op_type, self.opset) if node.domain in ("", "ai.onnx") else None
        if schema is None or not schema.outputs or not schema.inputs:
            return 0
        wanted = schema.outputs[min(position, len(schema.outputs) - 1)].type_str
        formal = [schema.inputs[min(n, len(schema.inputs) - 1)] for n in range(len(node.input))]
        pairs = zip(node.input, formal, strict=True)
        known = (self.declared.get(name, 0) for name, f in pairs if f.type_str == wanted)
        return next(filter(None, known), 0)


def _moves(op: str) -> bool:
    """Whether the results of an operator are elements of its first operand."""
    return op == "Identity" or (
        Trait.MOVES in operator_of(op).traits and op not in ("Concat", "Pad")
    )


def _holds(half: DType, kind: int) -> bool:
    """Whether half precision has every value of a type."""
    record = _BY_NUMBER.get(kind)
    if record is None or record == half:
        return record is not None
    if isinstance(record, DType) and record.is_float:
        return False
    if isinstance(record, SmallType) and record.is_float:
        return 2.0**-record.digits >= half.eps and record.high <= half.high
    return max(-record.low, record.high) <= 2 / half.eps


def rounded_casts(nodes: Iterable[NodeProto], kinds: Kinds) -> dict[int, int]:
    """Positions of the casts that round, with the type that each rounds to; `kinds` learns."""
    found = {}
    for position, node in enumerate(nodes):
        to = kinds.rounding(node)
        kinds.add(node)
        if to:
            found[position] = to
    return found
