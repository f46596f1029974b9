"""① Sessions together: a step of several sessions of a model with a state, as one graph.

    tokens (1, 1), buffer, filled (1)   ─►   tokens (k, 1), buffer@0 … buffer@k-1, filled (k)

Each session has a state of its own, at a length of its own. What is computed of one session alone
is *stacked*: the operator runs once, with a dimension of k in front, and reads its weights once.
It may, if no session depends on another (`samples.keeps_apart`). The rest, attention above all, is
*apart*: k nodes, one after another. Stacking copies operands that are apart, so it has to read
less than that again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from autotune.errors import NotCompilable
from autotune.graph.ir import Editor, Graph, Node, TensorType, frozen_attrs
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.state import BYTE_ROWS, ROW_STEPS, ROWS
from autotune.graph.operators.table import view_of
from autotune.graph.rewriter import Rewriter
from autotune.graph.samples import keeps_apart
from autotune.graph.state import StateInfo, of_session


@dataclass
class _Stacking:
    """Nodes of `graph`, prepared for one session, for `k` of them."""

    graph: Graph
    k: int
    editor: Editor
    moving: Collection[int]
    apart: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stacked: set[str] = field(default_factory=set)
    _joined: dict[str, str] = field(default_factory=dict)
    _parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _proofs: dict[object, bool] = field(default_factory=dict)

    def node(self, n: int, node: Node) -> None:
        """Emit what the n-th node is for all sessions."""
        names = {name for name in node.inputs if name}
        own = names & (self.stacked | self.apart.keys())
        if n in self.moving:
            self._each(node)
        elif not own:
            self.editor.emit(node)
        elif self._is_worth(node, own) and self._may(node):
            made = replace(node, inputs=tuple(self.whole(name) for name in node.inputs))
            self.stack(node.output)
            self.editor.emit(made)
        else:
            self._each(node)

    def stack(self, name: str) -> None:
        """Let a tensor be stacked."""
        kind = self.graph.types[name]
        self.stacked.add(name)
        self.editor.types[name] = TensorType((self.k, *kind.shape[1:]), kind.dtype)

    def divide(self, name: str) -> tuple[str, ...]:
        """Let there be a tensor of this name for each session."""
        names = tuple(of_session(name, n) for n in range(self.k))
        self.apart[name] = names
        self.editor.types |= dict.fromkeys(names, self.graph.types[name])
        return names

    def whole(self, name: str) -> str:
        """A tensor stacked, if it is of a session."""
        if name not in self.apart or name in self._joined:
            return self._joined.get(name, name)
        rw, kind = self._rewriter(name), self.graph.types[name]
        shape = (self.k, *kind.shape[1:])
        made = rw("Concat", *self.apart[name], axis=0, shape=shape, dtype=kind.dtype)
        self._emit(rw.nodes)
        return self._joined.setdefault(name, made)

    def part(self, name: str, n: int) -> str:
        """A tensor as it is for session `n`."""
        if name not in self.stacked:
            return self.apart[name][n] if name in self.apart else name
        if name not in self._parts:
            rw, kind = self._rewriter(name), self.graph.types[name]
            rest = [0] * (len(kind.shape) - 1)
            self._parts[name] = tuple(
                rw(
                    "Slice",
                    name,
                    shape=kind.shape,
                    dtype=kind.dtype,
                    starts=[i, *rest],
                    steps=[1] * len(kind.shape),
                )
                for i in range(self.k)
            )
            self._emit(rw.nodes)
        return self._parts[name][n]

    def _each(self, node: Node) -> None:
        made = zip(*(self.divide(name) for name in node.outputs if name), strict=True)
        for n, outputs in enumerate(made):
            names = iter(outputs)
            self.editor.emit(
                replace(
                    node,
                    name=of_session(node.name, n),
                    inputs=tuple(self.part(name, n) for name in node.inputs),
                    outputs=tuple(next(names) if name else "" for name in node.outputs),
                )
            )

    def _is_worth(self, node: Node, own: set[str]) -> bool:
        """Whether reading the operands that all share once is worth copying those apart."""
        if node.op in (ROWS, BYTE_ROWS, ROW_STEPS):
            return False
        sizes = self._sizes(own & self.apart.keys())
        shared = self._sizes(n for n in node.inputs if n and n not in self.apart)
        return sizes <= shared

    def _may(self, node: Node) -> bool:
        """Whether a node keeps sessions apart where they are stacked."""
        own = frozenset(n for n in node.inputs if n in self.stacked or n in self.apart)
        types = self.graph.types
        ports = (*own, *node.outputs)
        if len(node.outputs) != 1 or any(types[n].shape[:1] != (1,) for n in ports):
            return False
        if view_of(node) is ViewKind.WHOLE:
            return True
        constants = {n: self.graph.constants.get(n) for n in node.inputs}
        small = (
            (n in own, types.get(n), id(constants.get(n)) if _is_small(types, n) else None)
            for n in node.inputs
        )
        key = (node.op, frozen_attrs(node), tuple(small), types[node.output])
        if key not in self._proofs:
            self._proofs[key] = keeps_apart(self.graph, node, dict.fromkeys(own, 0))
        return self._proofs[key]

    def _sizes(self, names: Iterable[str]) -> int:
        return sum(math.prod(self.graph.shape(name)) for name in names)

    def _rewriter(self, name: str) -> Rewriter:
        return Rewriter(Node(name, "Identity", (name,), (name,)), self.editor)

    def _emit(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.editor.emit(node)


def _is_small(types: dict[str, TensorType], name: str) -> bool:
    """Whether the value of a constant may decide what an operator means."""
    return name in types and math.prod(types[name].shape) <= 64


def together(
    graph: Graph,
    stored: Graph,
    state: StateInfo,
    k: int,
    length: str = "",
    moving: Collection[int] = (),
) -> tuple[Graph, Graph, dict[str, str]]:
    """A model for a step of `k` sessions, and the length of the session of a tensor.

    `stored`: `graph` after all passes; `moving`: its nodes that follow the `length` of a session.
    Raises NotCompilable where an input or an output has no dimension for them.
    """
    work = _Stacking(stored, k, Editor(replace(stored, nodes=())), moving)
    pairs = (*state.buffers.items(), *state.replaced.items())
    own = {*state.held, *(name for pair in pairs for name in pair)}
    own = {name for name in (*stored.inputs, *stored.outputs) if _stated(stored, name) in own}
    for name in stored.inputs:
        if name in own:
            work.divide(name)
        else:
            work.stack(_batched(stored, name))
    lengths: list[str] = []
    for n, node in enumerate(stored.nodes):
        work.node(n, node)
        if length in node.outputs:
            lengths = [work.part(length, n) for n in range(k)]
    owners = {x: of for names in work.apart.values() for x, of in zip(names, lengths, strict=False)}
    for name in stored.outputs:
        if name in own:
            _divided(work, name)
        elif name in work.apart:
            _joined(work, _batched(stored, name))
        elif name not in work.stacked:
            raise _unbatched(name)
    names = {name: work.apart.get(name, (name,)) for name in (*stored.inputs, *stored.outputs)}
    inputs, outputs = (
        tuple(one for name in ports for one in names[name])
        for ports in (stored.inputs, stored.outputs)
    )
    editor = work.editor
    done = replace(
        stored,
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(editor.nodes),
        constants=editor.constants,
        types=editor.types,
        output_names={
            one: of_session(stated, n) if len(names[name]) > 1 else stated
            for name, stated in stored.output_names.items()
            for n, one in enumerate(names[name])
        },
    )
    ports = {name: editor.types[name] for name in (*inputs, *outputs)}
    told = replace(
        graph,
        inputs=inputs,
        outputs=outputs,
        types=graph.types | ports,
        output_names=done.output_names,
    )
    return told, done, owners


def _divided(work: _Stacking, name: str) -> None:
    """An output that each session has for itself."""
    if name in work.apart:
        return
    parts = [work.part(name, n) for n in range(work.k)]
    for source, made in zip(parts, work.divide(name), strict=True):
        work.editor.emit(Node(made, "Identity", (source,), (made,)))


def _joined(work: _Stacking, name: str) -> None:
    """An output for all sessions, which was computed for each."""
    parts = work.apart.pop(name)
    work.stack(name)
    work.editor.emit(Node(name, "Concat", parts, (name,), {"axis": 0}))


def _batched(graph: Graph, name: str) -> str:
    if graph.shape(name)[:1] != (1,):
        raise _unbatched(name)
    return name


def _unbatched(name: str) -> NotCompilable:
    return NotCompilable(
        f"'{name}' has no dimension for several sessions", "compile it without `sessions`"
    )


def of_sessions(state: StateInfo, k: int) -> StateInfo:
    """The state of a step of `k` sessions."""

    def each(name: str) -> tuple[str, ...]:
        return tuple(of_session(name, n) for n in range(k))

    def pairs(of: Iterable[tuple[str, str]]) -> dict[str, str]:
        return {a: b for x, y in of for a, b in zip(each(x), each(y), strict=True)}

    return replace(
        state,
        sessions=k,
        buffers=pairs(state.buffers.items()),
        axes={one: axis for name, axis in state.axes.items() for one in each(name)},
        replaced=pairs(state.replaced.items()),
        held=tuple(one for name in state.held for one in each(name)),
        steps=pairs(state.steps.items()),
        places=None,
    )


def _stated(graph: Graph, name: str) -> str:
    return graph.output_names.get(name, name)
