"""① A loop over all experts becomes one product with a matrix for each choice.

    for n in experts:                           e = the choices, of TopK
        slot, row = NonZero(e == n)
        y[row] += f(x[row], w[row, slot]; W n)
    ->  y[row] += Σ over slots of f(x[row], w[row, slot]; W[e[row, slot]])

So models of 2024 have them. Every choice is one of the places that a loop would find, in one turn
of it, so the body is computed once for all places in a fixed order. It has to compute each place
alone: `rows` proves that. Bodies have to be the same node by node, but for constants that they
multiply by or add.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node, Shape, TensorType, frozen_attrs
from autotune.graph.operators.definition import Fusion
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.experts import N_BITS, chosen_n_bits, takes_n_bits
from autotune.graph.reader.rows import Evaluate, computes_rows
from autotune.graph.rewriter import Rewriter

Import = Callable[[Graph], Editor | None]
"""Imports the nodes of a part of a model; None where one is not supported."""
_PLACES = "places"
_SUM = "sum"
"""The sum of turns, of which a body may ask for the shape."""
_SUFFIX = "all"
_PROOF_EXTENTS = (11, 13)


def looped_experts(read: Import, evaluate: Evaluate, rw: Rewriter) -> None:
    """The last sum of a loop -> a sum of products with gathered matrices; see the module."""
    if rw.node.op not in ("Add", "ScatterElements") and rw.node.op != "ScatterND":
        return
    graph = rw.editor.graph
    turns, base = _turns(graph.makers, rw.node)
    found = [_place_of(graph.makers, turn) for turn in turns]
    loops = [place for place in found if place is not None]
    is_known = len(loops) == len(turns) > 1 and all(_begins_at_zero(rw, turn) for turn in turns)
    if not is_known or not _is_last(rw, loops, base):
        return
    order = _order(rw, read, loops)
    if order is None:
        return
    places = tuple(place.non_zero.output for place in loops)
    body = _Body(rw, order, _depending(graph, places))
    body.known[places] = _PLACES
    body.known[tuple(turn.before for turn in turns)] = _SUM
    update = body.of(tuple(turn.update for turn in turns))
    index = body.of(tuple(turn.index for turn in turns))
    choice = loops[0].choice.outputs[1]
    end = _Turn(index, update, "", base)
    if update and index and _adds_rows(rw, read, evaluate, body, rw.types[choice].shape, end):
        _emit(rw, body, choice, end)
        _forget_lengths(rw, loops)


def _forget_lengths(rw: Rewriter, loops: Sequence[_Place]) -> None:
    """Nothing follows the numbers of places any more that turns would find."""
    written = rw.editor.written
    for place in loops if written is not None else ():
        name = place.non_zero.output
        assert written is not None
        written.tensors.pop(name, None)
        written.mosts.pop(name, None)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one turn of a loop adds to which rows."""

    index: str
    update: str
    into: str
    """What it is scattered into before it is added; "" for the sum itself."""
    before: str
    """The sum in front of this turn."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The NonZero of a turn, and the TopK whose choices it looks for."""

    non_zero: Node
    choice: Node


def _turns(makers: Mapping[str, Node], last: Node) -> tuple[list[_Turn], str]:
    """The scattered sums of a chain, and what they are added to."""
    turns: list[_Turn] = []
    node: Node | None = last
    base = ""
    while node is not None:
        scatter, before = node, node.inputs[0]
        if node.op == "Add":
            maker = makers.get(node.inputs[1])
            if maker is None or maker.op != "ScatterElements" or maker.attrs.get("axis", 0):
                break
            if maker.attrs.get("reduction", "none") not in ("none", "add"):
                break
            scatter = maker
        elif node.op not in ("ScatterElements", "ScatterND") or not _adds(node):
            break
        into = "" if scatter is node else scatter.inputs[0]
        turns.append(_Turn(scatter.inputs[1], scatter.inputs[2], into, before))
        base, node = before, makers.get(before)
    return turns, base


def _adds(node: Node) -> bool:
    """Whether it adds rows to others."""
    return bool(node.attrs.get("reduction", "none") == "add") and not node.attrs.get("axis", 0)


