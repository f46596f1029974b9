"""① A partitioned graph: segments that are compiled, that ONNX Runtime runs, or control flow.

Cut ─► Segment ─┬─► Network
                ├─► ONNX file
                └─► Control: an If or a Loop ─► Cut, one for each branch or body
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from onnx import ModelProto, ValueInfoProto

from autotune.graph.ir import Array, TensorType
from autotune.graph.network import Chain, Network, Port, TaskCall, under_names_of
from autotune.graph.reader.onnx_reader import forget_extents, forget_shape, use_older_opset


@dataclass(frozen=True)
class Segment:
    """A part of a model: a network to compile, a node that the data decide, or an ONNX file for
    ONNX Runtime.

    `operators`: by name, with the number of nodes.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: Mapping[str, int]
    network: Network | None = None
    onnx: bytes = b""
    control: Control | None = None

    def leaves(self) -> Iterator[Segment]:
        """This segment, or those of its bodies, in order."""
        if self.control is None:
            yield self
        else:
            for body in self.control.bodies:
                yield from body.leaves()


@dataclass(frozen=True)
class Control:
    """An If or a Loop whose condition or number of iterations is looked at in every inference.

    `operands`: of the node; "" where absent. `results`: of the node, one for each output of a body
    (of a Loop without its condition); "" for an unread one. `constants`: operands that are
    known. `bodies`: the branches, or the body. What these read of the graph around them are inputs
    of theirs, of the same name, behind those of a Loop: the number of the iteration and what is
    carried. `types`: of the results, as far as all branches or iterations agree.
    """

    op: str
    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    bodies: tuple[Cut, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    types: tuple[TensorType, ...] = ()

    @property
    def needs_onnxruntime(self) -> bool:
        """Whether a part of a body is not compiled."""
        return any(body.needs_onnxruntime for body in self.bodies)

    @property
    def networks(self) -> Iterator[tuple[Network, int]]:
        """Compiled subgraphs of the bodies, with the number of nodes of each."""
        for part in (leaf for body in self.bodies for leaf in body.leaves()):
            if part.network is not None:
                yield part.network, sum(part.operators.values())


_FORMS: tuple[tuple[Callable[[ValueInfoProto], None], bool], ...] = (
    (forget_extents, False),
    (forget_shape, False),
    (lambda value: None, True),
    (forget_shape, True),
)
"""What to forget of each input, and whether the opset is an older one."""


def loadable_forms(segment: Segment) -> Iterator[Segment]:
    """An ONNX segment as it is, and variants of it for runtimes that do not load this.

    With the ranks of its inputs alone, or without them, for a branch that is never taken may have
    no meaning at the shapes that were bound; in an older opset.
    """
    yield segment
    for forget, is_older in _FORMS:
        proto = ModelProto.FromString(segment.onnx)
        for value in proto.graph.input:
            forget(value)
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
    for strings and "" for other than tensors. `outside`: the nodes that are not compiled.
    `deciding`: inputs that shapes follow from which are known only at run time, or control flow.
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

    def leaves(self) -> Iterator[Segment]:
        """All that computes: the segments, with those of bodies in place of control flow."""
        for segment in self.segments:
            yield from segment.leaves()

    @property
    def needs_onnxruntime(self) -> bool:
        """Whether a part is not compiled."""
        return any(leaf.network is None for leaf in self.leaves())

    def controls(self) -> Iterator[Control]:
        """All that the data decide, also inside of bodies."""
        for control in (s.control for s in self.segments if s.control is not None):
            yield control
            for body in control.bodies:
                yield from body.controls()

    def mapped(self, change: Callable[[Segment], Segment]) -> Cut:
        """The cut with other leaves."""
        return replace(self, segments=tuple(_mapped(s, change) for s in self.segments))

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        """The networks of the compiled segments."""
        return tuple(s.network for s in self.leaves() if s.network is not None)

    @cached_property
    def tunable(self) -> Network:
        """The compiled segments as one network, to count tasks: it cannot be run."""
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
        """Nodes of the model in all segments and their bodies."""
        return sum(sum(s.operators.values()) for s in self.leaves())


def _mapped(segment: Segment, change: Callable[[Segment], Segment]) -> Segment:
    if segment.control is None:
        return change(segment)
    bodies = tuple(body.mapped(change) for body in segment.control.bodies)
    return replace(segment, control=replace(segment.control, bodies=bodies))


def _appended(whole: Network, part: Network, prefix: str) -> Network:
    """`whole` with the calls of `part`, whose values get a prefix; names of equal tasks are those
    of `whole`."""
    for key in part.tasks.keys() & whole.tasks.keys():
        part = under_names_of(part, whole.tasks[key])

    def renamed(call: TaskCall) -> TaskCall:
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
