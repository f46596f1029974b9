"""① The network as the rest of the compiler sees it: values, calls, and the tasks they call.

    network = build_network("resnet50.onnx")
    for call in network.calls: network.tasks[call.task]     # a ComputeDAG

Equal subgraphs are one task, whatever their tensors are called; its weight is how often it is
called. A few neighbouring calls could be one (`Chain`): the tasks of both are there, and `chosen`
takes the faster alternative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

from autotune.graph.chains import joined_groups
from autotune.graph.importer import import_graph
from autotune.graph.indices import index_limits
from autotune.graph.ir import Array, Graph, Shape, TensorType
from autotune.graph.layout import channels_last
from autotune.graph.onnx_reader import Shapes, load_model, model_hash
from autotune.graph.partition import partition
from autotune.graph.resolve import resolve_operands
from autotune.graph.simplify import remove_dead, simplify
from autotune.graph.storage import Value, plan_storage
from autotune.graph.subgraph import Subgraph, build_subgraphs
from autotune.te.dag import ComputeDAG

_FLAGS = 2
"""Integers that are no indices are taken for flags, as a mask is: 0 and 1."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model as the user sees it.

    `value` names a Value with the same elements in the same order. Integers of an input that are
    indices must be below `limit` to be valid; others may be anything.
    """

    name: str
    shape: Shape
    dtype: str
    value: str
    limit: int = _FLAGS


@dataclass(frozen=True)
class Call:
    """One occurrence of a task: which values and arrays its placeholders and outputs are.

    An array has the shape of its placeholder; a value may have another shape of as many elements.
    """

    task: str
    inputs: dict[str, str]
    constants: dict[str, Array]
    outputs: dict[str, str]
    label: str


@dataclass(frozen=True)
class Chain:
    """Calls that one call may replace: `parts` are their positions, in order."""

    whole: Call
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """A model as calls of tasks, in topological order, and the `chains` among them.

    `tasks` has the tasks of the calls and of whole chains.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    values: dict[str, Value]
    calls: tuple[Call, ...]
    tasks: dict[str, ComputeDAG]
    model_hash: str
    chains: tuple[Chain, ...] = ()

    @cached_property
    def weights(self) -> dict[str, int]:
        """How often each task is called, by key, in order of first call; whole chains last."""
        return dict(Counter(call.task for call in self._all_calls))

    @cached_property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The tasks that each whole chain may replace, by key."""
        return {
            chain.whole.task: tuple(self.calls[n].task for n in chain.parts)
            for chain in self.chains
        }

    @property
    def _all_calls(self) -> tuple[Call, ...]:
        return (*self.calls, *(chain.whole for chain in self.chains))

    @cached_property
    def labels(self) -> dict[str, str]:
        """Operators of each task, as in `Conv+Relu`, by key."""
        return {call.task: call.label for call in reversed(self._all_calls)}

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of one inference."""
        return sum(self.tasks[call.task].flops for call in self.calls)

    @cached_property
    def n_constant_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(a.nbytes for call in self.calls for a in call.constants.values())


_ESTIMATE_ERROR = 1.05
"""An alternative on an estimate's word is taken if that says it is so much faster."""


def chosen(
    network: Network,
    latency_s: Mapping[str, float],
    estimate_s: Mapping[str, float] | None = None,
) -> Network:
    """`network` without chains: each is one call where that is faster than its parts.

    `latency_s`: what was measured, by task. `estimate_s` speaks for tasks that were not measured,
    in proportion to those of which both are known. An alternative with a task of which nothing is
    known is not taken; where that goes for both, the parts stay.
    """
    known = {**_proportional(latency_s, estimate_s or {}), **latency_s}
    calls: list[Call | None] = list(network.calls)
    for chain in network.chains:
        parts = [network.calls[n].task for n in chain.parts]
        whole_s, parts_s = _sum_s(known, [chain.whole.task]), _sum_s(known, parts)
        if chain.whole.task not in latency_s:
            whole_s *= _ESTIMATE_ERROR
        elif any(key not in latency_s for key in parts):
            parts_s *= _ESTIMATE_ERROR
        if whole_s < parts_s:
            for n in chain.parts:
                calls[n] = None
            calls[chain.parts[-1]] = chain.whole
    kept = tuple(call for call in calls if call is not None)
    tasks = {call.task: network.tasks[call.task] for call in kept}
    return replace(network, calls=kept, tasks=tasks, chains=())


