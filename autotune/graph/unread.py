"""① What no call reads is not computed: limits of results whose every reader has one.

    scores[h, c<512]  is read at c < length[0] alone  ─►  scores[h, c<512 and length[0]]

In a network whose state grows, masks, turned keys and scores have room for all places, and their
readers end at the length. Tensors are compared by where elements lie: a dimension is its stride in
elements and its extent, in whatever shape a call has the tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from autotune.graph.network import Chain, Network, TaskCall
from autotune.graph.tasks.storage import Activation
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder
from autotune.te.expr import INDEX, Expr, Load, Tensor, loads, map_expr
from autotune.te.reach import Reach, common, limited

Dimensions: TypeAlias = Mapping[tuple[int, int], Expr]
"""By stride and extent of a dimension the number that it is read up to, of a value."""


def without_unread(network: Network) -> Network:
    """The network whose calls end where their readers do."""
    if not any(op.limits for dag in network.tasks.values() for op in dag.computes):
        return network
    return _Ending(network).network()


@dataclass
class _Ending:
    of: Network
    tasks: dict[str, ComputeDAG] = field(default_factory=dict)
    readers: dict[str, list[Dimensions]] = field(default_factory=lambda: defaultdict(list))
    """How far calls read values that are the memory of a value, by its name."""

    def __post_init__(self) -> None:
        calls = enumerate(self.of.calls)
        self.made = {v: n for n, call in calls for v in call.outputs.values()}
        ports = (*self.of.inputs, *self.of.outputs)
        self.kept = {self.of.values[p.value].root for p in ports if p.value in self.of.values}

    def network(self) -> Network:
        """The network, whose calls are looked at after those that read their results."""
        calls, chains = list(self.of.calls), list(self.of.chains)
        for n in reversed(range(len(calls))):
            ends = [k for k, chain in enumerate(chains) if chain.parts[-1] == n]
            wholes = {k: self._ended(chains[k].whole, chains[k].parts[0]) for k in ends}
            calls[n] = self._ended(calls[n], n)
            for k, whole in wholes.items():
                chains[k] = Chain(whole, chains[k].parts)
        return replace(self.of, calls=tuple(calls), chains=tuple(chains), tasks=self.tasks)

    def _ended(self, call: TaskCall, n: int) -> TaskCall:
        """`call`, which is to begin as the n-th."""
        dag = self.of.tasks[call.task]
        ((output, value),) = call.outputs.items()
        wanted = self._reach(dag[output], value, n)
        values = {self._owner(value): name for name, value in call.inputs.items()}
        numbers = [v for v in _values(wanted) if v not in values]
        added = {f"end.{k}": v for k, v in enumerate(numbers)}
        values |= {v: name for name, v in added.items()}
        more = (Placeholder(Tensor(name, (1,), INDEX)) for name in added)
        whole = ComputeDAG((*more, *dag.ops), dag.outputs)
        made, inputs = limited(whole, {output: {d: _named(e, values) for d, e in wanted.items()}})
        names = {**call.inputs, **added}
        owners = {own: self._owner(v) for own, v in names.items()}
        for own, read in names.items():
            reach = {d: _named(e, owners) for d, e in inputs[own].items()}
            self.readers[read].append(_dimensions(made[own].tensor, reach))
        task = self.tasks.setdefault(made.key, made)
        called = {a.name: b.name for a, b in zip(made.ops, task.ops, strict=True)}
        return replace(
            call,
            task=task.key,
            inputs={called[own]: v for own, v in names.items()},
            constants={called[own]: array for own, array in call.constants.items()},
            outputs={called[output]: value},
        )

    def _owner(self, value: str) -> str:
        """A number by the one name of its memory."""
        found = self.of.values[value]
        whole = self.of.values[found.root]
        return whole.name if math.prod(whole.shape) == math.prod(found.shape) == 1 else value

    def _reach(self, op: Op, value: str, n: int) -> Reach:
        """Up to where axes without a limit are read, by numbers that are known before call `n`."""
        assert isinstance(op, Compute)
        root = self.of.values[value].root
        if root in self.kept:
            return {}
        same = [v.name for v in self.of.values.values() if v.root == root]
        if not all(_is_same(self.of.values[v], self.of.values[value]) for v in same):
            return {}
        found = common([reach for v in same for reach in self.readers[v]])
        return {
            d: found[at]
            for d, at in enumerate(_places(op.tensor))
            if at in found
            and op.axes[d].limit is None
            and all(self.made.get(v, -1) < n for v in _values({d: found[at]}))
        }


def _places(tensor: Tensor) -> Sequence[tuple[int, int]]:
    shape = tensor.shape
    return [(math.prod(shape[d + 1 :]), extent) for d, extent in enumerate(shape)]


def _dimensions(tensor: Tensor, reach: Reach) -> Dimensions:
    places = _places(tensor)
    return {places[d]: e for d, e in reach.items() if places[d][1] > 1}


def _values(reach: Mapping[int, Expr]) -> list[str]:
    """The values that limits read."""
    return list(dict.fromkeys(x.tensor.name for e in reach.values() for x in loads(e)))


def _named(e: Expr, names: Mapping[str, str]) -> Expr:
    """`e` with tensors under other names."""

    def one(x: Expr) -> Expr | None:
        if isinstance(x, Load):
            return Load(replace(x.tensor, name=names[x.tensor.name]), x.indices)
        return None

    return map_expr(e, one)


def _is_same(one: Activation, other: Activation) -> bool:
    """Whether two views have the same elements in the same order."""
    return (
        math.prod(one.shape) == math.prod(other.shape)
        and one.offset == other.offset
        and _is_in_order(one)
        and _is_in_order(other)
    )


def _is_in_order(value: Activation) -> bool:
    long = [s for n, s in zip(value.shape, value.strides, strict=True) if n != 1]
    return all(a > b for a, b in pairwise(long)) and min(long, default=1) > 0
