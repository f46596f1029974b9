"""① Custom operators: ONNX nodes that a user's function defines.

    def my_gelu(x: te.Tensor, *, approximate: str = "none") -> te.Tensor: …

    build_network(path, operators={"com.acme.MyGelu": my_gelu})

Such a function gets a tensor per input of the node, None for one that is left out, and the
attributes by name; it returns a tensor of `te` per output. Shapes and types of the results are
those of what it returns. What it defines is fused, scheduled and checked like any other operator.
An operator that is short for others is a `Composition`: it emits nodes of these.

    def hard_swish(rw: Rewriter) -> None:
        rw.result("Mul", rw.input(0), rw("HardSigmoid", rw.input(0), alpha=1 / 6))

    build_network(path, operators={"com.acme.HardSwish": Composition(hard_swish)})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TypeAlias

from autotune.errors import AutotuneError, UsageError
from autotune.graph.ir import Array, Node, Shape, TensorType
from autotune.graph.operators.definition import Operands, Operator, Scope
from autotune.graph.rewriter import Rewrite, Rewriter
from autotune.te.dag import Compute, ComputeDAG, Placeholder, rename
from autotune.te.evaluate import evaluate
from autotune.te.expr import Const
from autotune.te.expr import Tensor as TensorNode
from autotune.te.language import dag_of, placeholder
from autotune.te.values import Tensor, numbered

UserOperator: TypeAlias = Callable[..., Tensor | Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Composition:
    """A decomposed operator: a rewrite of its node emits others.

    An operator of the standard is converted to opset 22 before.
    """

    rewrite: Rewrite


UserOperators: TypeAlias = Mapping[str, UserOperator | Composition]
"""By operator name, with its domain in front where that is not the standard one."""

_OWN_PACKAGE = "autotune_operators"
"""Package of rare operators in the same wheel."""

DEFINED = "Defined"
"""The operator of the nodes that compute one output of a user's operator each."""


@cache
def own_operators() -> UserOperators:
    """The operators of the package that comes with this one; it is imported now."""
    operators: UserOperators = import_module(_OWN_PACKAGE).OPERATORS
    return operators


def defined(function: UserOperator, rw: Rewriter) -> None:
    """A node of a user's operator -> a node for each output, or constants of constant operands.

    Raises UsageError for a function that does not fit the node.
    """
    node = rw.node
    dag = _dag(node, function, [rw.types[n] if n else None for n in node.inputs])
    operands = [n for n in node.inputs if n]
    values: Mapping[str, Array] = {}
    if all(name in rw.constants for name in operands):
        pairs = zip(dag.placeholders, operands, strict=True)
        values = evaluate(dag, {p.name: rw.constants[name] for p, name in pairs})
    for position, (name, output) in enumerate(zip(node.outputs, dag.outputs, strict=False)):
        if name and output in values:
            rw.editor.set_constant(name, values[output])
        elif name:
            tensor = dag[output].tensor
            rw.types[name] = TensorType(tensor.shape, tensor.dtype)
            attrs = {"node": node, "function": function, "position": position}
            rw.nodes.append(Node(node.name, DEFINED, node.inputs, (name,), attrs))


def _defined(scope: Scope, node: Node, operands: Operands, shape: Shape) -> TensorNode:
    """The computations of a user's function, on the operands of the node."""
    kinds = [None if o is None else TensorType(_shape(o), o.dtype) for o in operands]
    dag = _dag(node.attrs["node"], node.attrs["function"], kinds)
    output = dag.outputs[node.attrs["position"]]
    given = [_tensor(scope, o) for o in operands if o is not None]
    tensors = dict(zip((p.name for p in dag.placeholders), given, strict=True))
    for op in _needed(dag, output):
        tensor = scope.compute(op.name, op.axes, rename(op, op.tensor, {}, tensors).body)
        tensors[op.name] = tensor
    return tensors[output]


def _shape(operand: TensorNode | Const) -> Shape:
    return operand.shape if isinstance(operand, TensorNode) else ()


def _tensor(scope: Scope, operand: TensorNode | Const) -> TensorNode:
    if isinstance(operand, TensorNode):
        return operand
    return scope.compute("literal", (), operand)


def _needed(dag: ComputeDAG, output: str) -> Iterator[Compute]:
    """The computations that an output depends on, in order."""
    needed = {output}
    for op in reversed(dag.computes):
        if op.name in needed:
            needed |= {load.tensor.name for load in op.reads}
    return (op for op in dag.computes if op.name in needed)


def _dag(node: Node, function: UserOperator, kinds: Sequence[TensorType | None]) -> ComputeDAG:
    """DAG of the function on inputs of these types; unread inputs are placeholders as well."""
    with numbered():
        inputs = [
            None if kind is None else placeholder(kind.shape, f"in{n}", kind.dtype)
            for n, kind in enumerate(kinds)
        ]
        try:
            inspect.signature(function).bind(*inputs, **node.attrs)
            dag = dag_of(function(*inputs, **node.attrs))
        except AutotuneError as error:
            raise UsageError(f"{_where(node)}: {error.message}", error.hint) from error
        except Exception as error:
            raise UsageError(
                f"{_where(node)}: {type(error).__name__}: {error}",
                "the function takes a tensor per input and the attributes by name",
            ) from error
    wanted = sum(map(bool, node.outputs))
    if len(dag.outputs) < wanted:
        raise UsageError(
            f"{_where(node)}: the function gives {len(dag.outputs)} outputs, the node has {wanted}",
            "return a tensor for each",
        )
    placeholders = [t.op for t in inputs if t is not None and isinstance(t.op, Placeholder)]
    return ComputeDAG((*placeholders, *dag.computes), dag.outputs)


def _where(node: Node) -> str:
    return f"custom operator '{node.op}' (node '{node.name}')"


OPERATORS: Mapping[str, Operator] = {DEFINED: Operator(define=_defined)}
