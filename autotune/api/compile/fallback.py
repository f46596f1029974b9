"""⑪ The networks of a model, or of the parts of it that can be compiled beside ONNX Runtime.

sources_of(bound) ─► Sources: networks ; cuts, where something runs in ONNX Runtime
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.api.bindings import Bound, Variant
from autotune.config import plain_precision
from autotune.errors import AutotuneError, MissingDependency, ModelError, NotCompilable, UsageError
from autotune.graph.fallback.control import has_control
from autotune.graph.fallback.cut import cut_model
from autotune.graph.fallback.cuts import Cut, Outside, Segment, loadable_forms
from autotune.graph.network import Network, Port
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.reader.survey import Ask, nobody
from autotune.measure.timing.noise import judge, read_usage
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact, leaves
from autotune.network.bench.bench import interleave
from autotune.network.bench.profile import fallback_share
from autotune.network.check.oracles import Original
from autotune.network.compile.variants import unified
from autotune.network.runtime.apart import apart, has_onnxruntime
from autotune.network.runtime.baselines import blamed, onnxruntime_runner
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.onnx_session import FALLBACK_HINT, OnnxSession, declared_types
from autotune.network.runtime.onnxruntime_package import ONNXRUNTIME
from autotune.network.runtime.runtime import random_inputs
from autotune.units import counted_of, format_seconds
from autotune.wording import VALUE, arguments


@dataclass(frozen=True, slots=True)
class Sources:
    """Compiled parts of a model: `networks`, one for every variant if there are no `cuts`.

    `cuts`: of every variant, where ONNX Runtime computes a part; then `networks` has the compiled
    segments of all of them in order.
    """

    networks: tuple[Network, ...]
    cuts: tuple[Cut, ...] = ()

    @property
    def wholes(self) -> tuple[Network, ...]:
        """A network for every variant; of a cut model one that can be tuned, not run."""
        return tuple(cut.tunable for cut in self.cuts) or self.networks

    @property
    def inputs(self) -> tuple[tuple[Port, ...], ...]:
        """The inputs of the model at the shapes of every variant."""
        return tuple(source.inputs for source in self.cuts or self.networks)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on nodes that are not compiled, a line each."""
        return tuple(dict.fromkeys(text for cut in self.cuts for text in outside_texts(cut)))


def sources_of(bound: Bound, precision: str = "f32", is_whole: bool = False) -> Sources:
    """Read a model at the shapes of every variant.

    `precision`: with "auto", in float32. `is_whole`: leave all of it to ONNX Runtime, which is
    faster. Raises NotCompilable (UnsupportedOperator names all operators) where something is left
    and not the first, and where ONNX Runtime cannot run the rest either; MissingDependency where
    that is not installed. Else see `Bound.networks`.
    """
    precision = plain_precision(precision)
    bound.model.digest  # noqa: B018  # of files that are not there, this is told first
    if is_whole:
        return Sources((), _cuts(bound, precision, WHOLE))
    try:
        return Sources(bound.networks(precision))
    except NotCompilable as error:
        refusal = error
    missing: AutotuneError | None = _missing(refusal) if bound.fallback else refusal
    if missing is not None and (bound.grown or not _may_be_decided(bound.path)):
        raise missing
    try:
        cuts = _cuts(bound, precision, ask=declared_types if missing is None else nobody)
    except UsageError:
        raise
    except ModelError as error:
        if isinstance(error, NotCompilable):
            raise
        raise missing or refusal from error
    if missing is not None and any(cut.needs_onnxruntime for cut in cuts):
        raise missing
    networks = tuple(network for cut in cuts for network in cut.networks)
    return Sources(unified(networks) if len(networks) > 1 else networks, cuts)


def _may_be_decided(model: Path) -> bool:
    """Whether a model has branches or bodies, which can be compiled though data decide."""
    proto = read_outline(model)
    return any(map(has_control, (proto.graph, *proto.functions)))


def _missing(refusal: NotCompilable) -> MissingDependency | None:
    """The error where ONNX Runtime, which could run the refused nodes, is not installed."""
    if has_onnxruntime():
        return None
    return MissingDependency(
        f"{refusal.message}; onnxruntime, which could run it, is not installed", FALLBACK_HINT
    )


WHOLE = "the whole model is faster there"


def _cuts(
    bound: Bound, precision: str, whole: str = "", ask: Ask = declared_types
) -> tuple[Cut, ...]:
    def cut_at(variant: Variant, inside: bool = True) -> Cut:
        cut = cut_model(bound.model, ask, variant.shapes, precision, whole, inside)
        return cut.mapped(_loadable) if ask is declared_types else cut

    try:
        return tuple(map(cut_at, bound.variants))
    except ModelError:  # of a body, which cannot be loaded without the graph around it
        return tuple(cut_at(variant, inside=False) for variant in bound.variants)


def _loadable(segment: Segment) -> Segment:
    """A segment that ONNX Runtime can load, if it is one of its. Raises ModelError."""
    if segment.network is not None:
        return segment
    failure = ModelError("")
    for form in loadable_forms(segment):
        try:
            OnnxSession(form.onnx, form.outputs, {}, 1, is_apart=True)
            return form
        except ModelError as error:
            failure = error if not failure.message else failure
    raise failure


