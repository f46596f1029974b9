"""⑩ Least time of the tasks of a network on this machine: a roofline of measured peaks.

The arithmetic of a task by the multiply-adds that fit it, its weights from memory, its other bytes
from L2: what takes longest is its limit. Memory is read by all threads together here, so it is
what they share; the cost of searching has another bound (`tuner.bound`), which is never too high.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.measure.timing.peak import form_peaks, measure_peaks, memory_rate
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.work import work_at


@dataclass(frozen=True, slots=True)
class Roofline:
    """Operations per second of each multiply-add, bytes per second from memory and from L2, and
    the bytes that L1 may hold before."""

    per_s: Mapping[str, float]
    cold_bytes_per_s: float
    warm_bytes_per_s: float
    cached_bytes: float


def measure_limits(artifact: Artifact, n_threads: int) -> Roofline | None:
    """The limits of this machine; None where a file of a former version does not tell its work."""
    names = {n for works in artifact.works.values() for work in works for n in work.operations}
    if not names:
        return None
    target = artifact.target
    forms = [form for form in target.isa.forms if form.name in names]
    rates = {form.name: rate for form, rate in form_peaks(target, n_threads, forms)}
    peaks = measure_peaks(target, n_threads, evict=False)
    cold = memory_rate(target, n_threads)
    return Roofline(rates, cold, peaks.warm_bytes_per_s, peaks.l1_bytes)


def least_s(artifact: Artifact, limits: Roofline, number: int = 0) -> dict[str, float]:
    """Seconds below which no call of a task comes, by key. `number`: of the model's length."""
    return {
        key: work_at(works, number).seconds(
            limits.per_s,
            limits.cold_bytes_per_s,
            limits.warm_bytes_per_s,
            limits.cached_bytes,
        )
        for key, works in artifact.works.items()
    }
