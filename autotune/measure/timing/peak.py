"""⑦ Measured peaks of this machine: multiply-adds per second, bytes per second.

The FMA peak is the denominator of every `% of peak`. Together with the bandwidths it bounds the
latency of a task from below (`autotune.tuner.bound`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from autotune.codegen.compile import assemble
from autotune.codegen.emission.arithmetic import TYPES
from autotune.codegen.emission.text import BF16, Type, constant, scalable, vector
from autotune.codegen.emission.tiles import product_loop
from autotune.dtypes import DTYPES
from autotune.measure.timing.driver import Driver, TimedKernel
from autotune.measure.timing.executor import Executors
from autotune.measure.timing.pace import Pace
from autotune.target import Target
from autotune.target.isa import Isa, MultiplyAdd

_ROUNDS = 4
_TURNS = 100_000
_REPEATS = 20
_OPERANDS = 4
_SUMS = 4  # of matrices, two by two
_EMULATED_TURNS = 2
_FIRST_TURNS, _FIRST_REPEATS = 100, 3
_RUN_S, _PROBE_S = 5e-3, 1e-4
_OPERAND_BYTE = 0x3F  # 0.75 as a float of any width
_STREAMS = 8  # vectors that one step of a read loads
_WATCHED_S, _LEAST_READINGS, _MOST_READINGS = 0.6, 12, 100
"""An adaptive cache may need dozens of readings until it keeps lines that are reused so rarely."""
_CACHED = 0.75  # of the rate of L3
_MOST_STREAMED_BYTES = 512 << 20
_SHORTEST_S, _LONGEST_S = 1e-4, 0.1
"""Lines that survive an interval of the longer length are taken to stay."""
_TRIES = 5
_READINGS = 8
_PLAUSIBLE = 0.9  # of so many times the peak of one thread


Rates: TypeAlias = tuple[tuple[MultiplyAdd, float], ...]
"""Multiplications and additions per second of forms of multiply-add."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of all threads together: arithmetic, reads from L2, cold reads.

    `flops_per_s`: of float32; `dots`: of the forms of multiply-add that add up several terms. Cold
    is where measuring leaves weights: in L3, or in memory (`MeasureOptions.evict`). `l1_bytes`:
    what may be nearer than L2 when a program starts.
    """

    flops_per_s: float
    warm_bytes_per_s: float
    cold_bytes_per_s: float
    l1_bytes: int
    dots: Rates = ()

    def to_json(self) -> dict[str, Any]:
        """Named fields for logs; forms of multiply-add by their names."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {"dots": {form.name: rate for form, rate in self.dots}}

    @staticmethod
    def from_json(data: Mapping[str, Any], isa: Isa) -> Peaks:
        """Inverse of `to_json`, without forms that `isa` lacks. Raises one of `codec.BAD`."""
        names = ("flops_per_s", "warm_bytes_per_s", "cold_bytes_per_s")
        flops, warm, cold = (float(data[name]) for name in names)
        if not all(math.isfinite(rate) and rate > 0 for rate in (flops, warm, cold)):
            raise ValueError("rates are above 0")
        forms = {form.name: form for form in isa.forms}
        dots = tuple((forms[n], float(rate)) for n, rate in data["dots"].items() if n in forms)
        return Peaks(flops, warm, cold, int(data["l1_bytes"]), dots)


