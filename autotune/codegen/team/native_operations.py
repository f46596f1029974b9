"""⑤ The operations of `native`, as LLVM assembly: those of any system, and those of Linux."""

from __future__ import annotations


def _memory(name: str, order: str) -> str:
    return f"""
define internal i64 @native.{name}(i64 %at) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  %v = load atomic i64, ptr %p {order}, align 8
  ret i64 %v
}}"""


def _written(name: str, order: str) -> str:
    return f"""
define internal i64 @native.{name}(i64 %at, i64 %v) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  store atomic i64 %v, ptr %p {order}, align 8
  ret i64 0
}}"""


def _part(name: str, bits: int) -> str:
    return f"""
define internal i64 @native.load_{name}(i64 %at) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  %v = load i{bits}, ptr %p
  %r = zext i{bits} %v to i64
  ret i64 %r
}}
define internal i64 @native.store_{name}(i64 %at, i64 %v) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  %r = trunc i64 %v to i{bits}
  store i{bits} %r, ptr %p
  ret i64 0
}}"""


_SIGNALS = ~sum(1 << (n - 1) for n in (4, 7, 8, 11))  # not those that an instruction raises
_MONOTONIC = 1
RUNTIME = (
    _memory("load", "monotonic")
    + _memory("load_acquire", "acquire")
    + _memory("load_sequential", "seq_cst")
    + _written("store", "monotonic")
    + _written("store_release", "release")
    + _part("half", 16)
    + _part("single", 32)
    + """
$DECLARED
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i64 @native.add(i64 %at, i64 %amount) alwaysinline {
  %p = inttoptr i64 %at to ptr
  %v = atomicrmw add ptr %p, i64 %amount seq_cst
  ret i64 %v
}
define internal i64 @native.compare_exchange(i64 %at, i64 %old, i64 %new) alwaysinline {
  %p = inttoptr i64 %at to ptr
  %both = cmpxchg ptr %p, i64 %old, i64 %new seq_cst seq_cst
  %v = extractvalue { i64, i1 } %both, 0
  ret i64 %v
}
define internal i64 @native.pause() alwaysinline {
  $PAUSE
  ret i64 0
}
define internal i64 @native.invoke(i64 %f, i64 %table, i64 %begin, i64 %end) alwaysinline {
  %code = inttoptr i64 %f to ptr
  %p = inttoptr i64 %table to ptr
  call void %code(ptr %p, i64 %begin, i64 %end)
  ret i64 0
}
define internal i64 @native.call(i64 %f, i64 %first, i64 %second) alwaysinline {
  %code = inttoptr i64 %f to ptr
  %r = call i64 %code(i64 %first, i64 %second)
  ret i64 %r
}
define internal i64 @native.copy(i64 %to, i64 %source, i64 %n_bytes) alwaysinline {
  %p = inttoptr i64 %to to ptr
  %q = inttoptr i64 %source to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %n_bytes, i1 false)
  ret i64 0
}
define internal i64 @native.flush_denormals() alwaysinline {
  %v = call i32 @flush_denormals()
  %result = zext i32 %v to i64
  ret i64 %result
}
define internal i64 @native.restore_denormals(i64 %former) alwaysinline {
  %v = trunc i64 %former to i32
  call void @restore_denormals(i32 %v)
  ret i64 0
}"""
)
LINUX = f"""
declare i32 @sched_yield()
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i64 @native.give_way() {{
  %r = call i32 @sched_yield()
  ret i64 0
}}
; The second argument of `futex`: 128 (of this process) + 0 (wait) or 1 (wake).
define internal i64 @native.sleep_while(i64 %at, i64 %value) noinline {{
  %v = and i64 %value, 4294967295
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, i64 %at, i64 128, i64 %v, i64 0, i64 0, i64 0)
  ret i64 0
}}
define internal i64 @native.wake(i64 %at, i64 %count) noinline {{
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, i64 %at, i64 129, i64 %count, i64 0, i64 0, i64 0)
  ret i64 0
}}
define internal i64 @native.start_thread(i64 %f, i64 %argument) noinline {{
  %id = alloca i64
  %all = alloca [16 x i64]
  %former = alloca [16 x i64]
  store [16 x i64] [{", ".join(["i64 " + str(_SIGNALS)] + ["i64 0"] * 15)}], ptr %all
  %r0 = call i32 @pthread_sigmask(i32 0, ptr %all, ptr %former)
  %code = inttoptr i64 %f to ptr
  %p = inttoptr i64 %argument to ptr
  %failed = call i32 @pthread_create(ptr %id, ptr null, ptr %code, ptr %p)
  %r1 = call i32 @pthread_sigmask(i32 2, ptr %former, ptr null)
  %is_made = icmp eq i32 %failed, 0
  br i1 %is_made, label %made, label %done
made:
  %thread = load i64, ptr %id
  %r2 = call i32 @pthread_detach(i64 %thread)
  br label %done
done:
  %result = sext i32 %failed to i64
  ret i64 %result
}}
define internal i64 @native.bind_thread(i64 %mask, i64 %n_bytes) noinline {{
  %p = inttoptr i64 %mask to ptr
  %r = call i32 @sched_setaffinity(i32 0, i64 %n_bytes, ptr %p)
  %result = sext i32 %r to i64
  ret i64 %result
}}
define internal i64 @native.nanoseconds() noinline {{
  %time = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %time)
  %s = load i64, ptr %time
  %ns_at = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %ns_at
  %s_ns = mul i64 %s, 1000000000
  %t = add i64 %s_ns, %ns
  ret i64 %t
}}"""
