"""⑩ One packing layout per weight: programs of several shapes that read it in the same order.

    shared_weights({"": networks}) ─► tasks that read the same weights
    forms(dag, steps) ─► the packing layout of each constant of a program, as a digest
    in_blocks(dag, steps, block) ─► the same program, whose weights are in the order of other tiles
    prefer_shared(weights, options) ─► for every task the fastest of the options that share most

Every variant of a model has programs of its own over the same weights, and so has every CPU. A
weight that two of them pack differently is stored twice; many tasks have programs of other orders
that are as fast within the accuracy of a measurement or of the analytical cost model. The others
read blocks of the last dimension (`Pack.block`), which is the order of a program whose register
tile is as wide as a block: of several streams, or with gaps, where their own tile is another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ScheduleError
from autotune.graph.network import Network
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.network.compile.layout import constant
from autotune.schedule.replay import replay
from autotune.schedule.steps import Pack, Steps
from autotune.te.arith import linear
from autotune.te.dag import Compute, ComputeDAG, Placeholder

SHARING_COSTS = 1.03
"""A program may take so many times as long as the fastest to read a weight as another one does,
where nobody says how many."""

_SMALLEST_BYTES = 4096
"""Smaller constants are not worth a slower program."""

BLOCKS = tuple(range(16, 129, 16))
"""Neighbours in a block: cache lines of float32, as many as the tiles of most programs have."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights of `n_bytes` together that the same tasks read.

    `users`: keys of the tasks, with the name of the placeholder that the weight is in each.
    """

    n_bytes: int
    users: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Option:
    """A program that a task may have: its schedule, its latency, and its `forms`."""

    steps: Steps
    latency_s: float
    forms: Mapping[str, str]


def shared_weights(networks: Mapping[str, Sequence[Network]]) -> list[SharedWeights]:
    """Weights that several tasks of `unified` networks read, largest first.

    `networks`: of each CPU, by what comes before the keys of its tasks.
    """
    users: dict[object, set[tuple[str, str]]] = {}
    sizes: dict[object, int] = {}
    each = [(cpu, call) for cpu, own in networks.items() for one in own for call in one.calls]
    for cpu, call in each:
        for name, array in call.constants.items():
            place = array.ctypes.data, array.shape  # some are views of others
            users.setdefault(place, set()).add((cpu + call.task, name))
            sizes[place] = array.nbytes
    found: dict[frozenset[tuple[str, str]], int] = {}
    for key, tasks in users.items():
        if len(tasks) > 1:
            found[frozenset(tasks)] = found.get(frozenset(tasks), 0) + sizes[key]
    large = [SharedWeights(n, tasks) for tasks, n in found.items() if n >= _SMALLEST_BYTES]
    return sorted(large, key=lambda w: (-w.n_bytes, sorted(w.users)))


def forms(dag: ComputeDAG, steps: Steps, known: dict[object, str] | None = None) -> dict[str, str]:
    """The order in which a program reads each constant, by placeholder; equal texts, equal bytes.

    Found by packing numbers that count up. `known`: orders of earlier programs of `dag`, which is
    added to. Raises ScheduleError where the schedule has no program.
    """
    program = lower(dag, steps)
    known = {} if known is None else known
    out: dict[str, list[str]] = {p.name: [] for p in dag.placeholders if p.constant}
    for buffer in (b for b in program.buffers if b.role == "constant"):
        packing = next((p for p in program.packs if p.packed.name == buffer.name), None)
        source = packing.source.name if packing else buffer.name
        order = (packing.packed.shape, packing.axes, packing.indices) if packing else ()
        key = source, program.derived, order
        if key not in known:
            array = constant(program, _counting(dag, program), buffer)
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            known[key] = hashlib.sha256(flat.data).hexdigest()
        for name in [source] if source in out else out:  # derived from any of them
            out[name].append(known[key])
    return {name: " ".join(sorted(found)) for name, found in out.items()}


def in_blocks(dag: ComputeDAG, steps: Steps, block: int) -> Steps:
    """`steps` with all large constants of `dag` in blocks that `block` divides into such.

    Raises ScheduleError where there are none, or where they cannot be read so.
    """
    large = [p for p in _constants(dag) if p.tensor.n_bytes >= _SMALLEST_BYTES]
    large = [p for p in large if p.tensor.shape[-1] % block == 0]
    if not large:
        raise ScheduleError(f"no weights are whole blocks of {block}")
    stages = replay(dag, steps).stages.values()
    readers = {load.tensor.name: stage.name for stage in stages for load in stage.op.reads}
    names = {p.name for p in large} & readers.keys()
    kept = (step for step in steps if not (isinstance(step, Pack) and step.tensor in names))
    return (*kept, *(Pack(name, readers[name], block) for name in sorted(names)))


def width(dag: ComputeDAG, steps: Steps) -> int:
    """Neighbours of the last dimension that a program reads at once: the block that it likes best.

    Of its largest packed constant; 0 where there is none. Raises ScheduleError.
    """
    packs = lower(dag, steps).packs
    if not packs:
        return 0
    largest = max(packs, key=lambda p: p.source.n_bytes)
    last, run = linear(largest.indices[-1]), 1
    for axis in reversed(largest.axes):
        if axis.extent > 1 and last.coefficient(axis.name) != run:
            break
        run *= axis.extent
    return run


def cost_in_blocks(dag: ComputeDAG) -> float:
    """So many times as long a program is taken to need with weights in the order of another one.

    One that reads each weight once waits for memory, and pays for it as much as it may; a weight
    that is read again is in a cache then.
    """
    n_points = max(_points(op) for op in dag.computes)
    n_weights = max((p.tensor.size for p in _constants(dag)), default=n_points)
    return 1 + (SHARING_COSTS - 1) / max(1.0, n_points / n_weights)


def _constants(dag: ComputeDAG) -> list[Placeholder]:
    """Those of several dimensions."""
    return [p for p in dag.placeholders if p.constant and len(p.tensor.shape) > 1]


def _points(op: Compute) -> int:
    return prod(axis.extent for axis in (*op.axes, *op.reduce_axes))


def _counting(dag: ComputeDAG, program: Program) -> dict[str, Array]:
    """Constants of a task whose elements are all different, as far as their type can tell."""
    return {
        p.name: np.arange(p.tensor.size).astype(p.tensor.dtype).reshape(p.tensor.shape)
        for p in dag.placeholders
        if p.constant
    }


def prefer_shared(
    weights: Sequence[SharedWeights],
    options: Mapping[str, Sequence[Option]],
    most: float = SHARING_COSTS,
) -> dict[str, Option]:
    """The first program of every task in `options` among those that share most weights.

    Options are in order of preference: the first is what the task would take by itself, and others
    may not take longer than `most` times as long. Largest weights first, each in the form
    that most of its tasks have an option for; the others of its tasks then agree on a second form,
    and so on.
    """
    left = {task: _fast_enough(found, most) for task, found in options.items()}
    for weight in weights:
        users = sorted(user for user in weight.users if user[0] in left)
        while users:
            best = min(_forms_of(users, left), key=lambda form: _rank(form, users, left))
            kept = [user for user in users if best in _latencies(user, left)]
            for task, name in kept:
                left[task] = [o for o in left[task] if o.forms.get(name, "") == best]
            users = [user for user in users if user not in kept]
    return {task: found[0] for task, found in left.items()}


def _fast_enough(options: Sequence[Option], most: float) -> list[Option]:
    limit = most * options[0].latency_s
    return [option for option in options if option.latency_s <= limit]


def _forms_of(users: Sequence[tuple[str, str]], left: Mapping[str, Sequence[Option]]) -> set[str]:
    return {form for user in users for form in _latencies(user, left)}


def _latencies(user: tuple[str, str], left: Mapping[str, Sequence[Option]]) -> dict[str, float]:
    """The latency of the fastest program of a task for every form of one of its weights."""
    task, name = user
    found: dict[str, float] = {}
    for option in left[task]:
        form = option.forms.get(name, "")
        found[form] = min(found.get(form, option.latency_s), option.latency_s)
    return found


def _rank(
    form: str, users: Sequence[tuple[str, str]], left: Mapping[str, Sequence[Option]]
) -> tuple[int, float, str]:
    """More tasks first, then less time lost by them over their fastest programs."""
    kept = [found for user in users if form in (found := _latencies(user, left))]
    lost = sum(found[form] / min(found.values()) for found in kept)
    return -len(kept), lost, form
