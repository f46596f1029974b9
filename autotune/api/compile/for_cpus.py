"""⑪ A plan for several CPUs of one file: one each, over one model.

for_cpus(plan, [znver4, x86-64-v3])  ─►  the plan for znver4, whose `others` is that for x86-64-v3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.api.compile.selection import CompilePlan
from autotune.config import AUTO
from autotune.errors import UsageError
from autotune.network.artifact.cpus import in_order
from autotune.records import Log
from autotune.target import Target, common_target


def for_cpus(plan: CompilePlan, targets: Sequence[Target]) -> CompilePlan:
    """`plan` for each of `targets`, the more demanding first.

    A CPU of which the log knows nothing takes what it knows of the nearest one. Raises UsageError
    for what only one CPU can be asked for.
    """
    common_target(targets)
    if plan.precision == AUTO:
        raise UsageError("a mixture of precisions is chosen for one CPU", "name one `target`")
    if plan.request.runner:
        raise UsageError("a runner leads to one CPU", "name one `target`")
    first, *others = (_for_cpu(plan, target) for target in in_order(targets))
    return replace(first, others=tuple(others))


def _for_cpu(plan: CompilePlan, target: Target) -> CompilePlan:
    log, asked = plan.log, plan.request.threads
    if log is None:
        return replace(plan, target=target, drafts={}, carried=set())
    known = nearest(target, list(log.targets.values()))
    n_threads = asked or log.header_of(known.key).n_threads
    log = measured_on(log, known, target)
    return replace(plan, target=target, n_threads=n_threads, log=log, drafts={}, carried=set())


def nearest(target: Target, known: Sequence[Target]) -> Target:
    """The CPU whose programs suit `target` best: itself, or one with as wide vectors."""
    return max(
        known,
        key=lambda one: (
            one.key == target.key,
            one.arch == target.arch and one.vector_bits == target.vector_bits,
            one.cpu == target.cpu,
            one.l2_bytes == target.l2_bytes,
        ),
    )


def measured_on(log: Log, known: Target, target: Target) -> Log | None:
    """`log` as if what was measured on `known` had been on `target`; None where vectors differ."""
    if known.key == target.key:
        return log
    if (known.arch, known.vector_bits) != (target.arch, target.vector_bits):
        return None
    records = (r for r in log.records if r.target_key == known.key)
    return replace(log, records=tuple(replace(r, target_key=target.key) for r in records))
