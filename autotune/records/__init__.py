"""⑧ records: the log: its entries, its writer and reader, its best records."""

from __future__ import annotations

from autotune.records.distill import best_for, best_records, distill, ranked_records
from autotune.records.journal import Journal, require_new_log, write_log
from autotune.records.reader import read_log
from autotune.records.record import (
    End,
    Entry,
    Header,
    HeaderNetwork,
    HeaderVariant,
    InNetwork,
    InTurns,
    Log,
    MeasureRecord,
    Workload,
)

__all__ = [
    "End",
    "Entry",
    "Header",
    "HeaderNetwork",
    "HeaderVariant",
    "InNetwork",
    "InTurns",
    "Journal",
    "Log",
    "MeasureRecord",
    "Workload",
    "best_for",
    "best_records",
    "distill",
    "ranked_records",
    "read_log",
    "require_new_log",
    "write_log",
]
