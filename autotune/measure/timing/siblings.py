"""⑦ Whether two hyper-threads of a core multiply and add faster than one: measured, once a machine.

    measured_once(core, folder) ─► bool

Kernels keep the multiply-add units of a core busy from one thread, so that a second one gains
what the first one loses. Virtual machines may show two cores as hyper-threads of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

from autotune.cache import FileStore, key_of
from autotune.codegen.compile import assemble
from autotune.codegen.image.jit import Library
from autotune.codegen.memory import aligned
from autotune.machine import read_text
from autotune.measure.timing.peak import multiply_add_loop
from autotune.target import host_target
from autotune.topology import read_cores

Work: TypeAlias = Callable[[], object]

_WINDOW_S, _ROUNDS = 2.5e-3, 5  # one alone, the other alone, both: 38 ms
_LONGEST_S = 0.05  # on a busy machine there are fewer rounds
_LEAD_S = 2e-4  # for threads to wake up together
_TURNS = 6_000  # about 0.1 ms, in which neither thread needs the interpreter
_SUMS = 12  # fewer than registers, more than latency times units
_RUNNING = 0.9
"""Of the window, in CPU time: else something else ran on that CPU."""
_REPEATED = 0.9
"""Of the best rate: measurements above it were not disturbed."""
_GAIN = 1.25
"""Of two threads over one, from which the second is worth the division of the work."""
_PLAUSIBLE = (0.7, 2.3)
_STORE_BYTES = 1 << 16


def measured_once(core: frozenset[int], folder: Path, root: Path = Path("/")) -> bool:
    """Whether two CPUs of `core` are faster than one; false where that cannot be told.

    The answer is kept in `folder`, for this model of CPU with these cores, unless the machine was
    too busy for one: then it is for this process.
    """
    names = (line for line in read_text(root / "proc/cpuinfo").splitlines() if "model name" in line)
    cores = ";".join(",".join(map(str, sorted(core))) for core in read_cores(root).cores)
    store = FileStore(folder / "machine", _STORE_BYTES)
    key = key_of("siblings", next(names, ""), cores)
    kept = store.get(key)
    if kept is not None:
        return kept == b"1"
    found = _measured(tuple(sorted(core)))
    if found is not None:
        store.put(key, b"1" if found else b"0")
    return bool(found)


@lru_cache
def _measured(core: tuple[int, ...]) -> bool | None:
    with suppress(OSError, RuntimeError):  # a CPU that went, threads that cannot be started
        return are_faster(*rates(core[:2], _multiply_adds()))
    return None


def are_faster(alone: Sequence[float], together: Sequence[float]) -> bool | None:
    """Whether two threads do more than one; None where the machine was too busy to tell.

    What disturbs makes a rate lower, never higher, so the best of each counts, where half of them
    are nearly as good. 0 is the rate of an interrupted thread.
    """
    for rates in (alone, together):
        if 2 * sum(rate > _REPEATED * max(rates) for rate in rates) < max(1, len(rates)):
            return None
    gain = max(together) / max(alone)
    return gain > _GAIN if _PLAUSIBLE[0] < gain < _PLAUSIBLE[1] else None


def rates(cpus: Sequence[int], work: Work) -> tuple[list[float], list[float]]:
    """Rates of `work` per second: of one thread on one of `cpus`, of one on each."""
    alone: list[float] = []
    together: list[float] = []
    end_s = time.perf_counter() + _LONGEST_S
    with ThreadPoolExecutor(len(cpus)) as pool:
        for _ in range(_ROUNDS):
            if time.perf_counter() > end_s:
                break
            for several in (*((cpu,) for cpu in cpus), tuple(cpus)):
                begin_s = time.perf_counter() + _LEAD_S
                found = list(pool.map(partial(_rate, work, begin_s), several))
                side = alone if len(several) == 1 else together
                side.append(sum(found) if all(found) else 0.0)
    return alone, together


def _rate(work: Work, begin_s: float, cpu: int) -> float:
    os.sched_setaffinity(0, {cpu})  # of this thread
    time.sleep(max(0.0, begin_s - time.perf_counter()))
    start_s, start_cpu_s, n = time.perf_counter(), time.thread_time(), 0
    while (now_s := time.perf_counter()) < begin_s + _WINDOW_S:
        work()
        n += 1
    running_s = time.thread_time() - start_cpu_s
    return n / (now_s - start_s) if running_s > _RUNNING * _WINDOW_S else 0.0


def _multiply_adds() -> Work:
    """As in a product of matrices: every second one loads an operand."""
    target = host_target()
    text = multiply_add_loop(target, target.isa.forms[0], _SUMS, fed=True)
    library = Library([assemble(text, target)])
    operand, sink = (aligned((target.vector_bits // 8,), "uint8") for _ in range(2))
    operand.fill(0)
    run = library.function("peak", 2)
    return lambda: run(operand.ctypes.data, sink.ctypes.data, 0, _TURNS)
