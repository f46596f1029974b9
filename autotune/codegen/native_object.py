"""⑤ Functions in a small part of Python (`native`) as relocatable objects."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

import llvmlite.binding as llvm

from autotune.codegen import team_code
from autotune.codegen.compile import optimise
from autotune.codegen.native import native_ir
from autotune.codegen.team import EXPORTED, SYMBOLS
from autotune.target import Target


def team_object(target: Target) -> bytes:
    """The team's machine code: the same in every artifact for a CPU."""
    return native_object(team_code, target, EXPORTED, SYMBOLS)


@lru_cache(maxsize=8)
def native_object(
    module: ModuleType, target: Target, exported: tuple[str, ...], prefix: str
) -> bytes:
    """The functions `exported` as `prefix` + name; all others are private to the object."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.llvm_features, opt=2, reloc="pic", codemodel="default"
    )
    text = native_ir(module, target.isa, exported, prefix)
    parsed = llvm.parse_assembly(f'target triple = "{machine.triple}"\n{text}')
    parsed.verify()
    return bytes(machine.emit_object(optimise(parsed, target)))
