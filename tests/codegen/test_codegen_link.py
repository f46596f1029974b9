"""Objects linked here run as they do when LLVM links them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from autotune.codegen.compile import assemble
from autotune.codegen.image.elf import Region, read_object
from autotune.codegen.image.jit import Library
from autotune.codegen.image.link import Image, Part, link
from autotune.errors import CodegenError
from autotune.target import host_target

TARGET = host_target()

# Everything that a linker meets: calls and data of another object, a function of libm, its address,
# tables of addresses, a jump table, constants, zeroed memory, a common variable.
USER = """
@table = internal constant [3 x ptr] [ptr @own, ptr @theirs, ptr @numbers]
@zeros = internal global [64 x i64] zeroinitializer
@shared = common global [9 x i64] zeroinitializer, align 64
@numbers = external global [2 x i64]
@picked = external constant i64

declare i64 @theirs(i64)
declare double @cbrt(double)
declare i64 @labs(i64)

define internal i64 @own(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}

define i64 @calls(i64 %x) {
  %a = call i64 @own(i64 %x)
  %b = call i64 @theirs(i64 %a)
  ret i64 %b
}

define i64 @by_table(i64 %x) {
  %n = and i64 %x, 1
  %at = getelementptr [3 x ptr], ptr @table, i64 0, i64 %n
  %f = load volatile ptr, ptr %at
  %y = call i64 %f(i64 %x)
  ret i64 %y
}

define i64 @data(i64 %x) {
  %at = getelementptr [3 x ptr], ptr @table, i64 0, i64 2
  %p = load volatile ptr, ptr %at
  %second = getelementptr i64, ptr %p, i64 1
  %a = load i64, ptr %second
  %k = and i64 %x, 63
  %z = getelementptr [64 x i64], ptr @zeros, i64 0, i64 %k
  %old = load i64, ptr %z
  %new = add i64 %old, %a
  store i64 %new, ptr %z
  %s = getelementptr [9 x i64], ptr @shared, i64 0, i64 8
  %other = load volatile i64, ptr %s
  %sum = add i64 %new, %other
  %pick = load i64, ptr @picked
  %all = add i64 %sum, %pick
  ret i64 %all
}

define i64 @libm(i64 %x) {
  %f = sitofp i64 %x to double
  %g = call double @cbrt(double %f)
  %h = fmul double %g, 1.0e6
  %y = fptosi double %h to i64
  ret i64 %y
}

define i64 @address(i64 %x) {
  %f = select i1 true, ptr @labs, ptr @own
  %is = icmp sgt i64 %x, 5
  %g = select i1 %is, ptr @labs, ptr @theirs
  %m = sub i64 0, %x
  %y = call i64 %g(i64 %m)
  ret i64 %y
}

define i64 @jumps(i64 %x) {
  switch i64 %x, label %other [
    i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e i64 5, label %f
  ]
a: %ra = call i64 @own(i64 100)
   ret i64 %ra
b: %rb = call i64 @theirs(i64 7)
   ret i64 %rb
c: ret i64 33
d: %rd = call i64 @libm(i64 8)
   ret i64 %rd
e: ret i64 -5
f: ret i64 900000000000
other: ret i64 %x
}
"""
OTHER = """
@numbers = global [2 x i64] [i64 5, i64 77]
@shared = common global [9 x i64] zeroinitializer, align 8
@picked = constant i64 1000

define i64 @theirs(i64 %x) {
  %at = getelementptr [9 x i64], ptr @shared, i64 0, i64 8
  store i64 %x, ptr %at
  %y = add i64 %x, 11
  ret i64 %y
}
"""
FUNCTIONS = ("calls", "by_table", "data", "libm", "address", "jumps", "theirs")


class Llvm:
    """The same objects, linked and loaded by LLVM."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        llvm.load_library_permanently("libm.so.6")
        machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault")
        empty = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"')
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        for data in objects:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        return int(self._engine.get_function_address(symbol))


def answers(library: Library | Llvm) -> list[int]:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    functions = {name: kind(library.address(name)) for name in FUNCTIONS}
    return [functions[name](x) for x in (0, 1, 2, 3, 4, 5, 9, 62, 125) for name in FUNCTIONS]


@pytest.fixture(scope="module")
def objects() -> list[bytes]:
    return [assemble(text, TARGET) for text in (USER, OTHER)]


@pytest.mark.parametrize("order", [1, -1])
def test_all_kinds_of_references_lead_where_llvm_leads_them(
    objects: list[bytes], order: int
) -> None:
    assert answers(Library(objects[::order])) == answers(Llvm(objects[::order]))


def test_libraries_do_not_share_their_data(objects: list[bytes]) -> None:
    one, other = Library(objects), Library(objects)
    first = answers(one)
    assert answers(one) != first  # it counts
    assert answers(other) == first


