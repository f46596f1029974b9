"""Official models with something wrong in them: structure-aware changes, and flipped bytes.

data = mutated(model, seed)         # a serialised model, equal for equal seeds
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

Change = Callable[[ModelProto, random.Random], None]

ODD_INTEGERS = (0, -1, 1, 2, 3, -2, 7, 100, -100, 65537, 2**31 - 1, -(2**31), 2**62, -(2**63))
ODD_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
OPERATORS = (
    "Relu",
    "Add",
    "Conv",
    "MatMul",
    "Softmax",
    "Reshape",
    "Concat",
    "Gather",
    "Loop",
    "Nope",
)


def mutated(model: ModelProto, seed: int) -> bytes:
    """The model with one to three changes."""
    rng = random.Random(seed)
    copy = ModelProto()
    copy.CopyFrom(model)
    if rng.random() < 0.1:
        return _bytes_changed(copy.SerializeToString(), rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        rng.choice(CHANGES)(copy, rng)
    return copy.SerializeToString()


def _bytes_changed(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return data[: rng.randrange(len(data) + 1)]
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(out))
        match rng.randrange(4):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.randrange(256)
            case 2:
                del out[at]
            case _:
                out.insert(at, rng.randrange(256))
    return bytes(out)


def _graphs(graph: GraphProto) -> list[GraphProto]:
    """A graph and those inside of it."""
    inner = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return [graph, *(g for one in inner for g in _graphs(one))]


def _node(model: ModelProto, rng: random.Random) -> NodeProto | None:
    nodes = [n for g in _graphs(model.graph) for n in g.node]
    return rng.choice(nodes) if nodes else None


def attribute_value(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None or not node.attribute:
        return
    found = rng.choice(list(node.attribute))
    match found.type:
        case AttributeProto.INT:
            found.i = _int64(rng.choice([found.i + 1, found.i - 1, -found.i, *ODD_INTEGERS]))
        case AttributeProto.FLOAT:
            found.f = rng.choice([found.f * 2, -found.f, *ODD_FLOATS])
        case AttributeProto.STRING:
            found.s = rng.choice([b"", b"nope", b"\xff\xfe", found.s.lower(), found.s + b"x"])
        case AttributeProto.INTS:
            _change_list(found.ints, rng)
        case AttributeProto.TENSOR:
            tensor_changed(found.t, rng)


def _int64(number: int) -> int:
    return max(-(2**63), min(2**63 - 1, number))


def _change_list(values: Sequence[int], rng: random.Random) -> None:
    numbers = list(values)
    match rng.randrange(4):
        case 0:
            numbers.append(rng.choice(ODD_INTEGERS))
        case 1 if numbers:
            numbers.pop()
        case 2:
            numbers = []
        case _ if numbers:
            numbers[rng.randrange(len(numbers))] = rng.choice(ODD_INTEGERS)
    del values[:]  # type: ignore[attr-defined]
    values.extend(numbers)  # type: ignore[attr-defined]


def attribute_dropped(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is not None and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def attribute_added(model: ModelProto, rng: random.Random) -> None:
    """One that the operator has, with an odd value, or one that it has not."""
    node = _node(model, rng)
    if node is None:
        return
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=20)
    known: list[str] = ["nope"]
    if onnx.defs.has(node.op_type, opset, ""):
        known += sorted(onnx.defs.get_schema(node.op_type, opset, "").attributes)
    name = rng.choice(known)
    if name in {a.name for a in node.attribute}:
        return
    value = rng.choice([rng.choice(ODD_INTEGERS), [1, 2], [0] * 4, 0.5, "x"])
    node.attribute.append(helper.make_attribute(name, value))


def input_type(model: ModelProto, rng: random.Random) -> None:
    ports = [*model.graph.input, *model.graph.output]
    if ports:
        rng.choice(ports).type.tensor_type.elem_type = rng.randrange(25)


def input_shape(model: ModelProto, rng: random.Random) -> None:
    if not model.graph.input:
        return
    shape = rng.choice(model.graph.input).type.tensor_type.shape
    match rng.randrange(4):
        case 0 if shape.dim:
            del shape.dim[rng.randrange(len(shape.dim))]
        case 1:
            shape.dim.add().dim_value = rng.choice([1, 2, 3])
        case _ if shape.dim:
            dim = rng.choice(list(shape.dim))
            dim.dim_value = rng.choice(
                [dim.dim_value + 1, max(1, dim.dim_value - 1), 1, 2, 0, -1, 9]
            )


def node_input(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None or not node.input:
        return
    names = [i.name for i in model.graph.input] + [o for n in model.graph.node for o in n.output]
    at = rng.randrange(len(node.input))
    match rng.randrange(4):
        case 0:
            node.input[at] = ""
        case 1:
            del node.input[at]
        case 2:
            node.input[at] = rng.choice([*names, "nowhere"])
        case _:
            node.input.append(rng.choice([*names, ""]))


def node_output(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None or not node.output:
        return
    at = rng.randrange(len(node.output))
    node.output[at] = rng.choice(["", "renamed", node.output[0], *node.input[:1]])


def operator(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is not None:
        node.op_type = rng.choice(OPERATORS)
        if rng.random() < 0.1:
            node.domain = "com.microsoft"


def node_twice(model: ModelProto, rng: random.Random) -> None:
    """A node again, reading what it made before, or the nodes in another order."""
    nodes = list(model.graph.node)
    if not nodes:
        return
    if rng.random() < 0.5:
        rng.shuffle(nodes)
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        return
    copy = model.graph.node.add()
    copy.CopyFrom(rng.choice(nodes))
    if rng.random() < 0.7 and copy.input and copy.output:
        copy.input[0] = copy.output[0]
        for n in range(len(copy.output)):
            copy.output[n] += "_again"


def opset(model: ModelProto, rng: random.Random) -> None:
    if model.opset_import:
        entry = rng.choice(list(model.opset_import))
        entry.version = rng.choice([0, 1, 6, 7, 9, 10, 11, 12, 13, 17, 18, 20, 21, 99, -1])


def ports(model: ModelProto, rng: random.Random) -> None:
    graph = model.graph
    match rng.randrange(4):
        case 0 if graph.output:
            graph.output.add().CopyFrom(rng.choice(list(graph.output)))
        case 1 if graph.input:
            graph.output.add().CopyFrom(rng.choice(list(graph.input)))
        case 2 if graph.input:
            del graph.input[rng.randrange(len(graph.input))]
        case _ if graph.output:
            graph.output[0].name = rng.choice(["", "nowhere", *(i.name for i in graph.input)])


def initializer(model: ModelProto, rng: random.Random) -> None:
    """An input becomes a constant of random numbers, or a constant is changed."""
    graph = model.graph
    if graph.initializer and rng.random() < 0.6:
        tensor_changed(rng.choice(list(graph.initializer)), rng)
        return
    if not graph.input:
        return
    port = rng.choice(list(graph.input))
    kind = port.type.tensor_type
    shape = [d.dim_value for d in kind.shape.dim]
    if int(np.prod(shape)) > 10_000 or min(shape, default=1) < 0:
        return
    values = np.random.default_rng(rng.randrange(99)).integers(-2, 4, shape)
    try:
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        tensor = onnx.numpy_helper.from_array(values.astype(dtype), port.name)
    except Exception:
        return
    graph.initializer.append(tensor)


def tensor_changed(tensor: TensorProto, rng: random.Random) -> None:
    match rng.randrange(5):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([0, 1, 2, 5, -1, 2**40])
        case 1:
            tensor.dims.append(rng.choice([1, 2]))
        case 2:
            tensor.data_type = rng.randrange(25)
        case 3 if tensor.raw_data:
            tensor.raw_data = tensor.raw_data[:-1]
        case _:
            values = [tensor.int64_data, tensor.int32_data, tensor.float_data]
            for data in values:
                if data:
                    data[rng.randrange(len(data))] = rng.choice([0, 1, 5, 100])


CHANGES: tuple[Change, ...] = (
    *(attribute_value, attribute_value, attribute_value, attribute_dropped, attribute_added),
    *(input_type, input_shape, input_shape, node_input, node_input, node_output, operator),
    *(node_twice, opset, ports, initializer, initializer),
)
