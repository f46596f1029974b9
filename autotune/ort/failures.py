"""⑪ Compilations that failed: told in one line, and not tried again by every session.

    remembered(job, do) ─► do(), or the failure that this job had before
    former_failure(job) ─► that of another process within a day, where there is a cache

A job is known by what its artifact would be: the contents of the model, shapes, settings, CPU and
version. A failure is kept whatever its reason. A full disk may be mended: after a day another
process tries once more.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from autotune.cache import FileStore, cache_folder, key_of
from autotune.errors import AutotuneError
from autotune.ort.request import BackgroundJob, Failure, Found

LOGGER = logging.getLogger("autotune")
_KEPT_S = 24 * 3600.0
_STORE_BYTES = 1 << 20
_OF_THIS_PROCESS: dict[str, Failure] = {}


def remembered(job: BackgroundJob, do: Callable[[], Found]) -> Found:
    """The answer to a job, which is not tried where it failed before in this process."""
    key = _key(job) if _OF_THIS_PROCESS else None  # nothing is hashed before something fails
    if key in _OF_THIS_PROCESS:
        return _OF_THIS_PROCESS[key]
    found = do()
    if isinstance(found, Failure):
        if not found.is_of_sizes:  # single sizes are compiled
            LOGGER.warning("%s is not compiled: %s", job.request.name, found.line)
            LOGGER.debug("%s", found.details)
        _keep(job, found)
    return found


def former_failure(job: BackgroundJob, now_s: float | None = None) -> Failure | None:
    """How this job ended in a process before, if it failed within a day."""
    store = _store(job)
    if store is None or not store.folder.exists():
        return None
    key = _key(job)
    with suppress(ValueError, KeyError, TypeError):
        fields = json.loads((store.get(key) if key else None) or b"")
        age_s = (time.time() if now_s is None else now_s) - float(fields["time_s"])
        if 0.0 <= age_s < _KEPT_S:
            text = f"{fields['text']} (it failed so before, and is tried again after a day)"
            is_of_sizes = bool(fields["is_of_sizes"])
            return Failure(text, str(fields["hint"]), is_of_sizes, is_former=True)
    return None


def _keep(job: BackgroundJob, failure: Failure) -> None:
    key = _key(job) if failure.is_kept else None
    if key is None:
        return
    _OF_THIS_PROCESS[key] = failure
    store = _store(job)
    if store and not failure.is_former:
        fields = {
            "text": failure.text,
            "hint": failure.hint,
            "is_of_sizes": failure.is_of_sizes,
            "time_s": time.time(),
        }
        store.put(key, json.dumps(fields).encode())


def _store(job: BackgroundJob) -> FileStore | None:
    if job.store_bytes is None:
        return None
    return FileStore(cache_folder() / "failures", _STORE_BYTES)


def _key(job: BackgroundJob) -> str | None:
    """None of a model that cannot be read."""
    from autotune.ort.cached import key_of_request  # which imports the compiler

    with suppress(AutotuneError, OSError):
        return key_of(job.kind, key_of_request(job.request))
    return None