def test_no_page_can_be_written_and_executed(objects: list[bytes]) -> None:
    library = Library(objects)
    starts = {
        region: library._start + begin
        for region, begin, end in library.image.spans()
        if end > begin
    }
    assert set(starts) == {*Region}
    found: dict[Region, str] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access = line.split()[:2]
        begin, end = (int(x, 16) for x in span.split("-"))
        found |= {region: access[:3] for region, at in starts.items() if begin <= at < end}
    assert found == {
        Region.CODE: "r-x",
        Region.CONSTANTS: "r--",
        Region.RELOCATED: "r--",
        Region.DATA: "rw-",
    }


def test_an_image_is_the_same_wherever_it_is_linked(objects: list[bytes]) -> None:
    image = link([Part(data) for data in objects])
    assert link([Part(data) for data in objects]) == image
    assert image.imports.keys() == {"cbrt", "labs"}
    assert all(
        int.from_bytes(image.data[at : at + 8], "little") == 0
        for places in image.imports.values()
        for at in places
    )
    assert all(
        int.from_bytes(image.data[at : at + 8], "little") < len(image.data) for at in image.rebases
    )


def test_entries_of_one_name_are_told_by_their_suffix() -> None:
    parts = [
        Part(assemble(f"define i64 @run() {{\n  ret i64 {n}\n}}", TARGET), f".{n}")
        for n in range(3)
    ]
    library = Library(link(parts))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64)
    assert [kind(library.address(f"run.{n}"))() for n in range(3)] == [0, 1, 2]
    with pytest.raises(CodegenError, match="two objects define 'run'"):
        link([Part(part.data) for part in parts])


def test_a_function_that_no_library_has_is_named() -> None:
    call = "%x = call i64 @nobody_has_this()\n ret i64 %x"
    text = f"declare i64 @nobody_has_this()\ndefine i64 @f() {{\n {call}\n}}"
    with pytest.raises(CodegenError, match="it calls 'nobody_has_this', which no library"):
        Library([assemble(text, TARGET)])


@pytest.mark.parametrize("order", [1, -1])
def test_a_weak_definition_gives_way_to_another_one(order: int) -> None:
    texts = (
        "define weak i64 @either() {\n ret i64 1\n}\n"
        "define i64 @call() {\n %x = call i64 @either()\n ret i64 %x\n}",
        "define i64 @either() {\n ret i64 2\n}",
    )
    found = [assemble(text, TARGET) for text in texts]
    kind = ctypes.CFUNCTYPE(ctypes.c_int64)
    assert kind(Library(found[::order]).address("call"))() == 2
    assert kind(Library(found[:1]).address("call"))() == 1


def test_groups_that_several_objects_have_are_linked_once() -> None:
    text = """
$both = comdat any
define linkonce_odr i64 @both(i64 %x) noinline comdat {{
  %y = add i64 %x, 5
  ret i64 %y
}}
define i64 @f{n}(i64 %x) {{
  %y = call i64 @both(i64 %x)
  %z = mul i64 %y, {n}
  ret i64 %z
}}"""
    found = [assemble(text.format(n=n), TARGET) for n in (2, 3)]
    assert all(read_object(data).groups for data in found)
    library = Library(found)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert [kind(library.address(f"f{n}"))(10) for n in (2, 3)] == [30, 45]
    alone = link([Part(found[0])]).n_code_bytes
    assert link([Part(data) for data in found]).n_code_bytes < 2 * alone


def test_code_that_cannot_be_moved_is_refused() -> None:
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="static")
    text = "@x = global i64 1\ndefine ptr @f() {\n  ret ptr @x\n}"
    data = bytes(machine.emit_object(llvm.parse_assembly(text)))
    with pytest.raises(CodegenError, match=r"contains an address|cannot be linked") as caught:
        link([Part(data)])
    assert "position independent" in caught.value.hint


def test_variables_of_each_thread_are_refused() -> None:
    text = "@x = thread_local global i64 1\ndefine ptr @f() {\n  ret ptr @x\n}"
    with pytest.raises(CodegenError, match="of each thread"):
        link([Part(assemble(text, TARGET))])


@pytest.mark.parametrize("seed", range(4))
def test_damaged_objects_are_one_error(objects: list[bytes], seed: int) -> None:
    """Of any kind: bits flipped, cut off, another machine."""
    rng = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(150):
        data = bytearray(objects[0])
        for at in rng.integers(0, len(data), rng.integers(1, 6)):
            data[at] = rng.integers(0, 256)
        cut = bytes(data[: rng.integers(0, len(data))]) if rng.random() < 0.3 else bytes(data)
        try:
            link([Part(cut), Part(objects[1])])
            outcomes.add("linked")
        except CodegenError:
            outcomes.add("refused")
    assert outcomes == {"linked", "refused"}


def test_an_object_of_another_machine_is_refused(objects: list[bytes]) -> None:
    other = bytearray(objects[0])
    struct.pack_into("<H", other, 18, 40)
    with pytest.raises(CodegenError, match="machine 40"):
        link([Part(bytes(other))])


def test_nothing_is_an_image_too() -> None:
    assert isinstance(Library([]).image, Image)
