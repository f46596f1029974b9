"""⑦ The machine code of `autotune.measure.timing.driver`, as LLVM assembly.

    evaluate(plan, t), on every thread of a gang
                   → evict · read · sweep · read · barrier · now · kernels · now
    thunk<n>(code, table, begin, end): call a kernel of n buffers whose addresses are in a table
    pin(masks, t): bind a thread

The types `%plan`, `%kernel` and `%span` are the records that `driver` fills in: words of 64 bits,
of which a target with shorter addresses reads the lower half.
"""

from __future__ import annotations

from autotune.codegen.team.barrier import barrier_ir
from autotune.target import Target

_SPINS = 1 << 14


def driver_ir(target: Target, max_buffers: int, flush: str) -> str:
    """The module for `target`.

    `flush`: the intrinsic that drops a cache line, one of `Isa.line_flushes`; "" where LLVM has
    none: then nothing but the sweep makes spans cold.
    """
    thunks = "\n".join(_thunk(n) for n in range(max_buffers + 1))
    loops = "".join(_line_loop(name, body) for name, body in _PER_LINE.items())
    common = (
        _COMMON.replace("$LINE_LOOPS", loops)
        .replace("$LANES", str(target.lanes))
        .replace("$DECLARED", f"declare void @{flush}(ptr)" if flush else "")
        .replace("$FLUSH", f"call void @{flush}(ptr %at)" if flush else "; none")
    )
    common += barrier_ir(_SPINS, target.isa) + target.isa.denormals_ir
    return common + thunks


def _thunk(n: int) -> str:
    """Call a kernel of `n` buffers whose addresses are in a table."""
    loads = "".join(
        f"  %at{k} = getelementptr i64, ptr %table, i64 {k}\n  %b{k} = load ptr, ptr %at{k}\n"
        for k in range(n)
    )
    arguments = "".join(f"ptr %b{k}, " for k in range(n))
    return f"""
define void @thunk{n}(ptr %code, ptr %table, i64 %begin, i64 %end) {{
{loads}  call void %code({arguments}i64 %begin, i64 %end)
  ret void
}}"""


def _line_loop(name: str, body: str) -> str:
    """`void name(ptr base, i64 begin, i64 end)`: `body` for every cache line, which is `%at`."""
    return f"""
define internal void @{name}(ptr %base, i64 %begin, i64 %end) {{
entry:
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %offset = shl i64 %i, 6
  %at = getelementptr i8, ptr %base, i64 %offset
{body}  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


_PER_LINE = {
    # read and write one vector
    "sweep": """\
  %old = load <$LANES x float>, ptr %at, align 64
  %new = fadd <$LANES x float> %old, splat (float 1.0)
  store <$LANES x float> %new, ptr %at, align 64
""",
    # read one byte
    "read": "  %seen = load volatile i8, ptr %at\n",
    # write the line back to memory and drop it from all caches
    "evict": "  $FLUSH\n",
}
_COMMON = """
%plan = type [16 x i64]
%kernel = type [4 x i64]
%span = type [2 x i64]

declare i32 @clock_gettime(i32, ptr)
$DECLARED

define internal i64 @now(i64 %clock) {
  %id = trunc i64 %clock to i32
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 %id, ptr %time)
  %s = load i64, ptr %time
  %ns_at = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %ns_at
  %s_ns = mul i64 %s, 1000000000
  %all = add i64 %s_ns, %ns
  ret i64 %all
}

; Thread %t's part of %extent among %n.
define internal { i64, i64 } @share(i64 %extent, i64 %t, i64 %n) {
  %t1 = add i64 %t, 1
  %low = mul i64 %extent, %t
  %high = mul i64 %extent, %t1
  %begin = udiv i64 %low, %n
  %end = udiv i64 %high, %n
  %half = insertvalue { i64, i64 } poison, i64 %begin, 0
  %both = insertvalue { i64, i64 } %half, i64 %end, 1
  ret { i64, i64 } %both
}

$LINE_LOOPS
; Call %visit for every span, with thread %t's part of its lines.
define internal void @spans(ptr %visit, ptr %spans, i64 %n_spans, i64 %t, i64 %n) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %n_spans
  br i1 %more, label %body, label %done
body:
  %span = getelementptr %span, ptr %spans, i64 %i
  %base = load ptr, ptr %span
  %lines_at = getelementptr %span, ptr %span, i64 0, i64 1
  %lines = load i64, ptr %lines_at
  %part = call { i64, i64 } @share(i64 %lines, i64 %t, i64 %n)
  %begin = extractvalue { i64, i64 } %part, 0
  %end = extractvalue { i64, i64 } %part, 1
  call void %visit(ptr %base, i64 %begin, i64 %end)
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}

