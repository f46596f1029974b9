"""⑩ From a network and one schedule per task to an artifact.

    lower every task → one program per memory layout of its ports (`compile.aliasing`) → objects
    pack the constants · plan the arena → addresses → the main function that calls all kernels

Two calls with the same task and the same layouts share one object; equal constants are stored once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from autotune.cache import FileStore, key_of, package_key
from autotune.codegen.compile import LLVM_VERSION
from autotune.codegen.image.link import Image, Part, link
from autotune.codegen.team import team
from autotune.codegen.team.native_object import ports_object, team_object
from autotune.codegen.team.ports_code import EXPORTED, SYMBOLS
from autotune.config import AUTO
from autotune.errors import NoValidSchedule
from autotune.graph.network import Network, TaskCall
from autotune.loopir.guarding import MAX_WEIGHT
from autotune.loopir.limited_stores import limited
from autotune.loopir.nodes import Program, with_strides
from autotune.measure.processes.parallel_map import OnProgress
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.container import Bytes
from autotune.network.artifact.table import KERNELS, RUN, entry_name
from autotune.network.compile.aliasing import Alias, alias_roots, aliases
from autotune.network.compile.entry import compile_entry
from autotune.network.compile.layout import ConstantPool, NetworkLayout, Unit, value_name
from autotune.network.compile.memory import fold_strides, place_of
from autotune.network.compile.objects import ObjectSource, compiled_objects
from autotune.network.compile.outlines import Outline, Outlines
from autotune.network.compile.works import works_of
from autotune.schedule.exact import exact_steps
from autotune.schedule.steps import Algorithm, Steps, steps_text
from autotune.strides import dense
from autotune.target import Target, common_target, with_threads
from autotune.te.dag import ComputeDAG
from autotune.version import __version__

ProgramKey: TypeAlias = tuple[
    str, tuple[str, ...], tuple[tuple[int, ...], ...], tuple[str, ...], tuple[str, ...]
]
"""Identity of a program in an artifact: task, kernels, strides of the buffers, shared and limited
ones.
Kernels differ where the sums of one call are plain for the sake of its weights."""


_PREFIX_DIGITS = 24
"""Hexadecimal digits of the digest that names a program: two of a network never share one."""


def compile_network(
    network: Network,
    steps: Mapping[str, Steps],
    target: Target,
    n_threads: int = 1,
    tell: OnProgress = lambda n_done, n_all: None,
    verify: bool = False,
    store: FileStore | None = None,
) -> Artifact:
    """Compile `network` with the schedule `steps[key]` for every task.

    `n_threads`: number of threads that the schedules were chosen for, the default of runs of the
    artifact. `tell`: is told of each program that is compiled. `verify`: check the loop IR after
    every pass of lowering. `store`: where machine code of programs is kept and found again. Raises
    NoValidSchedule for a task without steps, ScheduleError or CodegenError where a schedule has no
    program.
    """
    return compile_variants([network], steps, target, n_threads, tell, verify, store)


def compile_variants(
    networks: Sequence[Network],
    steps: Mapping[str, Steps],
    target: Target,
    n_threads: int = 1,
    tell: OnProgress = lambda n_done, n_all: None,
    verify: bool = False,
    store: FileStore | None = None,
) -> Artifact:
    """`compile_network` of one model at several shapes: one artifact, `others` in their order.

    `networks` are those of `variants.unified`. Equal programs are compiled once, equal constants
    stored once.
    """
    return compile_builds([Build(networks, steps, target, n_threads)], tell, verify, store)


@dataclass(frozen=True, slots=True)
class Build:
    """The networks of a model for one CPU, with a schedule for every task."""

    networks: Sequence[Network]
    steps: Mapping[str, Steps]
    target: Target
    n_threads: int


def compile_builds(
    builds: Sequence[Build],
    tell: OnProgress = lambda n_done, n_all: None,
    verify: bool = False,
    store: FileStore | None = None,
) -> Artifact:
    """`compile_variants` for several CPUs of one architecture: one image over one set of constants.

    What all of them run (calls, the team) is code for the most that they have in common.
    """
    builds = [
        replace(build, target=with_threads(build.target, build.n_threads)) for build in builds
    ]
    targets = [build.target for build in builds]
    drawn = [_drawn(build, len(builds) > 1, verify, store) for build in builds]
    constants = ConstantPool(unit for one in drawn for units in one.units for unit in units)
    layouts = [one.layouts(constants) for one in drawn]
    objects = [
        code
        for one, target in zip(drawn, targets, strict=True)
        for code in compiled_objects(list(one.works.values()), target, tell, store).values()
    ]
    data = constants.data()
    each = [(one, build) for build, own in zip(builds, layouts, strict=True) for one in own]
    entries = [_entry(one, build.target, store, n) for n, (one, build) in enumerate(each)]
    common = common_target(targets)
    image = link_networks([*objects, *_shared(common, store)], entries, common.isa.has_threads)
    numbers = iter(range(len(each)))
    first, *others = (
        _made(build, own, image, numbers, data) for build, own in zip(builds, layouts, strict=True)
    )
    return replace(first, constant_kinds=constants.kinds, cpus=tuple(others))


def _made(
    build: Build,
    layouts: Sequence[NetworkLayout],
    image: Image,
    numbers: Iterator[int],
    data: Bytes,
) -> Artifact:
    """The artifact of a build. `numbers`: of the entries of its networks."""
    target = build.target
    known = {task: work for one in build.networks for task, work in works_of(one, target).items()}
    first, *others = (
        replace(
            _artifact(layout, image, next(numbers), data, target),
            n_threads=build.n_threads,
            works=known,
        )
        for layout in layouts
    )
    return replace(first, others=tuple(others))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The units and roots of the networks of a build, and each program that it has, once."""

    networks: Sequence[Network]
    units: list[list[Unit]]
    roots: list[Mapping[str, str]]
    works: dict[str, ObjectSource]

    def layouts(self, constants: ConstantPool) -> list[NetworkLayout]:
        """Addresses in all networks."""
        each = zip(self.networks, self.units, self.roots, strict=True)
        return [NetworkLayout(*one, constants) for one in each]


