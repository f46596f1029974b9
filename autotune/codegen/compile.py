"""⑤ LLVM IR to machine code: optimise and emit a relocatable object.

LLVM's loop vectoriser, SLP vectoriser and unroller stay off: vectors and unrolling are decisions of
the schedule. SROA, CSE, LICM and instruction selection do the rest.
"""

from __future__ import annotations

from functools import lru_cache

import llvmlite.binding as llvm

from autotune.codegen.emission.emit import emit_program
from autotune.codegen.llvm_target import emitted, emitted_text, parsed, target_machine
from autotune.errors import CodegenError
from autotune.loopir.nodes import Program
from autotune.target import Target

LLVM_VERSION = ".".join(map(str, llvm.llvm_version_info))
"""Of the library that optimises and emits."""


def compile_program(program: Program, target: Target, prefix: str = "") -> bytes:
    """Relocatable ELF object with one symbol `prefix + kernel.name` per kernel."""
    module = optimised_module(program, target, prefix)
    return emitted(module, _machine(target), target)


def assembly(program: Program, target: Target) -> str:
    """Assembly text of a program, for people."""
    return emitted_text(optimised_module(program, target), _machine(target), target)


def optimised_module(program: Program, target: Target, prefix: str = "") -> llvm.ModuleRef:
    """The LLVM module after all passes."""
    machine = _machine(target)
    text = emit_program(program, prefix, target.isa)
    try:
        module = parsed(text, machine)
    except RuntimeError as error:
        raise CodegenError(f"LLVM refuses the generated code: {error}") from error
    return optimise(module, target)


def optimise(module: llvm.ModuleRef, target: Target) -> llvm.ModuleRef:
    """Run the middle-end passes over `module` in place."""
    return run_passes(module, _machine(target))


def run_passes(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Run the middle-end passes over `module` in place.

    The function passes of level 1, then dead store elimination. Kernels are as fast as after all of
    level 2 (measured in turns over 121 tasks), which takes twice as long.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = False
    options.slp_vectorization = False
    options.loop_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    functions = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            functions.run(function, builder)
    dead_stores = llvm.create_new_module_pass_manager()
    dead_stores.add_dead_store_elimination_pass()
    dead_stores.run(module, builder)
    return module


def inline_operations(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Inline what has to be (`alwaysinline`), and forget functions that nothing calls, in place."""
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)


def assemble(text: str, target: Target, more_features: str = "") -> bytes:
    """Relocatable object of LLVM assembly, for `target` as it is written: no passes are run."""
    machine = target_machine(target, 2, more_features)
    return emitted(parsed(text, machine), machine, target)


@lru_cache(maxsize=4)
def _machine(target: Target) -> llvm.TargetMachine:
    return target_machine(target, 3)
