"""⑪ From dimensions by name to the shapes of inputs: every combination is a variant of the model.

variants(path, dims={"batch": 1, "sequence": {16: 0.5, 128: 0.5}})
    ─► Variant({"ids": (1, 16)}, 0.5), Variant({"ids": (1, 128)}, 0.5)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.graph.constant_values import Constants, require_constant
from autotune.graph.network import Network, build_network
from autotune.graph.operators.user_operators import UserOperators
from autotune.graph.reader.constant_inputs import bind_constants
from autotune.graph.reader.dimensions import Shapes, require_static, shapes_at
from autotune.graph.reader.onnx_reader import model_hash, read_outline
from autotune.network.variants import unified
from autotune.records import Header

Values: TypeAlias = int | Sequence[int] | Mapping[int, float]
"""Extents that a dimension takes: one, several, or each with how often it is used."""
Dims: TypeAlias = Mapping[str, Values]

MOST_VARIANTS = 64
"""More would be hours of compilation that somebody has asked for by mistake."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of extents: shapes of inputs by name, and its share of all inferences.

    The shares of all variants of a model add up to 1.
    """

    shapes: dict[str, tuple[int, ...]]
    share: float = 1.0


def variants(
    model: Path,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    constants: Constants | None = None,
) -> tuple[Variant, ...]:
    """Every combination of the extents in `dims`, beside `shapes` of inputs; in their order.

    `constants`: inputs that are none any more, see `constant_inputs`.

    Raises UsageError for names and extents that the model does not have, for more than
    `MOST_VARIANTS`, and for shares that are not positive.
    """
    given = dict(shapes or {})
    if not dims:
        return (Variant(given),)
    names, choices = list(dims), [_shares(name, values) for name, values in dims.items()]
    n_variants = math.prod(map(len, choices))
    if n_variants > MOST_VARIANTS:
        counts = " x ".join(f"{len(c)} of '{n}'" for n, c in zip(names, choices, strict=True))
        raise UsageError(
            f"{n_variants} combinations of dimensions ({counts}) are too many",
            f"give at most {MOST_VARIANTS}, or compile several artifacts",
        )
    outline = read_outline(model)
    bind_constants(outline, constants or {})
    found = tuple(
        Variant(
            dict(shapes_at(outline, dict(zip(names, (n for n, _ in point), strict=True)), given)),
            math.prod(share for _, share in point),
        )
        for point in itertools.product(*choices)
    )
    require_static(outline, names, given)
    return found


def networks_of(
    model: Path,
    variants: Sequence[Variant],
    random_weights: bool = False,
    operators: UserOperators | None = None,
    constants: Constants | None = None,
    precision: str = "f32",
    digest: str = "",
) -> tuple[Network, ...]:
    """The model at the shapes of every variant: see `network.variants.unified`, `build_network`."""
    digest = digest or model_hash(model)
    bound = random_weights, operators, constants, precision, digest
    networks = (build_network(model, variant.shapes, *bound) for variant in variants)
    return unified(networks) if len(variants) > 1 else tuple(networks)


def variant_text(shapes: Shapes) -> str:
    """`ids 1x16, mask 1x16`."""
    return ", ".join(f"{n} {'x'.join(map(str, s)) or 'scalar'}" for n, s in shapes.items())


def _shares(name: str, values: Values) -> list[tuple[int, float]]:
    """Extents of a dimension with their shares, which add up to 1."""
    if isinstance(values, int):
        values = [values]
    weights = dict(values) if isinstance(values, Mapping) else dict.fromkeys(values, 1.0)
    if len(weights) < len(values):
        raise UsageError(f"dimension '{name}' has a value twice", "give every value once")
    if not weights:
        raise UsageError(f"dimension '{name}' has no values", "give one or more")
    total = sum(weights.values())
    if min(weights.values()) <= 0 or not math.isfinite(total):
        raise UsageError(
            f"the shares of dimension '{name}' are not positive numbers",
            "write them like `dims={'sequence': {16: 0.5, 128: 0.5}}`",
        )
    return [(extent, weight / total) for extent, weight in weights.items()]


def variants_of(header: Header) -> tuple[Variant, ...]:
    """The variants that a log was made for."""
    found = tuple(Variant(v.shapes, v.share) for v in header.variants)
    return found or (Variant(header.shapes),)


def arrays_of(constants: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
    """Constant inputs as arrays, from whatever NumPy makes arrays of. Raises UsageError."""
    arrays = {name: np.asarray(value) for name, value in (constants or {}).items()}
    for name, array in arrays.items():
        require_constant(name, array)
    return arrays
