"""⑤ LLVM's machine of a target, and modules of text for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import llvmlite.binding as llvm

from autotune.target import Target
from autotune.target.isa import ARCHITECTURES, HOST

for _architecture in ARCHITECTURES.values():
    for _option in _architecture.options:
        llvm.set_option("", _option)


def target_machine(target: Target, opt: int, more_features: str = "") -> llvm.TargetMachine:
    """For position-independent code of `target`; `opt`: LLVM's level of code generation."""
    architecture = target.architecture
    _initialise(architecture is not HOST)
    return llvm.Target.from_triple(architecture.triple).create_target_machine(
        cpu=target.llvm_cpu,
        features=target.llvm_features + more_features,
        opt=opt,
        reloc="pic",
        codemodel="default",
        abiname=architecture.abi,
    )


def emitted(module: llvm.ModuleRef, machine: llvm.TargetMachine, target: Target) -> bytes:
    """The relocatable object of a module."""
    with _options_of(target):
        return bytes(machine.emit_object(module))


def emitted_text(module: llvm.ModuleRef, machine: llvm.TargetMachine, target: Target) -> str:
    """Assembly of a module, for people."""
    with _options_of(target):
        return str(machine.emit_assembly(module))


@contextmanager
def _options_of(target: Target) -> Iterator[None]:
    options = target.architecture.emission
    for option in options:
        llvm.set_option("", option)
    yield
    for option in options.values():
        llvm.set_option("", option)


def parsed(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The verified module of LLVM assembly without its first lines, which say the machine.

    The passes do without the data layout of this CPU's architecture, as all measured code does.
    Raises RuntimeError for other than LLVM assembly.
    """
    head = f'target triple = "{machine.triple}"\n'
    if machine.triple != HOST.triple:
        head += f'target datalayout = "{machine.target_data}"\n'
    module = llvm.parse_assembly(head + text)
    module.verify()
    return module


@lru_cache(maxsize=2)
def _initialise(all_targets: bool) -> None:
    if all_targets:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
