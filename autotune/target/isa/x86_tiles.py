"""Floor 0: AMX: registers of 16 rows of 64 bytes, and products of the matrices in them.

c[16, 16] += a[16, 16, terms] · b[16, 16, terms]: rows of `a` are 64 bytes of the reduction; row g
of `b` holds, for each of 16 columns, the `terms` neighbours of group g of the reduction.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.target.isa.record import MultiplyAdd, TileUnit

EMULATION = "emulated-amx"
"""A feature that no CPU has: kernels call functions that emulate the instructions. For tests."""

_STATE = """
; The registers: 64 bytes of configuration, then eight times 16 rows of 64 bytes.
define internal i64 @emulated.rows(ptr %regs, i8 %t) nounwind {
  %n = zext i8 %t to i64
  %o = add i64 %n, 48
  %p = getelementptr i8, ptr %regs, i64 %o
  %v = load i8, ptr %p
  %r = zext i8 %v to i64
  ret i64 %r
}

define internal i64 @emulated.bytes(ptr %regs, i8 %t) nounwind {
  %n = zext i8 %t to i64
  %m = shl i64 %n, 1
  %o = add i64 %m, 16
  %p = getelementptr i8, ptr %regs, i64 %o
  %v = load i16, ptr %p
  %r = zext i16 %v to i64
  ret i64 %r
}

define internal ptr @emulated.tile(ptr %regs, i8 %t) nounwind {
  %n = zext i8 %t to i64
  %m = shl i64 %n, 10
  %o = add i64 %m, 64
  %p = getelementptr i8, ptr %regs, i64 %o
  ret ptr %p
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @emulated.ldtilecfg(ptr %regs, ptr %config) nounwind {
  call void @llvm.memset.p0.i64(ptr %regs, i8 0, i64 8256, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %regs, ptr %config, i64 64, i1 false)
  ret void
}

define internal void @emulated.tilerelease(ptr %regs) nounwind {
  call void @llvm.memset.p0.i64(ptr %regs, i8 0, i64 8256, i1 false)
  ret void
}

define internal void @emulated.tilezero(ptr %regs, i8 %t) nounwind {
  %tile = call ptr @emulated.tile(ptr %regs, i8 %t)
  call void @llvm.memset.p0.i64(ptr %tile, i8 0, i64 1024, i1 false)
  ret void
}

define internal void @emulated.tileloadd64(ptr %regs, i8 %t, ptr %from, i64 %stride) nounwind {
entry:
  %rows = call i64 @emulated.rows(ptr %regs, i8 %t)
  %bytes = call i64 @emulated.bytes(ptr %regs, i8 %t)
  %tile = call ptr @emulated.tile(ptr %regs, i8 %t)
  call void @llvm.memset.p0.i64(ptr %tile, i8 0, i64 1024, i1 false)
  br label %row
row:
  %r = phi i64 [0, %entry], [%r2, %row]
  %s = mul i64 %r, %stride
  %d = shl i64 %r, 6
  %p = getelementptr i8, ptr %from, i64 %s
  %q = getelementptr i8, ptr %tile, i64 %d
  call void @llvm.memcpy.p0.p0.i64(ptr %q, ptr %p, i64 %bytes, i1 false)
  %r2 = add i64 %r, 1
  %more = icmp ult i64 %r2, %rows
  br i1 %more, label %row, label %end
end:
  ret void
}

define internal void @emulated.tilestored64(ptr %regs, i8 %t, ptr %to, i64 %stride) nounwind {
entry:
  %rows = call i64 @emulated.rows(ptr %regs, i8 %t)
  %bytes = call i64 @emulated.bytes(ptr %regs, i8 %t)
  %tile = call ptr @emulated.tile(ptr %regs, i8 %t)
  br label %row
row:
  %r = phi i64 [0, %entry], [%r2, %row]
  %s = mul i64 %r, %stride
  %d = shl i64 %r, 6
  %p = getelementptr i8, ptr %to, i64 %s
  %q = getelementptr i8, ptr %tile, i64 %d
  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %bytes, i1 false)
  %r2 = add i64 %r, 1
  %more = icmp ult i64 %r2, %rows
  br i1 %more, label %row, label %end
end:
  ret void
}
"""

_PRODUCT = """
define internal void @emulated.NAME(ptr %regs, i8 %c, i8 %a, i8 %b) nounwind {
entry:
  %rows = call i64 @emulated.rows(ptr %regs, i8 %c)
  %bytes = call i64 @emulated.bytes(ptr %regs, i8 %c)
  %columns = lshr i64 %bytes, 2
  %groups = call i64 @emulated.rows(ptr %regs, i8 %b)
  %ct = call ptr @emulated.tile(ptr %regs, i8 %c)
  %at = call ptr @emulated.tile(ptr %regs, i8 %a)
  %bt = call ptr @emulated.tile(ptr %regs, i8 %b)
  br label %i
i:
  %m = phi i64 [0, %entry], [%m2, %ix]
  %mo = shl i64 %m, 6
  %cr = getelementptr i8, ptr %ct, i64 %mo
  %ar = getelementptr i8, ptr %at, i64 %mo
  br label %g
g:
  %k = phi i64 [0, %i], [%k2, %gx]
  %ko = shl i64 %k, 6
  %br = getelementptr i8, ptr %bt, i64 %ko
  %ap = getelementptr i32, ptr %ar, i64 %k
  br label %j
j:
  %n = phi i64 [0, %g], [%n2, %j]
  %cp = getelementptr i32, ptr %cr, i64 %n
  %bp = getelementptr i32, ptr %br, i64 %n
  %s0 = load SUM, ptr %cp
TERMS
  store SUM %sCOUNT, ptr %cp
  %n2 = add i64 %n, 1
  %nm = icmp ult i64 %n2, %columns
  br i1 %nm, label %j, label %gx
gx:
  %k2 = add i64 %k, 1
  %km = icmp ult i64 %k2, %groups
  br i1 %km, label %g, label %ix
ix:
  %m2 = add i64 %m, 1
  %mm = icmp ult i64 %m2, %rows
  br i1 %mm, label %i, label %end
end:
  ret void
}
"""

_WIDENED = {
    "bfloat16": ("bfloat", "fpext"),
    "int8": ("i8", "sext"),
    "uint8": ("i8", "zext"),
}
"""LLVM's type of an operand, and how it is widened."""


