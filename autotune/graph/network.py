"""① The network as the rest of the compiler sees it: values, calls, and the tasks they call.

    network = build_network("resnet50.onnx")
    for call in network.calls: network.tasks[call.task]     # a ComputeDAG

Equal subgraphs are one task, whatever the names of their tensors; the weight of a task is the
number of its calls. Some runs of calls can be fused into one (`Chain`): the network has the tasks
of both alternatives, and `chosen` takes the faster one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from autotune.brief import brief
from autotune.config import PRECISIONS
from autotune.errors import AutotuneError, ModelError
from autotune.extent import Extents
from autotune.graph.bound_model import BoundModel
from autotune.graph.constant_values import Constants
from autotune.graph.index_limits import index_limits
from autotune.graph.ir import Array, Graph, Shape, TensorType, is_denormal
from autotune.graph.operators.user_operators import UserOperators
from autotune.graph.passes.pipeline import GraphPass, prepare, prepared
from autotune.graph.ragged import Ragged
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.importer import import_graph
from autotune.graph.reader.model_files import ModelSource, model_file
from autotune.graph.reader.onnx_reader import OnnxModel
from autotune.graph.refusals import require_supported
from autotune.graph.rewriter import RewriteLog
from autotune.graph.state import StateInfo
from autotune.graph.tasks.channels_first import channels_first_groups
from autotune.graph.tasks.grouped_rows import grouped_rows
from autotune.graph.tasks.joined_groups import JoinedGroups, joined_groups
from autotune.graph.tasks.partition import partition
from autotune.graph.tasks.sparse import Zeros, sparse_subgraphs, zeros_of
from autotune.graph.tasks.storage import Activation, plan_storage
from autotune.graph.tasks.subgraph import Definitions, Subgraph, undefined
from autotune.graph.texts import NO_TEXTS, Texts
from autotune.graph.written import WrittenLengths
from autotune.strides import dense
from autotune.te.dag import ComputeDAG
from autotune.te.products import precision_of

A = TypeVar("A")

FLAGS = 2
"""Random integers that are not indices are flags, as in a mask: 0 and 1."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model as the user sees it.

    `value` names a Value with the same elements in the same order; for half precision (float16,
    bfloat16) that value is float32. Integers of an input that are indices must be below `limit`.
    `extents`: of one with lengths, whose `shape` is the longest; () for others. `below`: the limit
    where it follows a length; `limit` is that of the longest.
    """

    name: str
    shape: Shape
    dtype: str
    value: str
    limit: int = FLAGS
    extents: Extents = ()
    below: Extents = ()


@brief
@dataclass(frozen=True)
class TaskCall:
    """One call of a task: the values and arrays for its placeholders and outputs.

    An array has the shape of its placeholder; a value may have another shape of as many elements.
    `narrowable`: names of the nodes in it that may read narrow operands, see `passes.precision`.
    """

    task: str
    inputs: dict[str, str]
    constants: dict[str, Array]
    outputs: dict[str, str]
    label: str
    narrowable: tuple[str, ...] = ()


@brief
@dataclass(frozen=True)
class Chain:
    """Alternatives: the call `whole`, or the calls at positions `parts`, in order.

    One part alone is a product with a sparse weight, and the whole runs over its blocks.
    """

    whole: TaskCall
    parts: tuple[int, ...]


@brief
@dataclass(frozen=True)
class Network:
    """A model as calls of tasks, in topological order, and the `chains` among them.

    `tasks` has the tasks of the calls and of whole chains. `random_weights`: those of the model
    were replaced by random ones, because the user asked for it. `constant_inputs`: inputs of the
    model that the user bound to these values; they are none of `inputs`. `precision`: of the
    factors of products; `is_mixed`: some of them were left in float32, see `mixture`. `state`: of a
    model that has some. `lengths`: the input that holds each number which extents follow, int64 of
    one element, by the name of the number. `written`: the output that holds each number which the
    network writes, of one element too: there may be 0 of what it counts. `ragged`: of a network
    over the tokens of rows. `texts`: of strings, which are numbers in it.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    values: dict[str, Activation]
    calls: tuple[TaskCall, ...]
    tasks: dict[str, ComputeDAG]
    model_hash: str
    chains: tuple[Chain, ...] = ()
    random_weights: bool = False
    constant_inputs: Mapping[str, Array] = field(default_factory=dict)
    precision: str = "f32"
    is_mixed: bool = False
    state: StateInfo | None = None
    lengths: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    ragged: Ragged | None = None
    texts: Texts = NO_TEXTS

    @cached_property
    def weights(self) -> dict[str, int]:
        """Number of calls of each task, by key, in order of first call; whole chains last."""
        return dict(Counter(call.task for call in self._all_calls))

    @cached_property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The tasks that each whole chain may replace, by key."""
        return {
            chain.whole.task: tuple(self.calls[n].task for n in chain.parts)
            for chain in self.chains
        }

    @property
    def _all_calls(self) -> tuple[TaskCall, ...]:
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
    def zeros(self) -> dict[str, Zeros]:
        """Zeros in the weights of tasks that have many, by key."""
        weights: dict[str, list[Array]] = {}
        for call in self.calls:
            floats = [a for a in call.constants.values() if a.dtype == np.float32 and a.ndim > 1]
            if floats:
                weights.setdefault(call.task, []).append(max(floats, key=lambda a: a.size))
        stored: dict[str, list[Mapping[str, Array]]] = {}
        for chain in self.chains:
            for n in chain.parts if len(chain.parts) == 1 else ():
                stored.setdefault(self.calls[n].task, []).append(chain.whole.constants)
        found = {key: zeros_of(arrays, stored.get(key, ())) for key, arrays in weights.items()}
        return {key: zeros for key, zeros in found.items() if zeros is not None}

    @cached_property
    def n_denormal(self) -> int:
        """Number of denormal weights, which kernels treat as zero."""
        arrays = {id(a): a for call in self.calls for a in call.constants.values()}
        floats = (a for a in arrays.values() if a.dtype == np.float32)
        return sum(int(np.count_nonzero(is_denormal(a))) for a in floats)

    @cached_property
    def n_constant_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(a.nbytes for call in self.calls for a in call.constants.values())


def under_names_of(network: Network, dag: ComputeDAG) -> Network:
    """`network` with its task of the same key as `dag` under the names that `dag` has.

    A key ignores names, schedules do not: those of a log are for the names of its own workloads.
    """
    names = [op.name for op in network.tasks[dag.key].ops]
    called = dict(zip(names, (op.name for op in dag.ops), strict=True))

    def renamed(call: TaskCall) -> TaskCall:
        if call.task != dag.key:
            return call
        return replace(
            call,
            inputs={called[n]: value for n, value in call.inputs.items()},
            constants={called[n]: array for n, array in call.constants.items()},
            outputs={called[n]: value for n, value in call.outputs.items()},
        )

    return replace(
        network,
        tasks=network.tasks | {dag.key: dag},
        calls=tuple(map(renamed, network.calls)),
        chains=tuple(replace(c, whole=renamed(c.whole)) for c in network.chains),
    )


_ESTIMATE_ERROR = 1.05
"""Least ratio of estimates (parts over whole) for which an unmeasured whole replaces its parts."""


UNDECIDED: Mapping[str, bool] = MappingProxyType({})
"""No alternatives that were decided in the network."""


def chosen(
    network: Network,
    latency_s: Mapping[str, float],
    estimate_s: Mapping[str, float] | None = None,
    taken: Mapping[str, bool] = UNDECIDED,
) -> Network:
    """`network` without chains: each is one call where that is faster than its parts.

    `latency_s`: measured, by task; `estimate_s`: expected of default programs; `taken`: see
    `takes_whole`.
    """
    calls: list[TaskCall | None] = list(network.calls)
    for chain in network.chains:
        parts = [network.calls[n].task for n in chain.parts]
        if takes_whole(chain.whole.task, parts, latency_s, estimate_s or {}, taken):
            for n in chain.parts:
                calls[n] = None
            calls[chain.parts[-1]] = chain.whole
    kept = tuple(call for call in calls if call is not None)
    tasks = {call.task: network.tasks[call.task] for call in kept}
    return replace(network, calls=kept, tasks=tasks, chains=())


def takes_whole(
    whole: str,
    parts: Sequence[str],
    latency_s: Mapping[str, float],
    estimate_s: Mapping[str, float],
    taken: Mapping[str, bool] = UNDECIDED,
) -> bool:
    """Whether one call of task `whole` replaces calls of `parts`.

    `taken`: of wholes for which that was found out in the compiled network.

    What was measured decides where that is every task of both alternatives. Else the estimates
    decide, as they do in an untuned network, so that a chain measured in part is never slower than
    an untuned one. Without estimates, an alternative with an unknown task is not taken.
    """
    if whole in taken:
        return taken[whole]
    whole_s, parts_s = _sum_s(latency_s, [whole]), _sum_s(latency_s, parts)
    expected_whole_s, expected_parts_s = _sum_s(estimate_s, [whole]), _sum_s(estimate_s, parts)
    is_measured = max(whole_s, parts_s) < math.inf
    if is_measured or max(expected_whole_s, expected_parts_s) == math.inf:
        return whole_s < parts_s
    return expected_whole_s * _ESTIMATE_ERROR < expected_parts_s


def _sum_s(table: Mapping[str, float], tasks: Iterable[str]) -> float:
    """Seconds of some tasks together; infinite where one is unknown."""
    return sum(table.get(key, math.inf) for key in tasks)


def build_network(
    model: ModelSource,
    shapes: Shapes | None = None,
    random_weights: bool = False,
    operators: UserOperators | None = None,
    constants: Constants | None = None,
    precision: str = "f32",
) -> Network:
    """Read an ONNX model (a path, bytes or a ModelProto) and split it into fused subgraphs.

    `shapes` binds dynamic dimensions of inputs by name; `random_weights`, `operators`, `constants`:
    see `BoundModel`. `precision`: of the factors of products, one of `config.PRECISIONS`. Errors:
    see `onnx_reader.load_model`; UnsupportedOperator names the operator, its node and the model's
    opset. Whatever else goes wrong is a ModelError too: a file may be damaged in any way.
    """
    with model_file(model) as path:
        bound = BoundModel(path, random_weights, operators, constants or {})
        return network_at(bound, shapes, precision)


def network_at(bound: BoundModel, shapes: Shapes | None = None, precision: str = "f32") -> Network:
    """The network of a model at these shapes of its inputs: see `build_network`."""
    network = network_of(named(lambda: bound.load(shapes)), bound, precision)
    fixed = dict(bound.constants)
    return replace(network, random_weights=bound.random_weights, constant_inputs=fixed)


def network_of(model: OnnxModel, bound: BoundModel, precision: str = "f32") -> Network:
    """Split `model`, which was read from `bound` or is a part of it, into fused subgraphs."""
    name, digest, dtype = bound.path.stem, bound.digest, PRECISIONS[precision]
    network = named(
        lambda: graph_network(import_graph(model, bound.operators), name, digest, dtype)
    )
    return as_stated(replace(network, precision=precision), model.halves, model.texts)


def as_stated(network: Network, halves: Mapping[str, str], texts: Texts = NO_TEXTS) -> Network:
    """`network` with inputs and outputs in the types of the file; `halves`, `texts`: see
    `OnnxModel`."""
    inputs, outputs = (_as_stated(p, halves) for p in (network.inputs, network.outputs))
    return replace(network, inputs=inputs, outputs=outputs, texts=texts)


def named(make: Callable[[], A]) -> A:
    """Result of `make`; other exceptions become an AutotuneError."""
    try:
        return make()
    except (AutotuneError, MemoryError):
        raise
    except UnicodeDecodeError as error:  # ONNX's own checker, where it tells of a name
        raise ModelError(
            "the model is not valid: a name in it is not UTF-8", "export the model again"
        ) from error
    except Exception as error:
        raise _not_compiled(error) from error


def prepared_graphs(
    bound: BoundModel,
    shapes: Shapes | None = None,
    precision: str = "f32",
    log: RewriteLog | None = None,
    written: WrittenLengths | None = None,
) -> Iterator[tuple[GraphPass, Graph]]:
    """The imported graph of a model, and the graph after every pass; see `build_network`.

    `written`: the lengths that operators write.
    """
    model = named(lambda: bound.load(shapes))
    graph = named(lambda: import_graph(model, bound.operators, written))
    yield GraphPass("import", _imported), graph
    yield from prepared(graph, PRECISIONS[precision], log)


def _imported(graph: Graph) -> Graph:
    """Nodes of the model in opset 22, constants folded, types inferred."""
    return graph


def _not_compiled(error: Exception) -> ModelError:
    """The error for an unexpected failure in a pass."""
    text = " ".join(str(error).split())[:120]
    return ModelError(
        f"the model cannot be compiled: {type(error).__name__}{': ' + text if text else ''}",
        "check it with onnx.checker.check_model(model, full_check=True); "
        "if it is valid, please report it with its `traceback`",
    )


def _as_stated(ports: tuple[Port, ...], halves: Mapping[str, str]) -> tuple[Port, ...]:
    """`ports` with the dtypes of the file."""
    return tuple(replace(p, dtype=halves.get(p.name, p.dtype)) for p in ports)


def graph_network(graph: Graph, name: str, digest: str, dtype: str = "float32") -> Network:
    """Compile a graph into a network: run the passes, partition, place, define the subgraphs.

    Nothing computes outputs without elements.
    """
    return stored_network(graph, prepare(graph, dtype), name, digest)


def stored_network(graph: Graph, stored: Graph, name: str, digest: str) -> Network:
    """The network of a graph of which all passes made `stored`."""
    empty = {n: graph.types[n] for n in graph.outputs if 0 in graph.shape(n)}
    require_supported(stored, undefined)
    values, groups = plan_storage(stored, partition(stored))
    values |= {n: Activation(n, t.shape, t.dtype, dense(t.shape)) for n, t in empty.items()}
    types = dict(stored.types)
    types |= {n: TensorType(v.shape, v.dtype) for n, v in values.items() if n not in types}
    with_copies = Graph(
        stored.inputs, stored.outputs, stored.nodes, stored.constants, types, stored.opset
    )
    definitions = Definitions(with_copies)
    subgraphs = [definitions.of(group) for group in groups]
    joined = list(joined_groups(with_copies, groups, definitions.of))
    taken = {n for j in joined for n in j.parts}
    sparse = sparse_subgraphs({n: s for n, s in enumerate(subgraphs) if n not in taken})
    taken |= sparse.keys()
    in_order = channels_first_groups(with_copies, groups)
    joined += [j for j in in_order if taken.isdisjoint(j.parts)]
    taken |= {n for j in joined for n in j.parts}
    grouped = grouped_rows(subgraphs, values, set(graph.outputs) & values.keys(), taken)
    joined, subgraphs = grouped.moved(joined), grouped.subgraphs
    sparse = {grouped.position[n]: s for n, s in sparse.items()}
    tasks = _tasks([*subgraphs, *(j.whole for j in joined), *sparse.values()])
    chains = [Chain(_call(j.whole, tasks), j.parts) for j in joined]
    chains += [Chain(_call(s, tasks), (n,)) for n, s in sparse.items()]
    return Network(
        name=name,
        inputs=_ports(graph, graph.inputs, index_limits(stored)),
        outputs=_ports(graph, graph.outputs, {}),
        values=values,
        calls=tuple(_call(s, tasks) for s in subgraphs),
        tasks=tasks,
        model_hash=digest,
        chains=tuple(chains),
    )


def assembled(
    subgraphs: Sequence[Subgraph], joined: Sequence[JoinedGroups], values: dict[str, Activation]
) -> Network:
    """A network without a name and ports: calls of subgraphs, in order."""
    tasks = _tasks([*subgraphs, *(j.whole for j in joined)])
    calls = tuple(_call(s, tasks) for s in subgraphs)
    chains = tuple(Chain(_call(j.whole, tasks), j.parts) for j in joined)
    return Network("", (), (), values, calls, tasks, "", chains)


def _tasks(subgraphs: Sequence[Subgraph]) -> dict[str, ComputeDAG]:
    tasks: dict[str, ComputeDAG] = {}
    for subgraph in subgraphs:
        tasks.setdefault(subgraph.dag.key, subgraph.dag)
    return tasks


def _call(subgraph: Subgraph, tasks: Mapping[str, ComputeDAG]) -> TaskCall:
    """The call of a subgraph, with the names of its task, which another subgraph may have made."""
    task = tasks[subgraph.dag.key]
    called = {a.name: b.name for a, b in zip(subgraph.dag.ops, task.ops, strict=True)}
    return TaskCall(
        task=task.key,
        inputs={called[n]: value for n, value in subgraph.inputs.items()},
        constants={called[n]: array for n, array in subgraph.constants.items()},
        outputs=dict.fromkeys(task.outputs, subgraph.output),
        label=_label(subgraph),
        narrowable=subgraph.narrowable,
    )


def _label(subgraph: Subgraph) -> str:
    """Operators, and the low precision of factors of products if any: `Conv+Relu, bf16`."""
    precision = precision_of(subgraph.dag)
    return f"{subgraph.label}, {precision}" if precision != "f32" else subgraph.label


def _ports(graph: Graph, names: tuple[str, ...], limits: Mapping[str, int]) -> tuple[Port, ...]:
    types = ((n, graph.types[n]) for n in names)
    stated = graph.output_names
    return tuple(
        Port(stated.get(n, n), t.shape, t.dtype, n, limits.get(n, FLAGS)) for n, t in types
    )
