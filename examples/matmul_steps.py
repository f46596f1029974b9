"""A matrix product from naive to fast, one schedule primitive after the other, then by the search:

python matmul_steps.py 1024 64 2 5 speeds.svg

prints the speed of each step for 1024 × 1024 matrices, of the best of 64 trials, on 2 threads, in
turns for 5 seconds each, and draws them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from workloads import matmul_add

from autotune import Schedule, Task


def naive(s: Schedule) -> None:
    """Loops as in the definition: each result alone, columns of b from all over memory."""


def interchanged(s: Schedule) -> None:
    """A row of results at a time, so that b is read along its rows."""
    s["product"].reorder("r", "j")


def vectorized(s: Schedule) -> None:
    """16 results in one vector."""
    s["product"].split("j", 16)
    s["product"].reorder("r", "j.0", "j.1").vectorize("j.1")


def registers(s: Schedule, loop: str = "j.0") -> None:
    """Tiles of 8 × 32 results, whose accumulators stay in registers over the whole sum."""
    s["out"].tile("i", "j", 8, 32)
    s["out"].split("j.1", 16)
    s["out"].unroll("i.1", "j.1.0").vectorize("j.1.1")
    if loop == "i.0":
        s["out"].reorder("j.0", "i.0")
    s["product"].compute_at("out", loop)
    s["product"].split("j", 16)
    s["product"].reorder("r", "i", "j.0", "j.1").unroll("i", "j.0").vectorize("j.1")


def panels(s: Schedule) -> None:
    """All tiles of 32 columns before the next, so that these columns of b stay in L2."""
    registers(s, "i.0")


def copied(s: Schedule) -> None:
    """These columns copied to rows that lie side by side: few pages, and neighbouring lines."""
    panels(s)
    copy = s.cache_read("b", "product").compute_at("out", "j.0")
    copy.split("d1", 16)
    copy.vectorize("d1.1")


def parallel(s: Schedule) -> None:
    """The panels divided among the threads."""
    copied(s)
    s["out"].parallel("j.0")


STEPS: tuple[Callable[[Schedule], None], ...] = (
    naive,
    interchanged,
    vectorized,
    registers,
    panels,
    copied,
    parallel,
)


def measure(n: int, n_trials: int, n_threads: int, time_s: int) -> dict[str, tuple[float, float]]:
    """GFLOPS of every step: of the median run, and of the fastest."""
    task = Task(matmul_add, (n, n, n), threads=n_threads)
    schedules = {step.__name__: task.schedule() for step in STEPS}
    for step in STEPS:
        step(schedules[step.__name__])
    schedules["tuned"] = task.schedule(task.tune(n_trials).steps)
    functions = [task.build(schedule) for schedule in schedules.values()]
    timings = task.compare(functions, time_s, runs=5)
    speeds = {}
    for name, timing in zip(schedules, timings, strict=True):
        speeds[name] = timing.gflops, timing.flops / min(timing.timing.times_s) * 1e-9
        print(f"{name:12}  {speeds[name][0]:7.2f} GFLOPS, fastest run {speeds[name][1]:7.2f}")
    return speeds


def draw(speeds: dict[str, tuple[float, float]]) -> str:
    """Bars as SVG: dark up to the median, pale up to the fastest run."""
    longest = max(fastest for _, fastest in speeds.values())
    lines = []
    for row, (name, (median, fastest)) in enumerate(speeds.items()):
        y = 26 * row
        lines += [
            f'<text x="90" y="{y + 17}" text-anchor="end">{name}</text>',
            f'<rect x="98" y="{y + 3}" width="{400 * fastest / longest:.1f}" {_BAR}="#a8c8e8"/>',
            f'<rect x="98" y="{y + 3}" width="{400 * median / longest:.1f}" {_BAR}="#2866a4"/>',
            f'<text x="{104 + 400 * fastest / longest:.1f}" y="{y + 17}">{median:.1f}</text>',
        ]
    size = f'width="560" height="{26 * len(speeds)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT}>'
    return "\n".join([head, _WHITE, *lines, "</svg>", ""])


_BAR = 'height="20" fill'
_FONT = 'font-family="sans-serif" font-size="13"'
_WHITE = '<rect width="100%" height="100%" fill="white"/>'

if __name__ == "__main__":
    *numbers, place = sys.argv[1:]
    Path(place).write_text(draw(measure(*map(int, numbers))))
