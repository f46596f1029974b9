"""④ JSON form of a program as its caller sees it: buffers, packings, kernel signatures.

Bodies of kernels are left out; `program_from_json(program_to_json(p)) == p` for programs without.
"""

from __future__ import annotations

from typing import Any

from autotune.loopir.nodes import Buffer, Kernel, Packing, Program
from autotune.te.codec import expr_from_json, expr_to_json, op_from_json, op_to_json
from autotune.te.dag import Compute
from autotune.te.expr import Axis, Tensor, loads


def program_to_json(program: Program) -> dict[str, Any]:
    """Named fields only. `sources`: tensors that constants are derived from."""
    sources = {t.name: t for op in program.derived for t in (x.tensor for x in op.reads)}
    sources |= {x.tensor.name: x.tensor for p in program.packs for e in p.indices for x in loads(e)}
    return {
        "buffers": [
            {"tensor": _tensor_to_json(b.tensor), "role": b.role, "strides": list(b.strides)}
            for b in program.buffers
        ],
        "sources": [_tensor_to_json(t) for t in sources.values()],
        "packs": [_packing_to_json(p) for p in program.packs],
        "kernels": [
            {"name": k.name, "extent": k.extent, "var": k.var, "buffers": list(k.buffers)}
            for k in program.kernels
        ],
        "derived": [op_to_json(op) for op in program.derived],
        "shared": list(program.shared),
    }


def program_from_json(data: dict[str, Any]) -> Program:
    """Inverse of `program_to_json`. Raises ValueError, KeyError or TypeError for anything else."""
    tensors = {t.name: t for t in map(_tensor_from_json, data["sources"])}
    return Program(
        buffers=tuple(
            Buffer(_tensor_from_json(b["tensor"]), b["role"], tuple(b["strides"]))
            for b in data["buffers"]
        ),
        derived=tuple(_compute_from_json(item, tensors) for item in data["derived"]),
        packs=tuple(_packing_from_json(p, tensors) for p in data["packs"]),
        kernels=tuple(
            Kernel(k["name"], k["extent"], k["var"], tuple(k["buffers"]), ())
            for k in data["kernels"]
        ),
        shared=tuple(data["shared"]),
    )


def _compute_from_json(item: dict[str, Any], tensors: dict[str, Tensor]) -> Compute:
    op = op_from_json(item, tensors)
    if not isinstance(op, Compute):
        raise ValueError("what is derived is computed")
    return op


def _packing_to_json(p: Packing) -> dict[str, Any]:
    return {
        "packed": _tensor_to_json(p.packed),
        "source": _tensor_to_json(p.source),
        "axes": [[a.name, a.extent] for a in p.axes],
        "indices": [expr_to_json(e) for e in p.indices],
    }


def _packing_from_json(data: dict[str, Any], tensors: dict[str, Tensor]) -> Packing:
    return Packing(
        packed=_tensor_from_json(data["packed"]),
        source=_tensor_from_json(data["source"]),
        axes=tuple(Axis(name, extent) for name, extent in data["axes"]),
        indices=tuple(expr_from_json(e, tensors) for e in data["indices"]),
    )


def _tensor_to_json(tensor: Tensor) -> list[Any]:
    return [tensor.name, list(tensor.shape), tensor.dtype]


def _tensor_from_json(data: list[Any]) -> Tensor:
    name, shape, dtype = data
    return Tensor(name, tuple(shape), dtype)
