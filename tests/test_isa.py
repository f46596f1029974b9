"""Instruction sets as records: what is x86 stands in one module, and a target derives from it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from autotune.codegen.llvm_target import parsed, target_machine
from autotune.measure.timing.peak import multiply_add_loop
from autotune.target import Target, cpuid, parse_target
from autotune.target.isa import (
    ALIASES,
    ARCHITECTURES,
    FEATURES,
    HOST,
    ISAS,
    NAMES,
    core_named,
    isa_with,
    with_forms,
)

PACKAGE = Path(__file__).parent.parent / "autotune"


def test_the_widest_instruction_set_whose_features_are_there_is_taken() -> None:
    widest, *narrower = ISAS
    everything = {f: True for isa in ISAS for f in isa.requires}
    assert isa_with(everything) is widest
    for feature in widest.requires:
        assert isa_with(everything | {feature: False}) is narrower[0]
    assert isa_with({}) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_named_target_has_the_registers_of_its_instruction_set(name: str) -> None:
    target = parse_target(name)
    assert target.isa.name == NAMES[name].name
    assert target.isa.forms == with_forms(NAMES[name], FEATURES.get(name, frozenset())).forms
    assert (target.vector_bits, target.n_registers) == (
        target.isa.vector_bits,
        target.isa.n_registers,
    )


def test_a_multiply_add_of_float32_is_two_operations_a_lane() -> None:
    for architecture in ARCHITECTURES.values():
        for isa in architecture.isas:
            assert isa.forms[0].flops(isa.vector_bits) == isa.vector_bits // 16
            assert architecture.isa(isa.vector_bits, set(isa.requires)) is isa


def test_ports_that_are_narrower_than_vectors_take_them_in_halves(any_target: Target) -> None:
    assert core_named("znver4").port_bits == 256
    wide = replace(any_target, cpu="znver4", vector_bits=512)
    assert (wide.port_bits, replace(wide, cpu="znver5").port_bits) == (256, 512)
    assert replace(wide, cpu="znver4", vector_bits=256).port_bits == 256


@pytest.mark.slow
def test_nothing_but_the_isa_names_an_intrinsic_of_one_architecture() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "isa" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = ("llvm.x86", "llvm.aarch64", "llvm.riscv", "llvm.wasm")
                assert not any(name in node.value for name in names), path


_VECTORS = ("avx512", "avx10", "avxvnni", "avxifma", "avxneconvert")
_REGISTERS = ("egpr", "ndd", "ccmp", "nf", "zu", "ppx", "push2pop2")
_OTHERS = ("gfni", "fma4", "xop", "tbm", "raoint", "amx-tile", "amx-bf16", "amx-int8")
_UNUSED = "avx512vp2intersect"  # no code that is made here has its instruction
_LEVEL = ("avx2", "fma", "bmi2", "lzcnt", "movbe", "f16c")
_MNEMONICS = {"fma": "vfmadd|fmla|fmad|vfmacc|relaxed_madd", "vpmaddwd": "vpmaddwd|vpdpwssd"}
_WITHOUT_RECORD = {"bdver4", "knl", "knm", "mic_avx512", "novalake", "wildcatlake"}
"""No cache that cores share, or younger than the oldest LLVM that is supported."""


def _code_features() -> list[str]:
    """Features by which machine code may differ among CPUs that have x86-64-v3."""
    listed = {*_REGISTERS, *_OTHERS}
    names = (n for n in cpuid.features() if n.startswith(_VECTORS) or n in listed)
    return [name for name in names if name != _UNUSED]


def _features_by_llvm(
    cpus: Sequence[str], features: Sequence[str], triple: str = "x86_64"
) -> dict[str, set[str]]:
    """The features that LLVM gives to CPUs: it inlines `f` only where the caller's CPU has all that
    the CPU of `f` has."""
    attributes = [f'"target-cpu"="x86-64" "target-features"="+{name}"' for name in features]
    attributes += [f'"target-cpu"="{cpu}"' for cpu in cpus]
    lines = [f'target triple = "{triple}"']
    lines += [f"attributes #{n} = {{ {text} }}" for n, text in enumerate(attributes)]
    square = "%y = mul i32 %x, %x ret i32 %y"
    for n, name in enumerate(features):
        lines.append(f'define internal i32 @"{name}"(i32 %x) #{n} {{ {square} }}')
    for n, cpu in enumerate(cpus, len(features)):
        for name in features:
            body = f'%y = call i32 @"{name}"(i32 %x) ret i32 %y'
            lines.append(f'define i32 @"{cpu} {name}"(i32 %x) #{n} {{ {body} }}')
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join(lines))
    machine = llvm.Target.from_triple(triple).create_target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    found: dict[str, set[str]] = {cpu: set() for cpu in cpus}
    for function in module.functions:
        cpu, _, name = function.name.partition(" ")
        if name and all(
            i.opcode != "call" for block in function.blocks for i in block.instructions
        ):
            found[cpu].add(name)
    return found


@pytest.fixture(scope="module")
def by_llvm() -> dict[str, set[str]]:
    """Features of every CPU that LLVM knows with x86-64-v3."""
    code = (
        "import llvmlite.binding as llvm; llvm.initialize_native_target();"
        "llvm.Target.from_triple('x86_64').create_target_machine(cpu='help')"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    cpus = re.findall(r"- Select the (\S+) processor", listed)
    level = _features_by_llvm(cpus, _LEVEL, "i386")  # some have 32 bits
    found = [cpu for cpu in cpus if level[cpu] == set(_LEVEL)]
    return _features_by_llvm(found, _code_features())


def test_a_named_cpu_has_the_features_that_llvm_gives_it(by_llvm: dict[str, set[str]]) -> None:
    """One too many and code stops with an illegal instruction; one too few and it is slow."""
    known = {cpu: ALIASES.get(cpu.replace("_", "-"), cpu.replace("_", "-")) for cpu in by_llvm}
    expected = {cpu: set(FEATURES[name]) for cpu, name in known.items() if name in HOST.processors}
    assert {cpu: by_llvm[cpu] for cpu in expected} == expected
    assert set(by_llvm) - set(expected) <= _WITHOUT_RECORD
    assert set(known.values()) >= set(HOST.processors)


def test_llvm_selects_the_multiply_adds_of_a_named_cpu() -> None:
    """Of an instruction that the CPU does not have it would say that it cannot be selected."""
    for name in NAMES:
        target = parse_target(name)
        machine = target_machine(target, 2)
        for form in target.isa.forms:
            if form.unit is None:
                module = parsed(multiply_add_loop(target, form, 2, fed=False), machine)
                mnemonic = _MNEMONICS.get(form.name, form.name)
                assert re.search(mnemonic, machine.emit_assembly(module)), (name, form.name)