def _begins_at_zero(rw: Rewriter, turn: _Turn) -> bool:
    maker = rw.editor.graph.makers.get(turn.into)
    into = rw.constants.get(turn.into)
    if maker is not None and maker.op == "ConstantOfShape":  # of the shape of the sum so far
        into = maker.attrs.get("value", np.zeros(1, np.float32))
    return not turn.into or (into is not None and not into.any())


def _place_of(makers: Mapping[str, Node], turn: _Turn) -> _Place | None:
    """The place of a turn, found along the first operands of its indices."""
    found = _above(makers, turn.index, "NonZero")
    choice = _above(makers, found.inputs[0], "TopK") if found else None
    return _Place(found, choice) if found and choice else None


def _above(makers: Mapping[str, Node], name: str, op: str) -> Node | None:
    while (node := makers.get(name)) is not None and node.op != op and node.inputs:
        name = node.inputs[0]
    return node if node is not None and node.op == op else None


def _is_last(rw: Rewriter, loops: Sequence[_Place], base: str) -> bool:
    """Whether all experts have had a turn, and rows are chosen that are known."""
    choice = loops[0].choice
    router, chosen = rw.types.get(choice.inputs[0]), rw.types.get(choice.outputs[1])
    is_one = all(place.choice is choice for place in loops)
    total = rw.types.get(base)
    if router is None or chosen is None or not is_one or len(chosen.shape) != 2:
        return False
    if total is None or len(total.shape) != 2 or total.shape[0] != chosen.shape[0]:
        return False
    is_last = choice.attrs.get("axis", -1) in (-1, 1)
    return is_last and router.shape[-1] == len(loops) and min(chosen.shape) > 0


@dataclass(frozen=True, slots=True)
class _Order:
    """The expert of each turn, and the dimension of masks that is rows."""

    experts: tuple[int, ...]
    axis: int


def _order(rw: Rewriter, read: Import, loops: Sequence[_Place]) -> _Order | None:
    """What the masks of turns look for; None where they are not those of one expert each."""
    choice = loops[0].choice.outputs[1]
    masks = [place.non_zero.inputs[0] for place in loops]
    nodes = _between(rw, masks, {choice})
    rng, found = np.random.default_rng(0), set()
    for n_rows in (len(loops), 2 * len(loops)):
        shape = (n_rows, rw.types[choice].shape[1])
        every = np.resize(np.arange(len(loops)), shape).astype(rw.types[choice].dtype)
        sample = rng.permuted(every.reshape(-1)).reshape(shape)
        editor = read(_graph_of(rw, nodes, {choice: sample}, {}))
        values = [editor.constants.get(m) for m in masks] if editor else []
        found.add(_order_of(sample, [v for v in values if v is not None]))
    return found.pop() if len(found) == 1 else None


def _order_of(sample: Array, masks: Sequence[Array]) -> _Order | None:
    for axis, chosen in ((1, sample.T), (0, sample)):
        same = [e for m in masks for e in range(len(masks)) if np.array_equal(m != 0, chosen == e)]
        if masks and sorted(same) == [*range(len(masks))]:
            return _Order(tuple(same), axis)
    return None


def _between(rw: Rewriter, names: Sequence[str], known: Collection[str]) -> list[Node]:
    """The nodes that make some tensors of `known` ones, constants and what else there is."""
    makers, found = rw.editor.graph.makers, dict[str, Node]()
    todo = [*names]
    while todo:
        name = todo.pop()
        node = makers.get(name)
        if node is None or name in known or name in rw.constants or node.output in found:
            continue
        found[node.output] = node
        todo += filter(None, node.inputs)
    return [n for n in rw.editor.graph.nodes if n.output in found]


def _graph_of(
    rw: Rewriter,
    nodes: Sequence[Node],
    known: Mapping[str, Array],
    given: Mapping[str, TensorType],
) -> Graph:
    """A part of the model: constants of it and `known` ones, `given` inputs."""
    read = {n for node in nodes for n in node.inputs}
    constants = {n: rw.constants[n] for n in read & rw.constants.keys()} | dict(known)
    kinds = {n: TensorType(a.shape, str(a.dtype)) for n, a in constants.items()} | dict(given)
    graph = rw.editor.graph
    return Graph((*given,), (), (*nodes,), constants, kinds, graph.opset, graph.functions)


def _depending(graph: Graph, names: Collection[str]) -> set[str]:
    """The tensors that are made of some tensors."""
    found = set(names)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found |= {*node.outputs}
    return found


