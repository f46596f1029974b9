"""A log of two products whose figures can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

from autotune.measure.timing.peak import Peaks
from autotune.records import End, Header, Log, MeasureRecord, Workload
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Annotate, Parallel, Split, Steps, steps_text
from autotune.target import Target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, mul

OUTER: Steps = (Parallel("c", 1),)
VECTORS: Steps = (Split("c", "j", (8,), "shift"), Annotate("c", "j.1", "vectorize"))
PEAKS = Peaks(100e9, 64e9, 8e9, 1024)
"""16³ sums: 8192 FLOPs in 82 ns; 1 KiB of weights in 128 ns; 3 KiB, one of them in L1, in 32 ns.
64³: 524,288 FLOPs in 5.24 µs; 16 KiB of weights in 2 µs."""


class SmallLog:
    """Two products: 16³, called three times, and 64³. Measured in the order of `add`."""

    def __init__(self, target: Target, sizes: tuple[int, int] = (16, 64)) -> None:
        self.dags = [_matmul(n) for n in sizes]
        self.header = Header(
            run_id="r1",
            created="2026-01-02T03:04:05+00:00",
            model_path="/home/me/<two> products.onnx",
            model_hash="abc",
            shapes={},
            target=target,
            n_threads=1,
            seed=0,
            config={"trials": 16},
            versions={"autotune": "0.2.0"},
            tasks=((self.dags[0].key, 3), (self.dags[1].key, 1)),
            nodes=(
                *((f"<{n}>", "MatMul", (self.dags[0].key,)) for n in range(3)),
                ("last", "Gemm", (self.dags[1].key, "another")),
            ),
        )
        self.records: list[MeasureRecord] = []

    def add(self, task: int, steps: Steps, seconds: float | str, **more: object) -> None:
        """Seconds, or the status of a failure."""
        is_ok = not isinstance(seconds, str)
        status = MeasureStatus.OK if is_ok else MeasureStatus(seconds)
        times = (float(seconds),) * 5 if is_ok else ()
        result = MeasureResult(status, times, error="" if is_ok else "a\nb|c")
        n = len(self.records)
        made = MeasureRecord(
            "r1", n, self.dags[task].key, self.header.target.key, 1, steps_text(steps), result,
            "tiled", 10.0 * (n + 1),
        )  # fmt: skip
        self.records.append(replace(made, **more))  # type: ignore[arg-type]

    def add_all(self) -> None:
        self.add(0, (), 4e-6, default_estimate_s=2e-6)
        self.add(1, (), 40e-6, default_estimate_s=40e-6)
        self.add(0, OUTER, "run_crash")
        self.add(0, VECTORS, 1e-6)
        self.add(1, VECTORS, 10e-6)
        self.add(1, OUTER, 20e-6)

    def log(self, **end: object) -> Log:
        keys = [dag.key for dag in self.dags]
        known = End(
            "r1",
            "trials",
            len(self.records),
            70.0,
            stops={keys[0]: "at_bound", keys[1]: "budget"},
            bounds_s={keys[0]: 128e-9, keys[1]: 5.24288e-6},
            seconds={"search": 10.0, "measure": 30.0, "model": 0.0, "build": 20.0, "run": 5.0},
            peaks=PEAKS.to_json(),
        )
        workloads = {
            dag.key: Workload(dag.key, dag, f"Mat<Mul>{n}") for n, dag in enumerate(self.dags)
        }
        ends = (replace(known, **end),) if end.get("reason") != "none" else ()  # type: ignore[arg-type]
        return Log((self.header,), workloads, tuple(self.records), ends)


def _matmul(n: int) -> ComputeDAG:
    a, b = placeholder("a", (n, n)), placeholder("b", (n, n), constant=True)
    i, j, k = Axis("i", n), Axis("j", n), Axis("k", n)
    body = mul(a.tensor[i, k], b.tensor[k, j])
    return ComputeDAG((a, b, compute("c", (i, j), Reduce("sum", body, (k,)))), ("c",))
