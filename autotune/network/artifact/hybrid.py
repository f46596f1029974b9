"""⑩ An artifact of a model of which a part runs in ONNX Runtime: compiled networks and ONNX files.

    manifest.json   networks as in an artifact for several shapes, and for every shape of the model
                    the segments in the order in which they run; an If or a Loop that data decide
                    is one that has those of its branches or its body
    image.bin · onnx/NNN.onnx · constants.bin

Compiled segments are sealed as whole networks are (`artifact`); they share constants and code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from numpy.typing import NDArray

from autotune.brief import brief
from autotune.codec import Apart, to_json
from autotune.codegen.image.link import Image, link
from autotune.codegen.memory import aligned
from autotune.graph.fallback.cuts import Cut, Segment
from autotune.graph.network import Port
from autotune.network.artifact.artifact import (
    OF_VARIANT,
    Artifact,
    Endpoint,
    KernelInfo,
)
from autotune.network.artifact.container import Bytes, Json, model_name, require
from autotune.network.artifact.hybrid_manifest import (
    BodyPlan,
    ControlPlan,
    ModelPlan,
    SegmentPlan,
    networks_of,
    plans_of,
)
from autotune.network.artifact.manifest import artifact_of, common_fields
from autotune.network.artifact.table import FIRST_BOUND
from autotune.target import Target
from autotune.version import __version__

ONNX_TASK = "onnxruntime"
"""The beginning of the keys that segments of ONNX Runtime have in a profile, beside tasks."""


@brief
@dataclass(frozen=True)
class HybridSegment:
    """One segment: a compiled network, an ONNX file, or control flow.

    `operators`: by name, with the number of nodes.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: Mapping[str, int]
    network: Artifact | None = None
    onnx: bytes = b""
    control: HybridControl | None = None

    def leaves(self) -> Iterator[HybridSegment]:
        """This segment, or those of its bodies, in order."""
        if self.control is None:
            yield self
        else:
            for body in self.control.bodies:
                yield from leaves(body.segments)

    def label(self) -> str:
        """`ONNX Runtime: NonMaxSuppression, 3 Gather`."""
        return f"ONNX Runtime: {operators_text(self.operators)}"


@brief
@brief
@dataclass(frozen=True)
class HybridBody:
    """A branch or a body: see `graph.cuts.Control`."""

    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    segments: tuple[HybridSegment, ...]


@brief
@dataclass(frozen=True)
class HybridControl:
    """An If or a Loop: the fields of `graph.cuts.Control`."""

    op: str
    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    bodies: tuple[HybridBody, ...]
    constants: Mapping[str, NDArray[Any]]


def operators_text(operators: Mapping[str, int]) -> str:
    """`NonMaxSuppression, 3 Gather`."""
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in operators.items())


def leaves(segments: Iterable[HybridSegment]) -> Iterator[HybridSegment]:
    """All that computes, with the segments of bodies in place of control flow."""
    for segment in segments:
        yield from segment.leaves()


@dataclass(frozen=True)
class HybridArtifact(Artifact):
    """A model as `segments`; `kernels` has those of all of them, and a row for each ONNX file.

    Of `inputs` and `outputs`, extents that the data decide are -1; `dtype` is "string" for strings
    and "" for sequences and maps.
    """

    segments: Annotated[tuple[HybridSegment, ...], Apart(None)] = ()

    def over_the_constants(self) -> Iterator[Artifact]:
        """This artifact and its networks, at each of its shapes and for each CPU."""
        yield self
        yield from (s.network for s in leaves(self.segments) if s.network is not None)
        for other in (*self.others, *self.cpus):
            yield from other.over_the_constants()

    def networks(self) -> Sequence[Artifact]:
        """Those of all segments."""
        return [s.network for s in self._leaves() if s.network is not None]

    def onnx_files(self) -> Iterable[bytes]:
        """Those of all other segments."""
        return (s.onnx for s in self._leaves() if s.network is None)

    def _leaves(self) -> Iterator[HybridSegment]:
        variants: Sequence[Any] = self.variants
        return (s for variant in variants for s in leaves(variant.segments))

    def whole_manifest(self, models: tuple[bytes, ...]) -> dict[str, Any]:
        """As that of any artifact."""
        variants: Sequence[Any] = self.variants
        networks = self.networks()
        whole = self.manifest()
        shared = {name: value for name, value in whole.items() if name not in OF_VARIANT}
        numbers = iter(range(len(networks)))
        return shared | {
            "networks": [
                {name: network.manifest()[name] for name in OF_VARIANT} for network in networks
            ],
            "plans": [
                to_json(ModelPlan(*_plan(variant, models, numbers), variant.max_error))
                for variant in variants
            ],
        }


def _plan(
    part: HybridArtifact | HybridBody, models: tuple[bytes, ...], numbers: Iterator[int]
) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...], tuple[SegmentPlan, ...]]:
    segments = tuple(_segment_plan(s, models, numbers) for s in part.segments)
    return part.inputs, part.outputs, segments


def _segment_plan(
    segment: HybridSegment, models: tuple[bytes, ...], numbers: Iterator[int]
) -> SegmentPlan:
    ends = segment.inputs, segment.outputs, segment.operators
    if segment.control is not None:
        return SegmentPlan(*ends, None, None, _control_plan(segment.control, models, numbers))
    if segment.network is not None:
        return SegmentPlan(*ends, next(numbers), None)
    return SegmentPlan(*ends, None, models.index(segment.onnx))


def _control_plan(
    control: HybridControl, models: tuple[bytes, ...], numbers: Iterator[int]
) -> ControlPlan:
    bodies = tuple(BodyPlan(*_plan(body, models, numbers)) for body in control.bodies)
    names = control.op, control.name, control.operands, control.results
    return ControlPlan(*names, control.constants, bodies)


