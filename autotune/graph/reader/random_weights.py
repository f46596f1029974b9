"""① Constant fills, and seeded random weights in their place where the user asks for them.

Small test models keep the structure of a network and make every weight with `ConstantOfShape`.
Equal weights make every channel equal, so that a check of numbers passes whatever is computed.
`random_weights` replaces them by random ones whose scale keeps activations near one from the
input to the logits: He's scale for convolutions and matrix products (less after a maximum, little
for the logits), normalisations close to the identity, and the last normalisation of a residual
branch damped, so that the sum over many blocks does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from autotune.errors import UsageError
from autotune.graph.limits import is_possible
from autotune.graph.reader.tensors import Array, array_of

_RESIDUAL_GAIN = 0.35
"""Scale of a residual branch: (1 + 0.35²)^16 ≈ 6.3, the growth of the variance over 16 blocks."""
DEFAULT_MODEL = "light_resnet50.onnx"
_SMALL = 1024
_WEIGHT_SLOTS = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
_TRANSPARENT = ("Unsqueeze", "Squeeze", "Reshape", "Identity", "Transpose")
_LINEAR = (*_TRANSPARENT, "BatchNormalization", "Mul", "Add", "Sum", "GlobalAveragePool")


def default_model() -> Path:
    """The ResNet-50 that comes with the `onnx` package; it has no weights of its own."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / DEFAULT_MODEL


def needs_weights(path: Path) -> bool:
    """Whether a model is the default one, which has no weights of its own."""
    return path.resolve() == default_model().resolve()


def take_constant_fills(
    model: ModelProto, random_weights: bool = False, seed: int = 0
) -> dict[str, Array]:
    """Remove the `ConstantOfShape` nodes of known shape from `model` and return their values.

    With `random_weights`, the float ones and the float initialisers that accompany them get random
    values drawn from `seed`. Raises UsageError where the model has weights of its own: no float
    fill, or a float initialiser of more than 1024 elements.
    """
    fills = _constant_fills(model)
    if random_weights:
        fills |= dict(_random(model, _without_values(model, fills), seed))
    graph = model.graph
    replace_all(graph.node, [n for n in graph.node if not set(n.output) & set(fills)])
    replace_all(graph.initializer, [t for t in graph.initializer if t.name not in fills])
    return fills


def _without_values(model: ModelProto, fills: dict[str, Array]) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights that `random_weights` gives values."""
    shapes = {n: a.shape for n, a in fills.items() if a.dtype == np.float32 and a.size > 1}
    small = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    if not shapes or any(math.prod(t.dims) > _SMALL for t in small):
        raise UsageError("the model has weights of its own", "leave out `random_weights`")
    return shapes | {t.name: tuple(t.dims) for t in small if math.prod(t.dims) > 1}


def replace_all(field: Any, items: Iterable[Any]) -> None:
    """Give a repeated protobuf field new contents, which may be some of its old ones."""
    new = list(items)
    if len(new) == len(field) and all(a is b for a, b in zip(new, field, strict=True)):
        return  # without a copy of all weights
    copies = []
    for item in new:
        copies.append(type(item)())
        copies[-1].CopyFrom(item)
    del field[:]
    field.extend(copies)


def _constant_fills(model: ModelProto) -> dict[str, Array]:
    """Value of every `ConstantOfShape` whose shape is an initialiser or a Constant."""
    known = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            known[node.output[0]] = node.attribute[0].t
    fills: dict[str, Array] = {}
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and set(node.input) & set(known) and node.output:
            shape = array_of(known[node.input[0]]).reshape(-1).tolist()
            value = _fill_value(node.attribute)
            if value.size == 1 and is_possible(shape):  # else import names the node
                fills[node.output[0]] = np.broadcast_to(value.reshape(()), tuple(shape))
    return fills


def _fill_value(attributes: Iterable[AttributeProto]) -> Array:
    for attribute in attributes:
        if attribute.name == "value":
            return array_of(attribute.t)
    return np.zeros(1, np.float32)


def _random(
    model: ModelProto, weights: dict[str, tuple[int, ...]], seed: int
) -> Iterator[tuple[str, Array]]:
    """Values for `weights`, drawn in the order in which the nodes use them."""
    rng = np.random.default_rng(seed)
    roles = _Roles(model)
    names = [n for n in roles.uses if n in weights]
    for name in names:
        node, slot = roles.uses[name]
        yield name, _draw(rng, weights[name], node, slot, roles)


def _draw(
    rng: np.random.Generator, shape: tuple[int, ...], node: NodeProto, slot: int, roles: _Roles
) -> Array:
    if _WEIGHT_SLOTS.get(node.op_type) == slot:
        return _normal(rng, shape, math.sqrt(roles.gain(node) / _fan_in(node, shape)))
    if node.op_type == "BatchNormalization" and slot in (1, 4):
        gain = roles.branch_gain(node) if slot == 1 else 1.0
        return (gain * rng.uniform(0.8, 1.2, shape)).astype(np.float32)
    if node.op_type in ("Mul", "Div", "Pow"):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    return _normal(rng, shape, 0.05)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(scale)
    return values


def _fan_in(node: NodeProto, shape: tuple[int, ...]) -> int:
    if node.op_type == "MatMul":
        return shape[-2] if len(shape) > 1 else shape[0]
    if node.op_type == "Gemm":
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        return shape[1] if transposed else shape[0]
    return math.prod(shape[1:])


class _Roles:
    """Readers of weights, with operator and operand slot, seen through reshapes."""

    def __init__(self, model: ModelProto) -> None:
        self.readers: dict[str, list[tuple[NodeProto, int]]] = {}
        self.makers: dict[str, NodeProto] = {}
        for node in model.graph.node:
            for slot, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, slot))
            for name in node.output:
                self.makers[name] = node
        self.uses = {name: self._use(name) for name in self.readers}

    def _use(self, name: str) -> tuple[NodeProto, int]:
        node, slot = self.readers[name][0]
        while node.op_type in _TRANSPARENT and slot == 0 and node.output[0] in self.readers:
            node, slot = self.readers[node.output[0]][0]
        return node, slot

    def branch_gain(self, node: NodeProto) -> float:
        """Scale of a normalisation with which the sum that it ends in stays near one."""
        readers = self.readers.get(node.output[0], [])
        if len(readers) != 1 or readers[0][0].op_type not in ("Sum", "Add"):
            return 1.0
        makers = [self.makers.get(name) for name in readers[0][0].input]
        if None in makers:
            return 1.0
        norms = [m for m in makers if m is not None and m.op_type == "BatchNormalization"]
        return _RESIDUAL_GAIN if len(norms) < len(makers) else math.sqrt(1 / len(norms))

    def gain(self, node: NodeProto) -> float:
        """Variance of the result over variance of the input that `node` should have."""
        gain = {"Relu": 2.0, "Softmax": 0.1, "": 0.1}.get(self._end(node), 1.0)
        maker = self.makers.get(node.input[0])
        return gain / 4 if maker is not None and maker.op_type == "MaxPool" else gain

    def _end(self, node: NodeProto) -> str:
        """The operator that the result of `node` meets after linear ones; "" for an output."""
        while readers := self.readers.get(node.output[0]):
            node = readers[0][0]
            if node.op_type not in _LINEAR:
                return node.op_type
        return ""
