"""⑤ The barrier at which all threads of the measuring driver meet, as LLVM assembly.

Networks have none: see `team_code`.
"""

from __future__ import annotations

from autotune.target.isa import Isa


def barrier_ir(spins: int, isa: Isa) -> str:
    """`void barrier(ptr words, i64 n)`: wait for all `n` threads; n = 1 returns at once.

    `words`: 256 bytes, zero at first. A waiting thread spins `spins` times, then yields its core at
    every further try, so with more threads than cores all still make progress.
    """
    if not isa.has_threads:
        return "define internal void @barrier(ptr %words, i64 %n) {\n  ret void\n}\n"
    return f"""
declare i32 @sched_yield()
{isa.pause_declaration}

; Word 0: how many have arrived. Word 16, on another line: the phase, which only grows.
define internal void @barrier(ptr %arrived, i64 %n) noinline {{
  %alone = icmp eq i64 %n, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %phase_at = getelementptr i64, ptr %arrived, i64 16
  %phase = load atomic i64, ptr %phase_at monotonic, align 8
  %before = atomicrmw add ptr %arrived, i64 1 acq_rel
  %count = add i64 %before, 1
  %is_last = icmp eq i64 %count, %n
  br i1 %is_last, label %release, label %wait
release:
  store atomic i64 0, ptr %arrived monotonic, align 8
  %next = add i64 %phase, 1
  store atomic i64 %next, ptr %phase_at release, align 8
  ret void
wait:
  %spins = phi i64 [ 0, %arrive ], [ %more, %pause ], [ %spins, %yield ]
  %seen = load atomic i64, ptr %phase_at acquire, align 8
  %is_old = icmp eq i64 %seen, %phase
  br i1 %is_old, label %again, label %done
again:
  %patient = icmp ult i64 %spins, {spins}
  br i1 %patient, label %pause, label %yield
pause:
  {isa.pause_call}
  %more = add i64 %spins, 1
  br label %wait
yield:
  call i32 @sched_yield()
  br label %wait
done:
  ret void
}}
"""