def hybrid_artifact(
    compiled: Sequence[Artifact], cuts: Sequence[Cut], target: Target, n_threads: int
) -> HybridArtifact:
    """The artifact of a model that was cut, at each of its shapes.

    `compiled`: the networks of all cuts, in their order, over the same constants.
    """
    networks = iter(compiled)
    constants = compiled[0].constants if compiled else aligned((0,), "uint8")
    image = compiled[0].image if compiled else link(())
    plans = [
        (
            tuple(map(_endpoint, cut.inputs)),
            tuple(map(_endpoint, cut.outputs)),
            tuple(_segment(s, networks) for s in cut.segments),
        )
        for cut in cuts
    ]
    first = cuts[0]
    common: dict[str, Any] = {
        "name": first.name,
        "model_hash": first.model_hash,
        "target": target,
        "n_threads": n_threads,
        "random_weights": first.random_weights,
        "constant_inputs": first.constant_inputs,
        "autotune_version": __version__,
        "precision": first.precision,
        "works": compiled[0].works if compiled else {},
    }
    return _joined(plans, image, constants, common)


def _endpoint(port: Port) -> Endpoint:
    return Endpoint(port.name, port.shape, port.dtype, 0, limit=port.limit)


def _segment(segment: Segment, networks: Iterator[Artifact]) -> HybridSegment:
    ends = segment.inputs, segment.outputs, segment.operators
    if segment.control is None:
        network = next(networks) if segment.network else None
        return HybridSegment(*ends, network, segment.onnx)
    control = segment.control
    bodies = tuple(
        HybridBody(
            tuple(map(_endpoint, body.inputs)),
            tuple(map(_endpoint, body.outputs)),
            tuple(_segment(s, networks) for s in body.segments),
        )
        for body in control.bodies
    )
    decided = HybridControl(
        control.op, control.name, control.operands, control.results, bodies, control.constants
    )
    return HybridSegment(*ends, control=decided)


_Plan = tuple[tuple[Endpoint, ...], tuple[Endpoint, ...], tuple[HybridSegment, ...]]


def _joined(
    plans: Sequence[_Plan], image: Image, constants: Bytes, common: Mapping[str, Any]
) -> HybridArtifact:
    first, *others = (_whole(*plan, image, constants, common) for plan in plans)
    return replace(first, others=tuple(others))


def _whole(
    inputs: tuple[Endpoint, ...],
    outputs: tuple[Endpoint, ...],
    segments: tuple[HybridSegment, ...],
    image: Image,
    constants: Bytes,
    common: Mapping[str, Any],
) -> HybridArtifact:
    return HybridArtifact(
        **common,
        inputs=inputs,
        outputs=outputs,
        kernels=tuple(_kernels(segments)),
        arena_bytes=max((s.network.arena_bytes for s in leaves(segments) if s.network), default=0),
        n_bases=FIRST_BOUND,
        image=image,
        constants=constants,
        segments=segments,
    )


def _kernels(segments: Sequence[HybridSegment]) -> list[KernelInfo]:
    rows: list[KernelInfo] = []
    for n, segment in enumerate(leaves(segments)):
        if segment.network is not None:
            rows += segment.network.kernels
        else:
            rows.append(KernelInfo(f"{ONNX_TASK}.{n}", segment.label(), ONNX_TASK, 1))
    return rows


def networks_in(manifest: Json, image: Image, constants: Bytes) -> list[Artifact]:
    """The compiled networks, of a manifest as `require_hybrid` says. Raises Damaged."""
    return [artifact_of(one, image, constants) for one in networks_of(manifest)]


def read_hybrid(
    manifest: Json,
    networks: Sequence[Artifact],
    parts: Mapping[str, bytes],
    image: Image,
    constants: Bytes,
) -> HybridArtifact:
    """The artifact that `manifest` describes; `parts`: ONNX files by name.

    Raises Damaged for segments that do not fit their networks.
    """
    found = plans_of(manifest)
    plans = [
        (p.inputs, p.outputs, tuple(_read_segment(s, networks, parts) for s in p.segments))
        for p in found
    ]
    made = _joined(plans, image, constants, common_fields(manifest))
    errors = [plan.max_error for plan in found]
    others = (replace(o, max_error=e) for o, e in zip(made.others, errors[1:], strict=True))
    return replace(made, max_error=errors[0], others=tuple(others))


def _read_segment(
    plan: SegmentPlan, networks: Sequence[Artifact], parts: Mapping[str, bytes]
) -> HybridSegment:
    ends = plan.inputs, plan.outputs, plan.operators
    if plan.control is not None:
        return HybridSegment(*ends, control=_read_control(plan.control, networks, parts))
    if plan.network is not None:
        network = networks[plan.network]
        ports = [{e.name for e in ends} for ends in (network.inputs, network.outputs)]
        is_same = ports == [set(plan.inputs), set(plan.outputs)]
        require(is_same, "a segment has other inputs and outputs")
        return HybridSegment(*ends, network)
    assert plan.model is not None
    return HybridSegment(*ends, onnx=parts[model_name(plan.model)])


def _read_control(
    plan: ControlPlan, networks: Sequence[Artifact], parts: Mapping[str, bytes]
) -> HybridControl:
    bodies = tuple(
        HybridBody(
            body.inputs,
            body.outputs,
            tuple(_read_segment(s, networks, parts) for s in body.segments),
        )
        for body in plan.bodies
    )
    names = plan.op, plan.name, plan.operands, plan.results
    return HybridControl(*names, bodies, plan.constants)
