"""A schedule by hand of `workloads.py:matmul_add`; measure it beside the best of a log:

autotune tune workloads.py:matmul_add --args 512,512,512 --trials 64 --log matmul.jsonl
autotune measure schedule_matmul.py --log matmul.jsonl
"""

from __future__ import annotations

from autotune import Schedule


def schedule(s: Schedule) -> None:
    """Tiles of 8 × 32 elements in registers, rows of tiles divided among the threads."""
    s["out"].tile("i", "j", 8, 32)
    s["out"].split("j.1", 16)
    s["out"].parallel("i.0", "j.0").unroll("i.1", "j.1.0").vectorize("j.1.1")
    s["product"].compute_at("out", "j.0")
    s["product"].split("j", 16)
    s["product"].reorder("r", "i", "j.0", "j.1").unroll("i", "j.0").vectorize("j.1")
