"""⑪ A line of the logger `autotune` about work that a caller waits for, where it takes long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("autotune")
AFTER_S = 1.5
"""Seconds without a word."""


@contextmanager
def told_if_long(name: str, after_s: float | None = None) -> Iterator[None]:
    """Say once, as a warning, that the model `name` is compiled, if the block takes `after_s`
    (`AFTER_S`) or longer.

    Without handlers the standard library writes warnings to stderr; the level of the logger
    silences them.
    """
    timer = threading.Timer(AFTER_S if after_s is None else after_s, _tell, (name,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(name: str) -> None:
    LOGGER.warning(
        "%s is read, compiled and checked for this CPU before its first results: seconds, for a "
        "large model up to a minute",
        name,
    )
