"""① Graph partitioning: subgraphs that are compiled, and fallback nodes for ONNX Runtime.

    survey ─► bodies ─► segments ─► networks of the compiled ones ─┬─► Cut
       ▲                                                           │ a pass refuses a node, or
       └──────────────────── forced ───────────────────────────────┘ it saves less than it costs

Nodes are never split but for those with branches or a body, which are cut like models. No node is
compiled twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnx import ValueInfoProto

from autotune.errors import AutotuneError, ModelError
from autotune.graph.bound_model import BoundModel
from autotune.graph.fallback.control import (
    CONTROL,
    control_of,
    static_types,
    without_decided_functions,
)
from autotune.graph.fallback.cut_cost import SMALL, is_worth_a_cut
from autotune.graph.fallback.cuts import Control, Cut, Outside, Segment
from autotune.graph.fallback.segments import (
    Span,
    leaks,
    needed,
    onnx_model,
    reads,
    segment_model,
    spans,
)
from autotune.graph.fallback.shape_inputs import deciding_inputs, inputs_bound_by_value
from autotune.graph.ir import Array
from autotune.graph.network import FLAGS, Network, Port, network_of
from autotune.graph.reader.dimensions import Shapes, is_tensor
from autotune.graph.reader.onnx_nodes import type_of
from autotune.graph.reader.onnx_reader import OnnxModel
from autotune.graph.reader.survey import Ask, DeclaredTypes, Survey, survey

_ROUNDS = 24
"""Rounds that refuse single nodes; later rounds refuse whole segments."""
_MOST_DEPTH = 8
"""Levels of branches and bodies that are looked into."""


def cut_model(
    bound: BoundModel,
    ask: Ask,
    shapes: Shapes | None = None,
    precision: str = "f32",
    whole: str = "",
    inside: bool = True,
) -> Cut:
    """Cut a model of which not everything can be compiled.

    `ask`: types by the runtime of the rest, where ONNX infers none. `whole`: why nothing is to be
    compiled, where that is so. `inside`: look into branches and bodies. Errors: see
    `network.build_network`.
    """
    model = bound.load(shapes, compilable=False)
    if inside and not bound.operators and not whole:
        model = replace(model, proto=without_decided_functions(model.proto))
    cutter = _Cutter(model, bound, ask, precision, 0 if inside else _MOST_DEPTH)
    if whole:
        cutter.refuse_all(whole)
    cut = cutter.cut()

    def stated(segment: Segment) -> Segment:
        if segment.network is None:
            return segment
        network = replace(segment.network, random_weights=bound.random_weights)
        return replace(segment, network=network)

    deciding = (*cut.deciding, *inputs_bound_by_value(model.proto))
    return replace(
        cut.mapped(stated),
        deciding=tuple(dict.fromkeys(deciding)),
        random_weights=bound.random_weights,
        constant_inputs=dict(bound.constants),
        precision=precision,
    )


class _Cutter:
    def __init__(
        self, model: OnnxModel, bound: BoundModel, ask: Ask, precision: str, depth: int = 0
    ) -> None:
        self.model, self.bound, self.depth = model, bound, depth
        self.operators, self.precision = bound.operators or {}, precision
        self.declared = DeclaredTypes(model, ask)
        self.nodes = model.proto.graph.node
        self.forced: dict[int, str] = {}
        self.controls: dict[int, Control] = {}
        self.tried: dict[int, str] = {}
        """Nodes that were looked into, and why they are not compiled as they are."""
        self.names = {o for node in self.nodes for o in node.output}
        self.names |= {i.name for i in model.proto.graph.input}
        self.n_failures = 0
        self._built: dict[Span, Network] = {}

    def refuse_all(self, reason: str) -> None:
        """Leave everything outside but constants."""
        found = survey(self.model, self.operators, self.declared, {})
        kept = set(range(len(self.nodes))) - found.known
        self.forced = {n: found.refused.get(n, reason) for n in kept}

    def cut(self) -> Cut:
        while True:
            known = static_types(self.controls.values())
            refused = self.tried | self.forced
            found = survey(self.model, self.operators, self.declared, refused, known)
            if self._decide(found):
                continue
            plan = spans(self.model, found, self.controls)
            outside = leaks(self.model, found, plan) or self._failures(found, plan)
            outside = outside or self._small(found, plan)
            if not outside:
                return self._result(found, plan)
            self.forced |= outside
            for n in outside:
                self.controls.pop(n, None)

    def constant_outputs(self) -> dict[str, Array]:
        """The outputs that are the same in every inference, by name."""
        known = static_types(self.controls.values())
        refused = self.tried | self.forced
        found = survey(self.model, self.operators, self.declared, refused, known)
        names = (o.name for o in self.model.proto.graph.output)
        return {n: found.constants[n] for n in names if n in found.constants}

    def _decide(self, found: Survey) -> bool:
        """Look into branches and bodies that the data decide; whether there were any new ones.

        Those that read results of another one wait for its types.
        """
        new = [n for n in needed(self.model, found) if self._is_undecided(n, found)]
        ready = [n for n in new if all(map(found.is_static, self._read(n)))]
        for n in ready or new[:1]:
            self.tried[n] = found.refused[n]
            try:
                control = control_of(
                    self.model, found, self.declared, self.nodes[n], self._body_cut
                )
            except AutotuneError:
                continue
            if control is not None:
                self.controls[n] = control
        return bool(new)

    def _is_undecided(self, n: int, found: Survey) -> bool:
        is_open = n in found.refused and n not in self.forced and n not in self.tried
        is_control = self.nodes[n].op_type in CONTROL and self.nodes[n].domain in ("", "ai.onnx")
        return is_open and is_control and self.depth < _MOST_DEPTH

    def _read(self, n: int) -> list[str]:
        """Names of the enclosing graph that a node reads."""
        return [name for name in reads(self.nodes[n]) if name in self.names]

    def _body_cut(self, model: OnnxModel) -> tuple[Cut, Mapping[str, Array]]:
        inner = _Cutter(model, self.bound, self.declared.ask, self.precision, self.depth + 1)
        return inner.cut(), inner.constant_outputs()

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
        return network_of(model, self.bound, self.precision)

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
        """The nodes of the least profitable segment, of those not worth a cut."""
        decided = {span: self.controls[span.nodes[0]] for span in plan if self._is_decided(span)}
        if not any(
            decided[span].needs_onnxruntime if span in decided else not span.is_compiled
            for span in plan
        ):
            return {}
        parts = {span: [(self._built[span], len(span.nodes))] for span in plan if span.is_compiled}
        parts |= {span: list(control.networks) for span, control in decided.items()}
        poor = [
            (sum(network.flops for network, _ in networks), span)
            for span, networks in parts.items()
            if not any(is_worth_a_cut(*pair) for pair in networks)
        ]
        if not poor:
            return {}
        _, span = min(poor, key=lambda pair: pair[0])
        return {n: found.refused.get(n, SMALL) for n in span.nodes}

    def _is_decided(self, span: Span) -> bool:
        return not span.is_compiled and span.nodes[0] in self.controls

    def _result(self, found: Survey, plan: list[Span]) -> Cut:
        outside: list[Outside] = []
        for n in (n for span in plan if not span.is_compiled for n in span.nodes):
            if n in self.controls:
                outside += (o for body in self.controls[n].bodies for o in body.outside)
            elif n in found.refused:
                outside.append(Outside(self._name(n), self.nodes[n].op_type, found.refused[n]))
        segments = tuple(self._segment(found, span) for span in plan)
        inputs = tuple(self._input(found, i, segments) for i in self._inputs())
        return Cut(
            self.bound.path.stem,
            self.bound.digest,
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
        if self._is_decided(span):
            control = self.controls[span.nodes[0]]
            read = tuple(name if name in span.outputs else "" for name in control.results)
            control = replace(control, results=read)
            return Segment(span.inputs, span.outputs, operators, control=control)
        data = onnx_model(self.model, found, span, self.declared)
        return Segment(span.inputs, span.outputs, operators, onnx=data)

    def _input(self, found: Survey, value: ValueInfoProto, segments: tuple[Segment, ...]) -> Port:
        name = value.name
        kind = found.types.get(name)
        if kind is None and not is_tensor(value):
            return Port(name, (), "", name)
        kind = kind or type_of(value.type)
        networks = (leaf.network for s in segments for leaf in s.leaves())
        ports = (p for network in networks if network for p in network.inputs if p.name == name)
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
