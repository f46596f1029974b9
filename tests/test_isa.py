"""Instruction sets as records: what is x86 stands in one module, and a target derives from it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.target import Target, parse_target
from autotune.target.isa import (
    FEATURES,
    ISAS,
    NAMES,
    core_named,
    isa_of_width,
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
    for isa in ISAS:
        assert isa.forms[0].flops(isa.vector_bits) == isa.vector_bits // 16
        assert isa_of_width(isa.vector_bits) is isa


def test_ports_that_are_narrower_than_vectors_take_them_in_halves(any_target: Target) -> None:
    assert core_named("znver4").port_bits == 256
    wide = replace(any_target, cpu="znver4", vector_bits=512)
    assert (wide.port_bits, replace(wide, cpu="znver5").port_bits) == (256, 512)
    assert replace(wide, cpu="znver4", vector_bits=256).port_bits == 256


@pytest.mark.slow
def test_nothing_but_the_isa_names_an_x86_intrinsic() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "isa" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "llvm.x86" not in node.value, path
