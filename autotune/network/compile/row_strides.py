"""⑩ Operands of a task that lie dense in memory, although rows of their length get padding.

Inside of a network rows are padded where they would share a set of L1 (`autotune.strides`). Arrays
of a caller are as they are. Candidates are measured on the rows that the network gives them:
without padding other structures win, for instance those that copy panels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autotune.graph.network import Network, TaskCall
from autotune.network.compile.memory import fold_strides, place_of
from autotune.strides import dense, padded_strides


def dense_operands(networks: Iterable[Network]) -> dict[str, tuple[str, ...]]:
    """Inputs and outputs that are dense at every call of a task in `networks`, by task key.

    Only those that `padded_strides` would pad.
    """
    found: dict[str, set[str]] = {}
    for network in networks:
        for call in (*network.calls, *(chain.whole for chain in network.chains)):
            here = set(_dense_at(network, call))
            found[call.task] = found.get(call.task, here) & here
    return {task: tuple(sorted(names)) for task, names in found.items() if names}


def _dense_at(network: Network, call: TaskCall) -> Iterator[str]:
    dag = network.tasks[call.task]
    for name, value in (*call.inputs.items(), *call.outputs.items()):
        tensor = dag[name].tensor
        place = place_of(network.values, value)
        strides = fold_strides(place.shape, place.strides, tensor.shape)
        if strides == dense(tensor.shape) != padded_strides(tensor.shape, tensor.dtype):
            yield name
