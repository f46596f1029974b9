"""Logs for stores, and a process that writes them: python stores.py STORE WRITER N."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from autotune.records import Header, Log, MeasureRecord, Workload
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Split, steps_text
from autotune.target import Target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Load, mul

TARGET = Target("toy", "+avx2", 256, 16, 32 << 10, 1 << 20, 8 << 20)


def product(n: int) -> ComputeDAG:
    """y[i] = a[i] · a[i], for `n` elements."""
    a, i = placeholder("a", (n,)), Axis("i", n)
    x = Load(a.tensor, (i.var,))
    return ComputeDAG((a, compute("y", (i,), mul(x, x))), ("y",))


def header(run: str, target: Target = TARGET) -> Header:
    return Header(
        run, "2026-01-02T03:04:05+00:00", "/home/me/m.onnx", "abc", {}, target, 2, 0, {}, {}, ()
    )


def measured(run: str, n: int, size: int, ms: float = 1.0) -> MeasureRecord:
    """Schedule `n` of a task, measured in `run`."""
    steps = steps_text((Split("y", "i", (n + 2, 2), "split"),))
    result = MeasureResult(MeasureStatus.OK, (ms / 1000,) * 3, max_error=1e-6)
    return MeasureRecord(run, n, product(size).key, TARGET.key, 2, steps, result, "tile")


def log_of(*records: MeasureRecord, sizes: tuple[int, ...] = (8,)) -> Log:
    dags = [product(size) for size in sizes]
    runs = dict.fromkeys(record.run_id for record in records)
    workloads = {dag.key: Workload(dag.key, dag, "square") for dag in dags}
    return Log(tuple(map(header, runs)), workloads, records)


def failed(record: MeasureRecord, status: MeasureStatus) -> MeasureRecord:
    return replace(record, result=MeasureResult(status, error="no"))


def main(where: str, writer: str, n: int) -> None:
    """Add a schedule at a time to each of two tasks, and print it when it is there."""
    from autotune.records.store import store_to_write

    for k in range(n):
        run = f"{writer}-{k}"
        for size in (8, 16):
            record = measured(run, int(writer) * n + k, size, ms=1.0 + k)
            store_to_write(where).add(log_of(record, sizes=(size,)))
            print(run, size, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
