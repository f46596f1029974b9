"""Programs of the task `y = 2·x` that do the worst that machine code can do to its process.

`HOSTILE` maps a name to the LLVM IR of the first thing that the kernel does. `build` is a builder
that gives it for the step `does(name)`, and what `measure_fakes` has for other names. Each must end
as one of the statuses in `EXPECTED`, lose nothing for the programs measured beside it, and leave no
process behind.
"""

from __future__ import annotations

from dataclasses import replace

import measure_fakes as fakes
from measure_fakes import ELEMENT, ENDLESS, KERNEL, PLAIN

from autotune.codegen.compile import assemble
from autotune.measure.build import BuiltProgram
from autotune.result import MeasureStatus
from autotune.schedule.steps import ComputeInline, Steps
from autotune.target import Target
from autotune.te.dag import ComputeDAG

_DECLARATIONS = """
declare i32 @fork()
declare i32 @setsid()
declare i32 @getpid()
declare i32 @getppid()
declare i32 @kill(i32, i32)
declare i32 @raise(i32)
declare i32 @pause()
declare i32 @close(i32)
declare i32 @execl(ptr, ptr, ...)
declare i64 @write(i32, ptr, i64)
declare void @exit(i32)
declare void @_exit(i32)
declare void @abort()
declare void @pthread_exit(ptr)
declare ptr @malloc(i64)
declare ptr @memset(ptr, i32, i64)
declare i32 @alarm(i32)
declare i32 @sigfillset(ptr)
declare i32 @sigprocmask(i32, ptr, ptr)
declare i32 @munmap(ptr, i64)
declare void @llvm.trap()
@sleep_path = private constant [11 x i8] c"/bin/sleep\\00"
@thousand = private constant [5 x i8] c"1000\\00"
@zeros = internal global [65536 x i8] zeroinitializer
@zero = internal global i64 0
@garbage = internal global [24 x i8] c"\\80\\04\\95ATMP garbage {}[]\\00\\FF!!"
@half = internal global [16 x i8] c"ATMP\\01\\00\\00\\00\\40\\00\\00\\00\\00\\00\\00\\00"
@giant = internal global [24 x i8]
  c"ATMP\\01\\00\\01\\00\\02\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\01\\00\\00"

define internal i64 @recurse(i64 %n) noinline {
  %room = alloca [4096 x i8]
  store volatile i8 1, ptr %room
  %next = add i64 %n, 1
  %deep = call i64 @recurse(i64 %next)
  %seen = load volatile i8, ptr %room
  %wide = zext i8 %seen to i64
  %sum = add i64 %deep, %wide
  ret i64 %sum
}

define internal void @forever() noinline {
entry:
  br label %again
again:
  call i32 @pause()
  br label %again
}

define internal void @to_all(ptr %text, i64 %n) noinline {
entry:
  br label %next
next:
  %fd = phi i32 [ 3, %entry ], [ %more, %next ]
  call i64 @write(i32 %fd, ptr %text, i64 %n)
  %more = add i32 %fd, 1
  %again = icmp ult i32 %more, 64
  br i1 %again, label %next, label %done
done:
  ret void
}

define internal void @close_all() noinline {
entry:
  br label %next
next:
  %fd = phi i32 [ 0, %entry ], [ %more, %next ]
  call i32 @close(i32 %fd)
  %more = add i32 %fd, 1
  %again = icmp ult i32 %more, 256
  br i1 %again, label %next, label %done
done:
  ret void
}

define internal void @print_much(i64 %turns) noinline {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %next ]
  call i64 @write(i32 1, ptr @zeros, i64 65536)
  %more = add i64 %i, 1
  %again = icmp ult i64 %more, %turns
  br i1 %again, label %next, label %done
done:
  ret void
}

define internal void @take_memory() noinline {
entry:
  br label %next
next:
  %block = call ptr @malloc(i64 268435456)
  call ptr @memset(ptr %block, i32 1, i64 268435456)
  br label %next
}

define internal void @spawn(i32 %n, i1 %leaves, i1 %is_stubborn) noinline {
entry:
  br label %next
next:
  %i = phi i32 [ 0, %entry ], [ %more, %parent ]
  %pid = call i32 @fork()
  %is_child = icmp eq i32 %pid, 0
  br i1 %is_child, label %child, label %parent
child:
  br i1 %leaves, label %leave, label %mask
leave:
  call i32 @setsid()
  br label %mask
mask:
  br i1 %is_stubborn, label %block, label %stay
block:
  %set = alloca [128 x i8], align 8
  call i32 @sigfillset(ptr %set)
  call i32 @sigprocmask(i32 0, ptr %set, ptr null)
  br label %stay
stay:
  call void @forever()
  br label %parent
parent:
  %more = add i32 %i, 1
  %again = icmp ult i32 %more, %n
  br i1 %again, label %next, label %done
done:
  ret void
}
"""

