"""⑩ An inference as a timeline: kernel after kernel, in the form of Chrome's traces.

ui.perfetto.dev and chrome://tracing show such a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.network.bench.profile import NetworkProfile

_US = 1e6


def trace_of(name: str, profiles: Mapping[str, NetworkProfile]) -> dict[str, Any]:
    """The kernels of each profile by its name, a process each, at the medians of their times.

    Kernels follow one another, as profiled inferences run them: times are in microseconds.
    """
    events = [
        event
        for n, (title, profile) in enumerate(profiles.items(), 1)
        for event in _events(n, f"{name} {title}".strip(), profile)
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _events(process: int, title: str, profile: NetworkProfile) -> Iterator[dict[str, Any]]:
    place = {"pid": process, "tid": 1}
    threads = f"{profile.n_threads} threads"
    for what, text in (("process_name", title), ("thread_name", threads)):
        yield {"ph": "M", "name": what, "args": {"name": text}} | place
    ids = {task.key: task.id for task in profile.tasks}
    begin_s = 0.0
    for run in profile.kernels:
        kernel = run.kernel
        about = {"task": ids[kernel.task], "key": kernel.task, "kernel": kernel.symbol}
        times = {"ts": begin_s * _US, "dur": run.time_s * _US}
        yield {"ph": "X", "name": kernel.label, "cat": "task", "args": about} | times | place
        begin_s += run.time_s
