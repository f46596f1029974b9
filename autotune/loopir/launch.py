"""④ Launches: what a schedule must be for its kernels to run on a GPU, and how they are started.

A kernel is launched for `grid` blocks of `block` threads, three dimensions each. Its bound loops
are loops of the loop IR; a thread runs the iterations of its own indices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from autotune.brief import brief
from autotune.errors import ScheduleError
from autotune.loopir.instance import Ranges, loop_var
from autotune.loopir.nodes import (
    Alloc,
    Barrier,
    Body,
    For,
    If,
    Instruction,
    Kernel,
    Let,
)
from autotune.loopir.visitor import Read, statements
from autotune.pages import CACHE_LINE
from autotune.schedule.state import Stage, State
from autotune.schedule.steps import BLOCK_INDICES, LAUNCH_INDICES, THREAD_INDICES
from autotune.te.expr import Expr, loads, variables

MAX_THREADS = 1024
"""Of a block, on every GPU of NVIDIA."""
MAX_SHARED_BYTES = 48 << 10
"""Of a block, without the GPU being told otherwise."""
_MAX_LOCAL_BYTES = 512 << 10
"""Of a thread."""
_MAX_EXTENT = dict(zip(LAUNCH_INDICES, ((1 << 31) - 1, 65535, 65535, 1024, 1024, 64), strict=True))


def check_launch(state: State, root: Stage) -> None:
    """Raises ScheduleError where bound loops and shared stages are no kernel of a GPU."""
    shared = [s for s in state.stages.values() if s.scope and state.root_of(s.name) == root.name]
    if not shared and not root.bound:
        return
    if root.scope:
        raise ScheduleError(
            f"{root.name} is shared by the threads of no block", "place it by compute_at"
        )
    for stage in shared:
        for each in (root, stage):
            if each.bound.keys().isdisjoint(THREAD_INDICES):
                raise ScheduleError(
                    f"{stage.name} is shared, and no loop of {each.name} is bound to threads",
                    f's["{each.name}"].bind(loop, "threadIdx.x")',
                )
    kinds = [it.kind for it in root.iters]
    first = kinds.index("reduce") if "reduce" in kinds else len(kinds)
    for it in root.iters[first:]:
        if it.annotation in LAUNCH_INDICES:
            raise ScheduleError(
                f"{root.name}: {it.annotation} is bound inside of the reduction",
                f"put {it.name} outside of {root.iters[first].name}: reorder",
            )
    if root.n_parallel or state.transformed:
        what = "parallel loops" if root.n_parallel else "another algorithm"
        raise ScheduleError(
            f"{root.name} has bound loops and {what}, which is for CPUs",
            "leave out parallel, winograd, narrow_products",
        )


def of_block(state: State, reads: list[Read], ranges: Ranges) -> tuple[list[Read], Ranges]:
    """`reads` inside of the loops over the threads of the block, and `ranges` without these."""
    threads = {
        loop_var(s, it)
        for s in state.stages.values()
        for index, it in s.bound.items()
        if index in THREAD_INDICES
    }
    loops = tuple((v, last + 1) for v, (_, last) in ranges.items() if v in threads)
    together = [replace(r, extents=(*loops, *r.extents)) for r in reads]
    return together, {v: limits for v, limits in ranges.items() if v not in threads}


@brief
@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """How a kernel is started: `extents` of the grid's and the block's indices, and the bytes of
    shared memory of every shared buffer."""

    extents: dict[str, int]
    shared: dict[str, int]

    @property
    def n_bytes(self) -> int:
        """Shared memory of a block, in bytes: whole cache lines of each buffer."""
        return sum(-(-n // CACHE_LINE) * CACHE_LINE for n in self.shared.values())

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks, along x, y, z."""
        return tuple(self.extents[n] for n in BLOCK_INDICES)

    @property
    def block(self) -> tuple[int, ...]:
        """Threads of a block, along x, y, z."""
        return tuple(self.extents[n] for n in THREAD_INDICES)