def require_tunable(sources: Sources, name: str) -> None:
    """Raise NotCompilable where ONNX Runtime would run all of a model, or nothing is computed."""
    if any(network.tasks for network in sources.wholes):
        return
    nothing = f"there is nothing to tune in {name}"
    if sources.cuts:
        raise NotCompilable(
            f"{nothing}: all of it runs in ONNX Runtime",
            "see why with `fallback=False`; `autotune.compile` takes it as it is",
        )
    raise NotCompilable(
        f"{nothing}: it computes nothing at these shapes",
        "`autotune.compile` takes it as it is",
    )


def outside_texts(cut: Cut) -> Iterator[str]:
    """`3 of 10 nodes run in ONNX Runtime`, and the operators with the reason; control flow."""
    decided = [f"{control.op} '{control.name}'" for control in cut.controls()]
    if decided:
        more = ", …" if len(decided) > _MOST_NAMES else ""
        told = ", ".join(decided[:_MOST_NAMES]) + more
        yield f"looked at in every inference, with what is inside compiled: {told}"
    if not cut.needs_onnxruntime:
        return
    outside = [leaf for leaf in cut.leaves() if leaf.network is None]
    n_outside = sum(sum(leaf.operators.values()) for leaf in outside)
    yield f"{counted_of(n_outside, cut.n_nodes, 'node', 'run')} in ONNX Runtime (docs/fallback.md):"
    kinds: dict[str, list[Outside]] = {}
    for node in cut.outside:
        kinds.setdefault(_kind(node), []).append(node)
    for reason, nodes in kinds.items():
        names = list(dict.fromkeys(n.op for n in nodes))
        more = ", …" if len(names) > _MOST_NAMES else ""
        ops = ", ".join(names[:_MOST_NAMES]) + more
        count = f"{len(nodes)} nodes, first" if len(nodes) > 1 else "node"
        yield f"  {ops} ({count} '{nodes[0].name}'): {reason}"
    if cut.deciding:
        known = arguments(constants=dict.fromkeys(cut.deciding, VALUE))
        yield f"  inputs that decide what is computed and are always the same can be bound: {known}"


@dataclass(frozen=True, slots=True)
class CutTimes:
    """Least latencies of a cut model and of the whole in ONNX Runtime, in turns, in seconds.

    `share`: ONNX Runtime's of the first. `is_noisy`: others kept the cores busy.
    """

    ours_s: float
    theirs_s: float
    share: float
    is_noisy: bool

    @property
    def is_slower(self) -> bool:
        """Whether the cut costs more than it saves, beyond doubt."""
        return not self.is_noisy and self.ours_s > _SLOWER * self.theirs_s

    def __str__(self) -> str:
        told = (
            f"ONNX Runtime takes {100 * self.share:.0f} % of {format_seconds(self.ours_s)} (random "
            f"inputs); all of the model takes {format_seconds(self.theirs_s)} there"
        )
        if self.is_noisy:
            return f"{told}; others keep the cores busy, so neither is certain"
        return f"{told}: the cut costs more than it saves" if self.is_slower else told


def cut_times(artifact: Artifact, originals: Sequence[Original]) -> CutTimes | None:
    """Time that a cut saves, on random inputs at the largest shape; None if nothing is compiled.

    `originals`: the file at every shape. Both are timed apart. Raises ModelError for models that
    random inputs do not suit, or of which ONNX Runtime dies.
    """
    pairs = zip(artifact.variants, originals, strict=True)
    largest, original = max(pairs, key=lambda p: sum(math.prod(e.shape) for e in p[0].inputs))
    segments = largest.segments if isinstance(largest, HybridArtifact) else ()
    if all(leaf.network is None for leaf in leaves(segments)):
        return None
    alone = replace(largest, others=())
    with blamed(ONNXRUNTIME, "run", ""):
        found = apart().call(_times, alone, original.source, original.fed)
    return CutTimes(*found)


_SLOWER = 1.2
"""Times as long: programs may be as much faster on a CPU that nothing else has warmed."""
_N_RUNS, _LEAST_S = 10, 0.1
"""Runs and seconds that each side is measured for, at least."""


def _times(
    artifact: Artifact, source: Any, fed: Mapping[str, Any]
) -> tuple[float, float, float, bool]:
    """The fields of `CutTimes`. Co-tenants make medians of so few runs tell nothing."""
    model = model_of(artifact)
    share = fallback_share(model)
    inputs = random_inputs(model.input_info)
    whole = onnxruntime_runner(source, model.n_threads)
    given = {**inputs, **fed}
    before = read_usage()
    sides = interleave([lambda: model.run(inputs), lambda: whole(given)], _N_RUNS, _LEAST_S)
    ours_s, theirs_s = map(min, sides)
    return ours_s, theirs_s, share, judge(before, read_usage(), ()) is not None


_MOST_NAMES = 6
"""Operators that a line names."""


_BOUND = "`constants={NAME: VALUE}`"
_AT_RUN_TIME = "a shape is known only at run time"


def _kind(node: Outside) -> str:
    """The reason of a node, without the parts that name this node."""
    if node.reason.startswith("the shape of"):
        return _AT_RUN_TIME
    if node.reason.endswith("its condition depends on the data"):
        return f"{node.reason} (an input that decides it can be bound: {_BOUND})"
    return node.reason
