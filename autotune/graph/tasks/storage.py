"""① Storage: which activations own memory and which are strided views of another's memory.

The inputs of a Concat are computed in place, in their part of its result, also where a Reshape of
all but the last dimension lies between. A Slice is a view, and a Reshape is the same memory under
another shape. Where no view is possible, an `Identity` group copies. Views are dense in the last
dimension, and all dimensions before it must collapse into one (see `te.collapse`). Owned memory is
dense, or has row-stride padding (`autotune.strides`) where no view needs dense rows.
"""

from __future__ import annotations

from collections.abc import Container, Set
from dataclasses import dataclass, replace
from itertools import chain, count, pairwise

from autotune.graph.ir import Graph, Node, Shape
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import view_of
from autotune.graph.tasks.partition import Group
from autotune.strides import dense, padded_strides


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation.

    `parent` None: it owns memory. Otherwise it is the view of `parent`'s memory that begins at
    `offset` and has `strides`, both in elements; a parent owns its memory.
    """

    name: str
    shape: Shape
    dtype: str
    strides: Shape
    parent: str | None = None
    offset: int = 0

    @property
    def root(self) -> str:
        """The value that owns the memory."""
        return self.parent or self.name


def unused_name(stem: str, names: Container[str]) -> str:
    """The first of `stem`, `stem.2`, `stem.3`, … that is none of `names`."""
    tried = chain((stem,), (f"{stem}.{n}" for n in count(2)))
    return next(name for name in tried if name not in names)


def reshape_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of the same memory with shape `new`, or None where that needs a copy.

    Works on runs of dimensions with equal products, as NumPy does; extents of 1 are free.
    """
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    out: list[int] = []
    todo = list(old)
    pending = 1
    stride = 1
    for extent in new:
        if extent == 1:
            out.append(0)
            continue
        if pending == 1:
            if not todo:
                return None
            pending, stride = todo.pop(0)
        while pending % extent and todo and todo[0][0] * todo[0][1] == stride:
            n, stride = todo.pop(0)
            pending *= n
        if pending % extent:
            return None
        pending //= extent
        out.append(stride * pending)
    if todo or pending != 1:
        return None
    for n in reversed([n for n, extent in enumerate(new) if extent == 1]):
        out[n] = out[n + 1] * new[n + 1] if n + 1 < len(new) else 1
    return tuple(out)


def is_window(shape: Shape, strides: Shape) -> bool:
    """Whether a view is dense in its last dimension and collapsible in the others."""
    long = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    if not long:
        return True
    outer, inner = long[:-1], long[-1]
    if inner[1] != 1:
        return False
    return all(a[1] == b[0] * b[1] for a, b in pairwise(outer))


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's position inside the result of a Concat; `like`: the input of it that it is."""

    concat: Node
    offset: int
    like: str


def plan_storage(
    graph: Graph, groups: list[Group], computed: Set[str] = frozenset()
) -> tuple[dict[str, Activation], list[Group]]:
    """Values of all activations, and the groups with the copies that are necessary, in order.

    `computed`: results of Slice and Concat that are no views.
    """
    dense_names = {*graph.inputs, *graph.outputs}
    while True:
        plan = _Storage(graph, groups, dense_names, computed)
        found = plan.run()
        if not plan.costs_copy:
            return found
        dense_names |= plan.costs_copy