class _Body:
    """The bodies of all turns as one, for all places. `found`: what depends on a turn's places."""

    def __init__(self, rw: Rewriter, order: _Order, found: Collection[str]) -> None:
        self.rw, self.order, self.found = rw, order, found
        self.known: dict[tuple[str, ...], str] = {}
        self.nodes: list[Node] = []
        self.own: dict[str, Array] = {}
        """Constants that turns have of their own, by expert."""
        self.whole: set[str] = set()
        """Tensors that are the same for all turns."""

    def of(self, names: tuple[str, ...]) -> str:
        """The tensor that is `names` in the turns, one by one; "" where they differ."""
        if names not in self.known:
            self.known[names] = self._made(names)
        return self.known[names]

    def _made(self, names: tuple[str, ...]) -> str:
        constants = self.rw.constants
        if all(name == names[0] for name in names):
            self.whole.add(names[0])
            return names[0]
        if all(name in constants and name not in self.found for name in names):
            return self._constant(names)
        nodes = [self.rw.editor.graph.makers.get(name) for name in names]
        first = nodes[0]
        alike = [n for n in nodes if n is not None and first is not None and _is_alike(n, first)]
        if first is None or len(alike) < len(nodes):
            return ""
        slots = {node.outputs.index(name) for node, name in zip(alike, names, strict=True)}
        inputs = [
            self.of(each) if each[0] else ""
            for each in zip(*(n.inputs for n in alike), strict=True)
        ]
        if len(slots) > 1 or any(n and not i for n, i in zip(first.inputs, inputs, strict=True)):
            return ""
        outputs = tuple(n and self.rw.editor.unused(f"{n}.{_SUFFIX}") for n in first.outputs)
        self.nodes.append(replace(first, inputs=tuple(inputs), outputs=outputs))
        for n, pair in enumerate(zip(*(node.outputs for node in alike), strict=True)):
            self.known[pair] = outputs[n]
        return outputs[slots.pop()]

    def _constant(self, names: tuple[str, ...]) -> str:
        values = [self.rw.constants[name] for name in names]
        first = values[0]
        if all(v.dtype == first.dtype and np.array_equal(v, first) for v in values):
            return names[0]
        if any(v.dtype != first.dtype or v.shape != first.shape for v in values):
            return ""
        name = self.rw.editor.unused(f"{names[0]}.{_SUFFIX}")
        turns = np.argsort(self.order.experts)
        self.own[name] = np.stack([values[n] for n in turns])
        return name


def _places(shape: Shape, order: _Order) -> Array:
    """All places of a mask of choices (rows, slots), one after the other."""
    n_rows, n_slots = shape
    return np.indices((n_slots, n_rows) if order.axis == 1 else (n_rows, n_slots)).reshape(2, -1)


def _adds_rows(
    rw: Rewriter, read: Import, evaluate: Evaluate, body: _Body, shape: Shape, end: _Turn
) -> bool:
    """Whether the body computes each place by itself, and adds it to the row of the place."""
    given = {name: rw.types[name] for name in body.whole - rw.constants.keys()}
    given[_SUM] = rw.types[end.before]
    first = {name: value[0] for name, value in body.own.items()}
    parts = []
    for n in _PROOF_EXTENTS:
        kind = {_PLACES: TensorType((2, n), "int64")}
        parts.append(read(_graph_of(rw, body.nodes, first, given | kind)))
    one, two = parts
    if one is None or two is None:
        return False
    rows = computes_rows(one, two, {_PLACES: 1}, evaluate)
    places = _places(shape, body.order)
    known = read(_graph_of(rw, body.nodes, first | {_PLACES: places}, given))
    found = known.constants.get(end.index) if known is not None else None
    if found is None or rows.get(end.update) != 0 or _SUM in _read(one, end.update):
        return False
    if one.types[end.update].shape[1:] != given[_SUM].shape[1:]:
        return False
    own = places[body.order.axis].reshape(-1, *(1 for _ in found.shape[1:]))
    return np.array_equal(found, np.broadcast_to(own, found.shape)) and _are_taken(one, body)


def _read(part: Editor, name: str) -> set[str]:
    """The tensors of which a tensor is made."""
    found, todo = set[str](), [name]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += part.makers[name].inputs if name in part.makers else ()
    return found


