"""Code for WebAssembly: what engines run in inner loops, and modules that are placed anywhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import autotune
from autotune import te
from autotune.codegen.compile import assemble, assembly
from autotune.codegen.image.link import Image, Part, link
from autotune.codegen.image.wasm import LIBRARY, custom_section, placing_script
from autotune.errors import CodegenError, MissingDependency
from autotune.loopir.lower import lower
from autotune.measure.timing.peak import multiply_add_loop
from autotune.schedule.steps import Split
from autotune.search.defaults import default_steps
from autotune.target import parse_target
from tests.codegen.test_codegen_foreign import code
from tests.node import run_script

TARGET = parse_target("wasm32")
ANSWERS = """
@table = internal constant [2 x i64] [i64 40, i64 2]
define i64 @answer(ptr %at) {
  %second = getelementptr i64, ptr @table, i64 1
  %a = load i64, ptr @table
  %b = load i64, ptr %second
  %sum = add i64 %a, %b
  store i64 %sum, ptr %at
  ret i64 %sum
}
define i64 @indirect(ptr %at, i64 %f) {
  %code = inttoptr i64 %f to ptr
  %r = call i64 %code(ptr %at)
  ret i64 %r
}
"""


def linked(*texts: str) -> Image:
    try:
        return link([Part(assemble(text, TARGET)) for text in texts])
    except MissingDependency as error:
        pytest.skip(error.message)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["product", "pointwise", "strided", "depthwise", "transposed"])
def test_inner_loops_are_loads_and_relaxed_multiply_adds(name: str, tmp_path: Path) -> None:
    """Offsets are in the loads, and no sum calls the C library."""
    text = code(name, "wasm32", tmp_path)
    assert "fmaf" not in text
    blocks = re.split(r"^\.?\w+:|\bloop\b|\bend_loop\b", text, flags=re.MULTILINE)
    largest = max(blocks, key=lambda block: block.count("relaxed_madd"))
    arithmetic = re.findall(r"f32x4\.(?!splat|extract|replace)(\w+)", largest)
    assert arithmetic.count("relaxed_madd") >= max(8, 0.9 * len(arithmetic))
    n_sums, n_scalar = (
        largest.count("relaxed_madd"),
        len(re.findall(r"i(32|64)\.(add|shl)", largest)),
    )
    assert n_scalar <= n_sums


def _product() -> te.Tensor:
    a, b = te.placeholder((64, 64), "a"), te.placeholder((64, 64), "b")
    r = te.reduce_axis(64, "r")
    product = te.compute((64, 64), lambda i, j: te.sum(a[i, r] * b[r, j], r), "product")
    return te.compute((64, 64), lambda i, j: te.maximum(product[i, j], 0.0), "out")


def test_sums_of_several_terms_stay_in_order() -> None:
    """All terms of one sum before the next one would need the operands of all at once."""
    dag = autotune.Task(_product, target="wasm32", threads=1).dag
    steps = default_steps(dag, TARGET, 1)
    unrolled = [
        replace(step, factors=(4,)) if isinstance(step, Split) and step.iter == "r" else step
        for step in steps
    ]
    assert unrolled != list(steps)
    text = assembly(lower(dag, tuple(unrolled)), TARGET)
    assert text.count("relaxed_madd") >= 4 * 8
    assert not re.search(r"relaxed_madd\s+f32x4.relaxed_madd", text)


def test_a_module_runs_where_it_is_placed() -> None:
    """Its data and the numbers of its functions are relative."""
    image = linked(ANSWERS)
    assert image.symbols == {"answer": 0, "indirect": 1}
    told = placed(image, "exports.answer(64), exports.indirect(64, 7n), table.get(8) !== null")
    assert told == ["42", "42", "true"]


def placed(image: Image, expressions: str) -> list[str]:
    """Values of expressions, where the image is placed at 1 MiB and slot 7."""
    module = f"Buffer.from('{base64.b64encode(image.data).decode()}', 'base64')"
    return run_script(
        placing_script()
        + f"""
        const module = new WebAssembly.Module({module});
        const memory = new WebAssembly.Memory({{initial: 32}});
        const initial = 7 + sizes(module).slots;
        const table = new WebAssembly.Table({{initial, element: "anyfunc"}});
        const stackPointer = new WebAssembly.Global({{value: "i32", mutable: true}}, 1 << 16);
        const exports = place(module,
            {{memory, table, memoryBase: 1 << 20, tableBase: 7, stackPointer}});
        for (const value of [{expressions}]) console.log(String(value));
        """
    ).split()


def test_only_asked_for_functions_are_exported() -> None:
    with_names = [Part(assemble(ANSWERS, TARGET))]
    try:
        image = link(with_names, ["answer"])
    except MissingDependency as error:
        pytest.skip(error.message)
    assert image.symbols == {"answer": 0}


def test_a_function_that_no_program_has_is_named() -> None:
    with pytest.raises(CodegenError, match="undefined symbol: lgamma"):
        linked(
            "declare double @lgamma(double)\n"
            "define double @f(double %x) { %y = call double @lgamma(double %x) ret double %y }"
        )


_NUMBERS: Mapping[str, tuple[str, float]] = {
    "erf": ("0.3", 0.3286267594591274),
    "exp": ("1.5", 4.4816890703380645),
    "log1p": ("0.25", 0.22314355131420976),
    "pow": ("2, 10", 1024.0),
    "fmod": ("-7.5, 2", -1.5),
    "tanh": ("0.5", 0.46211715726000973),
}


def test_the_script_has_the_functions_that_the_linker_allows() -> None:
    names = ", ".join(f"library.{name} instanceof Function" for name in LIBRARY)
    values = ", ".join(f"library.{name}({given})" for name, (given, _) in _NUMBERS.items())
    more = "library.erf(3), library.erf(-7), library.erf(NaN)"
    text = (
        f"{placing_script()}\nfor (const x of [{names}, {values}, {more}]) console.log(String(x));"
    )
    told = run_script(text).split()
    assert told[: len(LIBRARY)] == ["true"] * len(LIBRARY)
    numbers = [float(x) for x in told[len(LIBRARY) :]]
    expected = [value for _, value in _NUMBERS.values()] + [0.9999779095030014, -1.0]
    assert numbers[:-1] == pytest.approx(expected, rel=1e-14)
    assert numbers[-1] != numbers[-1]


@pytest.mark.parametrize("n", [0, 127, 128, 70_000])
def test_a_section_of_any_size_is_passed_over(n: int) -> None:
    image = linked(ANSWERS)
    added = Image(image.machine, image.data + custom_section("more", bytes(n)), {}, {}, {}, ())
    section = 'WebAssembly.Module.customSections(module, "more")[0].byteLength'
    assert placed(added, f"exports.answer(64), {section}") == ["42", str(n)]


def test_options_of_llvm_for_its_code_leave_other_code_alone() -> None:
    """Loop strength reduction is off for WebAssembly, and on again afterwards."""
    host = parse_target("x86-64-v3")
    text = multiply_add_loop(host, host.isa.forms[0], 2, fed=False)
    before = assemble(text, host)
    assemble(multiply_add_loop(TARGET, TARGET.isa.forms[0], 2, fed=False), TARGET)
    assert assemble(text, host) == before
    assert llvm.llvm_version_info
