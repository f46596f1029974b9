"""What small pages cost: one artifact with constants mapped from the file, and in large pages.

    python -m benchmarks.pages ARTIFACT … [--threads 2] [--rounds 30]

Both models are in one process and run in turns. A row has the median latency of each, and the
median over rounds of mapped / private: below 1.02 there is no reason for `memory="private"`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import click

import autotune
from autotune.network.runtime.runtime import Model, random_inputs

_LEAST = 3
"""Inferences of a turn."""
_BLOCK_S = 0.2
"""Seconds that one of them runs before it is the other's turn."""


def block(model: Model, inputs: object) -> float:
    """Median seconds of inferences for a fifth of a second."""
    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < _BLOCK_S or len(times) < _LEAST:
        start = time.perf_counter()
        model.run(inputs)  # type: ignore[arg-type]
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@click.command()
@click.argument("artifacts", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=30, show_default=True)
def main(artifacts: tuple[Path, ...], threads: int, rounds: int) -> None:
    """Print a table of ARTIFACTS."""
    click.echo("| artifact | mapped, ms | private, ms | mapped / private |\n|---|---|---|---|")
    for path in artifacts:
        mapped, private = (
            autotune.load(path, threads, memory=kind) for kind in ("shared", "private")
        )
        inputs = random_inputs(mapped.input_info)
        pairs = [(block(mapped, inputs), block(private, inputs)) for _ in range(rounds)]
        medians = [statistics.median(side) * 1e3 for side in zip(*pairs, strict=True)]
        ratio = statistics.median(a / b for a, b in pairs)
        click.echo(f"| {path.stem} | {medians[0]:.3f} | {medians[1]:.3f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