def _drawn(build: Build, is_one_of: bool, verify: bool, store: FileStore | None) -> _Drawn:
    """`is_one_of`: the names of its programs tell the CPU."""
    outlines = Outlines(build.target, store, verify)
    cpu = build.target.key if is_one_of else ""
    prefixes: dict[ProgramKey, str] = {}
    drawn = _Drawn(build.networks, [], [], {})
    for network in build.networks:
        found = _outlines(network, build.steps, outlines)
        programs = _programs(network, found)
        shared = aliases(network, programs, [one.outline.in_place for one in found])
        drawn.units.append(_units(network, build.steps, found, programs, shared, prefixes, cpu))
        drawn.roots.append(alias_roots(shared))
        for unit, one in zip(drawn.units[-1], found, strict=True):
            work = ObjectSource(unit.prefix, unit.program, one.dag, one.steps)
            drawn.works.setdefault(unit.prefix, work)
    return drawn


def link_networks(
    objects: Sequence[bytes], entries: Sequence[bytes], has_threads: bool = True
) -> Image:
    """The code of networks, each with its entry: see `entry_name`."""
    parts = [Part(data, entry_name("", n)) for n, data in enumerate(entries)]
    called = [f"{SYMBOLS}{name}" for name in EXPORTED]
    called += [entry_name(RUN, n) for n in range(len(parts))]
    if has_threads:
        called += [f"{team.SYMBOLS}{name}" for name in team.EXPORTED]
        called += [entry_name(KERNELS, n) for n in range(len(parts))]
    return link([*map(Part, objects), *parts], called, is_shared=has_threads)


def _artifact(
    layout: NetworkLayout, image: Image, number: int, constants: Bytes, target: Target
) -> Artifact:
    network = layout.network
    return Artifact(
        name=network.name,
        model_hash=network.model_hash,
        target=target,
        n_threads=1,
        inputs=tuple(layout.endpoint(p) for p in network.inputs),
        outputs=tuple(layout.endpoint(p) for p in network.outputs),
        kernels=layout.kernels,
        arena_bytes=layout.plan.n_bytes,
        n_bases=layout.n_bases,
        image=image,
        entry=number,
        constants=constants,
        autotune_version=__version__,
        random_weights=network.random_weights,
        constant_inputs=network.constant_inputs,
        precision=AUTO if network.is_mixed else network.precision,
        state=network.state,
        lengths=dict(network.lengths),
        written=dict(network.written),
        ragged=network.ragged,
        texts=network.texts,
    )


def _entry(layout: NetworkLayout, target: Target, store: FileStore | None, number: int) -> bytes:
    """The object with the main functions of a network."""
    named = number if target.architecture.is_module else 0
    make = partial(compile_entry, layout.launches, layout.n_bases, target, named)
    return _kept(store, target, f"entry {named} {layout.n_bases} {layout.launches!r}", make)


def _shared(target: Target, store: FileStore | None) -> list[bytes]:
    """The objects of calls and, where there are threads, of the team."""
    found = [_kept(store, target, "ports", lambda: ports_object(target))]
    if target.isa.has_threads:
        found.append(_kept(store, target, "team", lambda: team_object(target)))
    return found


