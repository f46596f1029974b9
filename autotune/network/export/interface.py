"""⑩ The interface of an exported network: what the header, the tables and the signature are of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune.errors import ArtifactError
from autotune.extent import Length
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.steps import begin_of, steps_of
from autotune.network.export.naming import identifiers
from autotune.network.export.stateful import StateLayout, of_state, state_layout
from autotune.target import Target, needed_features
from autotune.wording import arguments

C_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"{sign}int{bits}": f"{sign}int8_t" for sign in ("", "u") for bits in (2, 4)},
}
"""Types of elements: those of half precision are bits, integers of less than a byte take one."""


@dataclass(frozen=True)
class Tensor:
    """An input or output: what programs call it, and itself in each variant."""

    identifier: str
    ends: tuple[Endpoint, ...]

    @property
    def first(self) -> Endpoint:
        """In the first variant."""
        return self.ends[0]

    @property
    def c_type(self) -> str:
        """Of its elements."""
        return C_TYPES[self.first.dtype]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements in each variant."""
        return tuple(math.prod(end.shape) for end in self.ends)

    @cached_property
    def is_fixed(self) -> bool:
        """Whether it has one shape in all variants."""
        return len({end.shape for end in self.ends}) == 1


@dataclass(frozen=True)
class LibraryInterface:
    """Of the library `name` of `artifact`.

    `inputs`, `outputs`: arrays of the caller's; of a model with a state those of a step, and
    `begin` those that it takes once for a sequence.
    """

    name: str
    artifact: Artifact
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    begin: tuple[Tensor, ...] = ()
    state: StateLayout | None = None

    @property
    def variants(self) -> tuple[Artifact, ...]:
        """The network at each of its shapes."""
        return self.artifact.variants

    @property
    def is_by_shape(self) -> bool:
        """Whether shapes of inputs choose the variant, not a number of new places."""
        return self.state is None or not self.state.capacity

    @property
    def target(self) -> Target:
        """The CPU that it is for."""
        return self.artifact.target

    def signature(self) -> str:
        """Inputs, outputs and what the network was compiled for, as JSON."""
        return json.dumps(
            {
                "name": self.name,
                "model": self.artifact.name,
                "autotune": self.artifact.autotune_version,
                "cpu": self.target.cpu,
                "features": list(needed_features(self.target)),
                "threads": self.artifact.n_threads,
                "inputs": [_described(tensor) for tensor in self.inputs],
                "outputs": [_described(tensor) for tensor in self.outputs],
                **({"capacity": self.state.capacity} if self.state else {}),
            }
        )


def interface_of(artifact: Artifact, name: str) -> LibraryInterface:
    """Raises ArtifactError for a network that no library of C can have."""
    extents = (e for v in artifact.variants for end in v.own_inputs for e in end.extents)
    lengths = {e.name: e.longest for e in extents if isinstance(e, Length)}
    if lengths and not (artifact.state and artifact.state.buffers):
        raise ArtifactError(
            f"'{artifact.name}' has lengths ({', '.join(lengths)}), which exports do not take",
            f"compile it for single sizes, and export that: {arguments(dims=lengths)}",
        )
    steps, own = steps_of(artifact), of_state(artifact)
    sides = [[v.own_inputs for v in steps], [v.outputs for v in steps]]
    inputs, outputs = (
        tuple(t for t in _tensors(side) if t.first.name not in own) for side in sides
    )
    first = begin_of(artifact)
    begin = tuple(_tensors([first.inputs])) if first is not None else ()
    for tensor in (*inputs, *outputs, *begin):
        if tensor.first.dtype not in C_TYPES:
            raise ArtifactError(
                f"'{tensor.first.name}' is of {tensor.first.dtype}, which C has no type for",
                "cast it to another type in the model",
            )
    return LibraryInterface(name, artifact, inputs, outputs, begin, state_layout(artifact))


def _tensors(side: Sequence[tuple[Endpoint, ...]]) -> list[Tensor]:
    named = identifiers(end.name for end in side[0])
    each = zip(*side, strict=True)
    return [Tensor(named[ends[0].name], ends) for ends in each]


def _described(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.first.name,
        "identifier": tensor.identifier,
        "dtype": tensor.first.dtype,
        "shapes": [list(end.shape) for end in tensor.ends],
        "fixed": tensor.is_fixed,
    }
