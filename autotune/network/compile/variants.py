"""⑩ Networks of one model at several shapes (dynamic shapes): same tasks, same arrays.

unified([network at 16, network at 128])     equal tasks under equal names, equal weights once
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.graph.network import Network, TaskCall, under_names_of
from autotune.te.dag import ComputeDAG

Array = NDArray[Any]


def unified(networks: Iterable[Network]) -> tuple[Network, ...]:
    """The networks with one name for everything that is equal in them.

    A schedule names the operations of its task and their axes, so equal tasks get the names that
    the first network gave them. Constants of equal contents become one array. Networks are taken
    one by one, so that memory holds the weights of two at most.
    """
    tasks: dict[str, ComputeDAG] = {}
    arrays: dict[object, Array] = {}
    return tuple(_joined(network, tasks, arrays) for network in networks)


def _joined(network: Network, tasks: dict[str, ComputeDAG], arrays: dict[object, Array]) -> Network:
    for key, dag in list(network.tasks.items()):
        first = tasks.setdefault(key, dag)
        if first is not dag:  # names of operations and of their axes may differ
            network = under_names_of(network, first)

    def shared(call: TaskCall) -> TaskCall:
        return replace(call, constants={n: _once(a, arrays) for n, a in call.constants.items()})

    return replace(
        network,
        calls=tuple(map(shared, network.calls)),
        chains=tuple(replace(c, whole=shared(c.whole)) for c in network.chains),
    )


def _once(array: Array, arrays: dict[object, Array]) -> Array:
    """The first array of these contents."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    key = array.dtype, array.shape, hashlib.sha256(flat.data).digest()
    return arrays.setdefault(key, array)


def tasks_of(networks: Sequence[Network]) -> dict[str, ComputeDAG]:
    """The tasks of all networks by key, each once."""
    return {key: dag for network in networks for key, dag in network.tasks.items()}