def _kept(store: FileStore | None, target: Target, text: str, make: Callable[[], bytes]) -> bytes:
    """The object that `make` gives, which depends on `text` and `target`; perhaps from `store`."""
    if store is None:
        return make()
    key = key_of("made", package_key(), LLVM_VERSION, json.dumps(target.to_json()), text)
    found = store.get(key)
    if found is None:
        found = make()
        store.put(key, found)
    return found


@dataclass(frozen=True, slots=True)
class _Found:
    """The outline of a call's task, the schedule that it is of, and the task as text."""

    outline: Outline
    dag: ComputeDAG
    steps: Steps
    text: str


def _outlines(network: Network, steps: Mapping[str, Steps], outlines: Outlines) -> list[_Found]:
    """One for every call; equal calls share it."""
    known: dict[tuple[str, bool], _Found] = {}
    out: list[_Found] = []
    for call in network.calls:
        key = call.task, _needs_plain_sums(call, steps.get(call.task, ()))
        if key not in known:
            dag, chosen = network.tasks[call.task], _steps_of(call, steps)
            chosen = exact_steps(dag, chosen) if key[1] else chosen
            known[key] = _Found(outlines.of(dag, chosen), dag, chosen, outlines.text(dag))
        out.append(known[key])
    return out


def _programs(network: Network, found: Sequence[_Found]) -> list[Program]:
    """The program of every call, for the layout of its inputs and outputs."""
    programs = ((call, one.outline.program) for call, one in zip(network.calls, found, strict=True))
    return [with_strides(program, _strides(network, call, program)) for call, program in programs]


def _units(
    network: Network,
    steps: Mapping[str, Steps],
    known: Sequence[_Found],
    programs: Sequence[Program],
    found: Mapping[int, Alias],
    prefixes: dict[ProgramKey, str],
    cpu: str,
) -> list[Unit]:
    out: list[Unit] = []
    each = zip(network.calls, known, programs, strict=True)
    for step, (call, one, program) in enumerate(each):
        if step in found:
            program = replace(program, shared=(found[step].operand, found[step].result))
        program = limited(program, one.dag, _rows_of(network, call))
        key = _program_key(call, program)
        if key not in prefixes:
            prefixes[key] = _prefix(one.text, steps[call.task], key, cpu)
        out.append(Unit(call, program, prefixes[key], one.outline.cycles))
    return out


def _prefix(dag: str, steps: Steps, key: ProgramKey, cpu: str) -> str:
    """Of the symbols of a program: the same in every network, so that it is compiled once."""
    own = [cpu] if cpu else []
    return f"p{int(key_of(dag, steps_text(steps), repr(key), *own)[:_PREFIX_DIGITS], 16)}_"


def _program_key(call: TaskCall, program: Program) -> ProgramKey:
    strides = tuple(b.strides for b in program.buffers)
    names = tuple(b.name for b in program.buffers)
    return call.task, names, strides, program.shared, program.limited


def _rows_of(network: Network, call: TaskCall) -> tuple[str, ...]:
    """Results that are rows of a state, whose memory goes on behind them, and follow a number."""
    rows = network.state.buffers.values() if network.state else ()
    ports = {port.value for port in network.outputs if port.name in rows and port.extents}
    return tuple(name for name, value in call.outputs.items() if value in ports)


def _needs_plain_sums(call: TaskCall, steps: Steps) -> bool:
    """Whether constants are not finite, or larger than such algorithms can bear."""
    if not any(isinstance(step, Algorithm) for step in steps):
        return False
    floats = (a for a in call.constants.values() if a.dtype.kind == "f" and a.size)
    return any(not abs(bound) <= MAX_WEIGHT for a in floats for bound in (a.min(), a.max()))


def _steps_of(call: TaskCall, steps: Mapping[str, Steps]) -> Steps:
    if call.task not in steps:
        raise NoValidSchedule(
            f"task {call.task} ({call.label}) has no schedule", "tune it, or use its default"
        )
    return steps[call.task]


def _strides(network: Network, call: TaskCall, program: Program) -> dict[str, tuple[int, ...]]:
    """Strides of the inputs and outputs of a call that are windows, as its program sees them."""
    out: dict[str, tuple[int, ...]] = {}
    for buffer in program.buffers:
        name = value_name(call, buffer)
        if name is None:
            continue
        place = place_of(network.values, name)
        shape = buffer.tensor.shape
        strides = fold_strides(place.shape, place.strides, shape)
        if strides != dense(shape):
            out[buffer.name] = strides
    return out
