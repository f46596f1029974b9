"""① Profitability of a segment in graph partitioning: time saved against the cost of crossing.

Every compiled segment inside of a model that ONNX Runtime runs costs a call of each and the bytes
that leave the caches of one's threads for those of the other's. What it saves is a share of what
ONNX Runtime would take. All of it is a rule of thumb of orders of magnitude: two microseconds per
operator, 20 GFLOPS, 8 GB/s.
"""

from __future__ import annotations

import math

from autotune.dtypes import dtype_bytes, stored_dtype
from autotune.graph.network import Network, Port

SMALL = "beside it, and too small to be worth a cut"

_SAVED_SHARE = 0.25
"""Fraction of ONNX Runtime's time that compiling saves: docs/results has 0.2 to 0.5."""
_CALL_S = 15e-6
"""A call of a session and one of a compiled network, of which a cut makes one more each."""
_NODE_S = 2e-6
_FLOPS_PER_S = 20e9
_BYTES_PER_S = 8e9


def is_worth_a_cut(network: Network, n_nodes: int) -> bool:
    """Whether to compile a segment that has `n_nodes` operators of the file."""
    crossing = _n_bytes((*network.inputs, *network.outputs))
    constants = network.n_constant_bytes
    expected_s = n_nodes * _NODE_S + network.flops / _FLOPS_PER_S
    expected_s += (crossing + constants) / _BYTES_PER_S
    return _SAVED_SHARE * expected_s > _CALL_S + crossing / _BYTES_PER_S


def _n_bytes(ports: tuple[Port, ...]) -> int:
    return sum(math.prod(p.shape) * dtype_bytes(stored_dtype(p.dtype)) for p in ports)