def measure_peaks(
    target: Target,
    n_threads: int,
    evict: bool,
    dots: Collection[MultiplyAdd] = (),
    executors: Executors | None = None,
) -> Peaks:
    """The best of many short runs. `evict`: whether a cold read comes from memory, else from L3.

    `dots`: forms of multiply-add to look at beside that of float32. `executors`: makes what runs
    code on a number of threads, this process by default.

    Threads share a memory bus, so bytes are those of one thread times `n_threads`: never too few,
    also where other processes disturb threads that wait for one another.
    """
    alone = fma_peak(target, 1, executors)
    together = alone if n_threads == 1 else 0.0
    for _ in range(_TRIES):
        if together >= _PLAUSIBLE * n_threads * alone:
            break
        together = max(together, fma_peak(target, n_threads, executors))
    reader = _Reader(target, executors)
    warm = max(reader.rates(target.l2_bytes // 2, "warm"))
    cold = max(reader.rates(2 * target.l2_bytes, "memory" if evict else "l3"))
    l1_bytes = n_threads * target.l1_bytes
    rates = form_peaks(target, n_threads, dots, executors)
    return Peaks(together * 1e9, n_threads * warm, n_threads * cold, l1_bytes, rates)


def memory_rate(target: Target, n_threads: int) -> float:
    """Bytes per second that `n_threads` threads together read of what no cache holds."""
    n_bytes = min(4 * target.l3_bytes, _MOST_STREAMED_BYTES)
    return max(_Reader(target, None, n_threads).rates(n_bytes, "warm", _READINGS))


def fma_peak(target: Target, n_threads: int, executors: Executors | None = None) -> float:
    """Float32 GFLOPS of independent fused multiply-adds on `n_threads` threads, best of 20 runs."""
    ((_, rate),) = form_peaks(target, n_threads, [target.isa.forms[0]], executors)
    return rate * 1e-9


def form_peaks(
    target: Target,
    n_threads: int,
    forms: Iterable[MultiplyAdd],
    executors: Executors | None = None,
) -> Rates:
    """Peak rate of each of `forms` on `n_threads` threads."""
    return tuple((f, _peak(target, f, _driver(target, n_threads, executors))) for f in forms)


def full_pace(driver: Driver, target: Target, alone: Driver | None, most_s: float) -> Pace:
    """The pace of the threads of a driver, from the start on.

    `alone`: a driver of one thread of the same process; None where `driver` is that.
    """
    peak = MultiplyAddPeak(target, driver, fed=True)
    first = max(peak.flops_per_s(_FIRST_TURNS) for _ in range(_FIRST_REPEATS))
    turns = peak.turns_in(_PROBE_S, first)
    pace = Pace(peak.runs(turns), most_s)
    one = MultiplyAddPeak(target, alone, fed=True).runs(turns) if alone else pace.probe
    pace.start(driver.n_threads * max(one() for _ in range(_FIRST_REPEATS)) if alone else one())
    return pace


def _driver(target: Target, n_threads: int, executors: Executors | None) -> Driver:
    return Driver(target, n_threads, executors(n_threads) if executors else None)


def fma_peaks(target: Target, n_threads: int, n: int) -> list[float]:
    """`n` peaks as of `fma_peak`, one after the other, of one loop."""
    driver = _driver(target, n_threads, None)
    return [rate * 1e-9 for rate in _peaks(target, target.isa.forms[0], driver, n)]


def _peak(target: Target, form: MultiplyAdd, driver: Driver) -> float:
    (rate,) = _peaks(target, form, driver, 1)
    return rate


def _peaks(target: Target, form: MultiplyAdd, driver: Driver, n: int) -> list[float]:
    peak = MultiplyAddPeak(target, driver, form)
    is_emulated = form.unit is not None and form.unit.emulation
    first = _EMULATED_TURNS if is_emulated else _FIRST_TURNS
    rate = max(peak.flops_per_s(first) for _ in range(_FIRST_REPEATS))
    turns = peak.turns_in(_RUN_S, rate)  # behind an emulator a turn takes a thousand times as long
    return [max(peak.flops_per_s(turns) for _ in range(_REPEATS)) for _ in range(n)]


class MultiplyAddPeak:
    """Independent multiply-adds of one form on the threads of a driver, and nothing else.

    `form`: that of float32 where none is given. Every thread keeps as many accumulators as
    registers allow, which is more than the latency of a multiply-add times the number of units of
    any core. `fed`: every second one loads an operand from L1, as a product of matrices must
    (6 x 4 accumulators: 10 loads for 24); where power limits a core, that slows it down.
    """

    def __init__(
        self, target: Target, driver: Driver, form: MultiplyAdd | None = None, fed: bool = False
    ) -> None:
        form = form or target.isa.forms[0]
        n_bytes, n_accumulators = target.vector_bits // 8, target.n_registers - _OPERANDS
        if form.unit is not None:
            n_bytes, n_accumulators = form.unit.bits // 8, _SUMS
        self._driver = driver
        self._flops_per_turn = _ROUNDS * n_accumulators * form.flops(target.vector_bits)
        text = multiply_add_loop(target, form, n_accumulators, fed)
        executor = driver.executor
        self._code = executor.load([assemble(text, target)])
        self._operand, self._sink = executor.block(n_bytes), executor.block(n_bytes)
        self._operand.array.fill(_OPERAND_BYTE)
        self._operand.push()
        self._nothing = executor.block(0)

    def turns_in(self, seconds: float, flops_per_s: float) -> int:
        """Turns that take so long at a rate; at least one, and no more than a peak needs."""
        return max(1, min(_TURNS, round(seconds * flops_per_s / self._flops_per_turn)))

    def flops_per_s(self, turns: int) -> float:
        """Rate of one run; a thousand turns take about 15 µs."""
        return self.runs(turns)()

    def runs(self, turns: int) -> Callable[[], float]:
        """What runs so many turns on each thread and gives their rate together, as often as it is
        called."""
        extent = self._driver.n_threads * turns
        buffers = (self._operand.address, self._sink.address)
        launch = TimedKernel(self._code.address("peak"), buffers, extent)
        plan = self._driver.plan([launch], [], self._nothing)
        return lambda: extent * self._flops_per_turn / self._driver.evaluate(plan)


def stay_cached(
    target: Target,
    n_threads: int,
    n_bytes: int,
    flops: int,
    executors: Executors | None = None,
) -> bool:
    """Whether `n_bytes` that every inference reads come from a cache that all cores share.

    A process may own much less of L3 than its size, and co-tenants evict lines that are not
    referenced again within milliseconds. So it is measured: a core reads the bytes again and again,
    computes in between for as long as `flops` take at the peak, and the last readings count. A
    stream from memory is slower by at least a third.
    """
    if n_bytes <= 2 * target.l2_bytes:
        return True
    every_s = max(_SHORTEST_S, flops / (1e9 * fma_peak(target, 1, executors) * n_threads))
    reader = _Reader(target, executors)
    near = statistics.median(reader.rates(2 * target.l2_bytes, "l3"))
    streamed = min(n_bytes, _MOST_STREAMED_BYTES)
    n = min(_MOST_READINGS, max(_LEAST_READINGS, round(_WATCHED_S / every_s)))
    again = reader.rates(streamed, "again", n, min(every_s, _LONGEST_S))
    return statistics.median(again[-n // 4 :]) > _CACHED * near


class _Reader:
    """Threads that read bytes, one by default; how fast depends on where they are before."""

    def __init__(self, target: Target, executors: Executors | None, n_threads: int = 1) -> None:
        self._target, self._driver = target, _driver(target, n_threads, executors)
        self._code = self._driver.executor.load([assemble(_reader(target), target)])

    def rates(
        self, n_bytes: int, where: str, n: int = _REPEATS, every_s: float = 0.0
    ) -> list[float]:
        """Bytes per second of `n` times that `n_bytes` are read, after warming up.

        `where` they are before each reading: `warm` (just read), `l3` (flushed from the core's own
        caches), `memory`, or where the previous reading left them `every_s` ago (`again`). The
        hardware prefetches sequential reads, so software prefetch gains nothing.
        """
        target, driver = self._target, self._driver
        step = _STREAMS * target.vector_bits // 8
        swept = 2 * target.l2_bytes if where in ("l3", "memory") else 0
        sizes = (n_bytes // step * step, swept, target.vector_bits // 8)
        data, sweep, sink = map(driver.executor.block, sizes)
        for block in (data, sweep):
            block.array.fill(0)  # map the pages now
            block.push()
        buffers = (data.address, sink.address)
        launch = TimedKernel(self._code.address("read"), buffers, data.n_bytes // step)
        whole = [(data.address, data.n_bytes)]
        plan = driver.plan(
            [launch], whole if where == "warm" else [], sweep, whole if where == "memory" else []
        )
        peak = MultiplyAddPeak(target, driver) if every_s else None
        driver.evaluate(plan)
        rates = []
        for _ in range(n):
            if peak is not None:
                _keep_busy(peak, every_s)
            rates.append(data.n_bytes / driver.evaluate(plan))
        return rates


def _keep_busy(peak: MultiplyAddPeak, seconds: float) -> None:
    """Keep a core busy without memory traffic."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        peak.flops_per_s(_TURNS // 10)


def _attributes(target: Target) -> str:
    """Of functions that use the whole width of vectors."""
    return f'"prefer-vector-width"="{target.vector_bits}"{target.isa.attributes}'


def _reader(target: Target) -> str:
    """`read(data, sink, begin, end)`: load `_STREAMS` vectors per step."""
    vector = f"<{target.lanes} x i32>"
    size = target.vector_bits // 8
    loads = [
        f"  %at{k} = getelementptr i8, ptr %from, i64 {k * size}\n"
        f"  %v{k} = load {vector}, ptr %at{k}\n"
        f"  %s{k + 1} = xor {vector} %s{k}, %v{k}"
        for k in range(_STREAMS)
    ]
    return f"""
define void @read(ptr %data, ptr %sink, i64 %begin, i64 %end) {_attributes(target)} {{
entry:
  br label %step
step:
  %i = phi i64 [ %begin, %entry ], [ %next, %step ]
  %s0 = phi {vector} [ zeroinitializer, %entry ], [ %s{_STREAMS}, %step ]
  %offset = mul i64 %i, {_STREAMS * size}
  %from = getelementptr i8, ptr %data, i64 %offset
{chr(10).join(loads)}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %step, label %done
done:
  store volatile {vector} %s{_STREAMS}, ptr %sink
  ret void
}}"""


def _instruction(target: Target, form: MultiplyAdd) -> tuple[Type, Type, Type, str]:
    """Types of the sums and of both factors, and the name of LLVM's function for the widest."""
    bits = target.vector_bits
    sums = vector(TYPES[form.accumulator], bits // form.accumulator_bits)
    operands = (BF16 if DTYPES[d].is_narrow else TYPES[d] for d in form.operands)
    x_kind, y_kind = (vector(kind, form.terms * sums.count) for kind in operands)
    name = form.intrinsics.get(bits, f"llvm.{target.isa.multiply_add}.{sums.suffix}")
    if form.takes_scalable(bits):
        sums, x_kind, y_kind = (scalable(k, target.isa.vscale) for k in (sums, x_kind, y_kind))
    return sums, x_kind, y_kind, name


def multiply_add_loop(target: Target, form: MultiplyAdd, n: int, fed: bool) -> str:
    """`peak(operand, sink, begin, end)`: per turn `_ROUNDS` multiply-adds on `n` accumulators each.

    `fed`: an operand of each second one is loaded; volatile, for it is always the same.
    `prefer-vector-width` keeps LLVM from halving vectors on CPUs for which it prefers 256 bits.
    """
    if form.unit is not None:
        return product_loop(form, target.isa, _ROUNDS, fed)
    bits = target.vector_bits
    sums, x_kind, y_kind, name = _instruction(target, form)
    is_intrinsic = bits in form.intrinsics
    kinds = [sums, x_kind, y_kind] if is_intrinsic else [x_kind, y_kind, sums]
    kinds = kinds if form.accumulates else [x_kind, y_kind]
    phis = [
        f"  %a0.{k} = phi {sums} [ {constant(sums, k).name}, %entry ], [ %a{_ROUNDS}.{k}, %turn ]"
        for k in range(n)
    ]
    lines = []
    for r in range(_ROUNDS):
        for k in range(n):
            x = f"%x{r}.{k}" if fed and k % 2 else "%x"
            lines += [f"  {x} = load volatile {x_kind}, ptr %operand"] if x != "%x" else []
            was, now, term = f"{sums} %a{r}.{k}", f"%a{r + 1}.{k}", f"%p{r}.{k}"
            if form.accumulates:
                factors = f"{x_kind} {x}, {y_kind} %y"
                given = f"{was}, {factors}" if is_intrinsic else f"{factors}, {was}"
                lines.append(f"  {now} = call {sums} @{name}({given})")
            else:  # a product that stays the same would be computed once
                lines.append(f"  {term}.x = bitcast {was} to {x_kind}")
                lines.append(f"  {term} = call {sums} @{name}({x_kind} {term}.x, {y_kind} %y)")
                lines.append(f"  {now} = add {was}, {term}")
    last = [f"%a{_ROUNDS}.{k}" for k in range(n)]
    add = "fadd" if sums.is_float else "add"
    total = [f"  %s{k} = {add} {sums} %s{k - 1}, {last[k]}" for k in range(2, n)]
    return f"""
declare {sums} @{name}({", ".join(map(str, kinds))})

define void @peak(ptr %operand, ptr %sink, i64 %begin, i64 %end) {_attributes(target)} {{
entry:
  %x = load volatile {x_kind}, ptr %operand
  %y = load volatile {y_kind}, ptr %operand
  br label %turn
turn:
  %i = phi i64 [ %begin, %entry ], [ %next, %turn ]
{chr(10).join(phis)}
{chr(10).join(lines)}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %turn, label %done
done:
  %s1 = {add} {sums} %a{_ROUNDS}.0, {last[1]}
{chr(10).join(total)}
  store volatile {sums} %s{n - 1}, ptr %sink
  ret void
}}"""
