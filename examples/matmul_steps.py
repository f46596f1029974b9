"""A matrix product from naive to fast, one schedule primitive after the other:

python matmul_steps.py 1024 speeds.svg

prints the speed of each step on one thread and on all, and draws them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from workloads import matmul_add

import autotune
from autotune import Schedule


def naive(s: Schedule) -> None:
    """Loops as in the definition: each result alone, columns of b from all over memory."""


def interchanged(s: Schedule) -> None:
    """A row of results at a time, so that b is read along its rows."""
    s["product"].reorder("r", "j")


def vectorized(s: Schedule) -> None:
    """16 results in one vector."""
    s["product"].split("j", 16)
    s["product"].reorder("r", "j.0", "j.1").vectorize("j.1")


def registers(s: Schedule) -> None:
    """Tiles of 8 × 32 results, whose accumulators stay in registers over the whole sum."""
    s["out"].tile("i", "j", 8, 32)
    s["out"].split("j.1", 16)
    s["out"].unroll("i.1", "j.1.0").vectorize("j.1.1")
    s["product"].compute_at("out", "j.0")
    s["product"].split("j", 16)
    s["product"].reorder("r", "i", "j.0", "j.1").unroll("i", "j.0").vectorize("j.1")


def panels(s: Schedule) -> None:
    """All tiles of 32 columns before the next, so that these columns of b stay in L2."""
    registers(s)
    s["out"].reorder("j.0", "i.0")
    s["product"].compute_at("out", "i.0")


def copied(s: Schedule) -> None:
    """The 32 columns copied into rows that lie side by side: one page, not one per row."""
    panels(s)
    copy = s.cache_read("b", "product")
    copy.compute_at("out", "j.0").split("d1", 16)
    copy.vectorize("d1.1")


def threads(s: Schedule) -> None:
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
    threads,
)
