"""⑩ What the tasks of a network do at least: see `artifact.work`."""

from __future__ import annotations

from collections import Counter

from autotune.graph.network import Network, TaskCall
from autotune.network.artifact.work import Work
from autotune.target import Target
from autotune.te.at_numbers import at, numbers_of
from autotune.te.dag import ComputeDAG
from autotune.tuner.bound import arithmetic, traffic


def works_of(network: Network, target: Target) -> dict[str, tuple[Work, ...]]:
    """By task, at three values of the network's length; of those that follow none, one.

    Tasks of other numbers, such as the places of a state that are filled, are left out.
    """
    found: dict[str, tuple[Work, ...]] = {}
    for call in network.calls:
        if call.task not in found:
            found[call.task] = _works(network, call, target)
    return {task: works for task, works in found.items() if works}


def _works(network: Network, call: TaskCall, target: Target) -> tuple[Work, ...]:
    dag = network.tasks[call.task]
    mosts = numbers_of(dag)
    if not mosts:
        return (_work(dag, 0, target),)
    ports = set(network.lengths.values())
    if len(ports) != 1 or any(call.inputs.get(name) not in ports for name in mosts):
        return ()
    most = min(mosts.values())
    points = sorted({1, (1 + most) // 2, most})
    return tuple(_work(at(dag, dict.fromkeys(mosts, n)), n, target) for n in points)


def _work(dag: ComputeDAG, number: int, target: Target) -> Work:
    operations: Counter[str] = Counter()
    for op in dag.computes:
        n, forms = arithmetic(dag, op, target.isa.forms)
        known = (target.isa.forms[0], *forms)
        form = max(known, key=lambda form: form.flops(target.vector_bits))
        operations[form.name] += n
    moved = traffic(dag)
    return Work(number, dict(operations), moved.constant_bytes, moved.all_bytes)
