"""① Schemas of the standard: which operators and attributes an opset has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import onnx
from onnx import ModelProto, OperatorSetIdProto

from autotune.errors import ModelError
from autotune.graph.ir import OPSET, Node
from autotune.graph.reader.upgrades import default_of

NEWEST = onnx.defs.onnx_opset_version()
"""The newest opset of the installed `onnx` package."""

_DEFINED = {domain: newest for domain, (_, newest) in onnx.defs.C.schema_version_map().items()}
_NEWEST = _DEFINED | {"ai.onnx": NEWEST, "com.microsoft": 1}
"""The newest version of every operator set that has one here; those of a user have any."""


def require_known_versions(model: ModelProto) -> None:
    """Raise ModelError for a version of the format, or of an operator set, that is not defined yet.

    What operators mean may change with it, as Mod does in opset 28.
    """
    _require_known("IR version", model.ir_version, onnx.IR_VERSION)
    for owner in (model, *model.functions):
        for entry in owner.opset_import:
            domain = entry.domain or "ai.onnx"
            _require_known(f"{domain} opset", entry.version, _NEWEST.get(domain, entry.version))


def _require_known(kind: str, version: int, newest: int) -> None:
    if version > newest:
        raise ModelError(
            f"the model is of {kind} {version}, the newest that is known is {newest} "
            f"(package onnx {onnx.__version__})",
            "export it for an older one, or upgrade the package onnx",
        )


def opset_of(imports: Iterable[OperatorSetIdProto]) -> int:
    """Version of the standard operator set that a model or a function imports; 0 for none."""
    return max((o.version for o in imports if o.domain in ("", "ai.onnx")), default=0)


@cache
def schema_of(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """The definition of a standard operator; None where there is none."""
    try:
        return onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return None


def opset_in_model(node: Node, opset: int) -> int:
    """The opset that defines a node of a function in a model of `opset`.

    It is that of the function. But the standard requires an operator to have the same semantics in
    both opsets; where that is violated and both have the same form (Softmax before and after 13),
    ONNX Runtime and the reference implementation use the opset of the model.
    """
    own, outer = schema_of(node.op, node.opset), schema_of(node.op, opset)
    if own is None or outer is None or outer.deprecated:
        return node.opset
    return opset if _form(own) == _form(outer) else node.opset


def _form(schema: onnx.defs.OpSchema) -> tuple[list[str], set[str]]:
    """The names of the inputs and attributes of an operator."""
    return [i.name for i in schema.inputs], set(schema.attributes)


def newer_attribute(node: Node) -> str | None:
    """An attribute of `node` that came after opset 22 and is not at its default."""
    known, now = schema_of(node.op, OPSET), schema_of(node.op, node.opset)
    before, after = (s.attributes if s else {} for s in (known, now))
    newer = (n for n in node.attrs if n not in before and n in after)
    return next((n for n in newer if node.attrs[n] != default_of(after[n])), None)


def without_newer_attributes(node: Node) -> Node:
    """A node of a newer opset as one of opset 22; attributes that it loses are at their default."""
    known = schema_of(node.op, OPSET)
    attrs = {k: v for k, v in node.attrs.items() if known is None or k in known.attributes}
    return replace(node, attrs=attrs, opset=OPSET)


def defaults_of(schema: Any) -> dict[str, Any]:
    """The attributes of an operator that have a default."""
    found = {name: default_of(a) for name, a in schema.attributes.items()}
    return {name: value for name, value in found.items() if value is not None}
