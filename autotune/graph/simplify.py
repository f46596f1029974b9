"""① Simplification: fold what is known, remove what does nothing, put scales into weights.

Each pass is a function `Graph -> Graph`; `simplify` runs the tuple `PASSES` in order. Equal large
constants are never merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autotune.graph.affine import fold_affine
from autotune.graph.branches import merge_branches
from autotune.graph.contraction import einsum
from autotune.graph.ir import (
    Array,
    Editor,
    Graph,
    Node,
    Shape,
    TensorType,
    float_array,
    unsupported,
)
from autotune.graph.normalisations import group_normalisations
from autotune.graph.upscale import columns_to_image, depth_to_space, transposed_convolution
from autotune.graph.windows import Window

_OPSET = 22
_SMALL = 1024
"""Constants with more elements than this never decide a shape."""
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")


def simplify(graph: Graph) -> Graph:
    """Run all passes."""
    for run in PASSES:
        graph = run(graph)
    return graph


def fold_constants(graph: Graph) -> Graph:
    """op(constants) -> constant; Shape and Size of static tensors -> constant.

    Types that are not known are inferred from the constants found on the way.
    """
    editor = Editor(graph)
    for original in graph.nodes:
        node = editor.updated(original)
        values = _known_result(node, editor)
        if values is None:
            _infer_types(node, editor)
            editor.emit(node)
            continue
        for name, value in zip(node.outputs, values, strict=False):
            editor.set_constant(name, value)
    return editor.build()


def remove_identities(graph: Graph) -> Graph:
    """Identity, inference Dropout, Cast to the same type, Sum of one -> their input."""
    editor = Editor(graph)
    readers = graph.consumers()
    for original in graph.nodes:
        node = editor.updated(original)
        if not _is_identity(node, editor):
            editor.emit(node)
        elif any(name in readers or name in graph.outputs for name in node.outputs[1:]):
            raise unsupported(node, graph, "its second output is used")
        else:
            editor.alias(node.output, node.inputs[0])
    return editor.build()


def canonical_operators(graph: Graph) -> Graph:
    """Reduce variants to one operator each.

    Reshape, Flatten, Squeeze, Unsqueeze -> Reshape of one input (chains -> the last one) ·
    Sum(a, b, c) -> Add(Add(a, b), c) · Gemm -> MatMul, Mul, Add · BatchNormalization -> Mul, Add ·
    Sub/Div by a constant -> Add/Mul · constants to the right of Add and Mul · ConvTranspose, Col2Im
    and DepthToSpace -> Conv, Interleave (see `upscale`) · Conv -> without taps on padding alone ·
    Einsum of labels and pairs (see `contraction`) · Tile -> Expand · GlobalLpPool -> ReduceL2.
    """
    editor = Editor(graph)
    for original in graph.nodes:
        node = editor.updated(original)
        rewrite = _CANONICAL.get(node.op)
        if rewrite is None:
            editor.emit(node)
        else:
            rewrite(editor, node)
    return editor.build()


def merge_reshapes(graph: Graph) -> Graph:
    """Reshape(Reshape(x)) -> Reshape(x); a Reshape to the same shape -> x."""
    editor = Editor(graph)
    sources: dict[str, str] = {}
    for original in graph.nodes:
        node = editor.updated(original)
        if node.op != "Reshape":
            editor.emit(node)
            continue
        source = sources.get(node.inputs[0], node.inputs[0])
        if editor.types[source].shape == editor.types[node.output].shape:
            editor.alias(node.output, source)
            continue
        sources[node.output] = source
        editor.emit(replace(node, inputs=(source,)))
    return editor.build()


def remove_dead(graph: Graph) -> Graph:
    """Drop nodes and constants on which no output depends."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if live & set(node.outputs):
            kept.append(node)
            live |= set(node.inputs)
    constants = {n: a for n, a in graph.constants.items() if n in live}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def fold_linear(graph: Graph) -> Graph:
    """Scales, shifts and parallel branches into the weights of convolutions, as far as it goes."""
    while True:
        n_nodes = len(graph.nodes)
        graph = merge_branches(fold_affine(graph))
        if len(graph.nodes) == n_nodes:
            return graph


