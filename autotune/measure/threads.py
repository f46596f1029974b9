"""⑦ The default number of threads, with a measurement of hyper-threads where it decides.

    default_threads()           # tune, compile, Task, InferenceSession
    default_threads(most=8)     # load: as the network was compiled for, or fewer

The rule is in `autotune.threads`.
"""

from __future__ import annotations

from autotune.threads import Threads, usable_threads


def default_threads(most: int | None = None) -> int:
    """The default number of threads, `most` at most."""
    return explained_threads(most).n


def explained_threads(most: int | None = None) -> Threads:
    """`default_threads` with its reason. Raises UsageError for a bad AUTOTUNE_THREADS."""
    return usable_threads(most, _siblings_help)


def _siblings_help(core: frozenset[int]) -> bool:
    from autotune.cache import cache_folder  # both are slow to import, and seldom needed
    from autotune.measure.timing.siblings import measured_once

    return measured_once(core, cache_folder())
