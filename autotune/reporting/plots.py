"""⑧ Plots of figures: specifications of Vega-Lite, which `drawing` turns into SVG.

Text and lines take the colour of the page (`currentColor`), so one SVG is for light and dark
pages and for print. The colours of marks have a contrast of 3 to 1 on both; nothing is told by
colour alone: fill, dash or shape differ as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from autotune.reporting.comparison import SearchComparison
from autotune.reporting.figures import CallFigures, SearchFigures, TaskFigures

Spec: TypeAlias = dict[str, Any]

BLUE, ORANGE = "#3b82c4", "#c2691c"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_WIDTH, _HEIGHT = 440, 280
_MOST_RATIOS = 30
CONFIG: Spec = {
    "background": "transparent",
    "font": "sans-serif",
    "view": {"stroke": "currentColor", "strokeOpacity": 0.25},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "titleFontWeight": "normal",
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "domainColor": "currentColor",
        "domainOpacity": 0.4,
        "tickColor": "currentColor",
        "tickOpacity": 0.4,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 190,
    },
    "header": {"labelColor": "currentColor", "labelFontSize": 12, "labelLimit": 130},
    "legend": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "labelFontSize": 12,
        "orient": "top",
        "title": None,
        "labelLimit": 300,
        "symbolStrokeWidth": 2,
    },
    "text": {"color": "currentColor", "fontSize": 12},
    "rule": {"color": "currentColor"},
}


def progress(figures: SearchFigures, over: str) -> Spec:
    """Latency of the network over `trials` or `time`."""
    x = _over(over, max(p.elapsed_s for p in figures.progress))
    scale, unit = _unit(p.latency_s for p in figures.progress)
    values = [_point(p, x, scale) | {"n": n} for n, p in enumerate(figures.progress)]
    untuned = {"y": figures.progress[0].latency_s * scale, "text": "untuned"}
    return _plot(
        _layer(values, _STEPS | {"color": BLUE}, order=_IN_ORDER),
        _layer([untuned], {"type": "rule", "strokeDash": [4, 3]}, x=None),
        _layer([untuned], _SMALL_TEXT, x=_RIGHT, text={"field": "text"}),
        x=_axis("x", x["title"], zero=True),
        y=_axis("y", unit),
    )


def both_progress(before: SearchFigures, after: SearchFigures) -> Spec:
    """Latency of two searches over time."""
    longest = max(p.elapsed_s for f in (before, after) for p in f.progress)
    x = _over("time", longest)
    names = ("before", "after")
    scale, unit = _unit(p.latency_s for f in (before, after) for p in f.progress)
    values = [
        _point(p, x, scale) | {"log": name, "n": n}
        for name, f in zip(names, (before, after), strict=True)
        for n, p in enumerate(f.progress)
    ]
    return _plot(
        _layer(
            values,
            _STEPS,
            order=_IN_ORDER,
            color=_colours("log", names) | {"legend": None},
            strokeDash=_shapes("log", names, [[4, 3], [1, 0]]),
        ),
        x=_axis("x", x["title"], zero=True),
        y=_axis("y", unit),
    )


def _over(over: str, longest_s: float) -> dict[str, Any]:
    if over == "trials":
        return {"title": "trials", "of": lambda p: p.n_trials}
    is_long = longest_s > 600
    unit, scale = ("minutes", 60.0) if is_long else ("seconds", 1.0)
    return {"title": f"{unit} of the search", "of": lambda p: p.elapsed_s / scale}


def _point(point: Any, x: Mapping[str, Any], scale: float) -> Spec:
    return {"x": x["of"](point), "y": point.latency_s * scale}


def _unit(seconds: Iterable[float]) -> tuple[float, str]:
    """Factor from seconds, and the title of an axis of these."""
    return (1e3, "ms per inference") if max(seconds) >= 1e-3 else (1e6, "µs per inference")


def task_progress(tasks: Sequence[TaskFigures]) -> Spec:
    """Lowest latency so far of each task over its trials, with its bound."""
    names = [f"{t.id}: {t.label}" for t in tasks]
    values = [
        {"task": name, "x": p.n_trials, "y": p.best_s * 1e6, "bound": (t.bound_s or 0) * 1e6}
        for name, t in zip(names, tasks, strict=True)
        for p in t.progress
    ]
    line = _STEPS | {"color": BLUE, "point": {"color": BLUE}}
    bounded = {"filter": "datum.bound > 0"}
    bound = {"field": "bound", "type": "quantitative", "aggregate": "min"}
    return {
        "$schema": SCHEMA,
        "config": CONFIG,
        "data": {"values": values},
        "facet": {"field": "task", "sort": names, "title": None},
        "columns": 3,
        "spacing": 14,
        "spec": {
            "width": 110,
            "height": 80,
            "layer": [
                {"mark": line, "encoding": {"y": _axis("y", "µs", zero=False)}},
                {
                    "transform": [bounded],
                    "mark": {"type": "rule", "strokeDash": [4, 3]},
                    "encoding": {"x": None, "y": bound},
                },
            ],
            "encoding": {"x": _axis("x", "trials", zero=True, ticks=3)},
        },
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }


def before_after(calls: Sequence[CallFigures]) -> Spec:
    """Seconds of calls before and after."""
    kinds = ("untuned", "tuned")
    scale, unit = _unit(c.untuned_s or 0.0 for c in calls)
    values = [
        {"call": _called(c), "kind": kind, "time": (seconds or 0.0) * scale}
        for c in calls
        for kind, seconds in zip(kinds, (c.untuned_s, c.tuned_s), strict=True)
    ]
    fill = _colours("kind", kinds, "transparent")
    spec = _plot(
        _layer(
            values,
            {"type": "bar", "stroke": "currentColor", "strokeWidth": 1},
            fill=fill | {"legend": {"symbolStrokeColor": "currentColor", "symbolStrokeWidth": 1}},
        ),
        x=_axis("time", unit, zero=True),
        y={"field": "call", "sort": [_called(c) for c in calls], "title": None},
        yOffset={"field": "kind", "sort": list(kinds)},
    )
    return spec | {"height": 34 * len(calls) + 60}


def _called(call: CallFigures) -> str:
    return f"{', '.join(map(str, call.tasks))}: {call.label}"


def roofline(tasks: Sequence[TaskFigures], peaks: Mapping[str, Any]) -> Spec:
    """Rate of each task, and of its own bound, over FLOPs per compulsory byte."""
    points = [
        {
            "x": t.flops / t.n_bytes,
            "y": t.gflops,
            "bound": t.flops / (t.bound_s or 1.0) * 1e-9,
            "share": 100 * (t.share_of_bound or 0.0),
        }
        for t in tasks
        if t.gflops and t.n_bytes
    ]
    roofs = {"float32": peaks["flops_per_s"], **dict(peaks.get("dots", {}))}
    bandwidths = {"L2": peaks["warm_bytes_per_s"], "weights": peaks["cold_bytes_per_s"]}
    ridges = [peaks["flops_per_s"] / rate for rate in bandwidths.values()]
    places = [*ridges, *(p["x"] for p in points)]
    low, high = min(places) / 2, max(places) * 2
    lines = [
        {"line": name, "x": x, "y": min(rate * x, peaks["flops_per_s"]) * 1e-9}
        for name, rate in bandwidths.items()
        for x in _ends(low, high, peaks["flops_per_s"] / rate)
    ]
    flats = [{"y": rate * 1e-9, "text": f"{name}: peak"} for name, rate in roofs.items()]
    names = [
        {"x": low, "y": rate * low * 1e-9, "text": f"{name} bandwidth"}
        for name, rate in bandwidths.items()
    ]
    rates = [r for p in points for r in (p["y"], p["bound"])] + [f["y"] for f in flats]
    floor, top = min(*rates, *(n["y"] for n in names)) / 2, max(rates) * 2
    return _plot(
        _layer(flats, {"type": "rule"}, x=None),
        _layer(flats, _SMALL_TEXT, x=_RIGHT, text={"field": "text"}),
        _layer(lines, {"type": "line", "color": "currentColor"}, detail={"field": "line"}),
        _layer(
            names,
            {"type": "text", "align": "left", "dx": 12, "dy": 5},
            text={"field": "text"},
        ),
        _layer(points, {"type": "rule", "opacity": 0.5}, y2={"field": "bound"}),
        _layer(
            points,
            {"type": "tick", "thickness": 2, "orient": "horizontal", "color": ORANGE, "width": 10},
            y=_axis("bound", "GFLOPS", log=True),
        ),
        _layer(points, {"type": "point", "filled": True, "color": BLUE, "size": 45, "opacity": 1}),
        x=_axis("x", "FLOPs per byte", log=True, domain=[low, high]),
        y=_axis("y", "GFLOPS", log=True, domain=[floor, top]),
    )


def _ends(low: float, high: float, ridge: float) -> list[float]:
    return [low, *([ridge] if low < ridge < high else []), high]


def predictions(figures: SearchFigures) -> Spec:
    """Measured over predicted latency of candidates."""
    values = [{"x": p.predicted_s * 1e6, "y": p.measured_s * 1e6} for p in figures.predictions]
    both = [v for value in values for v in value.values()]
    ends = [{"x": v, "y": v} for v in (min(both), max(both))]
    domain = [min(both) / 1.2, max(both) * 1.2]
    return _plot(
        _layer(ends, {"type": "line", "color": "currentColor", "strokeDash": [4, 3]}),
        _layer(values, {"type": "point", "color": BLUE, "size": 25}),
        x=_axis("x", "predicted, µs", log=True, domain=domain),
        y=_axis("y", "measured, µs", log=True, domain=domain),
    )


def failures(figures: SearchFigures) -> Spec:
    """Failed candidates by status."""
    values = [{"status": f.status.replace("_", " "), "n": f.n} for f in figures.failures]
    y = {"field": "status", "sort": None, "title": None}
    n = {"field": "n", "type": "quantitative"}
    spec = _plot(
        _layer(values, {"type": "bar", "color": ORANGE}, y=y, x=n | {"title": "candidates"}),
        _layer(values, {"type": "text", "align": "left", "dx": 4}, y=y, x=n, text={"field": "n"}),
    )
    return spec | {"height": 34 * len(values) + 60}


def noise(figures: SearchFigures) -> Spec:
    """Uncertainty of each measurement over the time of the search."""
    x = _over("time", max(p.elapsed_s for p in figures.noise))
    values = [{"x": x["of"](p), "y": 100 * p.noise} for p in figures.noise]
    return _plot(
        _layer(values, {"type": "point", "color": BLUE, "size": 20}),
        x=_axis("x", x["title"], zero=True),
        y=_axis("y", "standard error, %", log=True),
    )


def ratios(comparison: SearchComparison) -> Spec:
    """Time after over time before, of the tasks that changed most."""
    tasks = sorted(comparison.tasks, key=lambda t: -abs(math.log(t.ratio)))[:_MOST_RATIOS]
    tasks.sort(key=lambda t: t.ratio)
    kinds = ("differs", "same within the noise")
    values = [
        {"task": f"{t.id}: {t.label}", "ratio": t.ratio, "kind": kinds[t.is_alike]} for t in tasks
    ]
    y = {"field": "task", "sort": [v["task"] for v in values], "title": None}
    spec = _plot(
        _layer([{"x": 1}], {"type": "rule"}, x={"field": "x", "type": "quantitative"}, y=None),
        _layer(
            values,
            {"type": "point", "size": 60, "opacity": 1},
            y=y,
            x=_axis("ratio", "time after / time before", log=True),
            color=_colours("kind", kinds) | {"legend": None},
            shape=_shapes("kind", kinds, ["diamond", "circle"]),
        ),
    )
    return spec | {"height": 18 * len(values) + 80}


# --- parts --------------------------------------------------------------------------------------

_SMALL_TEXT = {"type": "text", "align": "right", "dx": -4, "dy": -7}
_RIGHT = {"value": "width"}
_STEPS: Spec = {"type": "line", "interpolate": "step-after"}
_IN_ORDER = {"field": "n", "type": "quantitative"}
"""Several measurements of finalists are at one number of trials."""


def _plot(*layers: Spec, **encoding: Any) -> Spec:
    return {
        "$schema": SCHEMA,
        "config": CONFIG,
        "width": _WIDTH,
        "height": _HEIGHT,
        "autosize": {"type": "fit", "contains": "padding"},
        "layer": list(layers),
        "encoding": encoding,
    }


def _layer(values: Sequence[Any], mark: Mapping[str, Any], **encoding: Any) -> Spec:
    return {"data": {"values": list(values)}, "mark": dict(mark), "encoding": encoding}


def _axis(
    name: str,
    title: str,
    zero: bool = False,
    log: bool = False,
    domain: Sequence[float] = (),
    ticks: int = 5,
) -> Spec:
    scale: Spec = {"type": "log", "nice": False} if log else {"zero": zero}
    return {
        "field": name,
        "type": "quantitative",
        "title": title,
        "scale": scale | ({"domain": list(domain)} if domain else {}),
        "axis": {"tickCount": ticks},
    }


def _shapes(field: str, names: Sequence[str], shapes: Sequence[Any]) -> Spec:
    """With a legend, which so does not depend on colours."""
    return {
        "field": field,
        "sort": list(names),
        "scale": {"domain": list(names), "range": list(shapes)},
        "legend": {"symbolStrokeColor": "currentColor"},
    }


def _colours(field: str, names: Sequence[str], first: str = ORANGE) -> Spec:
    scale = {"domain": list(names), "range": [first, BLUE]}
    return {"field": field, "sort": list(names), "scale": scale}