PASSES: tuple[Callable[[Graph], Graph], ...] = (
    fold_constants,
    remove_dead,
    remove_identities,
    canonical_operators,
    merge_reshapes,
    group_normalisations,
    remove_dead,
    fold_linear,
    remove_dead,
)


def _known_result(node: Node, editor: Editor) -> list[Array] | None:
    if node.op in ("Shape", "Size") and not _is_static(node.inputs[0], editor):
        return None
    if node.op == "Shape":
        shape = editor.types[node.inputs[0]].shape
        part = slice(node.attrs.get("start"), node.attrs.get("end"))
        return [np.array(shape[part], np.int64)]
    if node.op == "Size":
        return [np.array(np.prod(editor.types[node.inputs[0]].shape, dtype=np.int64))]
    if node.op == "CastLike" and node.inputs[0] in editor.constants:
        return [editor.constants[node.inputs[0]].astype(editor.types[node.inputs[1]].dtype)]
    if node.op in _RANDOM or any(n and n not in editor.constants for n in node.inputs):
        return None
    if node.op == "GatherElements":  # the reference implementation gives up beyond 64 elements
        return [_gather_elements(node, *(editor.constants[n] for n in node.inputs))]
    return _evaluate(node, {n: editor.constants[n] for n in node.inputs if n})


def _gather_elements(node: Node, x: Array, index: Array) -> Array:
    axis = node.attrs.get("axis", 0) % x.ndim
    near = tuple(slice(None if d == axis else n) for d, n in enumerate(index.shape))
    taken: Array = np.take_along_axis(x[near], index, axis)
    return taken


def _is_static(name: str, editor: Editor) -> bool:
    return name in editor.types and all(d >= 0 for d in editor.types[name].shape)


def shape_of(tensor: onnx.TypeProto.Tensor) -> Shape:
    """The shape in a type; -1 for what is unknown, be it the number of dimensions."""
    if not tensor.HasField("shape"):
        return (-1,)
    return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)


def _infer_types(node: Node, editor: Editor) -> None:
    """Types of outputs that are not known yet, from the types and constants of the inputs."""
    inputs = [name for name in node.inputs if name]
    if all(_is_static(name, editor) for name in filter(None, node.outputs)):
        return
    if not all(_is_static(name, editor) for name in inputs):
        return
    types = {name: _value_info(name, editor.types[name]).type for name in inputs}
    known = {name: editor.constants[name] for name in inputs if name in editor.constants}
    data = {n: numpy_helper.from_array(a, n) for n, a in known.items() if a.size <= _SMALL}
    try:
        found = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op, _OPSET),
            _proto(node),
            types,
            data,
            opset_imports=[helper.make_opsetid("", _OPSET)],
        )
    except (onnx.shape_inference.InferenceError, onnx.defs.SchemaError):
        return  # whoever asks for the type says so
    for name, kind in found.items():
        dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        editor.types[name] = TensorType(shape_of(kind.tensor_type), str(dtype))


def _value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    return helper.make_tensor_value_info(name, dtype, kind.shape)


def _proto(node: Node) -> onnx.NodeProto:
    attrs = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in node.attrs.items()
    }
    return helper.make_node(node.op, node.inputs, node.outputs, **attrs)


