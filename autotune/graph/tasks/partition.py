"""① Operator fusion: nodes are grouped into subgraphs, each of which becomes one call of one task.

A group consists of an anchor (convolution, matrix product, pooling, softmax, …), a prologue and an
epilogue. The prologue rearranges or scales the first operand of the anchor and has no other
consumer (a Transpose at the edge of the model; scale, shift and ReLU in DenseNet). The epilogue are
the elementwise nodes behind the anchor, as long as the intermediate has a single consumer.
Consumers that reconverge at one node, as in `x * sigmoid(x)`, count as one.
Concat, Slice and Reshape belong to no group: `storage` turns them into strided views or inserts a
copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod

from autotune.dtypes import DTYPES
from autotune.graph.ir import Graph, Node
from autotune.graph.operators.definition import Fusion, Layout, Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.operators.user_operators import DEFINED

_MOST_STRIDED_READS = 2
"""Most reads per element of a window whose operand is transposed in the prologue. Each read
gathers a vector lane by lane; beyond this limit one Transpose of the operand, in registers, is
cheaper: 2.25 reads of 512×14×14 take 22.7 µs, Transpose and window 13.3 µs."""
_MOST_JOINED = 16
"""Most elementwise nodes between a tensor and the node where its consumers reconverge."""
_MOST_FUSED = 32
"""Nodes of a group beyond which nothing is fused: such a kernel is compute-bound, so that fusion
saves no time, and compile time grows with its length."""


_NARROW = ("uint8", "int8", "bfloat16", "float16")


@dataclass
class Group:
    """Nodes of one subgraph in topological order; the last one makes its output."""

    nodes: list[Node] = field(default_factory=list)

    @property
    def output(self) -> str:
        """The tensor that leaves the group."""
        return self.nodes[-1].output

    @property
    def anchor(self) -> Node | None:
        """The node that is not injective, if there is one."""
        return next((n for n in self.nodes if not operator_of(n.op).is_injective), None)

    @property
    def label(self) -> str:
        """Operators in order, as in `Conv+Add+Relu`."""
        return "+".join(n.attrs["node"].op if n.op == DEFINED else n.op for n in self.nodes)

    def external_inputs(self) -> list[str]:
        """Tensors read from outside, each once, in order of use."""
        made = {o for n in self.nodes for o in n.outputs}
        names = [i for n in self.nodes for i in n.inputs if i and i not in made]
        return list(dict.fromkeys(names))


def partition(graph: Graph) -> list[Group]:
    """Groups in the order in which they run."""
    maker = _Partition(graph)
    for node in graph.nodes:
        maker.visit(node)
    position = {n.output: i for i, n in enumerate(graph.nodes)}
    return sorted(maker.groups, key=lambda g: position[g.output])


class _Partition:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.groups: list[Group] = []
        self.owner: dict[str, Group] = {}
        """Output of a group -> the group."""
        self.placed: set[str] = set()
        """Outputs of the nodes that are in a group."""
        self.readers = graph.consumers()
        self.n_uses = {name: len(users) for name, users in self.readers.items()}
        self.rank = _ranks(graph)
        self.computed_by_readers: dict[str, Node] = {}
        """Output of a node that is in no group of its own -> the node."""

    def visit(self, node: Node) -> None:
        operator = operator_of(node.op)
        if operator.fusion is Fusion.VIEW or node.output in self.placed:
            return
        if self._widens(node) and self._is_for_readers(node):
            self.computed_by_readers[node.output] = node
            return
        group = self._epilogue_of(node) if operator.is_elementwise else self._prologue_of(node)
        if group is None:
            group = Group()
            self.groups.append(group)
        else:
            del self.owner[group.output]
        nodes = [node]
        while nodes:
            self._add(group, nodes)
            is_full = len(group.nodes) >= _MOST_FUSED
            nodes = [] if is_full else self._until_joined(group.output)
        self.owner[group.output] = group

    def _add(self, group: Group, nodes: list[Node]) -> None:
        """Append nodes, each behind the producers that it recomputes."""
        for node in nodes:
            for needed in (*self._computed_by(node), node):
                if needed not in group.nodes:
                    group.nodes.append(needed)
        self.placed |= {n.output for n in nodes}

    def _computed_by(self, reader: Node) -> Iterator[Node]:
        """The nodes in no group of their own that `reader` reads, each behind those it reads."""
        for name in reader.inputs:
            if name in self.computed_by_readers:
                node = self.computed_by_readers[name]
                yield from self._computed_by(node)
                yield node

    def _widens(self, node: Node) -> bool:
        """Whether a node only converts to a larger type than the operand of its chain has."""
        if Trait.WIDENS not in operator_of(node.op).traits:
            return False
        name = node.inputs[0]
        while name in self.computed_by_readers:
            name = self.computed_by_readers[name].inputs[0]
        source, result = (DTYPES[self.graph.types[n].dtype] for n in (name, node.output))
        return source.bits < result.bits

    def _is_for_readers(self, node: Node) -> bool:
        """Whether all readers of a tensor can compute it, and it would have to be stored for them:
        its operand is smaller."""
        readers = self.readers.get(node.output, [])
        is_placed = any(r.output in self.placed for r in readers)  # where consumers reconverge
        if not readers or node.output in self.graph.outputs or is_placed:
            return False
        return all(operator_of(r.op).fusion in (Fusion.ELEMENTWISE, Fusion.ANCHOR) for r in readers)

    def _until_joined(self, name: str) -> list[Node]:
        """The elementwise nodes between a tensor and the node where its consumers reconverge.

        In order, that node last. Empty if they do not reconverge, if a group has one of them
        already, or if there is a single use.
        """
        shape = self.graph.shape(name)
        found: list[Node] = []
        output = name
        waiting: dict[str, Node] = {}
        while output not in self.graph.outputs and len(found) < _MOST_JOINED:
            waiting |= {n.output: n for n in self.readers.get(output, ())}
            output = min(waiting, key=lambda o: self.rank[o][1], default="")
            if not output or output in self.placed:
                break
            if not operator_of(waiting[output].op).is_elementwise:
                break
            if self.graph.shape(output) != shape:
                break
            found.append(waiting.pop(output))
            if not waiting:
                return found if self.n_uses[name] > 1 else []
        return []

    def _epilogue_of(self, node: Node) -> Group | None:
        """The group whose epilogue an elementwise node extends.

        Of two (a residual sum) the one at the end of the longer branch, so that a block with a
        projected shortcut ends in the same task as the other blocks. A group runs at the position
        of its last node, after everything that it reads.
        """
        shape = self.graph.shape(node.output)
        fits = [
            self.owner[name]
            for name in map(self._stored, node.inputs)
            if self._is_private(name) and self.graph.shape(name) == shape
        ]
        fits = [group for group in fits if len(group.nodes) < _MOST_FUSED]
        return max(fits, key=lambda g: self.rank[g.output], default=None)

    def _stored(self, name: str) -> str:
        """The tensor that a reader computes `name` from, the only reader; else `name`."""
        while name in self.computed_by_readers and self.n_uses[name] == 1:
            name = self.computed_by_readers[name].inputs[0]
        return name

    def _prologue_of(self, node: Node) -> Group | None:
        """The group that can become the prologue of an anchor."""
        name = self._stored(node.inputs[0])
        if not operator_of(node.op).factors.takes_prologue or not self._is_private(name):
            return None
        group = self.owner[name]
        cheap = all(self._may_precede(n, node) for n in group.nodes)
        return group if cheap and len(list(self._activations(group))) == 1 else None

    def _may_precede(self, node: Node, anchor: Node) -> bool:
        """Whether an anchor can compute `node` on its first operand while it reads it."""
        operator = operator_of(node.op)
        is_cheap = Trait.CHEAP in operator.traits
        if operator.is_elementwise or not is_cheap:
            return is_cheap
        is_narrow = self.graph.types[anchor.inputs[0]].dtype in _NARROW
        if is_narrow and operator.layout is Layout.TRANSPOSE and _moves_last(node):
            return False  # operands of one instruction lie side by side
        if anchor.attrs.get("kind") == "grouped":
            return False  # its channels have two dimensions, which data movement does not know
        is_collected = self._reads_per_element(anchor) > _MOST_STRIDED_READS
        return operator.layout is not Layout.TRANSPOSE or not is_collected

    def _reads_per_element(self, node: Node) -> float:
        """Reuse of an element by a depthwise or pooling window; 0 for other operators."""
        if node.attrs.get("kind") == "depthwise":
            window = self.graph.shape(node.inputs[1])[:-1]
        elif operator_of(node.op).factors.weight_input is None and "kernel_shape" in node.attrs:
            window = node.attrs["kernel_shape"]
        else:
            return 0
        return float(prod(window) / prod(node.attrs.get("strides", (1,))))

    def _is_private(self, name: str) -> bool:
        return (
            name in self.owner and self.n_uses.get(name, 0) == 1 and name not in self.graph.outputs
        )

    def _activations(self, group: Group) -> Iterable[str]:
        return (n for n in group.external_inputs() if n not in self.graph.constants)


def _moves_last(node: Node) -> bool:
    perm = node.attrs["perm"]
    return bool(perm[-1] != len(perm) - 1)


def _ranks(graph: Graph) -> dict[str, tuple[int, int]]:
    """For every tensor: the number of anchors on the longest path to it, and its position."""
    depth: dict[str, int] = {}
    ranks: dict[str, tuple[int, int]] = {}
    for position, node in enumerate(graph.nodes):
        before = max((depth.get(name, 0) for name in node.inputs), default=0)
        depth[node.output] = before + (operator_of(node.op).fusion is Fusion.ANCHOR)
        ranks[node.output] = (depth[node.output], position)
    return ranks