def _proportional(
    latency_s: Mapping[str, float], estimate_s: Mapping[str, float]
) -> dict[str, float]:
    """`estimate_s`, all times the median of what was measured over what was estimated."""
    both = [latency_s[key] / estimate_s[key] for key in estimate_s if key in latency_s]
    scale = median(both) if both else 1.0
    return {key: seconds * scale for key, seconds in estimate_s.items()}


def _sum_s(table: Mapping[str, float], tasks: Iterable[str]) -> float:
    """Seconds of some tasks together; infinite where one is unknown."""
    return sum(table.get(key, math.inf) for key in tasks)


def build_network(path: str | Path, shapes: Shapes | None = None) -> Network:
    """Read an ONNX model and split it into fused subgraphs.

    `shapes` binds dynamic dimensions of inputs by name. Errors: see `onnx_reader.load_model`;
    UnsupportedOperator names the operator, its node and the model's opset.
    """
    graph = import_graph(load_model(path, shapes))
    return graph_network(graph, Path(path).stem, model_hash(path))


def graph_network(graph: Graph, name: str, digest: str) -> Network:
    """Compile a graph into a network: simplify, lay out, partition, place."""
    stored = remove_dead(resolve_operands(channels_last(simplify(graph))))
    values, groups = plan_storage(stored, partition(stored))
    types = dict(stored.types)
    types |= {n: TensorType(v.shape, v.dtype) for n, v in values.items() if n not in types}
    with_copies = Graph(
        stored.inputs, stored.outputs, stored.nodes, stored.constants, types, stored.opset
    )
    subgraphs = build_subgraphs(with_copies, groups)
    joined = list(joined_groups(with_copies, groups))
    tasks = _tasks([*subgraphs, *(j.whole for j in joined)])
    return Network(
        name=name,
        inputs=_ports(graph, graph.inputs, index_limits(stored)),
        outputs=_ports(graph, graph.outputs, {}),
        values=values,
        calls=tuple(_call(s, tasks) for s in subgraphs),
        tasks=tasks,
        model_hash=digest,
        chains=tuple(Chain(_call(j.whole, tasks), j.parts) for j in joined),
    )


def _tasks(subgraphs: list[Subgraph]) -> dict[str, ComputeDAG]:
    tasks: dict[str, ComputeDAG] = {}
    for subgraph in subgraphs:
        tasks.setdefault(subgraph.dag.key, subgraph.dag)
    return tasks


def _call(subgraph: Subgraph, tasks: Mapping[str, ComputeDAG]) -> Call:
    """The call of a subgraph, by the names of its task, which another subgraph may have given."""
    task = tasks[subgraph.dag.key]
    called = {a.name: b.name for a, b in zip(subgraph.dag.ops, task.ops, strict=True)}
    return Call(
        task=task.key,
        inputs={called[n]: value for n, value in subgraph.inputs.items()},
        constants={called[n]: array for n, array in subgraph.constants.items()},
        outputs=dict.fromkeys(task.outputs, subgraph.output),
        label=subgraph.label,
    )


def _ports(graph: Graph, names: tuple[str, ...], limits: Mapping[str, int]) -> tuple[Port, ...]:
    types = ((n, graph.types[n]) for n in names)
    return tuple(Port(n, t.shape, t.dtype, n, limits.get(n, _FLAGS)) for n, t in types)
