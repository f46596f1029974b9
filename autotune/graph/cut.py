"""① A model cut into what is compiled and what runs in ONNX Runtime.

    survey ─► segments ─► networks of the compiled ones ─┬─► Cut
       ▲                                                 │ a pass refuses a node, or a segment is
       └───────────────── forced ────────────────────────┘ not worth two crossings

Nodes are never split, and no node is compiled twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from onnx import ModelProto, ValueInfoProto

from autotune.errors import AutotuneError, ModelError
from autotune.graph.constant_values import Constants
from autotune.graph.cut_cost import SMALL, is_worth_a_cut
from autotune.graph.ir import Array
from autotune.graph.network import (
    FLAGS,
    Call,
    Chain,
    Network,
    Port,
    network_of,
    under_names_of,
)
from autotune.graph.operators.user_operators import UserOperators
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.onnx_nodes import type_of
from autotune.graph.reader.onnx_reader import (
    Model,
    forget_shape,
    load_model,
    model_hash,
    use_older_opset,
)
from autotune.graph.reader.survey import Ask, DeclaredTypes, Survey, survey
from autotune.graph.segments import Span, leaks, onnx_model, segment_model, spans
from autotune.graph.shape_inputs import deciding_inputs

_ROUNDS = 24
"""How often nodes are refused one by one before whole segments are."""


@dataclass(frozen=True)
class Segment:
    """A part of a model: a network to compile, or an ONNX file for ONNX Runtime.

    `operators`: what it runs, by name, with the number of nodes.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: Mapping[str, int]
    network: Network | None = None
    onnx: bytes = b""


def loadable_forms(segment: Segment) -> Iterator[Segment]:
    """An ONNX segment as it is, and what runtimes may load that do not load this.

    Without the shapes of its inputs, for a branch that is never taken may have no meaning at those
    that were bound; in an older opset.
    """
    yield segment
    for has_shapes, is_older in ((False, False), (True, True), (False, True)):
        proto = ModelProto.FromString(segment.onnx)
        for value in proto.graph.input if not has_shapes else ():
            forget_shape(value)
        if is_older:
            use_older_opset(proto)
        yield replace(segment, onnx=proto.SerializeToString())


