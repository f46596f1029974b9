"""④ Loop IR: a scheduled task before it becomes machine code.

    program = Program(buffers, packs, kernels)
    kernel  = Kernel(name, extent, var, buffers, body, head, live)
              -- runs `head` for var = begin, then `body` for begin ≤ var < end
    stmt    = For(var, extent, kind, body, limit)           kind ∈ serial unroll vectorize dot
                                                                tile, or an index of a launch
            | If(cond, then, orelse) | Let(var, value) | Alloc(buffer, body)
            | Store(tensor, indices, value) | PrefetchLine(tensor, indices, offset)
            | Instruction(operation, body) | Barrier()
    body    = tuple of stmt

Expressions are those of `autotune.te.expr`, where `Load(tensor, …)` refers to a buffer by the name
of its tensor. A `Let` binds an index for the statements after it. Indices are per dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from autotune.brief import brief
from autotune.dtypes import dtype_bytes
from autotune.strides import spanned
from autotune.te.dag import Compute
from autotune.te.expr import Axis, Expr, Tensor


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a tensor.

    `role`: `input`, `output`, `constant` (packed weights), `workspace` (shared between the kernels
    of one program), `local` (private to one iteration of the parallel range, or to one thread),
    `shared` (between the threads of a block) or `registers` (local, of matrices). `strides` are in
    elements, outermost first.
    """

    tensor: Tensor
    role: str
    strides: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.tensor.name

    @property
    def n_bytes(self) -> int:
        """Bytes from the first to one past the last element."""
        n_elements = spanned(self.tensor.shape, self.strides) if self.tensor.size else 0
        return n_elements * dtype_bytes(self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class For:
    """`body` for 0 ≤ var < extent.

    `kind`: `dot` adds to one accumulator by an instruction that takes all terms at once. Nested
    loops of which the outer ones are `tile`, then one `vectorize`, are one instruction on matrices.
    Lowered programs have both inside of an `Instruction` alone.
    A loop whose kind is an index of a launch (`blockIdx.x`, …) is no loop of a thread: each runs
    the iteration of its own index, and none where its index is `extent` or more.

    `limit`: of a serial loop that may be shorter, 0 ≤ var < min(extent, limit); evaluated once,
    before the loop. It may then not run at all.
    """

    var: str
    extent: int
    kind: str
    body: Body
    limit: Expr | None = None


@dataclass(frozen=True, slots=True)
class If:
    """`then` where `cond` (a scalar bool), else `orelse`."""

    cond: Expr
    then: Body
    orelse: Body = ()


@dataclass(frozen=True, slots=True)
class Let:
    """Bind index `var` to `value` for the following statements."""

    var: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Alloc:
    """A local buffer that lives during `body`; its contents are undefined at first."""

    buffer: Buffer
    body: Body


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[indices] = value`."""

    tensor: Tensor
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class PrefetchLine:
    """Ask for the cache line `offset` bytes after `tensor[indices]`; it may lie past the end.

    `level`: the cache that it is to be in, L1 or L2.
    """

    tensor: Tensor
    indices: tuple[Expr, ...]
    offset: Expr
    level: int = 2


@dataclass(frozen=True, slots=True)
class Instruction:
    """The loops of `body`, nested around one store, as a single instruction of the CPU.

    `operation`: the name of a multiply-add (`autotune.target.isa.INSTRUCTIONS`), whose factors are
    in the order of its operands; or `clear`, `load` or `store` of a matrix in registers. On vectors
    the loop is that over terms, inside of a vector loop; a product of matrices has loops over rows,
    groups of terms, columns and terms of a group.
    """

    operation: str
    body: Body

    @property
    def loops(self) -> tuple[For, ...]:
        """The nested loops, outermost first."""
        return nested(self.body)

    @property
    def store(self) -> Store:
        """Statement of the loops at each of their points."""
        (store,) = self.loops[-1].body
        assert isinstance(store, Store)
        return store

    @property
    def is_product(self) -> bool:
        """Whether it multiplies and adds."""
        return self.loops[-1].kind == "dot"


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of a block come here, and go on: each sees what the others stored before."""


Stmt: TypeAlias = For | If | Let | Alloc | Store | PrefetchLine | Instruction | Barrier
Body: TypeAlias = tuple[Stmt, ...]


def nested(body: Body) -> tuple[For, ...]:
    """Loops that are alone in one another, outermost first."""
    match body:
        case (For(body=inner) as loop,):
            return (loop, *nested(inner))
    return ()


@dataclass(frozen=True, slots=True)
class Packing:
    """Packing of a constant: `packed[axes] = source[indices]`, where `indices` use `axes`.

    A point whose indices lie outside the source is stored as zero.
    """

    packed: Tensor
    source: Tensor
    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]


@brief
@dataclass(frozen=True, slots=True)
class Kernel:
    """One flat parallel loop. `buffers` are the pointer arguments in order, by buffer name.

    `head`: statements of a thread before the first iteration of its part. `live`: the iterations
    that a call has, where numbers decide (`te.numbers`); the part from `begin` to `end` of `extent`
    is that share of them, so threads have equal shares whatever the numbers are.
    """

    name: str
    extent: int
    var: str
    buffers: tuple[str, ...]
    body: Body
    head: Body = ()
    live: Expr | None = None


@brief
@dataclass(frozen=True, slots=True)
class Program:
    """A lowered task: kernels to run one after another, a barrier between any two.

    `derived`: constants made out of others, in order, before any is packed. `shared`: buffers that
    may lie on one another; all others are apart. `limited`: results that may be written in front of
    the limits of their axes alone, see `limited_stores`.
    """

    buffers: tuple[Buffer, ...]
    packs: tuple[Packing, ...]
    kernels: tuple[Kernel, ...]
    derived: tuple[Compute, ...] = ()
    shared: tuple[str, ...] = ()
    limited: tuple[str, ...] = ()

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`."""
        return next(b for b in self.buffers if b.name == name)


def with_strides(program: Program, strides: Mapping[str, tuple[int, ...]]) -> Program:
    """The same program over windows: other strides, in elements, for some inputs or outputs."""
    buffers = tuple(
        replace(b, strides=strides[b.name]) if b.name in strides else b for b in program.buffers
    )
    return replace(program, buffers=buffers)


def without_bodies(program: Program) -> Program:
    """The program as its caller sees it: buffers, packings, kernel signatures."""
    return replace(
        program, kernels=tuple(replace(k, body=(), head=(), live=None) for k in program.kernels)
    )
