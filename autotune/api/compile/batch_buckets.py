"""⑪ A dimension of which any extent is computed: the proof at compile time, and its check.

split_of(plan) ─► Split, for the artifact: a batch of 13 runs as 8 + 4 + 1
"""

from __future__ import annotations

import ast

from autotune.api.compile.selection import CompilePlan
from autotune.config import plain_precision
from autotune.errors import AutotuneError, UnsupportedOperator, UsageError
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Graph
from autotune.graph.network import network_at, prepared_graphs
from autotune.graph.reader.constant_inputs import bind_constants
from autotune.graph.reader.dimensions import InputDimension, Shapes, symbols
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.samples import PROOF_EXTENTS, sample_axes
from autotune.network.artifact.artifact import Artifact, BatchSplit
from autotune.network.check.accuracy import Report
from autotune.network.check.check import check_model
from autotune.network.runtime.loading import model_of
from autotune.wording import arguments


def split_of(plan: CompilePlan) -> BatchSplit | None:
    """Batch axes of `split`, if no sample depends on another; None without one.

    Raises UsageError where one does, where no variant is for one sample, and for a dimension that
    the model does not have, or not as an axis of its own.
    """
    name = plan.request.split
    if name is None:
        return None
    model, variants = plan.bound.model, plan.bound.variants
    places = places_of_dimension(model, name, "cannot be any", "leave out `split`")
    axes = {place.input: place.axis for place in places}
    if any(place.input not in variant.shapes for variant in variants for place in places):
        raise UsageError(
            f"'{name}' is to be split, and has no extents",
            f"give those that are compiled: {arguments(dims={name: [1, 4, 8]}, split=name)}",
        )
    extents = {variant.shapes[p.input][p.axis] for variant in variants for p in places}
    if 1 not in extents:
        raise UsageError(
            f"'{name}' can only be split where a variant has extent 1",
            f"add it: {arguments(dims={name: sorted({1, *extents})})}",
        )
    shapes = [_shapes_at(plan, axes, n) for n in PROOF_EXTENTS]
    (imported, first), (_, second) = (_imported_and_prepared(plan, at) for at in shapes)
    found = sample_axes((first, second), name, axes)
    empty = next((n for n in imported.outputs if n not in first.outputs), None)
    if empty is not None:
        raise UsageError(f"'{name}' cannot be any: an output has no elements", "leave out `split`")
    outputs = {imported.output_names.get(n, n): pair for n, pair in found.items()}
    return BatchSplit(name, {n: (axis, 1) for n, axis in axes.items()} | outputs)


def check_split(artifact: Artifact, plan: CompilePlan) -> Report:
    """Compare a number of samples that no variant is for with an oracle. Raises WrongNumbers."""
    split = artifact.split
    assert split is not None
    extent = PROOF_EXTENTS[1]
    axes = {end.name: split.axes[end.name][0] for end in artifact.inputs if end.name in split.axes}
    shapes = _shapes_at(plan, axes, extent)
    network = network_at(plan.bound.model, shapes, plain_precision(plan.precision))
    known = {end.name: end.shape for end in artifact.inputs}
    model = model_of(artifact, is_apart=True).at(
        {**known, **{n: s for n, s in shapes.items() if n in known}}
    )
    return check_model(model, network, plan.bound.original(shapes))


def places_of_dimension(
    bound: BoundModel, name: str, problem: str, hint: str
) -> tuple[InputDimension, ...]:
    """Axes of inputs that are dimension `name`, one of each input, in no other dimension.

    Raises UsageError, which says that `name` has this `problem`.
    """
    outline = read_outline(bound.path)
    bind_constants(outline, bound.constants)
    found = symbols(outline)
    if name not in found:
        known = ", ".join(f"'{n}'" for n in found) or "none"
        raise UsageError(f"the model has no dimension '{name}'", f"its dimensions are {known}")
    others = [other for other in found if other != name and name in _words(other)]
    if others:
        raise UsageError(f"'{name}' {problem}: '{others[0]}' follows from it", hint)
    inputs = [place.input for place in found[name]]
    twice = next((n for n in inputs if inputs.count(n) > 1), None)
    if twice is not None:
        raise UsageError(f"'{name}' {problem}: it is two dimensions of input '{twice}'", hint)
    return found[name]


def _words(name: str) -> set[str]:
    """Names in a dimension that is an expression of others."""
    try:
        return {n.id for n in ast.walk(ast.parse(name, mode="eval")) if isinstance(n, ast.Name)}
    except SyntaxError:
        return set()


def _shapes_at(plan: CompilePlan, axes: dict[str, int], extent: int) -> Shapes:
    shapes = dict(plan.bound.variants[0].shapes)
    for name, axis in axes.items():
        shapes[name] = (*shapes[name][:axis], extent, *shapes[name][axis + 1 :])
    return shapes


def _imported_and_prepared(plan: CompilePlan, shapes: Shapes) -> tuple[Graph, Graph]:
    """The graph of the model after all passes."""
    precision = plain_precision(plan.precision)
    try:
        graphs = [graph for _, graph in prepared_graphs(plan.bound.model, shapes, precision)]
    except UnsupportedOperator as error:
        raise UsageError(
            f"'{plan.request.split}' cannot be any: a part of the model runs in ONNX Runtime "
            f"({error.message})",
            "leave out `split`",
        ) from error
    except AutotuneError as error:
        raise UsageError(
            f"'{plan.request.split}' cannot be any: the model does not take {PROOF_EXTENTS[0]} and "
            f"{PROOF_EXTENTS[1]} of it: {error.message}",
            "leave out `split`",
        ) from error
    return graphs[0], graphs[-1]
