"""① A model at a few numbers -> the network for all of them up to the most.

    lifted_network(bound, {"ids": (Length("batch", 32), Length("sequence", 512))})

The model is imported and prepared at the most and at small primes. Nodes of these graphs are the
same one by one, groups and memory are those at the most, and each group's definitions become one
that follows the numbers (`definitions`). The numbers are inputs of the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from autotune.errors import ModelError, without_frames
from autotune.extent import Extents, Length
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.formulas import LengthProduct
from autotune.graph.lengths.imports import ImportedModel, LengthModel, NotLifted, OpenModel
from autotune.graph.lengths.lifter import Lifter
from autotune.graph.lengths.numbers import NotTold, Points, few_points_of, points_of
from autotune.graph.lengths.writing import written_in
from autotune.graph.network import Network, as_stated, named

_MANY = 24
"""Numbers from which on a model is looked at at few points first."""


def lifted_network(
    bound: BoundModel, dims: Mapping[str, Extents], precision: str = "f32"
) -> Network:
    """The network of a model for all numbers of the lengths in `dims`, the shapes of inputs.

    `dims`: of every input that has open dimensions. `precision`: of the factors of products.
    `Network.lengths` has the input of each number, which is the last of its `inputs`. Raises
    NotLifted, which names the node, where something does not follow a number evenly; other errors:
    see `network.build_network`.
    """
    return lifted(open_model(bound, dims, precision))


def open_model(bound: BoundModel, dims: Mapping[str, Extents], precision: str) -> OpenModel:
    """The model to be lifted, see `lifted_network`."""
    held = bound if bound.parted else bound.held()
    model = OpenModel(held, dims, precision, written_in(held, dims))
    for name, extent in ((n, e) for n, shape in dims.items() for e in shape):
        if isinstance(extent, Length) and model.mosts[extent.name] != extent.most:
            raise ValueError(f"'{extent.name}' has two mosts, one of them in input '{name}'")
    return replace(model, computed=model.joined_constants(), read={}) if model.written else model


def lifted(model: LengthModel) -> Network:
    """The network of a model for all numbers up to its mosts. Raises as `lifted_network`."""
    if not model.mosts:
        return _at_points(model, Points(({},)), model.imported({}))
    reasons: list[ModelError] = []
    first: tuple[LengthModel, ImportedModel] | None = None
    for seen, points in _seen(model):
        try:
            if first is None or first[0] is not seen:
                reasons = []  # those of the most general way are told
                first = seen, seen.imported(seen.mosts)
            return _at_points(seen, points, first[1])
        except ModelError as error:
            without_frames(error)
            reasons.append(error)
    if isinstance(model, OpenModel) and len(model.mosts) > 1:
        found = _with_products(model)
        if found is not None:
            return found
    raise _chief(reasons)


def _chief(reasons: list[ModelError]) -> ModelError:
    """The reason to be told, taken out of a list that its frame would keep."""
    found = next((e for e in reasons if isinstance(e, NotLifted)), reasons[0])
    reasons.clear()
    return found


def _seen(model: LengthModel) -> Iterator[tuple[LengthModel, Points]]:
    """Ways in which a model may be lifted, and the points for each, as long as none before did."""
    if len(model.mosts) > _MANY:
        yield model, few_points_of(model.mosts)
    for near in (False, True):
        yield model, model.points(near)
    quotients = model.quotients()
    rounded = model.rounded() if quotients else model
    for near in (False, True) if quotients else ():
        with suppress(NotTold):
            yield rounded, rounded.points(near, quotients)


def _with_products(model: OpenModel) -> Network | None:
    """The network in which places of two lengths lie one behind another; None where there are none,
    or it is not possible."""
    try:
        pairs, computed = model.joining(points_of(model.mosts))
        if not pairs:
            return None
        model = replace(model, computed=computed, read={})
        points = points_of(model.mosts, False, {f"{a}.{b}": LengthProduct(a, b) for a, b in pairs})
        return _at_points(model, points, model.imported(model.mosts))
    except ModelError as error:
        without_frames(error)
        return None


def _at_points(model: LengthModel, points: Points, first: ImportedModel) -> Network:
    """The network of a model that is `first` at the most. Raises ModelError."""
    others = (model.imported(numbers) for numbers in points.at[1:])
    imports = [first, *(found.sharing(first) for found in others)]
    least = model.least(points, [i.graph for i in imports])
    network = named(Lifter(points, imports, model.dims, least, model.given).network)
    bound = model.bound
    network = replace(
        network,
        name=bound.path.stem,
        model_hash=bound.digest,
        random_weights=bound.random_weights,
        constant_inputs=dict(bound.constants),
        precision=model.precision,
    )
    return as_stated(network, first.halves, first.texts)
