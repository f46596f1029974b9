"""① Bounds on what a model may unfold to, have computed while it is read, and declare.

A few hundred bytes of ONNX can ask for any number of nodes and elements. What is beyond a bound is
refused by the name of the node before memory is taken for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from autotune.errors import ModelError
from autotune.graph.ir import Array, Node, Shape

MOST_ITERATIONS = 1000
"""Iterations of one Loop or Scan."""
MOST_STEPS = 5000
"""Steps of one recurrent operator, those of both directions together."""
MOST_WORK = 2**36
"""Multiplications of constants that are computed while a model is read; others are compiled."""
MOST_UNFOLDED = 50_000
"""Nodes that branches, loops, functions and compound operators of a model become in all."""
MOST_NESTED = 100
"""Calls of functions and compound operators that lie inside of one another."""
MOST_DIMENSIONS = 32
"""Dimensions of a tensor: NumPy broadcasts no more."""
MOST_ELEMENTS = 2**31
"""Elements of a tensor: 8 GiB of float32."""
MOST_FOLDED_BYTES = 2**28
"""Bytes of a constant that is not given but computed from smaller ones; or as many as follows."""
MOST_FOLDED_BYTES_IN_ALL = 2**29
"""Bytes of all such constants, or as many as follows."""
MOST_DECLARED_BYTES = 2**29
"""Bytes of a constant that is one number for all elements, as ConstantOfShape declares it."""
MOST_FOLDED_RATIO = 8
"""Bytes of all such constants for every byte of those in the file: weights may be unpacked."""


def refused(node: Node, reason: str, limit: str) -> ModelError:
    """The error for a node that is beyond a limit, which is the name of one of the above."""
    return ModelError(
        f"operator '{node.op}' (node '{node.name}') asks for too much: {reason} ({limit})",
        "make the model smaller; the limits are in docs/limits.md",
    )


def check_type(node: Node, name: str, shape: Shape) -> None:
    """Whether a result of `node` has no more elements and dimensions than a tensor may have."""
    if len(shape) > MOST_DIMENSIONS:
        reason = f"'{name}' has {len(shape)} dimensions, {MOST_DIMENSIONS} are possible"
        raise refused(node, reason, "MOST_DIMENSIONS")
    n_elements = prod(shape)
    if n_elements > MOST_ELEMENTS and min(shape) >= 0:
        reason = f"'{name}' has {n_elements:,} elements, {MOST_ELEMENTS:,} are possible"
        raise refused(node, reason, "MOST_ELEMENTS")


def is_possible(shape: Sequence[int]) -> bool:
    """Whether a tensor may have such a shape."""
    fits = len(shape) <= MOST_DIMENSIONS and min(shape, default=0) >= 0
    return fits and prod(shape) <= MOST_ELEMENTS


def n_stored_bytes(array: Array) -> int:
    """Bytes of memory that hold an array; what is broadcast is there once."""
    extents = (n for n, stride in zip(array.shape, array.strides, strict=True) if stride)
    return int(array.itemsize * prod(extents))


def check_constant(node: Node, n_bytes: int, most: int = MOST_FOLDED_BYTES) -> None:
    """Whether a constant that `node` needs may be computed."""
    if n_bytes > most:
        raise refused(
            node,
            f"a constant of {n_bytes / 2**20:,.0f} MiB would be computed, "
            f"{most / 2**20:,.0f} MiB are possible",
            "MOST_FOLDED_BYTES",
        )


def check_declared(node: Node, value: Array) -> None:
    """Whether a constant that `node` reads may take the memory that its shape says."""
    if n_stored_bytes(value) < value.nbytes > MOST_DECLARED_BYTES:
        most = MOST_DECLARED_BYTES / 2**20
        reason = f"a constant of {value.nbytes / 2**20:,.0f} MiB, {most:,.0f} MiB are possible"
        raise refused(node, reason, "MOST_DECLARED_BYTES")


class Budget:
    """What the constants that were computed so far, and the nodes that were unfolded, add up to.

    `given`: the constants in the file.
    """

    def __init__(self, given: Iterable[Array] = ()) -> None:
        self.n_bytes = 0
        self.n_nodes = 0
        unpacked = MOST_FOLDED_RATIO * sum(map(n_stored_bytes, given))
        self.most_bytes = max(MOST_FOLDED_BYTES, unpacked)
        self.most_bytes_in_all = max(MOST_FOLDED_BYTES_IN_ALL, unpacked)

    def take_constants(
        self, node: Node, shapes: list[tuple[Shape, str]], given: list[Array]
    ) -> None:
        """Before `node` is computed: what is as large as what it is computed from is free."""
        n_bytes = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes)
        if n_bytes <= sum(n_stored_bytes(a) for a in given):
            return
        check_constant(node, n_bytes, self.most_bytes)
        self.n_bytes += n_bytes
        if self.n_bytes > self.most_bytes_in_all:
            most = self.most_bytes_in_all / 2**20
            reason = f"constants of more than {most:,.0f} MiB would be computed"
            raise refused(node, reason, "MOST_FOLDED_BYTES_IN_ALL")

    def take_nodes(self, node: Node, n_nodes: int) -> None:
        """Before the nodes that stand for `node` are visited."""
        self.n_nodes += n_nodes
        if self.n_nodes > MOST_UNFOLDED:
            reason = f"it and others unfold to more than {MOST_UNFOLDED:,} nodes"
            raise refused(node, reason, "MOST_UNFOLDED")
