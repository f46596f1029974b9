"""① A model at a batch of padded rows and at its tokens alone -> one graph that computes both ways.

    ids, mask (batch, sequence)
    tokens    (n, 2)             row and place of each token that counts
    slots     (batch, sequence)  the token of each place

Nodes that keep tokens apart are those of the model at `n` rows of one token; all others, those that
mix a row, are those of the padded batch. Between them, GatherND packs and Gather spreads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node, TensorType
from autotune.graph.ragged import Ragged
from autotune.graph.ragged.places import TokenPlaces, Tokens

_PACKED = ".packed"


def packed_tensors(tokens: Tokens) -> frozenset[str]:
    """Results that are computed for tokens alone: by products, norms and tables, and between them.

    What moves elements or computes them one by one is computed where its operands are.
    """
    graph = tokens.graph
    apart = [n for n in graph.nodes if tokens.keeps_apart(n) and tokens.n_numbers(n.output) > 1]
    moving = {n.output for n in apart if tokens.moves(n)}
    anchors = {n.output for n in apart if n.output not in moving and tokens.gathers_or_sums(n)}
    found = set(anchors)
    for node in (n for n in apart if n.output not in moving and n.output not in found):
        own = [x for x in node.inputs if x and x not in graph.constants and tokens.is_open(x)]
        rows = [x for x in own if _has_rows(tokens, x)]
        if rows and all(x in found for x in rows):
            found.add(node.output)
    able = {n.output: n for n in apart}
    return frozenset(_with_between(graph, able, found))


def _has_rows(tokens: Tokens, name: str) -> bool:
    known = tokens.of(name)
    return known is None or known.batch is not None


def _with_between(graph: Graph, able: dict[str, Node], found: set[str]) -> set[str]:
    """`found`, and what lies between two of them: from one, and only to others."""
    readers = graph.consumers()
    ahead = set(found)
    for node in reversed(list(able.values())):
        uses = readers.get(node.output, [])
        is_between = bool(uses) and node.output not in graph.outputs
        if is_between and all(use.output in ahead for use in uses):
            ahead.add(node.output)
    for node in able.values():
        if node.output in ahead and any(x in found for x in node.inputs):
            found.add(node.output)
    return found


def packed_graph(
    padded: Graph, single: Graph, tokens: Tokens, names: Iterable[str], ragged: Ragged
) -> Graph:
    """The graph of a batch of rows of which some places do not count.

    `padded`: the model at a batch and a sequence; `single`: at as many rows of one token as there
    are tokens. `names`: see `packed_tensors`.
    """
    return _Packing(padded, single, tokens, frozenset(names), ragged).graph()


@dataclass
class _Packing:
    padded: Graph
    single: Graph
    tokens: Tokens
    packed: frozenset[str]
    ragged: Ragged

    def __post_init__(self) -> None:
        self.editor = Editor(self.padded)
        self.n = self.single.shape(self.ragged.mask)[0]
        self.rows, self.length = self.padded.shape(self.ragged.mask)
        self.at, self.slots = self.ragged.hidden
        self.editor.types |= {
            self.at: TensorType((self.n, 2), "int64"),
            self.slots: TensorType((self.rows, self.length), "int64"),
        }
        self.spread: dict[str, str] = {}
        self.taken: dict[str, str] = {}
        self.shared: dict[str, str] = {}
        self.singles = {n.output: n for n in self.single.nodes}
        self.column = ""

    def graph(self) -> Graph:
        """Nodes of which something is needed, in the order of the model."""
        needed = self._needed()
        for node in self.padded.nodes:
            if needed.isdisjoint(node.outputs):
                continue
            if node.output in self.packed:
                self._emit_packed(node)
            else:
                inputs = tuple(self._padded(x) for x in node.inputs)
                self.editor.emit(replace(node, inputs=inputs))
        outputs = tuple(self._padded(name) for name in self.padded.outputs)
        stated = dict(self.padded.output_names)
        for name, made in zip(self.padded.outputs, outputs, strict=True):
            stated[made] = stated.pop(name, name)
        stated = {made: name for made, name in stated.items() if made != name}
        inputs = (*self.padded.inputs, self.at, self.slots)
        graph = replace(self.padded, inputs=inputs, outputs=outputs, output_names=stated)
        self.editor.graph = graph
        return self.editor.build()

    def _needed(self) -> set[str]:
        found = set(self.padded.outputs)
        for node in reversed(self.padded.nodes):
            if not found.isdisjoint(node.outputs):
                found |= set(filter(None, node.inputs))
        return found

    def _emit_packed(self, node: Node) -> None:
        made = self._name(node.output)
        self.editor.types[made] = self.single.types[node.output]
        own = self.singles[node.output]
        inputs = tuple(self._packed(x, own.output) for x in own.inputs)
        self.editor.emit(replace(own, name=node.name, inputs=inputs, outputs=(made,)))

    def _name(self, name: str) -> str:
        return f"{name}{_PACKED}"

    def _padded(self, name: str) -> str:
        """A tensor of the padded batch."""
        if name not in self.packed:
            return name
        if name not in self.spread:
            self.spread[name] = self._spread(name)
        return self.spread[name]

    def _packed(self, name: str, result: str) -> str:
        """A tensor of the tokens, as an operand of the node of `result`."""
        if not name:
            return ""
        if name in self.packed:
            return self._name(name)
        if not self.tokens.is_open(name):
            return self._constant(name) if name in self.single.constants else name
        if name not in self.taken:
            self.taken[name] = self._taken(name, result)
        return self.taken[name]

    def _constant(self, name: str) -> str:
        """A constant of a node for tokens: that of the padded batch where it is the same."""
        value, other = self.single.constants[name], self.padded.constants.get(name)
        if other is not None and _same(value, other):
            return name
        if name not in self.shared:
            self.shared[name] = self.editor.constant(self._name(name), value)
        return self.shared[name]

    # --- from one to the other ---

    def _taken(self, name: str, result: str) -> str:
        """(batch, …, sequence, …) -> the rows of the tokens, in the shape of a single token."""
        places = self._places(name)
        shape = self.padded.shape(name)
        rest = [d for d in range(len(shape)) if d not in (places.batch, places.sequence)]
        if places.batch is None:
            batch = self._places(result).batch
            rest = [d for d in rest if d != batch]
            front = self._moved(name, [places.sequence, *rest])
            front = self._shaped(front, (self.length, *(shape[d] for d in rest)))
            kept = (self.n, *(shape[d] for d in rest))
            made = self._node("Gather", kept, front, self._spots(), axis=0)
            return self._placed(made, rest, batch or 0, len(shape))
        front = name
        if places.batch == places.sequence:
            front = self._moved(name, [places.batch, *rest])
        else:
            front = self._moved(name, [places.batch, places.sequence, *rest])
        front = self._shaped(front, (self.rows, self.length, *(shape[d] for d in rest)))
        kept = (self.n, *(shape[d] for d in rest))
        made = self._node("GatherND", kept, front, self.at, batch_dims=0)
        return self._placed(made, rest, places.batch, len(shape))

    def _placed(self, name: str, rest: Sequence[int], batch: int, rank: int) -> str:
        """(tokens, rest…) -> tokens in dimension `batch` of `rank`; 1 where nothing else is."""
        order = sorted([batch, *rest])
        source = [batch, *rest]
        made = self._moved(name, [source.index(d) for d in order])
        shape = self.editor.types[made].shape
        whole = [1] * rank
        for d, n in zip(order, shape, strict=True):
            whole[d] = n
        return self._shaped(made, whole)

    def _spread(self, name: str) -> str:
        """Tokens -> (batch, …, sequence, …)."""
        places, shape = self._places(name), self.padded.shape(name)
        assert places.batch is not None
        rest = [d for d in range(len(shape)) if d not in (places.batch, places.sequence)]
        front = self._moved(self._name(name), [places.batch, *rest], len(shape))
        front = self._shaped(front, (self.n, *(shape[d] for d in rest)))
        whole = (self.rows, self.length, *(shape[d] for d in rest))
        made = self._node("Gather", whole, front, self.slots, axis=0)
        if places.batch == places.sequence:
            made = self._shaped(made, (self.rows * self.length, *(shape[d] for d in rest)))
            order, source = sorted([places.batch, *rest]), [places.batch, *rest]
        else:
            source = [places.batch, places.sequence, *rest]
            order = sorted(source)
        return self._moved(made, [source.index(d) for d in order])

    def _places(self, name: str) -> TokenPlaces:
        found = self.tokens.of(name)
        assert found is not None, name
        return found

    def _spots(self) -> str:
        """The place in its row of each token."""
        if not self.column:
            index = self.editor.constant(f"{self.at}.place", np.array(1, np.int64))
            self.column = self._node("Gather", (self.n,), self.at, index, dtype="int64", axis=1)
        return self.column

    # --- nodes ---

    def _node(
        self, op: str, shape: Iterable[int], *inputs: str, dtype: str = "", **attrs: int
    ) -> str:
        kind = dtype or self.editor.types[inputs[0]].dtype
        made = self.editor.new(f"{inputs[0]}.{op.lower()}", shape, kind)
        self.editor.emit(Node(made, op, inputs, (made,), attrs))
        return made

    def _moved(self, name: str, order: Sequence[int], rank: int = 0) -> str:
        """`name` with its dimensions in `order`; those that are left out, which are 1, last."""
        shape = self.editor.types[name].shape
        perm = (*order, *(d for d in range(len(shape)) if d not in order))
        if perm == tuple(range(len(shape))):
            return name
        value = self.editor.constants.get(name)
        if value is not None:
            turned = np.ascontiguousarray(value.transpose(perm))
            return self.editor.constant(f"{name}.moved", turned)
        kind = self.editor.types[name].dtype
        made = self.editor.new(f"{name}.moved", (shape[d] for d in perm), kind)
        self.editor.emit(Node(made, "Transpose", (name,), (made,), {"perm": perm}))
        return made

    def _shaped(self, name: str, shape: Sequence[int]) -> str:
        if self.editor.types[name].shape == tuple(shape):
            return name
        value = self.editor.constants.get(name)
        if value is not None:
            return self.editor.constant(f"{name}.shaped", value.reshape(shape))
        text = self.editor.constant(f"{name}.shape", np.array(shape, np.int64))
        return self._node("Reshape", shape, name, text, allowzero=0)


def _same(a: Array, b: Array) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b))