class _Storage:
    """`dense_names`: without row-stride padding; `costs_copy`: values where it causes a copy."""

    def __init__(
        self, graph: Graph, groups: list[Group], dense_names: set[str], computed: Set[str]
    ) -> None:
        self.graph = graph
        self.dense_names = dense_names
        self.computed = computed
        self.costs_copy: set[str] = set()
        self.made = {g.output: g for g in groups}
        self.groups: list[Group] = []
        self.values: dict[str, Activation] = {}
        self.places: dict[str, _Place] = {}
        self.used: dict[str, int] = {}
        """Number of names by their stem."""
        self.concats = {n.output: n for n in graph.nodes if view_of(n) is ViewKind.JOINED}
        self.reshapes = {n.output: n for n in graph.nodes if view_of(n) is ViewKind.WHOLE}
        self.readers = graph.consumers()
        appended = (n for n in graph.nodes if view_of(n) is ViewKind.APPENDED)
        self.rows = {n.inputs[1]: graph.shape(n.inputs[0]) for n in appended}
        """Shapes of the buffers that rows are written to."""

    def run(self) -> tuple[dict[str, Activation], list[Group]]:
        for node in reversed(list(self.concats.values())):
            self._place_inputs(node)
        for name in self.graph.inputs:
            self._own(name)
        for node in self.graph.nodes:
            self._visit(node)
        return self.values, self.groups

    # --- inputs of Concat in place ---

    def _place_inputs(self, node: Node) -> None:
        """Reserve a part of the result for every input that can be computed in place."""
        if not self._fits_in_place(node):
            del self.concats[node.output]
            return
        for name, offset in self._parts(node):
            if name in self.places:
                continue  # an input may occur twice: only its first part is in place
            is_computed = name in self.made or name in self.concats
            is_own = is_computed and name not in self.graph.outputs
            source = name if is_own else self._reshaped(name)
            if source:
                self.places[name] = self.places[source] = _Place(node, offset, name)

    def _reshaped(self, name: str) -> str:
        """The computed tensor that `name` is, but for extents in front of the last one, and that
        nothing else reads; else ""."""
        last = self.graph.shape(name)[-1:]
        while name in self.reshapes and self._is_private(name):
            name = self.reshapes[name].inputs[0]
            if name in self.made and self._is_private(name):
                is_free = name not in self.places and self.graph.shape(name)[-1:] == last
                return name if is_free else ""
        return ""

    def _is_private(self, name: str) -> bool:
        return len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs

    def _fits_in_place(self, node: Node) -> bool:
        strides = dense(self.graph.shape(node.output))
        return node.output not in self.computed and all(
            is_window(self.graph.shape(name), strides) and name not in self.graph.constants
            for name in node.inputs
        )

    def _parts(self, node: Node) -> list[tuple[str, int]]:
        """Inputs with their offsets in elements of the dense result."""
        shape = self.graph.shape(node.output)
        axis = node.attrs["axis"] % len(shape)
        out, at = [], 0
        for name in node.inputs:
            out.append((name, at))
            at += self.graph.shape(name)[axis]
        return out

    def _axis_stride(self, node: Node, value: Activation) -> int:
        axis: int = node.attrs["axis"] % len(value.shape)
        return value.strides[axis]

    # --- values ---

    def _own(self, name: str) -> Activation:
        kind = self.graph.types[name]
        in_order = name in self.dense_names
        if name in self.rows:  # in the memory of that buffer
            value = Activation(name, kind.shape, kind.dtype, dense(self.rows[name]))
            self.values[name] = value
            return value
        strides = dense(kind.shape) if in_order else padded_strides(kind.shape, kind.dtype)
        value = Activation(name, kind.shape, kind.dtype, strides)
        self.values[name] = value
        return value

    def _target(self, name: str) -> Activation:
        """The value of a computed tensor or a Concat: in its reserved place, or an owner."""
        if name in self.values:
            return self.values[name]
        place = self.places.get(name)
        if place is None:
            return self._own(name)
        value = self._inside(name, place.like, place.concat, place.offset)
        shape = self.graph.shape(name)
        if shape != value.shape:
            strides = reshape_strides(value.shape, value.strides, shape)
            assert strides is not None  # the same last extent, and a window in front of it
            value = self.values[name] = replace(value, shape=shape, strides=strides)
        return value

    def _inside(self, name: str, like: str, concat: Node, offset: int) -> Activation:
        whole = self._target(concat.output)
        kind = self.graph.types[like]
        at = whole.offset + offset * self._axis_stride(concat, whole)
        value = Activation(name, kind.shape, kind.dtype, whole.strides, whole.root, at)
        self.values[name] = value
        return value

    def _source(self, node: Node) -> Activation:
        """The value that is viewed; a constant that was not folded is copied first."""
        name = node.inputs[0]
        if name in self.graph.constants and name not in self.values:
            copy = self._unused(f"{name}.copy")
            kind = self.graph.types[name]
            self.values[copy] = Activation(copy, kind.shape, kind.dtype, dense(kind.shape))
            self.groups.append(_copy(node, name, copy))
            return self.values[copy]
        return self.values[name]

    def _visit(self, node: Node) -> None:
        if node.output in self.made:
            self._target(node.output)
            self.groups.append(self.made[node.output])
            return
        match view_of(node):
            case ViewKind.WHOLE:
                self._reshape(node)
            case ViewKind.PART:
                self._slice(node)
            case ViewKind.JOINED:
                self._concat(node)
            case ViewKind.APPENDED:
                self._append(node)

    def _append(self, node: Node) -> None:
        """The buffer of a state, with its new rows."""
        buffer = self.values[node.inputs[0]]
        self.values[node.output] = replace(buffer, name=node.output, parent=buffer.name)

    def _concat(self, node: Node) -> None:
        if node.output not in self.concats:
            self._group(node)
            return
        self._target(node.output)
        for name, offset in self._parts(node):
            place = self.places.get(name)
            written = place is not None and place.concat is node and place.offset == offset
            if not written:
                copy = self._unused(f"{name}.copy")
                self._inside(copy, name, node, offset)
                self.groups.append(_copy(node, name, copy))

    def _slice(self, node: Node) -> None:
        source = self._source(node)
        shape = self.graph.shape(node.output)
        steps, starts = node.attrs["steps"], node.attrs["starts"]
        is_view = node.output not in self.computed and all(s == 1 for s in steps)
        if not is_view or not is_window(shape, source.strides):
            self._group(node)
            return
        at = source.offset + sum(b * s for b, s in zip(starts, source.strides, strict=True))
        value = Activation(node.output, shape, source.dtype, source.strides, source.root, at)
        self._alias(node, value)

    def _reshape(self, node: Node) -> None:
        source = self._source(node)
        shape = self.graph.shape(node.output)
        strides = reshape_strides(source.shape, source.strides, shape)
        if strides is None or not is_window(shape, strides):
            source = self._dense_copy(node, source)
            strides = dense(shape)
        value = Activation(node.output, shape, source.dtype, strides, source.root, source.offset)
        self._alias(node, value)

    def _alias(self, node: Node, value: Activation) -> None:
        """Register a view; a model output that is a view is copied to dense memory of its own."""
        is_dense = value.strides == dense(value.shape)
        is_input = value.root in self.graph.inputs
        if node.output in self.graph.outputs and (is_input or not is_dense or value.offset):
            self._wants_dense(value)
            view = self._unused(f"{node.output}.view")
            self.values[view] = replace(value, name=view)
            self._own(node.output)
            self.groups.append(_copy(node, view, node.output))
        else:
            self.values[node.output] = value

    def _wants_dense(self, value: Activation) -> None:
        """Note that the row-stride padding of a storage causes a copy."""
        root = self.values[value.root]
        if root.strides != dense(root.shape):
            self.costs_copy.add(root.name)

    def _dense_copy(self, node: Node, source: Activation) -> Activation:
        self._wants_dense(source)
        copy = self._unused(f"{source.name}.dense")
        made = Activation(copy, source.shape, source.dtype, dense(source.shape))
        self.values[copy] = made
        self.groups.append(_copy(node, source.name, copy))
        return made

    def _group(self, node: Node) -> None:
        """A view node that no view can represent is computed as a group of its own."""
        self._target(node.output)
        self.groups.append(Group([node]))

    def _unused(self, stem: str) -> str:
        name, n = stem, self.used.get(stem, 0)
        while name in self.values or name in self.graph.types:
            n += 1
            name = f"{stem}.{n}"
        self.used[stem] = n
        return name


def _copy(node: Node, source: str, target: str) -> Group:
    return Group([Node(node.name, "Identity", (source,), (target,))])
