"""⑩ Bytes of constants that programs need, and smaller programs where an artifact has to be small.

    constant_bytes(networks, steps) ─► bytes of all constants as the programs read them
    within(networks, steps, smaller, max_bytes) ─► schedules whose constants fit

Weights that minimal filtering transforms are up to four times larger, and the original ones lie
beside them; products of narrow parts keep two numbers for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.graph.network import Network, TaskCall
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Buffer, Program
from autotune.schedule.steps import Steps


@dataclass(frozen=True, slots=True)
class Smaller:
    """A program of a task with less constants, and the extra seconds of a call."""

    steps: Steps
    longer_s: float


def constant_bytes(networks: Sequence[Network], steps: Mapping[str, Steps]) -> int:
    """Bytes of the constants of all calls; one layout of two programs counts once.

    Constants of equal content that are different arrays count as often as there are. Raises
    ScheduleError where a schedule has no program.
    """
    return _Programs().n_bytes(networks, steps)


def within(
    networks: Sequence[Network],
    steps: Mapping[str, Steps],
    smaller: Mapping[str, Smaller],
    max_bytes: int,
) -> dict[str, Steps]:
    """`steps` with as many of the `smaller` programs as are needed for `max_bytes` of constants.

    Those first that lose least time per byte. If all of them are not enough, the result is larger
    than asked for. Raises ScheduleError where a schedule has no program.
    """
    programs, chosen = _Programs(), dict(steps)
    n_now = programs.n_bytes(networks, chosen)
    gains: dict[str, float] = {}
    for key, other in smaller.items():
        n_saved = n_now - programs.n_bytes(networks, chosen | {key: other.steps})
        if n_saved > 0:
            n_calls = sum(network.weights.get(key, 0) for network in networks)
            gains[key] = n_calls * max(0.0, other.longer_s) / n_saved
    for key in sorted(gains, key=lambda k: (gains[k], k)):
        if n_now <= max_bytes:
            break
        chosen[key] = smaller[key].steps
        n_now = programs.n_bytes(networks, chosen)
    return chosen


@dataclass(slots=True)
class _Programs:
    """Programs by task and schedule, each lowered once."""

    _known: dict[tuple[str, Steps], Program] = field(default_factory=dict)

    def n_bytes(self, networks: Sequence[Network], steps: Mapping[str, Steps]) -> int:
        found: dict[object, int] = {}
        for network in networks:
            for call in network.calls:
                found.update(self._constants(network, call, steps[call.task]))
        return sum(found.values())

    def _constants(
        self, network: Network, call: TaskCall, steps: Steps
    ) -> Iterator[tuple[object, int]]:
        """Constants of a call: identity and number of bytes of each."""
        key = call.task, steps
        if key not in self._known:
            self._known[key] = lower(network.tasks[call.task], steps)
        program = self._known[key]
        for buffer in (b for b in program.buffers if b.role == "constant"):
            yield _identity(call, program, buffer), buffer.n_bytes


def _identity(call: TaskCall, program: Program, buffer: Buffer) -> object:
    packing = next((p for p in program.packs if p.packed.name == buffer.name), None)
    order = (packing.packed.shape, packing.axes, packing.indices) if packing else ()
    name = packing.source.name if packing else buffer.name
    source = call.constants.get(name)
    if source is not None:
        return id(source), buffer.tensor.dtype, order
    sources = tuple(id(array) for array in call.constants.values())
    return sources, name, program.derived, buffer.tensor.dtype, order
