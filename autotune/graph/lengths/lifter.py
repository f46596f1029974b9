"""① Graphs of one model at several numbers -> one network that follows the numbers.

Nodes of the graphs are the same one by one (`_paired`); groups and memory are those at the most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.extent import Extents, Length
from autotune.graph.index_limits import index_limits
from autotune.graph.ir import Graph, Node, TensorType
from autotune.graph.lengths.definitions import GroupDefinitions, Lifted
from autotune.graph.lengths.formulas import computing
from autotune.graph.lengths.imports import HINT, ImportedModel, NotLifted
from autotune.graph.lengths.layouts import Dims, LengthLayout, dims_of, layout_of
from autotune.graph.lengths.merging import NotFollowed
from autotune.graph.lengths.numbers import (
    AffineExtent,
    Points,
    Vector,
    affine_extent,
    static,
    told,
    told_at,
    uneven,
)
from autotune.graph.network import FLAGS, Network, Port, assembled
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import view_of
from autotune.graph.tasks.grouped_rows import grouped_rows
from autotune.graph.tasks.joined_groups import joined_groups
from autotune.graph.tasks.partition import Group, partition
from autotune.graph.tasks.storage import Activation, plan_storage, unused_name
from autotune.graph.tasks.subgraph import Subgraph, form_of, group_definition
from autotune.strides import dense
from autotune.te.dag import ComputeDAG
from autotune.te.expr import INDEX


@dataclass
class Lifter:
    """A model at several numbers, its nodes one by one. `given`: values that hold numbers."""

    points: Points
    imports: Sequence[ImportedModel]
    dims: Mapping[str, Extents]
    leasts: Mapping[str, int]
    given: Mapping[str, str]
    layouts: dict[str, LengthLayout] = field(default_factory=dict)
    """Of the tensors at the most that are known so far."""
    known: dict[object, tuple[Lifted, ComputeDAG]] = field(default_factory=dict)
    """Definitions, and the tasks that they are, by what groups have in common."""

    def __post_init__(self) -> None:
        self.graphs = [i.stored for i in self.imports]
        self.first = self.graphs[0]
        self.nodes = self._paired()
        self.makers = {n.output: k for k, n in enumerate(self.first.nodes)}
        self.atoms = self._atoms()

    def network(self) -> Network:
        """The network for all numbers."""
        for name in self.first.inputs:
            self.layouts[name] = layout_of(self._input_dims(name))
        values, groups = plan_storage(self.first, partition(self.first), self._computed())
        copies = _Copies(self, groups)
        written = self.imports[0].written
        held = {**self.given, **written}
        self.ports = {
            name: held.get(name) or unused_name(f"length.{name}", values)
            for name in self.points.most
        }
        followed = [computing(n, f, self.ports) for n, f in self.points.formulas.items()]
        subgraphs = [*followed, *(self._subgraph(group, copies) for group in groups)]
        joined = [
            replace(j, parts=tuple(n + len(followed) for n in j.parts))
            for j in joined_groups(self.first, groups, partial(self._alternative, copies))
        ]
        made = {n: self.ports[n] for n in (*held, *self.points.formulas)}
        own = {n: v for n, v in self.ports.items() if n not in made}
        values |= {
            v: Activation(v, (1,), INDEX, (1,)) for n, v in self.ports.items() if n not in held
        }
        ends = {*self.imports[0].graph.outputs} & values.keys()
        grouped = grouped_rows(subgraphs, values, ends, {n for j in joined for n in j.parts})
        network = assembled(grouped.subgraphs, grouped.moved(joined), values)
        ports = _Ports(self)
        graph = self.imports[0].graph
        empty = {n: graph.types[n] for n in graph.outputs if 0 in graph.shape(n)}
        values |= {n: Activation(n, t.shape, t.dtype, dense(t.shape)) for n, t in empty.items()}
        hidden = tuple(Port(v, (1,), INDEX, v, self.points.most[n] + 1) for n, v in own.items())
        outputs = [ports.at(n) for n in graph.outputs if n not in written.values()]
        shapes = {e.name for p in outputs for e in p.extents if isinstance(e, Length)}
        shown = {n: v for n, v in made.items() if n in shapes}
        return replace(
            network,
            inputs=(*map(ports.at, graph.inputs), *hidden),
            outputs=(*outputs, *(Port(f"length.{n}", (1,), INDEX, v) for n, v in shown.items())),
            lengths=own,
            written={n: f"length.{n}" for n in shown},
        )

    # --- pairs of nodes ---

    def _paired(self) -> list[tuple[Node, ...]]:
        """The nodes of all graphs, one by one; each name at the most has one at each point."""
        self.names: list[dict[str, str]] = [
            dict(zip(self.first.inputs, g.inputs, strict=True)) for g in self.graphs
        ]
        first = self.first.nodes
        for n, graph in enumerate(self.graphs):
            for a, b in zip(first, graph.nodes, strict=False):
                self._pair(n, a, b)
            if len(graph.nodes) != len(first):
                longer = max(first, graph.nodes, key=len)
                raise self._differs(longer[min(len(first), len(graph.nodes))], n)
            ends = zip(self.first.outputs, graph.outputs, strict=True)
            if any(self.names[n].get(a, a) != b for a, b in ends):
                raise NotLifted("outputs come from other nodes at other lengths", HINT)
        return list(zip(*(g.nodes for g in self.graphs), strict=True))

    def _pair(self, n: int, a: Node, b: Node) -> None:
        is_like = (
            a.op == b.op and len(a.inputs) == len(b.inputs) and a.attrs.keys() == b.attrs.keys()
        )
        names, constants = self.names[n], self.graphs[n].constants
        for x, y in zip(a.inputs, b.inputs, strict=False):
            if x in self.first.constants or y in constants:
                is_like = is_like and x in self.first.constants and y in constants
            else:
                is_like = is_like and names.get(x, x) == y
        if not is_like:
            raise self._differs(a, n)
        names |= zip(a.outputs, b.outputs, strict=True)

    def _differs(self, node: Node, n: int) -> NotLifted:
        most, other = (told_at(self.points, k) for k in (0, n))
        return NotLifted(
            f"the model has other operators at {other} than at {most}, first at {node.op} "
            f"'{node.name}'",
            HINT,
        )

    def _shape(
        self, name: str, types: Sequence[Mapping[str, TensorType]] | None = None
    ) -> list[Vector]:
        """Extents of a tensor at the points."""
        kinds = types or [g.types for g in self.graphs]
        shapes = [t[self.names[n].get(name, name)].shape for n, t in enumerate(kinds)]
        if len({len(s) for s in shapes}) > 1:
            raise NotLifted(f"'{name}' has another rank at other lengths", HINT)
        return list(zip(*shapes, strict=True))

    def _atoms(self) -> list[AffineExtent]:
        """The lengths that dimensions of the model have, without their content."""
        found: dict[AffineExtent, None] = {}
        for name in self.first.types:
            for extent in self._shape(name) if self._is_paired(name) else ():
                whole = self.points.affine(extent)
                if whole is not None and not whole.is_static:
                    found[whole.over(whole.content)] = None
        return list(found)

    def _is_paired(self, name: str) -> bool:
        return name in self.first.inputs or name in self.makers

    # --- layouts ---

    def _input_dims(self, name: str) -> Dims:
        if name in self.dims:
            return tuple((affine_extent(extent),) for extent in self.dims[name])
        found = [self.points.affine(extent) for extent in self._shape(name)]
        known = tuple((extent,) for extent in found if extent is not None)
        if len(known) < len(found):
            raise NotLifted(
                f"the shape of input '{name}' does not follow {told(self.points)}", HINT
            )
        return known

    def _layout(self, name: str) -> LengthLayout:
        """The layout of a tensor: its group was lifted before, or it is a view."""
        if name not in self.layouts:
            node = self.first.nodes[self.makers[name]]
            self.layouts[name] = self._of_view(node)
        return self.layouts[name]

    def _of_view(self, node: Node) -> LengthLayout:
        shape = self._shape(node.output)
        if view_of(node) is ViewKind.WHOLE:
            layout = self._source(node)
            if dims_of(layout, shape, self.points) is None:
                raise self._refused(
                    node, "it joins lengths in another order than they lie in memory"
                )
            return layout
        if view_of(node) is ViewKind.APPENDED:  # all of the buffer, whatever of it is filled
            return self._source(node)
        before_it = self._operand(self.nodes[self.makers[node.output]], 0)
        dims = dims_of(self._source(node), before_it, self.points)
        if dims is None:
            raise self._refused(node, "it joins lengths in another order than they lie in memory")
        found = []
        for extent, before, dim in zip(shape, before_it, dims, strict=True):
            whole = self.points.affine(extent)
            if extent != before and (whole is None or len(dim) > 1):
                raise self._refused(node, uneven(extent, self.points))
            found.append(dim if extent == before or whole is None else (whole,))
        return layout_of(tuple(found))

    def _source(self, node: Node) -> LengthLayout:
        """The layout of what a node views."""
        if node.inputs[0] not in self.first.constants:
            return self._layout(node.inputs[0])
        shape = self._operand(self.nodes[self.makers[node.output]], 0)
        if any(len(set(extent)) > 1 for extent in shape):
            raise self._refused(node, "it views a constant that follows it")
        return layout_of(tuple((static(extent[0]),) for extent in shape))

    def _computed(self) -> frozenset[str]:
        """Results of Slice and Concat whose place in memory would follow a number."""
        return frozenset(n[0].output for n in self.nodes if self._is_moving(n))

    def _is_moving(self, nodes: Sequence[Node]) -> bool:
        first = nodes[0]
        if view_of(first) is ViewKind.PART:
            places = {(tuple(n.attrs["starts"]), tuple(n.attrs["steps"])) for n in nodes}
            return len(places) > 1
        if view_of(first) is not ViewKind.JOINED:
            return False
        shapes = [self._operand(nodes, slot) for slot in range(len(first.inputs))]
        axis = first.attrs["axis"] % len(shapes[0])
        return any(len(set(shape[axis])) > 1 for shape in shapes[:-1])

    def _operand(self, nodes: Sequence[Node], slot: int) -> list[Vector]:
        """Extents of an operand, which may be a constant, at the points."""
        pairs = zip(self.graphs, nodes, strict=True)
        return list(zip(*(g.shape(n.inputs[slot]) for g, n in pairs), strict=True))

    def _refused(self, node: Node, why: str) -> NotLifted:
        names = told(self.points)
        return NotLifted(f"{node.op} '{node.name}' cannot follow {names}: {why}", HINT)

    # --- groups ---

    def _subgraph(self, group: Group, copies: _Copies) -> Subgraph:
        """The call of a group, with the numbers that its task follows."""
        pairs = [copies.at(n, group) for n in range(len(self.graphs))]
        first = group_definition(*pairs[0])
        layouts = {own: copies.layout(name) for own, name in first.inputs.items()}
        key = self._key(pairs, layouts)
        if key is None or key not in self.known:
            lifted = self._lifted(group, pairs, first, layouts)
            whole = replace(first, constants={**first.constants, **lifted.constants})
            self.known[key] = lifted, whole.collapsed(lifted.dag).dag
        lifted, task = self.known[key]
        self._note(group, lifted)
        found = replace(first, constants={**first.constants, **lifted.constants}).of(task)
        numbers = {own: self._value(name, group) for own, name in lifted.numbers.items()}
        return replace(found, inputs=found.inputs | numbers)

    def _value(self, name: str, group: Group) -> str:
        """The value that holds a number for a group: that of its session."""
        owners = self.imports[0].owners
        if not owners or name not in self.given:
            return self.ports[name]
        names = [x for node in group.nodes for x in (*node.inputs, *node.outputs)]
        found = {owners[x] for x in names if x in owners}
        if len(found) != 1:
            raise self._refused(group.nodes[-1], "it is of several sessions")
        return found.pop()

    def _alternative(self, copies: _Copies, group: Group) -> Subgraph | None:
        """The call of several groups in one, if it can follow the numbers."""
        try:
            return self._subgraph(group, copies)
        except NotLifted:
            return None

    def _key(
        self, pairs: Sequence[tuple[Graph, Group]], layouts: Mapping[str, LengthLayout]
    ) -> object:
        """Equal for groups that are defined alike; None where constants follow a number."""
        operands = (group.external_inputs() for _, group in pairs)
        for names in zip(*operands, strict=True):
            arrays = [g.constants.get(name) for (g, _), name in zip(pairs, names, strict=True)]
            if any(a is not arrays[0] for a in arrays):
                return None
        return tuple(form_of(*pair)[0] for pair in pairs), tuple(layouts.items())

    def _lifted(
        self,
        group: Group,
        pairs: Sequence[tuple[Graph, Group]],
        first: Subgraph,
        layouts: Mapping[str, LengthLayout],
    ) -> Lifted:
        parts = [first, *(group_definition(*pair) for pair in pairs[1:])]
        if any(p.inputs.keys() != first.inputs.keys() for p in parts):
            raise self._refused(group.nodes[-1], "it reads other tensors at other lengths")
        dags, constants = [p.dag for p in parts], [p.constants for p in parts]
        definitions = GroupDefinitions(self.points, self.atoms, dags, layouts, constants)
        try:
            return definitions.lifted()
        except NotFollowed as error:
            raise self._refused(group.anchor or group.nodes[-1], str(error)) from error

    def _note(self, group: Group, lifted: Lifted) -> None:
        shape = self._shape(group.output) if self._is_paired(group.output) else None
        if shape is not None and dims_of(lifted.layout, shape, self.points) is None:
            raise self._refused(group.nodes[-1], "its result joins lengths in another order")
        self.layouts[group.output] = lifted.layout


class _Copies:
    """Groups at each point. Copies that storage inserts are of nodes that no graph has."""

    def __init__(self, lifter: Lifter, groups: Sequence[Group]) -> None:
        self.lifter = lifter
        own = {id(n) for n in lifter.first.nodes}
        self.position = {id(n): k for k, n in enumerate(lifter.first.nodes)}
        self.views: dict[str, str] = {}
        """Views that were copied, by their names: the results that they are."""
        self.types: list[dict[str, TensorType]] = [dict(g.types) for g in lifter.graphs]
        for group in groups:
            for node in group.nodes if id(group.nodes[0]) not in own else ():
                self._declare(node.inputs[0], node.output)

    def _declare(self, source: str, target: str) -> None:
        """Types of the names of a copy that are in no graph."""
        unknown = [name for name in (source, target) if not self._is_known(name)]
        known = target if source in unknown else source
        if source in unknown:
            self.views[source] = target
        for n, types in enumerate(self.types):
            kind = types[self.lifter.names[n].get(known, known)]
            types |= dict.fromkeys(unknown, kind)

    def _is_known(self, name: str) -> bool:
        return name in self.lifter.first.types or name in self.views

    def layout(self, name: str) -> LengthLayout:
        """The layout of a tensor or a view."""
        if name in self.views:
            node = self.lifter.first.nodes[self.lifter.makers[self.views[name]]]
            return self.lifter._of_view(node)
        return self.lifter._layout(name)

    def at(self, n: int, group: Group) -> tuple[Graph, Group]:
        """A group with its graph at a point."""
        lifter = self.lifter
        nodes = [self._node(n, node) for node in group.nodes]
        return replace(lifter.graphs[n], types=self.types[n]), Group(nodes)

    def _node(self, n: int, node: Node) -> Node:
        position = self.position.get(id(node))
        if position is not None:
            return self.lifter.nodes[position][n]
        names = self.lifter.names[n]
        return replace(
            node,
            inputs=tuple(names.get(x, x) for x in node.inputs),
            outputs=tuple(names.get(x, x) for x in node.outputs),
        )


class _Ports:
    """Inputs and outputs as the user sees them."""

    def __init__(self, lifter: Lifter) -> None:
        self.of = lifter
        self.limits = self._limits()

    def _limits(self) -> dict[str, Vector]:
        """The limits of inputs that are indices, at the points where they are."""
        found = [index_limits(g) for g in self.of.graphs]
        names = zip(*(g.inputs for g in self.of.graphs), strict=True)
        every = {n[0]: [limits.get(x) for limits, x in zip(found, n, strict=True)] for n in names}
        return {name: tuple(x for x in of if x is not None) for name, of in every.items() if of[0]}

    def _below(self, limits: Vector) -> Extents:
        """The limit of an input where it follows a length."""
        is_moving = len(set(limits)) > 1 and len(limits) == len(self.of.graphs)
        whole = self.of.points.affine(limits) if is_moving else None
        extent = None if whole is None else self._extent((whole,))
        return (extent,) if isinstance(extent, Length) else ()

    def at(self, name: str) -> Port:
        """The port of an input or output of the graph."""
        graph = self.of.imports[0].graph
        types = [i.graph.types for i in self.of.imports]
        shape = self.of._shape(name, types)
        kind = graph.types[name]
        stated = graph.output_names.get(name, name)
        limit = self.limits.get(name, (FLAGS,)) if name in graph.inputs else (FLAGS,)
        below = self._below(limit)
        port = Port(stated, kind.shape, kind.dtype, name, limit[0], below=below)
        if 0 in kind.shape:  # nothing computes it
            whole = [*map(self.of.points.affine, shape)]
            known: Dims = tuple((extent,) for extent in whole if extent is not None)
            dims = known if len(known) == len(whole) else None
        else:
            dims = dims_of(self.of._layout(name), shape, self.of.points)
        extents = None if dims is None else [self._extent(dim) for dim in dims]
        if extents is None or any(e is None for e in extents):
            raise NotLifted(f"'{stated}' joins lengths in one dimension", HINT)
        found = tuple(e for e in extents if e is not None)
        return replace(port, extents=found) if any(isinstance(e, Length) for e in found) else port

    def _extent(self, dim: Sequence[AffineExtent]) -> int | Length | None:
        if len(dim) == 1 and any(name in self.of.given for name, _ in dim[0].factors):
            return dim[0].at(self.of.points.most)  # a buffer has room for all
        if len(dim) != 1 or len(dim[0].factors) > 1:
            return None
        if dim[0].is_static:
            return dim[0].offset
        ((name, factor),) = dim[0].factors
        if factor < 1:
            return None
        points, is_written = self.of.points, name in self.of.imports[0].written
        least = 0 if is_written else points.whole(self.of.leasts)[name]
        return Length(name, points.most[name], factor, dim[0].offset, least)