def _product(form: MultiplyAdd) -> str:
    """A function that emulates an instruction."""
    total, mul, add = (
        ("float", "fmul", "fadd") if form.accumulator == "float32" else ("i32", "mul", "add")
    )
    lines = []
    for t in range(form.terms):
        for x, dtype in zip("ab", form.operands, strict=True):
            kind, widen = _WIDENED[dtype]
            lines += [
                f"  %{x}p{t} = getelementptr {kind}, ptr %{x}p, i64 {t}",
                f"  %{x}v{t} = load {kind}, ptr %{x}p{t}",
                f"  %{x}w{t} = {widen} {kind} %{x}v{t} to {total}",
            ]
        lines.append(f"  %p{t} = {mul} {total} %aw{t}, %bw{t}")
        lines.append(f"  %s{t + 1} = {add} {total} %s{t}, %p{t}")
    text = _PRODUCT.replace("NAME", form.name).replace("TERMS", "\n".join(lines))
    return text.replace("COUNT", str(form.terms)).replace("SUM", total)


UNIT = TileUnit(
    configure="llvm.x86.ldtilecfg",
    release="llvm.x86.tilerelease",
    zero="llvm.x86.tilezero",
    load="llvm.x86.tileloadd64",
    store="llvm.x86.tilestored64",
)


def _form(name: str, a: str, b: str, accumulator: str, terms: int, feature: str) -> MultiplyAdd:
    return MultiplyAdd(
        name,
        (a, b),
        accumulator,
        terms=terms,
        intrinsics={UNIT.bits: f"llvm.x86.{name}"},
        features=(feature,),
        unit=UNIT,
    )


FORMS = (
    _form("tdpbf16ps", "bfloat16", "bfloat16", "float32", 2, "amx-bf16"),
    _form("tdpbssd", "int8", "int8", "int32", 4, "amx-int8"),
    _form("tdpbsud", "int8", "uint8", "int32", 4, "amx-int8"),
    _form("tdpbusd", "uint8", "int8", "int32", 4, "amx-int8"),
    _form("tdpbuud", "uint8", "uint8", "int32", 4, "amx-int8"),
)
_EMULATED_UNIT = replace(
    UNIT,
    configure="emulated.ldtilecfg",
    release="emulated.tilerelease",
    zero="emulated.tilezero",
    load="emulated.tileloadd64",
    store="emulated.tilestored64",
    emulation=_STATE + "".join(map(_product, FORMS)),
)
EMULATED = tuple(
    replace(
        f,
        intrinsics={UNIT.bits: f"emulated.{f.name}"},
        features=(EMULATION,),
        unit=_EMULATED_UNIT,
    )
    for f in FORMS
)
