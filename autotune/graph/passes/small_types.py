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
from autotune.graph.ir import Graph
from autotune.graph.operators.state import stored_narrow
from autotune.graph.passes.driver import rewrite
from autotune.graph.rewriter import Rewriter, Rule

_SMALL: Mapping[str, SmallType | DType] = {
    **SMALL_TYPES,
    **{d.name: d for d in DTYPES.values() if d.is_narrow},
}


def store_small_types(graph: Graph) -> Graph:
    """Tensors of half precision, of float8 and of less than 8 bits are stored in wider types."""
    kept = stored_narrow(graph)
    small = {
        n: _SMALL[t.dtype] for n, t in graph.types.items() if t.dtype in _SMALL and n not in kept
    }
    if not small:
        return graph

    def rounded(rw: Rewriter) -> None:
        """Cast(x, to=float8) -> ToSmallType(Cast(x, to=float32)), and likewise QuantizeLinear."""
        kind = small.get(rw.node.output)
        if kind is not None and rw.node.op == "Cast":
            wide = rw.cast(rw.input(0), "float32" if kind.is_float else "int32")
            rw.result("ToSmallType", wide, to=kind.name, saturate=rw.attr("saturate", 1))
        elif kind is not None and "small_type" not in rw.node.attrs:
            rw.again(small_type=kind.name)

    stored = {n: stored_dtype(kind.name) for n, kind in small.items()}
    types = {n: replace(graph.types[n], dtype=dtype) for n, dtype in stored.items()}
    known = {n: graph.constants[n].astype(d) for n, d in stored.items() if n in graph.constants}
    graph = replace(graph, types=graph.types | types, constants=graph.constants | known)
    return rewrite(graph, Rule("small-types", rounded, {"Cast", "QuantizeLinear"}))
