"""① Layout assignment: activations with spatial dimensions are stored channels last.

After this pass the shapes of the graph are the shapes in memory: `Conv`, pooling and `LRN` read and
write (n, …spatial…, c), their weights are (…kernel…, in, out), and axes of other operators are
remapped. `Transpose` nodes are inserted where the layouts meet: after model inputs, before model
outputs, and around operators that need ONNX's order. A Reshape that only flattens (n, c, h, w) for
matrix products with constant weights costs nothing: the rows of the weights are permuted instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from autotune.errors import UnsupportedOperator
from autotune.graph.ir import Graph, Node, Shape, to_first, to_last
from autotune.graph.operators.definition import Layout, ViewKind
from autotune.graph.operators.movement import pad_amounts
from autotune.graph.operators.reductions import reduce_axes
from autotune.graph.operators.table import operator_of, permutes, view_of
from autotune.graph.passes.simplify import require_one_result
from autotune.graph.passes.typed_editor import TypedEditor
from autotune.graph.refusals import naming, refused
from autotune.graph.rewriter import Rewriter, with_names


def channels_last(graph: Graph) -> Graph:
    """Store activations with spatial dimensions channels last."""
    layout = _Layout(graph)
    for node in graph.nodes:
        layout.run(node)
    return layout.finish()


class _Layout:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.editor = TypedEditor(graph)
        self.last: dict[str, str] = {}
        """Tensor in ONNX's order -> its channels-last twin, where one exists."""
        self.first: set[str] = set(graph.inputs) | set(graph.constants)
        """Tensors that exist in ONNX's order."""
        self.flattened: dict[str, Shape] = {}
        """Tensors flattened from channels-last storage -> their ONNX shape before."""
        self.reshaped: dict[str, Node] = {}
        """Tensors in ONNX's order -> the Reshape that restores their spatial dimensions."""
        self.done: set[str] = set()
        """Outputs of nodes that an earlier rewrite covers."""
        self.makers = {node.output: node for node in graph.nodes}

    def run(self, node: Node) -> None:
        """Emit what replaces a node, or what stands for one that is refused."""
        self.rw = Rewriter(node, self.editor)
        try:
            with naming(node):
                self.visit(node)
        except UnsupportedOperator as error:
            self.rw.nodes.clear()
            for stand_in in refused(node, error):
                self.emit_first(stand_in)
        for made in self.rw.nodes:
            self.editor.emit(made)

    def visit(self, node: Node) -> None:
        if node.output in self.done:
            return
        handler = self._handler(node)
        if self._restores_space(node):
            self.reshaped[node.output] = node
        if handler is None:
            self.emit_first(node)
        else:
            handler(node)

    def _handler(self, node: Node) -> Callable[[Node], None] | None:
        """The rewrite that keeps a node channels last; None if it needs ONNX's order."""
        layout = operator_of(node.op).layout
        rank = len(self.graph.shape(node.output))
        keeps = rank >= 3 and any(name in self.last for name in node.inputs)
        if layout in (Layout.SPATIAL, Layout.RESHAPE):
            keeps = layout is Layout.SPATIAL or keeps or self._is_last(node)
        handler = _HANDLERS.get(layout)
        return partial(handler, self) if keeps and handler else None

    def _is_last(self, node: Node) -> bool:
        return node.inputs[0] in self.last

    # --- a tensor in one layout or the other ---

    def as_last(self, name: str, rank: int | None = None) -> str:
        """`name` stored channels last; of lower rank: with leading dimensions of 1."""
        shape = self.graph.shape(name)
        rank = rank or len(shape)
        if name in self.last and len(shape) == rank:
            return self.last[name]
        if name in self.reshaped and len(shape) == rank:
            return self.reshaped_last(self.reshaped[name])
        full = (1,) * (rank - len(shape)) + shape
        source = self.as_first(name)
        wide = source if full == shape else self.rw("Reshape", source, shape=full)
        out = self.rw("Transpose", wide, perm=to_last(rank))
        if full == shape and name not in self.editor.constants:
            self.last[name] = out
        return out

    def as_first(self, name: str) -> str:
        """`name` in ONNX's order."""
        if name and name not in self.first and name not in self.editor.constants:
            rank = len(self.graph.shape(name))
            source = self.last[name]
            self.editor.emit(Node(name, "Transpose", (source,), (name,), {"perm": to_first(rank)}))
            self.first.add(name)
        return name

    def new_last(self, name: str) -> str:
        shape, dtype = self.graph.types[name].shape, self.graph.types[name].dtype
        out = self.editor.new(f"{name}.last", tuple(shape[p] for p in to_last(len(shape))), dtype)
        self.last[name] = out
        return out

    def emit_first(self, node: Node) -> None:
        node = self.permuted_weights(node)
        self.rw.nodes.append(replace(node, inputs=tuple(map(self.as_first, node.inputs))))
        self.first |= set(node.outputs)

    def emit_last(self, node: Node, inputs: tuple[str, ...], **attrs: object) -> None:
        outputs = tuple(self.new_last(name) if name else "" for name in node.outputs)
        merged = {**node.attrs, **attrs}
        self.rw.nodes.append(replace(node, inputs=inputs, outputs=outputs, attrs=merged))

    def finish(self) -> Graph:
        for name in self.graph.outputs:
            self.as_first(name)
        return self._under_own_names(self.editor.build())

    def _under_own_names(self, graph: Graph) -> Graph:
        """`graph` with the names of the file for tensors that exist channels last alone."""
        alone = {twin: name for name, twin in self.last.items() if name not in self.first}
        nodes = tuple(with_names(node, alone) for node in graph.nodes)
        types = {name: kind for name, kind in graph.types.items() if name not in alone}
        types |= {name: graph.types[twin] for twin, name in alone.items()}
        return replace(graph, nodes=nodes, types=types)

    # --- one method per kind of operator ---

    def spatial(self, node: Node) -> None:
        inputs = [self.as_last(node.inputs[0]), *map(self.as_first, node.inputs[1:])]
        attrs: dict[str, object] = {}
        if operator_of(node.op).factors.weight_input == 1:
            view, perm, kind = conv_weight(
                self.editor.types[inputs[1]].shape, node.attrs.get("group", 1)
            )
            inputs[1] = self._rearranged(inputs[1], view, perm)
            attrs = {"kind": kind}
        require_one_result(self.rw)
        self.emit_last(replace(node, outputs=node.outputs[:1]), tuple(inputs), **attrs)

    def _rearranged(self, name: str, view: Shape, perm: tuple[int, ...]) -> str:
        """`name` reshaped to `view` and permuted.

        Constants are permuted here; of a row times a constant matrix the columns are permuted.
        """
        row = self._row_of_product(name)
        if row is None:
            return self.rw("Transpose", self.rw("Reshape", name, shape=view), perm=perm)
        matrix = self.editor.constants[row.inputs[1]]
        columns = matrix.reshape(-1, *view).transpose(0, *(p + 1 for p in perm))
        weights = self.rw.array(columns.reshape(matrix.shape))
        product = self.editor.new(f"{name}.row", (1, matrix.shape[1]), self.rw.types[name].dtype)
        inputs = (self.as_first(row.inputs[0]), weights)
        self.rw.nodes.append(replace(row, inputs=inputs, outputs=(product,)))
        return self.rw("Reshape", product, shape=(view[p] for p in perm))

    def _row_of_product(self, name: str) -> Node | None:
        """The product of a row and a constant matrix that computes `name`, if it is one."""
        maker = self.makers.get(name)
        while maker is not None and view_of(maker) is ViewKind.WHOLE and self._is_read_once(maker):
            maker = self.makers.get(maker.inputs[0])
        if maker is None or maker.op != "MatMul" or not self._is_read_once(maker):
            return None
        matrix = self.editor.constants.get(maker.inputs[1])
        plain = matrix is not None and matrix.ndim == 2 and not maker.attrs.get("trans_b", 0)
        n_columns = self.graph.shape(maker.output)[-1]
        is_row = math.prod(self.graph.shape(maker.output)) == n_columns
        fits = plain and is_row and not maker.attrs.get("trans_a", 0)
        return maker if fits else None

    def _is_read_once(self, node: Node) -> bool:
        return self.editor.uses[node.output] == 1 and node.output not in self.graph.outputs

    def elementwise(self, node: Node) -> None:
        rank = len(self.graph.shape(node.output))
        table = operator_of(node.op).factors.weight_input
        self.emit_last(
            node,
            tuple(
                name if slot == table else self._operand(name, rank)
                for slot, name in enumerate(node.inputs)
            ),
        )

    def _operand(self, name: str, rank: int) -> str:
        return self.as_last(name, rank) if name and self.graph.types[name].shape else name

    def with_axis(self, node: Node) -> None:
        rank = len(self.graph.shape(node.inputs[0]))
        axis = node.attrs.get("axis", 0)
        axis = to_last(rank).index(axis % rank)
        if node.op == "Split":
            inputs: tuple[str, ...] = (self.as_last(node.inputs[0]), *node.inputs[1:])
        else:
            inputs = tuple(self.as_last(name) for name in node.inputs)
        self.emit_last(node, inputs, axis=axis)

    def reduction(self, node: Node) -> None:
        rank = len(self.graph.shape(node.inputs[0]))
        axes = reduce_axes(node, self.editor.constants, rank)
        if axes is None or not node.attrs.get("keepdims", 1):
            self.emit_first(node)
            return
        moved = tuple(sorted(to_last(rank).index(a) for a in axes))
        self.emit_last(node, (self.as_last(node.inputs[0]),), axes=moved)

    def pad(self, node: Node) -> None:
        rank = len(self.graph.shape(node.output))
        full = pad_amounts(node, self.editor.constants, rank)
        if full is None:
            self.emit_first(node)
            return
        order = to_last(rank)
        pads = [full[p] for p in order] + [full[rank + p] for p in order]
        value = node.inputs[2] if len(node.inputs) > 2 else ""
        source = self.as_last(node.inputs[0])
        amounts = self.rw.integers(*pads)
        self.emit_last(node, (source, amounts, value))

    def slice(self, node: Node) -> None:
        rank = len(self.graph.shape(node.output))
        computed = any(n and n not in self.editor.constants for n in node.inputs[1:])
        if computed or len(node.inputs) < 4 or not node.inputs[3]:
            self.emit_first(node)
            return
        axes = self.editor.constants[node.inputs[3]]
        moved = [to_last(rank).index(int(a) % rank) for a in axes]
        inputs = (self.as_last(node.inputs[0]), *node.inputs[1:3], self.rw.integers(*moved))
        self.emit_last(node, (*inputs, *node.inputs[4:]))

    def transpose(self, node: Node) -> None:
        """Transpose(x) where x is channels last: one Transpose of the stored tensor."""
        rank = len(self.graph.shape(node.output))
        composed = tuple(to_last(rank).index(p) for p in node.attrs["perm"])
        self.rw.again(self.as_last(node.inputs[0]), perm=composed)
        self.first.add(node.output)

    def reshape(self, node: Node) -> None:
        """Flattening before constant matrices and channel shuffles need no Transpose."""
        shape, target = self.graph.shape(node.inputs[0]), self.graph.shape(node.output)
        source = self.last[node.inputs[0]]
        if math.prod(shape[2:]) == 1 or shape[1] == 1:
            self.rw.again(source)
            self.first.add(node.output)
        elif self._keeps_channels(node):
            self.reshaped_last(node)
        elif self._flattens(node, shape, target):
            self.rw.again(source)
            self.first.add(node.output)
            self.flattened[node.output] = shape
        elif not (self._shuffle(node, shape, target) or self._split_channels(node, shape, target)):
            self.emit_first(node)

    def reshaped_last(self, node: Node) -> str:
        """A Reshape that keeps the first two dimensions, channels last: (n, …, c) -> (n, …, c)."""
        source = self.as_last(node.inputs[0])
        out = self.new_last(node.output)
        self.rw.nodes.append(replace(node, inputs=(source,), outputs=(out,)))
        return out

    def _keeps_channels(self, node: Node) -> bool:
        shape, target = self.graph.shape(node.inputs[0]), self.graph.shape(node.output)
        return min(len(shape), len(target)) > 2 and shape[:2] == target[:2]

    def _restores_space(self, node: Node) -> bool:
        """Whether a Reshape keeps (n, c, …) of a Transpose from (n, …, c)."""
        if view_of(node) is not ViewKind.WHOLE or not self._keeps_channels(node):
            return False
        maker = self.makers.get(node.inputs[0])
        rank = len(self.graph.shape(node.inputs[0]))
        return (
            maker is not None
            and permutes(maker)
            and tuple(maker.attrs.get("perm", ())) == to_first(rank)
        )

    def _flattens(self, node: Node, shape: Shape, target: Shape) -> bool:
        users = self.rw.readers(node.output)
        return (
            target == (shape[0], math.prod(shape[1:]))
            and node.output not in self.graph.outputs
            and all(
                u.op == "MatMul"
                and u.inputs[0] == node.output
                and not u.attrs.get("trans_a", 0)
                and u.inputs[1] in self.graph.constants
                and self.graph.constants[u.inputs[1]].ndim == 2
                for u in users
            )
        )

    def permuted_weights(self, node: Node) -> Node:
        """A matrix with rows in the order (h, w, c), if its operand is flattened in that order."""
        if node.op != "MatMul" or node.inputs[0] not in self.flattened:
            return node
        shape = self.flattened[node.inputs[0]]
        matrix = self.editor.constants[node.inputs[1]]
        matrix = matrix.T if node.attrs.get("trans_b", 0) else matrix
        spread = matrix.reshape(*shape[1:], -1)
        order = (*range(1, len(shape) - 1), 0, len(shape) - 1)
        rows = spread.transpose(order).reshape(matrix.shape)
        inputs = (node.inputs[0], self.rw.array(rows), *node.inputs[2:])
        return replace(node, inputs=inputs, attrs={**node.attrs, "trans_b": 0})

    def _shuffle(self, node: Node, shape: Shape, target: Shape) -> bool:
        """Reshape (n, g·k, …) -> (n, g, k, …), Transpose g and k, Reshape back."""
        chain = self._chain(node, ("Transpose", "Reshape"))
        if chain is None or target[:1] + target[3:] != shape[:1] + shape[2:]:
            return False
        swap, back = chain
        rank = len(target)
        if tuple(swap.attrs["perm"]) != (0, 2, 1, *range(3, rank)):
            return False
        if self.graph.shape(back.output) != shape:
            return False
        spatial, (groups, size) = shape[2:], target[1:3]
        split = self.rw(
            "Reshape", self.last[node.inputs[0]], shape=(*shape[:1], *spatial, groups, size)
        )
        swapped = self.rw("Transpose", split, perm=(*range(rank - 2), rank - 1, rank - 2))
        self.rw.nodes.append(
            replace(back, inputs=(swapped,), outputs=(self.new_last(back.output),))
        )
        self.done |= {swap.output, back.output}
        return True

    def _split_channels(self, node: Node, shape: Shape, target: Shape) -> bool:
        """Reshape (n, c, …) -> (n, a, b, …): a view (n, …, a, b) of the storage, then Transpose.

        A consumer that moves the parts to the end again, as detectors do, cancels the Transpose.
        """
        n_parts = len(target) - 1
        while n_parts and math.prod(target[1 : n_parts + 1]) > shape[1]:
            n_parts -= 1
        parts, space = target[1 : n_parts + 1], target[n_parts + 1 :]
        if target[:1] != shape[:1] or math.prod(parts) != shape[1]:
            return False
        split = self.rw("Reshape", self.last[node.inputs[0]], shape=(*shape[:1], *space, *parts))
        ends = (*range(1 + len(space), len(target)), *range(1, 1 + len(space)))
        self.rw.result("Transpose", split, perm=(0, *ends))
        self.first.add(node.output)
        return True

    def _chain(self, node: Node, ops: tuple[str, ...]) -> list[Node] | None:
        out: list[Node] = []
        for op in ops:
            users = self.rw.readers(node.output)
            if len(users) != 1 or users[0].op != op or node.output in self.graph.outputs:
                return None
            node = users[0]
            out.append(node)
        return out