define internal void @kernels(ptr %table, i64 %n_kernels, i64 %t, i64 %n, ptr %barrier) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %meet ]
  %more = icmp ult i64 %i, %n_kernels
  br i1 %more, label %body, label %done
body:
  %row = getelementptr %kernel, ptr %table, i64 %i
  %thunk = load ptr, ptr %row
  %code_at = getelementptr %kernel, ptr %row, i64 0, i64 1
  %code = load ptr, ptr %code_at
  %buffers_at = getelementptr %kernel, ptr %row, i64 0, i64 2
  %buffers = load ptr, ptr %buffers_at
  %extent_at = getelementptr %kernel, ptr %row, i64 0, i64 3
  %extent = load i64, ptr %extent_at
  %part = call { i64, i64 } @share(i64 %extent, i64 %t, i64 %n)
  %begin = extractvalue { i64, i64 } %part, 0
  %end = extractvalue { i64, i64 } %part, 1
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %run, label %meet
run:
  call void %thunk(ptr %code, ptr %buffers, i64 %begin, i64 %end)
  br label %meet
meet:
  call void @barrier(ptr %barrier, i64 %n)
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}

define void @evaluate(ptr %plan, i64 %t) {
  %all = load %plan, ptr %plan
  %n = extractvalue %plan %all, 0
  %clock = extractvalue %plan %all, 1
  %n_kernels = extractvalue %plan %all, 2
  %kernels_word = extractvalue %plan %all, 3
  %kernels = inttoptr i64 %kernels_word to ptr
  %n_warm = extractvalue %plan %all, 4
  %warm_word = extractvalue %plan %all, 5
  %warm = inttoptr i64 %warm_word to ptr
  %sweep_word = extractvalue %plan %all, 6
  %sweep = inttoptr i64 %sweep_word to ptr
  %sweep_lines = extractvalue %plan %all, 7
  %barrier_word = extractvalue %plan %all, 9
  %barrier = inttoptr i64 %barrier_word to ptr
  %n_cold = extractvalue %plan %all, 10
  %cold_word = extractvalue %plan %all, 11
  %cold = inttoptr i64 %cold_word to ptr
  %part = call { i64, i64 } @share(i64 %sweep_lines, i64 %t, i64 %n)
  %begin = extractvalue { i64, i64 } %part, 0
  %end = extractvalue { i64, i64 } %part, 1
  %n_near = extractvalue %plan %all, 12
  %near_word = extractvalue %plan %all, 13
  %near = inttoptr i64 %near_word to ptr
  %n_own = extractvalue %plan %all, 14
  %own_word = extractvalue %plan %all, 15
  %own = inttoptr i64 %own_word to ptr
  call void @spans(ptr @evict, ptr %cold, i64 %n_cold, i64 %t, i64 %n)
  call void @spans(ptr @read, ptr %near, i64 %n_near, i64 %t, i64 %n)
  call void @sweep(ptr %sweep, i64 %begin, i64 %end)
  call void @spans(ptr @read, ptr %warm, i64 %n_warm, i64 %t, i64 %n)
  call void @spans(ptr @read, ptr %own, i64 %n_own, i64 0, i64 1)
  fence seq_cst
  %former = call i32 @flush_denormals()
  call void @barrier(ptr %barrier, i64 %n)
  %start = call i64 @now(i64 %clock)
  call void @kernels(ptr %kernels, i64 %n_kernels, i64 %t, i64 %n, ptr %barrier)
  %stop = call i64 @now(i64 %clock)
  call void @restore_denormals(i32 %former)
  %is_first = icmp eq i64 %t, 0
  br i1 %is_first, label %note, label %done
note:
  %elapsed = sub i64 %stop, %start
  %elapsed_at = getelementptr %plan, ptr %plan, i64 0, i64 8
  store i64 %elapsed, ptr %elapsed_at
  br label %done
done:
  ret void
}

declare i32 @sched_setaffinity(i32, i64, ptr)

define void @pin(ptr %masks, i64 %t) {
  %offset = mul i64 %t, 128
  %mask = getelementptr i8, ptr %masks, i64 %offset
  %r = call i32 @sched_setaffinity(i32 0, i64 128, ptr %mask)
  ret void
}
"""
