"""⑤ Functions in a small part of Python (`native`) as relocatable objects."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

from autotune.codegen.compile import inline_operations, optimise
from autotune.codegen.llvm_target import parsed, target_machine
from autotune.codegen.team import ports_code, team_code
from autotune.codegen.team.native import native_ir
from autotune.codegen.team.team import EXPORTED, SYMBOLS
from autotune.target import Target


def team_object(target: Target) -> bytes:
    """The team's machine code: the same in every artifact for a CPU."""
    return native_object(team_code, target, EXPORTED, SYMBOLS)


def ports_object(target: Target) -> bytes:
    """The machine code of calls: the same in every artifact for a CPU."""
    python = (ports_code.DIRECT,) if target.isa.has_threads else ()
    return native_object(ports_code, target, (*ports_code.EXPORTED, *python), ports_code.SYMBOLS)


@lru_cache(maxsize=8)
def native_object(
    module: ModuleType, target: Target, exported: tuple[str, ...], prefix: str
) -> bytes:
    """The functions `exported` as `prefix` + name; all others are private to the object."""
    machine = target_machine(target, 2)
    made = parsed(native_ir(module, target.isa, exported, prefix), machine)
    inline_operations(made, machine)
    return bytes(machine.emit_object(optimise(made, target)))
