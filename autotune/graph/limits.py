"""① Limits of unfolded nodes, folded constants and declared tensors.

A few hundred bytes of ONNX can request any number of nodes and elements. A node that exceeds a
limit is refused by name before memory is allocated for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from autotune.errors import BeyondLimits, ModelError
from autotune.graph.ir import Array, Node, Shape

MOST_ITERATIONS = 1000
"""Iterations of one Loop or Scan."""
MOST_STEPS = 5000
"""Steps of one recurrent operator, those of both directions together."""
MOST_WORK = 2**36
"""Most multiplications of one constant that is folded; a larger one is compiled as an operator."""
MOST_UNFOLDED = 50_000
"""Nodes that branches, loops, functions and compound operators of a model become in all."""
MOST_NESTED = 100
"""Calls of functions and compound operators that lie inside of one another."""
MOST_DIMENSIONS = 32
"""Dimensions of a tensor: NumPy broadcasts no more."""
MOST_ELEMENTS = 2**31
"""Elements of a tensor: 8 GiB of float32."""
MOST_READ_ELEMENTS = 2**48
"""Elements of what data choose of a table, and of what follows from it, until passes have run."""
MOST_NODES = 200_000
"""Nodes of a file, those of branches, loops and functions included: minutes of work."""
MOST_OPERANDS = 2**14
"""Inputs, or outputs, of one node."""
MOST_FOLDED_BYTES = 2**28
"""Bytes of one folded constant that is larger than its operands; more with large weights, see
`MOST_FOLDED_RATIO`."""
MOST_FOLDED_BYTES_IN_ALL = 2**29
"""Bytes of all such constants; more with large weights."""
MOST_DECLARED_BYTES = 2**29
"""Bytes of a broadcast constant, as ConstantOfShape declares it, once it is materialised."""
MOST_FOLDED_RATIO = 8
"""Folded bytes per byte of constants in the file: a model may unpack compressed weights."""


def refused(node: Node, reason: str, limit: str) -> BeyondLimits:
    """The error for a node that exceeds `limit`, the name of one of the constants above."""
    return BeyondLimits(
        f"operator '{node.op}' (node '{node.name}') asks for too much: {reason} ({limit})",
        "make the model smaller; the limits are in docs/limits.md",
    )


def check_ports(node: Node) -> None:
    """Raises ModelError where a node has too many inputs or outputs, or other than it says."""
    for ports, what in ((node.inputs, "inputs"), (node.outputs, "outputs")):
        if len(ports) > MOST_OPERANDS:
            reason = f"{len(ports):,} {what}, {MOST_OPERANDS:,} are possible"
            raise refused(node, reason, "MOST_OPERANDS")
    n_told = node.attrs.get("num_outputs", len(node.outputs))
    if node.op == "Split" and n_told != len(node.outputs):
        raise ModelError(
            f"operator 'Split' (node '{node.name}') has {len(node.outputs)} outputs, and says "
            f"num_outputs={n_told}",
            "export the model again",
        )


def check_size(n_nodes: int, path: object) -> None:
    """Raises ModelError where a file has too many nodes."""
    if n_nodes > MOST_NODES:
        raise ModelError(
            f"'{path}' has {n_nodes:,} nodes, {MOST_NODES:,} are possible (MOST_NODES)",
            "make the model smaller; the limits are in docs/limits.md",
        )


def check_type(node: Node, name: str, shape: Shape, most: int = MOST_ELEMENTS) -> None:
    """Raises ModelError where a result of `node` has more than `most` elements, or too many
    dimensions."""
    if len(shape) > MOST_DIMENSIONS:
        reason = f"'{name}' has {len(shape)} dimensions, {MOST_DIMENSIONS} are possible"
        raise refused(node, reason, "MOST_DIMENSIONS")
    n_elements = prod(shape)
    if n_elements > most and min(shape) >= 0:
        reason = f"'{name}' has {n_elements:,} elements, {MOST_ELEMENTS:,} are possible"
        raise refused(node, reason, "MOST_ELEMENTS")


def is_possible(shape: Sequence[int]) -> bool:
    """Whether a shape is within the limits of a tensor."""
    fits = len(shape) <= MOST_DIMENSIONS and min(shape, default=0) >= 0
    return fits and prod(shape) <= MOST_ELEMENTS


def n_stored_bytes(array: Array) -> int:
    """Bytes of memory of an array; broadcast elements count once."""
    extents = (n for n, stride in zip(array.shape, array.strides, strict=True) if stride)
    return int(array.itemsize * prod(extents))


def check_constant(node: Node, n_bytes: int, most: int = MOST_FOLDED_BYTES) -> None:
    """Raises ModelError where `node` needs a computed constant of more than `most` bytes."""
    if n_bytes > most:
        raise refused(
            node,
            f"a constant of {n_bytes / 2**20:,.0f} MiB would be computed, "
            f"{most / 2**20:,.0f} MiB are possible",
            "MOST_FOLDED_BYTES",
        )


def check_declared(node: Node, value: Array) -> None:
    """Raises ModelError where a broadcast constant is too large to be materialised."""
    if n_stored_bytes(value) < value.nbytes > MOST_DECLARED_BYTES:
        most = MOST_DECLARED_BYTES / 2**20
        reason = f"a constant of {value.nbytes / 2**20:,.0f} MiB, {most:,.0f} MiB are possible"
        raise refused(node, reason, "MOST_DECLARED_BYTES")


class ImportBudget:
    """Counts bytes of folded constants and unfolded nodes.

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
        """Count the results of `node` before it is folded, if larger than its operands.

        A result without a shape, as of NonZero, may have an index for each element of an operand.
        """
        n_bytes = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes)
        if len(shapes) < len([name for name in node.outputs if name]):
            n_bytes += max((8 * a.size * max(1, a.ndim) for a in given), default=0)
        if n_bytes <= sum(n_stored_bytes(a) for a in given):
            return
        check_constant(node, n_bytes, self.most_bytes)
        self.n_bytes += n_bytes
        if self.n_bytes > self.most_bytes_in_all:
            most = self.most_bytes_in_all / 2**20
            reason = f"constants of more than {most:,.0f} MiB would be computed"
            raise refused(node, reason, "MOST_FOLDED_BYTES_IN_ALL")

    def take_nodes(self, node: Node, n_nodes: int) -> None:
        """Count the nodes that replace `node` before they are visited."""
        self.n_nodes += n_nodes
        if self.n_nodes > MOST_UNFOLDED:
            reason = f"it and others unfold to more than {MOST_UNFOLDED:,} nodes"
            raise refused(node, reason, "MOST_UNFOLDED")