@dataclass(frozen=True)
class Outside:
    """A node that is not compiled, and why."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True)
class Cut:
    """A model as segments in the order in which they run, over named tensors.

    `inputs`, `outputs`: of the whole; extents that the data decide are -1, and `dtype` is "string"
    for strings and "" for what is no tensor. `outside`: the nodes that are not compiled.
    `deciding`: inputs that shapes follow from which are known only at run time.
    """

    name: str
    model_hash: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    segments: tuple[Segment, ...]
    outside: tuple[Outside, ...]
    random_weights: bool = False
    constant_inputs: Mapping[str, Array] = field(default_factory=dict)
    precision: str = "f32"
    deciding: tuple[str, ...] = ()

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        """The networks of the compiled segments."""
        return tuple(s.network for s in self.segments if s.network is not None)

    @cached_property
    def tunable(self) -> Network:
        """The compiled segments as one network, for what only counts tasks: it cannot be run."""
        first = Network(
            self.name,
            inputs=(),
            outputs=(),
            values={},
            calls=(),
            tasks={},
            model_hash=self.model_hash,
            random_weights=self.random_weights,
            constant_inputs=self.constant_inputs,
            precision=self.precision,
        )
        for n, network in enumerate(self.networks):
            first = _appended(first, network, f"{n}:")
        return first

    @cached_property
    def n_nodes(self) -> int:
        """Nodes of the model in all segments."""
        return sum(sum(s.operators.values()) for s in self.segments)


def _appended(whole: Network, part: Network, prefix: str) -> Network:
    """`whole` with the calls of `part`, whose values get a prefix; names of equal tasks are those
    of `whole`."""
    for key in part.tasks.keys() & whole.tasks.keys():
        part = under_names_of(part, whole.tasks[key])

    def renamed(call: Call) -> Call:
        ends = [{n: prefix + v for n, v in x.items()} for x in (call.inputs, call.outputs)]
        return replace(call, inputs=ends[0], outputs=ends[1])

    def ports(found: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(replace(p, value=prefix + p.value) for p in found)

    values = {
        prefix + n: replace(v, name=prefix + v.name, parent=v.parent and prefix + v.parent)
        for n, v in part.values.items()
    }
    n_calls = len(whole.calls)
    chains = (Chain(renamed(c.whole), tuple(n + n_calls for n in c.parts)) for c in part.chains)
    return replace(
        whole,
        inputs=(*whole.inputs, *ports(part.inputs)),
        outputs=(*whole.outputs, *ports(part.outputs)),
        values=whole.values | values,
        calls=(*whole.calls, *map(renamed, part.calls)),
        tasks={**part.tasks, **whole.tasks},
        chains=(*whole.chains, *chains),
    )


def cut_model(
    path: Path,
    ask: Ask,
    shapes: Shapes | None = None,
    random_weights: bool = False,
    operators: UserOperators | None = None,
    constants: Constants | None = None,
    precision: str = "f32",
    whole: str = "",
) -> Cut:
    """Cut a model of which not everything can be compiled.

    `ask`: who will run the rest, for types that ONNX does not infer. `whole`: why nothing is to be
    compiled, where that is so. Other parameters and errors: see `network.build_network`.
    """
    model = load_model(path, shapes, random_weights, constants, compilable=False)
    name, digest = path.stem, model_hash(path)
    cutter = _Cutter(model, name, digest, operators or {}, ask, precision)
    if whole:
        cutter.refuse_all(whole)
    cut = cutter.cut()
    fixed = dict(constants or {})
    segments = tuple(
        replace(s, network=replace(s.network, random_weights=random_weights)) if s.network else s
        for s in cut.segments
    )
    return replace(
        cut,
        segments=segments,
        random_weights=random_weights,
        constant_inputs=fixed,
        precision=precision,
    )


class _Cutter:
    def __init__(
        self,
        model: Model,
        name: str,
        digest: str,
        operators: UserOperators,
        ask: Ask,
        precision: str,
    ) -> None:
        self.model, self.name, self.digest = model, name, digest
        self.operators, self.precision = operators, precision
        self.declared = DeclaredTypes(model, ask)
        self.nodes = model.proto.graph.node
        self.forced: dict[int, str] = {}
        self.n_failures = 0
        self._built: dict[Span, Network] = {}

    def refuse_all(self, reason: str) -> None:
        """Leave everything outside but what is constant."""
        found = survey(self.model, self.operators, self.declared, {})
        kept = set(range(len(self.nodes))) - found.known
        self.forced = {n: found.refused.get(n, reason) for n in kept}

    def cut(self) -> Cut:
        while True:
            found = survey(self.model, self.operators, self.declared, self.forced)
            plan = spans(self.model, found)
            outside = leaks(self.model, found, plan) or self._failures(found, plan)
            outside = outside or self._small(found, plan)
            if not outside:
                return self._result(found, plan)
            self.forced |= outside

    def _failures(self, found: Survey, plan: list[Span]) -> dict[int, str]:
        """Nodes of the first segment that cannot be compiled after all."""
        for span in plan:
            if span.is_compiled and span not in self._built:
                try:
                    self._built[span] = self._network(found, span)
                except AutotuneError as error:
                    return self._blamed(found, span, error)
        return {}

    def _network(self, found: Survey, span: Span) -> Network:
        model = segment_model(self.model, found, span)
        return network_of(model, self.name, self.digest, self.operators, self.precision)

    def _blamed(self, found: Survey, span: Span, error: AutotuneError) -> dict[int, str]:
        """The nodes that a failure names; else the one behind the longest prefix that compiles."""
        reason = getattr(error, "reason", "") or error.message
        named = {found.makers.get(name, -1) for name in getattr(error, "nodes", ())}
        culprits = named & set(span.nodes)
        self.n_failures += 1
        if self.n_failures > _ROUNDS:
            culprits = set(span.nodes)
        if not culprits:
            culprits = {self._first_failing(found, span)}
        return dict.fromkeys(culprits, reason)

    def _first_failing(self, found: Survey, span: Span) -> int:
        low, high = 0, len(span.nodes)  # the first `low` nodes compile, the first `high` do not
        while high - low > 1:
            middle = (low + high) // 2
            made = (o for n in span.nodes[:middle] for o in self.nodes[n].output)
            outputs = tuple(o for o in made if o in found.types)
            try:
                self._network(found, replace(span, nodes=span.nodes[:middle], outputs=outputs))
                low = middle
            except AutotuneError:
                high = middle
        return span.nodes[low]

    def _small(self, found: Survey, plan: list[Span]) -> dict[int, str]:
        """The nodes of the segment that is worth a cut least of those that are not."""
        if all(span.is_compiled for span in plan):
            return {}
        poor = [
            (self._built[span].flops, span)
            for span in plan
            if span.is_compiled and not is_worth_a_cut(self._built[span], len(span.nodes))
        ]
        if not poor:
            return {}
        _, span = min(poor, key=lambda pair: pair[0])
        return dict.fromkeys(span.nodes, SMALL)

    def _result(self, found: Survey, plan: list[Span]) -> Cut:
        outside = (
            Outside(self._name(n), self.nodes[n].op_type, found.refused[n])
            for span in plan
            if not span.is_compiled
            for n in span.nodes
            if n in found.refused
        )
        segments = tuple(self._segment(found, span) for span in plan)
        inputs = tuple(self._input(found, i.name, segments) for i in self._inputs())
        return Cut(
            self.name,
            self.digest,
            inputs,
            tuple(self._output(found, o.name) for o in self.model.proto.graph.output),
            segments,
            tuple(outside),
            deciding=deciding_inputs(self.nodes, found.refused, {p.name: p.shape for p in inputs}),
        )

    def _name(self, n: int) -> str:
        node = self.nodes[n]
        name: str = node.name or next((o for o in node.output if o), node.op_type)
        return name

    def _inputs(self) -> list[ValueInfoProto]:
        return [i for i in self.model.proto.graph.input if i.name not in self.model.weights]

    def _segment(self, found: Survey, span: Span) -> Segment:
        operators: dict[str, int] = {}
        for n in span.nodes:
            op = self.nodes[n].op_type
            operators[op] = operators.get(op, 0) + 1
        if span.is_compiled:
            return Segment(span.inputs, span.outputs, operators, self._built[span])
        data = onnx_model(self.model, found, span, self.declared)
        return Segment(span.inputs, span.outputs, operators, onnx=data)

    def _input(self, found: Survey, name: str, segments: tuple[Segment, ...]) -> Port:
        kind = found.types.get(name)
        if kind is None:  # a sequence or an optional
            return Port(name, (), "", name)
        ports = (p for s in segments if s.network for p in s.network.inputs if p.name == name)
        limit = min((p.limit for p in ports if p.limit > FLAGS), default=FLAGS)
        dtype = "string" if kind.dtype == "object" else kind.dtype
        return Port(name, kind.shape, self.model.halves.get(name, dtype), name, limit)

    def _output(self, found: Survey, name: str) -> Port:
        made = {o for node in self.nodes for o in node.output} | set(found.types)
        if name not in made or name in self.model.weights:
            raise ModelError(f"output '{name}' is made by no node", "export the model again")
        if name in found.types:
            shape, dtype = found.types[name].shape, found.types[name].dtype
        else:
            kind = self.declared.of(name)
            is_tensor = kind is not None and kind.WhichOneof("value") == "tensor_type"
            if kind is None or not is_tensor or not kind.tensor_type.elem_type:
                return Port(name, (), "", name)
            known = type_of(kind)
            shape, dtype = known.shape, known.dtype
        dtype = "string" if dtype == "object" else dtype
        return Port(name, shape, self.model.halves.get(name, dtype), name)
