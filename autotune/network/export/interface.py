"""⑩ The interface of an exported network, for its header, tables and signature."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune.codec import to_json
from autotune.dtypes import DType, plain_dtype
from autotune.errors import ArtifactError
from autotune.extent import Extents, Length
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.numbers import by_size
from autotune.network.artifact.steps import begin_of, steps_of, without_drafts
from autotune.network.export.naming import identifiers
from autotune.network.export.stateful import StateLayout, of_state, state_layout
from autotune.target import Target, needed_features
from autotune.wording import arguments


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
    def kind(self) -> DType:
        """Of its elements, as a caller has them."""
        found = plain_dtype(self.first.dtype)
        assert found is not None, self.first.dtype
        return found

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements in each variant."""
        return tuple(math.prod(end.shape) for end in self.ends)

    @cached_property
    def is_alike(self) -> bool:
        """Whether it has one shape, the longest, in all variants."""
        return len({end.shape for end in self.ends}) == 1

    @cached_property
    def is_fixed(self) -> bool:
        """Whether it has one shape in all calls."""
        return self.is_alike and not any(end.extents for end in self.ends)


@dataclass(frozen=True)
class LibraryInterface:
    """Of the library `name` of `artifact`.

    `inputs`, `outputs`: arrays of the caller's; of a model with a state those of a step, and
    `begin` those that it takes once for a sequence. `family`: the file of several that share an
    image and constants, of which this is one.
    """

    name: str
    artifact: Artifact
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    begin: tuple[Tensor, ...] = ()
    state: StateLayout | None = None
    family: str = ""

    @property
    def image(self) -> str:
        """What the names of functions of the image begin with."""
        return self.family or self.name

    @property
    def variants(self) -> tuple[Artifact, ...]:
        """The network at each of its shapes."""
        return self.artifact.variants

    @property
    def of_all_cpus(self) -> tuple[Artifact, ...]:
        """The network at each of its shapes for the first CPU, for the second …"""
        return tuple(variant for one in self.artifact.by_cpu for variant in one.variants)

    @property
    def is_by_shape(self) -> bool:
        """Whether shapes of inputs choose the variant, not a number of new places."""
        return self.state is None or not self.state.capacity

    @property
    def lengths_text(self) -> str:
        """`sequence from 1 to 512, 32·width from 32 to 640 in steps of 32`; "" without lengths.

        Those of a state are its new places, which a step is told.
        """
        if self.state is not None:
            return ""
        found: dict[str, Length] = {}
        ends = (end for variant in self.variants for end in variant.own_inputs)
        for one in (e for end in ends for e in end.extents if isinstance(e, Length)):
            found[one.name] = min(found.get(one.name, one), one, key=_plainness)
        return ", ".join(map(_span, found.values()))

    @property
    def tells_shapes(self) -> bool:
        """Whether results have shapes that inputs decide."""
        return self.state is None and not all(tensor.is_fixed for tensor in self.outputs)

    @property
    def order(self) -> list[int]:
        """Numbers of the variants, in the order in which a call looks for one."""
        return by_size([variant.own_inputs for variant in self.variants])

    @property
    def targets(self) -> tuple[Target, ...]:
        """The CPUs that it is for, the less demanding later."""
        return tuple(one.target for one in self.artifact.by_cpu)

    @property
    def target(self) -> Target:
        """The last of them."""
        return self.targets[-1]

    @property
    def cpu(self) -> str:
        """Their names: `znver4, x86-64-v3`."""
        return ", ".join(target.cpu for target in self.targets)

    def signature(self) -> str:
        """Inputs, outputs and what the network was compiled for, as JSON."""
        return json.dumps(
            {
                "name": self.name,
                "model": self.artifact.name,
                "autotune": self.artifact.autotune_version,
                "cpu": self.cpu,
                "features": list(needed_features(self.target)),
                "threads": self.artifact.n_threads,
                "inputs": [_described(tensor) for tensor in self.inputs],
                "outputs": [_described(tensor) for tensor in self.outputs],
                **({"capacity": self.state.capacity} if self.state else {}),
                **({"written": dict(self.artifact.written)} if self.artifact.written else {}),
                **({"texts": to_json(self.artifact.texts)} if self.artifact.texts else {}),
            }
        )


def interface_of(artifact: Artifact, name: str) -> LibraryInterface:
    """Raises ArtifactError for a network that no library of C can have."""
    artifact = without_drafts(artifact)
    lengths = {name: n for variant in artifact.variants for name, n in variant.mosts.items()}
    if lengths and artifact.state is not None and not artifact.state.filled:
        raise ArtifactError(
            f"'{artifact.name}' has lengths ({', '.join(lengths)}) beside its state, which exports "
            "do not take",
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
        if plain_dtype(tensor.first.dtype) is None:
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
    has_lengths = any(end.extents for end in tensor.ends)
    return {
        "name": tensor.first.name,
        "identifier": tensor.identifier,
        "dtype": tensor.first.dtype,
        "shapes": [list(end.shape) for end in tensor.ends],
        "fixed": tensor.is_fixed,
        **(
            {"extents": [_extents(end.extents or end.shape) for end in tensor.ends]}
            if has_lengths
            else {}
        ),
        **({"written": _extents(tensor.first.written)} if tensor.first.written else {}),
    }


def _plainness(length: Length) -> tuple[int, int, int]:
    return abs(length.offset), length.factor, -length.most


def _span(length: Length) -> str:
    steps = f" in steps of {length.factor}" if length.factor > 1 else ""
    return f"{length} from {length.at(length.least)} to {length.longest}{steps}"


def _extents(extents: Extents) -> list[Any]:
    """As JSON: a number, or one that follows a number of the call."""
    return [to_json(e) if isinstance(e, Length) else e for e in extents]