_SIGNAL_OWN = "  %pid = call i32 @getpid()\n  call i32 @kill(i32 %pid, i32 {0})"
_SIGNAL_PARENT = "  %pid = call i32 @getppid()\n  call i32 @kill(i32 %pid, i32 {0})"
_HANG = "\n  call void @forever()"

HOSTILE = {
    "writes to address 0": "  store volatile float 1.0, ptr null",
    "jumps into its data": "  call void @zeros()",
    "illegal instruction": "  call void @llvm.trap()",
    "divides by zero": "  %z = load volatile i64, ptr @zero\n  %q = sdiv i64 1, %z\n"
    "  store volatile i64 %q, ptr @zero",
    "endless loop": ENDLESS,
    "sleeps for ever": _HANG,
    "endless recursion": "  call i64 @recurse(i64 0)",
    "alloca of 10 GB": "  %big = alloca i8, i64 10737418240\n  store volatile i8 1, ptr %big",
    "aborts": "  call void @abort()",
    "exit(0)": "  call void @exit(i32 0)",
    "exit(3)": "  call void @exit(i32 3)",
    "_exit(0)": "  call void @_exit(i32 0)",
    "ends its main thread": "  call void @pthread_exit(ptr null)",
    "killed": _SIGNAL_OWN.format(9),
    "terminated": _SIGNAL_OWN.format(15),
    "stops itself": _SIGNAL_OWN.format(19),
    "stops its group": "  call i32 @kill(i32 0, i32 19)",
    "kills its group": "  call i32 @kill(i32 0, i32 9)",
    "kills its parent": _SIGNAL_PARENT.format(9) + _HANG,
    "stops its parent": _SIGNAL_PARENT.format(19) + _HANG,
    "alarm while timing": "  call i32 @alarm(i32 1)" + _HANG,
    "blocks all signals": "  %set = alloca [128 x i8], align 8\n"
    "  call i32 @sigfillset(ptr %set)\n  call i32 @sigprocmask(i32 0, ptr %set, ptr null)" + _HANG,
    "takes all memory": "  call void @take_memory()",
    "prints without end": "  call void @print_much(i64 -1)",
    "prints 1 GB and dies": "  call void @print_much(i64 16384)\n  call void @abort()",
    "closes all files": "  call void @close_all()",
    "closes all files and hangs": "  call void @close_all()" + _HANG,
    "garbage to all files": "  call void @to_all(ptr @garbage, i64 24)",
    "half a reply": "  call void @to_all(ptr @half, i64 16)" + _HANG,
    "a reply of a terabyte": "  call void @to_all(ptr @giant, i64 24)" + _HANG,
    "becomes another program": "  call i32 (ptr, ptr, ...) @execl(ptr @sleep_path, ptr @sleep_path,"
    " ptr @thousand, ptr null)",
    "leaves a child and dies": "  call void @spawn(i32 1, i1 0, i1 0)\n  call void @abort()",
    "leaves 20 children and hangs": "  call void @spawn(i32 20, i1 0, i1 1)" + _HANG,
    "leaves a session and dies": "  call void @spawn(i32 1, i1 1, i1 1)\n  call void @abort()",
    "leaves a session and hangs": "  call void @spawn(i32 3, i1 1, i1 1)" + _HANG,
}

_DEAD = frozenset({MeasureStatus.RUN_CRASH})
_LATE = frozenset({MeasureStatus.RUN_TIMEOUT})
_HANGS = {
    "endless loop",
    "sleeps for ever",
    "stops itself",
    "stops its group",
    "stops its parent",
    "blocks all signals",
    "prints without end",
    "half a reply",
    "becomes another program",
    "leaves 20 children and hangs",
    "leaves a session and hangs",
}
_EITHER = {
    "alarm while timing",
    "takes all memory",
    "prints 1 GB and dies",
    "closes all files and hangs",
}
EXPECTED = {
    name: _DEAD | _LATE if name in _EITHER else _LATE if name in _HANGS else _DEAD
    for name in HOSTILE
}


def hostile_ir(name: str) -> str:
    """LLVM IR of a kernel that does `name` and then, should it live, its work."""
    first = HOSTILE[name]
    body = first if first == ENDLESS else first + ELEMENT.format(**PLAIN)
    return _DECLARATIONS + KERNEL.format(body=body)


def build(dag: ComputeDAG, steps: Steps, target: Target) -> BuiltProgram:
    (step,) = steps
    assert isinstance(step, ComputeInline)
    if step.stage not in HOSTILE:
        return fakes.build(dag, steps, target)
    good = fakes.build(dag, fakes.does("good"), target)
    return replace(good, code=assemble(hostile_ir(step.stage), target))
