"""⑦ The FMA peak of this machine, measured: the denominator of every `% of peak`."""

from __future__ import annotations

from autotune.codegen.jit import Library
from autotune.codegen.pack import aligned
from autotune.measure.driver import Driver, Launch, assemble
from autotune.target import Target

_ROUNDS = 4
_TURNS = 100_000
_REPEATS = 20
_OPERANDS = 4


def fma_peak(target: Target, n_threads: int) -> float:
    """Float32 GFLOPS of independent fused multiply-adds on `n_threads` threads, best of 20 runs.

    Every thread keeps as many accumulators as registers allow, which is more than the latency of an
    FMA times the number of FMA units of any x86-64 core. A run takes a few milliseconds.
    """
    n_accumulators = target.n_registers - _OPERANDS
    library = Library([assemble(_kernel(target, n_accumulators), target)])
    driver = Driver(target, n_threads)
    sink = aligned((target.lanes,), "float32")
    extent = n_threads * _TURNS
    launch = Launch(library.address("peak"), (sink.ctypes.data,), extent)
    plan = driver.plan([launch], [], aligned((0,), "uint8"))
    best_s = min(driver.evaluate(plan) for _ in range(_REPEATS))
    return extent * _ROUNDS * n_accumulators * target.lanes * 2 / best_s * 1e-9


def _kernel(target: Target, n: int) -> str:
    """`peak(sink, begin, end)`: `_ROUNDS` FMAs on each of `n` accumulators per turn.

    `prefer-vector-width` keeps LLVM from halving vectors on CPUs for which it prefers 256 bits.
    """
    vector = f"<{target.lanes} x float>"
    fma = f"llvm.fma.v{target.lanes}f32"
    bits = target.vector_bits
    phis = [
        f"  %a0.{k} = phi {vector} [ splat (float {k}.0), %entry ], [ %a{_ROUNDS}.{k}, %turn ]"
        for k in range(n)
    ]
    fmas = [
        f"  %a{r + 1}.{k} = call {vector} @{fma}({vector} %a{r}.{k}, {vector} %x, {vector} %y)"
        for r in range(_ROUNDS)
        for k in range(n)
    ]
    last = [f"%a{_ROUNDS}.{k}" for k in range(n)]
    sums = [f"  %s{k} = fadd {vector} %s{k - 1}, {last[k]}" for k in range(2, n)]
    return f"""
declare {vector} @{fma}({vector}, {vector}, {vector})

define void @peak(ptr %sink, i64 %begin, i64 %end) "prefer-vector-width"="{bits}" {{
entry:
  %x = freeze {vector} splat (float 0.5)
  %y = freeze {vector} splat (float 1.0)
  br label %turn
turn:
  %i = phi i64 [ %begin, %entry ], [ %next, %turn ]
{chr(10).join(phis)}
{chr(10).join(fmas)}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %turn, label %done
done:
  %s1 = fadd {vector} %a{_ROUNDS}.0, {last[1]}
{chr(10).join(sums)}
  store volatile {vector} %s{n - 1}, ptr %sink
  ret void
}}"""