def _evaluate(node: Node, inputs: dict[str, Array]) -> list[Array] | None:
    """One operator through the reference implementation of the `onnx` package."""
    types = [_value_info(n, TensorType(a.shape, str(a.dtype))) for n, a in inputs.items()]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.outputs]
    graph = helper.make_graph([_proto(node)], "constant", types, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    try:
        with np.errstate(all="ignore"):  # a value may be one that nobody takes
            return [np.asarray(v) for v in ReferenceEvaluator(model).run(None, inputs)]
    except Exception:  # it has faults of its own: what it cannot compute stays an operator
        return None


def _is_identity(node: Node, editor: Editor) -> bool:
    match node.op:
        case "Identity":
            return True
        case "Dropout":
            flag = node.inputs[2] if len(node.inputs) > 2 else ""
            return flag not in editor.constants or not editor.constants[flag].any()
        case "Cast" | "CastLike":
            return editor.types[node.inputs[0]].dtype == editor.types[node.output].dtype
        case "Sum" | "Max" | "Min" | "Mean" | "Concat":
            return len(node.inputs) == 1
        case _:
            return False


def _reshape(editor: Editor, node: Node) -> None:
    editor.emit(replace(node, op="Reshape", inputs=node.inputs[:1], attrs={}))


def _sum(editor: Editor, node: Node) -> None:
    """Sum, Max, Min and Mean of many -> a chain of two-operand ones; a mean is scaled."""
    op = "Add" if node.op in ("Sum", "Mean") else node.op
    result = node.output
    if node.op == "Mean":
        result = editor.new(f"{node.output}.sum", editor.types[node.output].shape)
    total = node.inputs[0]
    for n, name in enumerate(node.inputs[1:], 1):
        last = n == len(node.inputs) - 1
        shape = np.broadcast_shapes(editor.types[total].shape, editor.types[name].shape)
        dtype = editor.types[node.output].dtype
        out = result if last else editor.new(f"{node.output}.{n}", shape, dtype)
        editor.emit(Node(node.name, op, (total, name), (out,)))
        total = out
    if node.op == "Mean":
        share = editor.constant(f"{node.output}.share", np.full(1, 1 / len(node.inputs), "f4"))
        editor.emit(Node(node.name, "Mul", (total, share), node.outputs))


def _tile(editor: Editor, node: Node) -> None:
    """Tile -> Reshape to (…, 1, n, …), Expand to (…, repeats, n, …), Reshape."""
    repeats = editor.constants.get(node.inputs[1])
    if repeats is None:
        raise unsupported(node, editor.graph, "its repeats are computed at run time")
    kind = editor.types[node.inputs[0]]
    apart = [d for n in kind.shape for d in (1, n)]
    wide = [d for r, n in zip(repeats.tolist(), kind.shape, strict=True) for d in (r, n)]
    split = editor.new(f"{node.output}.apart", apart, kind.dtype)
    tiled = editor.new(f"{node.output}.tiled", wide, kind.dtype)
    editor.emit(Node(node.name, "Reshape", node.inputs[:1], (split,)))
    editor.emit(Node(node.name, "Expand", (split,), (tiled,)))
    editor.emit(Node(node.name, "Reshape", (tiled,), node.outputs))


def _global_lp_pool(editor: Editor, node: Node) -> None:
    """GlobalLpPool -> ReduceL1 or ReduceL2 over the spatial dimensions."""
    p = node.attrs.get("p", 2)
    if p not in (1, 2):
        raise unsupported(node, editor.graph, f"p = {p}")
    axes = tuple(range(2, len(editor.types[node.output].shape)))
    editor.emit(replace(node, op=f"ReduceL{p}", attrs={"axes": axes, "keepdims": 1}))


def _float_power(editor: Editor, node: Node) -> None:
    """Pow with a constant exponent of whole numbers -> with one of floats."""
    x, power = node.inputs
    value = editor.constants.get(power)
    if value is not None and editor.types[x].dtype == "float32" != value.dtype:
        node = replace(node, inputs=(x, editor.constant(f"{power}.float", float_array(value))))
    editor.emit(node)


def _gemm(editor: Editor, node: Node) -> None:
    a, b = node.inputs[:2]
    c = node.inputs[2] if len(node.inputs) > 2 else ""
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    if node.attrs.get("transB", 0) and b in editor.constants:
        b = editor.constant(f"{b}.t", editor.constants[b].T)
        trans_b = 0
    else:
        trans_b = int(node.attrs.get("transB", 0))
    attrs = {"trans_a": int(node.attrs.get("transA", 0)), "trans_b": trans_b}
    shape = editor.types[node.output].shape
    steps: list[tuple[str, tuple[str, ...], dict[str, int]]] = [("MatMul", (a, b), attrs)]
    if alpha != 1.0:
        steps.append(("Mul", (editor.constant("alpha", np.float32(alpha).reshape(1)),), {}))
    if c and beta != 0.0:
        if beta != 1.0 and c not in editor.constants:
            scaled = editor.new(f"{c}.beta", editor.types[c].shape)
            factor = editor.constant("beta", np.float32(beta).reshape(1))
            editor.emit(Node(node.name, "Mul", (c, factor), (scaled,)))
            c = scaled
        elif beta != 1.0:
            c = editor.constant(f"{c}.beta", editor.constants[c] * np.float32(beta))
        steps.append(("Add", (c,), {}))
    previous: tuple[str, ...] = ()
    for n, (op, inputs, extra) in enumerate(steps, 1):
        last = n == len(steps)
        out = node.output if last else editor.new(f"{node.output}.{op.lower()}", shape)
        editor.emit(Node(node.name, op, previous + inputs, (out,), extra))
        previous = (out,)


def _batch_norm(editor: Editor, node: Node) -> None:
    """y = (x - mean) · scale / sqrt(var + ε) + bias, as one Mul and one Add."""
    params = [editor.constants.get(n) for n in node.inputs[1:5]]
    if node.attrs.get("training_mode", 0) or any(p is None for p in params):
        raise unsupported(node, editor.graph, "only inference with constant parameters")
    scale, bias, mean, var = (p.astype(np.float64) for p in params if p is not None)
    factor = scale / np.sqrt(var + node.attrs.get("epsilon", 1e-5))
    rank = len(editor.types[node.output].shape)
    dims = (-1,) + (1,) * (rank - 2)
    mul = editor.constant(f"{node.output}.scale", factor.reshape(dims).astype(np.float32))
    add = editor.constant(
        f"{node.output}.shift", (bias - mean * factor).reshape(dims).astype(np.float32)
    )
    scaled = editor.new(f"{node.output}.scaled", editor.types[node.output].shape)
    editor.emit(Node(node.name, "Mul", (node.inputs[0], mul), (scaled,)))
    editor.emit(Node(node.name, "Add", (scaled, add), node.outputs[:1]))


def _cast(editor: Editor, node: Node) -> None:
    """The number of a type -> its name."""
    editor.emit(replace(node, attrs={"to": editor.types[node.output].dtype}))


def _commute(editor: Editor, node: Node) -> None:
    a, b = node.inputs
    inputs = (b, a) if a in editor.constants and b not in editor.constants else (a, b)
    editor.emit(replace(node, inputs=inputs))


def _inverse(editor: Editor, node: Node) -> None:
    """x - c -> x + (-c);  x / c -> x · (1/c)."""
    a, b = node.inputs
    if b not in editor.constants or editor.types[b].dtype != "float32":
        editor.emit(node)
        return
    value = editor.constants[b]
    op, inverse = ("Add", -value) if node.op == "Sub" else ("Mul", np.float32(1) / value)
    editor.emit(replace(node, op=op, inputs=(a, editor.constant(f"{b}.inverse", inverse))))


def _live_taps(editor: Editor, node: Node) -> None:
    """Conv without the outer taps that meet only padding, as those of a large dilation do."""
    weight = editor.constants.get(node.inputs[1])
    if weight is not None:
        size, out = editor.types[node.inputs[0]].shape[2:], editor.types[node.output].shape[2:]
        live, attrs = Window(node, weight.shape[2:], size, out).live()
        kept = [slice(None)] * 2 + [slice(t.start, t.stop) for t in live]
        taps = weight[tuple(kept)]
        if taps.shape != weight.shape:
            name = editor.constant(f"{node.inputs[1]}.live", np.ascontiguousarray(taps))
            inputs = (node.inputs[0], name, *node.inputs[2:])
            node = replace(node, inputs=inputs, attrs={**node.attrs, **attrs})
    editor.emit(node)


_CANONICAL: dict[str, Callable[[Editor, Node], None]] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), _sum),
    **dict.fromkeys(("Add", "Mul"), _commute),
    **dict.fromkeys(("Sub", "Div"), _inverse),
    "Cast": _cast,
    "Gemm": _gemm,
    "BatchNormalization": _batch_norm,
    "Conv": _live_taps,
    "ConvTranspose": transposed_convolution,
    "Col2Im": columns_to_image,
    "DepthToSpace": depth_to_space,
    "Einsum": einsum,
    "Tile": _tile,
    "GlobalLpPool": _global_lp_pool,
    "Pow": _float_power,
}