def launch_of(kernel: Kernel) -> KernelLaunch | None:
    """The launch of a kernel with bound loops; None for one of a CPU.

    Raises ScheduleError where a GPU has not the threads, the blocks or the shared memory, or where
    some thread of a block would not come to a barrier.
    """
    found = list(statements(kernel.body))
    extents = dict.fromkeys(LAUNCH_INDICES, 0)
    shared: dict[str, int] = {}
    n_local = 0
    for stmt in found:
        match stmt:
            case For(kind=kind, extent=extent) if kind in extents:
                extents[kind] = max(extents[kind], extent)
            case Alloc(buffer=buffer) if buffer.role == "shared":
                shared[buffer.name] = max(shared.get(buffer.name, 0), buffer.n_bytes)
            case Alloc(buffer=buffer):
                n_local += buffer.n_bytes
    if not any(extents.values()):
        return None
    launch = KernelLaunch({n: max(1, e) for n, e in extents.items()}, shared)
    _check_limits(kernel.name, launch)
    if n_local > _MAX_LOCAL_BYTES:
        raise ScheduleError(
            f"{kernel.name}: {n_local} local bytes of a thread are more than {_MAX_LOCAL_BYTES}",
            "attach stages to inner loops, or copy to shared memory",
        )
    _Barriers(kernel.name, launch).check(kernel.body, frozenset(), "")
    return launch


def _check_limits(name: str, launch: KernelLaunch) -> None:
    n_threads, n_bytes = prod(launch.block), launch.n_bytes
    if n_threads > MAX_THREADS:
        raise ScheduleError(
            f"{name}: a block of {n_threads} threads is more than {MAX_THREADS}",
            "bind smaller loops to threadIdx, and the others to blockIdx",
        )
    for index, extent in launch.extents.items():
        if extent > _MAX_EXTENT[index]:
            raise ScheduleError(
                f"{name}: {index} has {extent} values, at most {_MAX_EXTENT[index]} are possible",
                "split the loop, or fuse it with one that is bound to blockIdx.x",
            )
    if n_bytes > MAX_SHARED_BYTES:
        raise ScheduleError(
            f"{name}: {n_bytes} bytes of shared memory are more than {MAX_SHARED_BYTES}",
            "split the reduction, and place the copies in its outer loop",
        )


@dataclass(frozen=True, slots=True)
class _Barriers:
    """Looks for barriers that some threads of a block do not come to."""

    name: str
    launch: KernelLaunch

    def check(self, body: Body, own: frozenset[str], some: str) -> None:
        """`own`: variables that differ between threads; `some`: why only some run `body`."""
        for stmt in body:
            match stmt:
                case Barrier() if some:
                    raise ScheduleError(
                        f"{self.name}: some threads of a block do not come to a barrier: {some}",
                        "bind loops of as many iterations everywhere, with tail='shift'",
                    )
                case Let(var=var, value=value) if _differs(value, own):
                    own |= {var}
                case For(kind=kind, var=var, extent=extent) if kind in THREAD_INDICES:
                    n = self.launch.extents[kind]
                    less = f"{var} has {extent} iterations for {n} threads"
                    self.check(stmt.body, own | {var}, some or (less if extent < n else ""))
                case For(limit=limit):
                    ragged = limit is not None and _differs(limit, own)
                    self.check(stmt.body, own, some or (f"{stmt.var} is ragged" if ragged else ""))
                case If(cond=cond):
                    why = some or ("a condition differs" if _differs(cond, own) else "")
                    self.check(stmt.then, own, why)
                    self.check(stmt.orelse, own, why)
                case Alloc() | Instruction():
                    self.check(stmt.body, own, some)


def _differs(e: Expr, own: frozenset[str]) -> bool:
    return bool(own & variables(e) or loads(e))
