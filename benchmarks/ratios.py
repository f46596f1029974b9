"""The picture of README.md and of the first page: ratios of all networks, by machine.

python -m benchmarks.ratios            # writes docs/ratios.svg from docs/results/*.csv
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from autotune.reporting.drawing import drawings
from autotune.reporting.plots import BLUE, CONFIG, ORANGE, SCHEMA
from benchmarks.results import FOLDER, Row, read_rows
from benchmarks.tables import geometric_mean

PICTURE = FOLDER.parent / "ratios.svg"
THREADS = "1"

_GREY = "#7a828c"
"""Readable on white and on black: an image does not know the colour of the page."""


@click.command()
def main() -> None:
    """Write docs/ratios.svg."""
    networks = [row for row in read_rows(FOLDER / "networks.csv") if row["threads"] == THREADS]
    machines = {r["machine"]: r["processor"] for r in read_rows(FOLDER / "machines.csv")}
    PICTURE.write_text(picture(networks, machines) + "\n", encoding="utf-8")
    click.echo(PICTURE.name)


def picture(networks: list[Row], machines: dict[str, str]) -> str:
    """A point per network, a line at the geometric mean of a machine, and one at a ratio of 1."""
    points = [
        {"machine": machines[r["machine"]], "model": r["model"], "ratio": float(r["ratio"])}
        for r in networks
    ]
    (text,) = drawings([_spec(points, list(_means(points)))]).svgs
    assert text is not None
    return text.replace("currentColor", _GREY)


def _means(points: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for machine in dict.fromkeys(p["machine"] for p in points):
        mean = geometric_mean(p["ratio"] for p in points if p["machine"] == machine)
        yield {"machine": machine, "mean": mean, "text": f"{mean:.2f}"}


def _spec(points: list[dict[str, Any]], means: list[dict[str, Any]]) -> dict[str, Any]:
    y = {
        "field": "machine",
        "sort": [m["machine"] for m in means],
        "title": None,
        "axis": {"grid": True, "ticks": False, "domain": False, "labelPadding": 8},
    }
    x = {"type": "quantitative", "scale": {"domain": [0, 1.1]}}
    title = "latency ÷ that of the better of ONNX Runtime and OpenVINO, one thread"
    unit = [{"x": 1, "text": "as fast"}]
    at_one = {"x": {"field": "x", "type": "quantitative"}}
    said = {"field": "text"}
    return {
        "$schema": SCHEMA,
        "config": CONFIG | {"view": {"stroke": None}},
        "width": 560,
        "height": {"step": 38},
        "layer": [
            _layer(unit, {"type": "rule", "strokeDash": [5, 4], "color": "currentColor"}, at_one),
            _layer(
                unit,
                {"type": "text", "align": "left", "dx": 5, "color": "currentColor"},
                at_one | {"y": {"value": 8}, "text": said},
            ),
            _layer(
                points,
                {"type": "circle", "size": 70, "color": BLUE, "opacity": 0.65},
                {"x": x | {"field": "ratio", "title": title}, "y": y},
            ),
            _layer(
                means,
                {"type": "tick", "thickness": 3, "size": 26, "color": ORANGE, "opacity": 1},
                {"x": x | {"field": "mean"}, "y": y},
            ),
            _layer(
                means,
                {"type": "text", "dy": -19, "color": ORANGE, "fontWeight": "bold"},
                {"x": x | {"field": "mean"}, "y": y, "text": said},
            ),
        ],
    }


def _layer(values: list[Any], mark: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


if __name__ == "__main__":
    main()
