"""① Tensors of half precision, float8, float4 and of 4 and 2 bits become those of their storage.

    Cast(x, to=float8) -> ToSmallType(Cast(x, to=float32))           of float32
    Cast(x, to=int4)   -> ToSmallType(Cast(x, to=int32))             of int8
    QuantizeLinear(x, s, z) of float8 or int4                         rounds to these as well

All other operators take such tensors as they take float32, int8 and uint8. Ports keep their types:
arrays are converted at the edge of a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.dtypes import DTYPES, SMALL_TYPES, DType, SmallType, stored_dtype
from autotune.graph.ir import Editor, Graph, Node, TensorType

_SMALL: Mapping[str, SmallType | DType] = {
    **SMALL_TYPES,
    **{d.name: d for d in DTYPES.values() if d.is_narrow},
}


def store_small_types(graph: Graph) -> Graph:
    """Tensors of half precision, of float8 and of less than 8 bits are stored in wider types."""
    small = {n: _SMALL[t.dtype] for n, t in graph.types.items() if t.dtype in _SMALL}
    if not small:
        return graph
    editor = Editor(graph)
    for name, stored in ((n, stored_dtype(kind.name)) for n, kind in small.items()):
        value = editor.constants.get(name)
        editor.types[name] = TensorType(editor.types[name].shape, stored)
        if value is not None:
            editor.set_constant(name, value.astype(stored))
    for original in graph.nodes:
        node = editor.updated(original)
        kind = small.get(node.output)
        if kind is not None and node.op == "Cast":
            _cast(editor, node, kind)
        elif kind is not None and node.op == "QuantizeLinear":
            editor.emit(replace(node, attrs={**node.attrs, "small_type": kind.name}))
        else:
            editor.emit(node)
    return editor.build()


def _cast(editor: Editor, node: Node, kind: SmallType | DType) -> None:
    to = "float32" if kind.is_float else "int32"
    wide = editor.new(f"{node.output}.wide", editor.types[node.output].shape, to)
    editor.emit(Node(node.name, "Cast", node.inputs, (wide,), {"to": DTYPES[to].onnx}))
    attrs = {"to": kind.name, "saturate": node.attrs.get("saturate", 1)}
    editor.emit(Node(node.name, "ToSmallType", (wide,), node.outputs, attrs))