def conv_weight(shape: Shape, n_groups: int) -> tuple[Shape, tuple[int, ...], str]:
    """From ONNX's (out, in/groups, …kernel…) to the order that kernels read: a view, a permutation.

    And the kind of convolution. dense: (…kernel…, in, out) · depthwise: (…kernel…, c) ·
    grouped: (…kernel…, group, in, out).
    """
    (n_out, n_in), window = shape[:2], shape[2:]
    if n_groups == 1:
        return shape, (*range(2, len(shape)), 1, 0), "dense"
    if n_in == 1 and n_out == n_groups:
        return (n_out, *window), (*range(1, len(shape) - 1), 0), "depthwise"
    split = (n_groups, n_out // n_groups, n_in, *window)
    return split, (*range(3, len(split)), 0, 2, 1), "grouped"


_HANDLERS: dict[Layout, Callable[[_Layout, Node], None]] = {
    Layout.SPATIAL: _Layout.spatial,
    Layout.ELEMENTWISE: _Layout.elementwise,
    Layout.AXIS: _Layout.with_axis,
    Layout.REDUCTION: _Layout.reduction,
    Layout.PAD: _Layout.pad,
    Layout.SLICE: _Layout.slice,
    Layout.TRANSPOSE: _Layout.transpose,
    Layout.RESHAPE: _Layout.reshape,
}