def _are_taken(part: Editor, body: _Body) -> bool:
    """Whether constants of single turns are operands for which `_with_own` has rows."""
    return all(_is_taken(part, body, node) for node in body.nodes if _own_of(body, node))


def _is_taken(part: Editor, body: _Body, node: Node) -> bool:
    kind, own = part.types.get(node.output), _own_of(body, node)
    if kind is None or len(kind.shape) != 2 or 0 in own:
        return False
    if node.op == N_BITS:
        known = body.own.keys() | body.rw.constants.keys()
        return takes_n_bits(node, own) and known >= {*filter(None, node.inputs[1:])}
    ranks = {n: body.own[node.inputs[n]].ndim - 1 for n in own}
    if node.op == "MatMul":
        return ranks == {1: 2}
    if node.op == "Gemm":
        is_plain = all(node.attrs.get(a, 1.0) == 1.0 for a in ("alpha", "beta"))
        return is_plain and ranks.get(1) == 2 and ranks.get(2, 1) == 1
    return operator_of(node.op).fusion is Fusion.ELEMENTWISE and max(ranks.values()) <= 1


def _own_of(body: _Body, node: Node) -> list[int]:
    """The operands of a node that are constants of single turns."""
    return [n for n, name in enumerate(node.inputs) if name in body.own]


def _emit(rw: Rewriter, body: _Body, choice: str, end: _Turn) -> None:
    n_rows, n_slots = rw.types[choice].shape
    axis, width = body.order.axis, rw.types[end.before].shape[1]
    mask = (n_slots, n_rows) if axis == 1 else (n_rows, n_slots)
    places = _places((n_rows, n_slots), body.order)
    turned = rw("Transpose", choice, perm=(1, 0)) if axis == 1 else choice
    expert = rw.reshaped(rw.cast(turned, "int64"), n_rows * n_slots)
    names = {_PLACES: rw.array(places), _SUM: end.before}
    for node in body.nodes:
        node = replace(node, inputs=tuple(names.get(n, n) for n in node.inputs))
        own = {n: body.own[node.inputs[n]] for n in _own_of(body, node)}
        rw.nodes += [] if own else [node]
        if own:
            _with_own(rw, node, own, expert, len(body.order.experts))
    parts = rw.reshaped(end.update, *mask, width)
    total = rw("ReduceSum", parts, rw.integers(1 - axis), keepdims=0)
    rw.result("Add", end.before, total)


_BIASES = {"MatMul": 2, "Gemm": 2, N_BITS: 5}
"""Products, and where among their operands what is added to them is."""


def _with_own(
    rw: Rewriter, node: Node, own: Mapping[int, Array], expert: str, n_experts: int
) -> None:
    """A node of the body, each row with the constants of its expert."""
    bias = _BIASES.get(node.op)
    if bias is not None:
        x = rw("Unsqueeze", node.inputs[0], rw.integers(1))
        if node.op == N_BITS:
            same = {
                n: np.broadcast_to(rw.constants[name], (n_experts, *rw.constants[name].shape))
                for n, name in enumerate(node.inputs)
                if n and name and n not in own
            }
            y = chosen_n_bits(rw, node, {**same, **own}, x, expert)
        else:
            weight = own[1].swapaxes(1, 2) if node.attrs.get("transB", 0) else own[1]
            y = rw("MatMul", x, rw("Gather", rw.array(weight), expert, axis=0))
        y = rw("Squeeze", y, rw.integers(1))
        if len(node.inputs) > bias and node.inputs[bias]:
            added = node.inputs[bias]
            if bias in own:
                added = rw("Gather", rw.array(own[bias]), expert, axis=0)
            y = rw("Add", y, added)
        rw.nodes.append(replace(node, op="Identity", inputs=(y,), attrs={}))
        return
    inputs = list(node.inputs)
    for n, value in own.items():
        rows = value.reshape(len(value), -1)
        inputs[n] = rw("Gather", rw.array(rows), expert, axis=0)
    rw.nodes.append(replace(node, inputs=tuple(inputs)))


def _is_alike(node: Node, other: Node) -> bool:
    """Whether two nodes do the same with their operands, of which the same are left out."""
    return (
        (node.op, node.opset, len(node.outputs)) == (other.op, other.opset, len(other.outputs))
        and [*map(bool, node.inputs)] == [*map(bool, other.inputs)]
        and frozen_attrs(node) == frozen_attrs(other)
    )
