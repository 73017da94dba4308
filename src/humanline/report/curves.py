"""Metrics over optimizer steps: a figure per panel, a line per run, the mean over seeds, and a table of the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from humanline.report.elements import Axis, Chart, Line, Section, Table, numbers, positions, show
from humanline.report.methods import Method
from humanline.report.quantities import Panel, panels
from humanline.report.thin import Series, buckets, mean_of

POINTS = 12_000
"""of a figure, at most, over all its lines"""
LEAST, MOST = 60, 800
"""points of a line"""


class Curve(NamedTuple):
    """One line of a figure."""

    name: str
    """in the legend"""
    label: str
    """with its seed"""
    line: Line
    method: int
    """position of its method: its colour"""
    metric: int
    """position of its metric in the panel: its dashes"""
    series: Series


def sections(methods: Sequence[Method]) -> tuple[Section, ...]:
    """In the order in which a reader wants them: held-out rows first."""
    metrics = list(dict.fromkeys(name for method in methods for run in method.runs for name in run.metrics.series))
    note = (
        "Thin: seeds. Thick: their mean at the steps that all of them have."
        if any(len(method.runs) > 1 for method in methods)
        else ""
    )
    return tuple(
        Section(name, charts=tuple(_chart(panel, methods) for panel in found), note=note)
        for name, found in panels(metrics).items()
    )


def _chart(panel: Panel, methods: Sequence[Method]) -> Chart:
    curves = list(_curves(panel, methods))
    most = min(max(POINTS // len(curves), LEAST), MOST)
    size = max(buckets(curve.series, most).size for curve in curves)
    columns = ("run", "values", "first", "last", "lowest", "highest", "not finite")
    return Chart(
        panel.title,
        "lines",
        Axis("optimizer step"),
        Axis(panel.unit, panel.share),
        tuple(_trace(curve, most) for curve in curves),
        Table(panel.title, columns, tuple(_row(curve) for curve in curves)),
        " ".join(filter(None, (panel.note, _thinning(size)))),
        legend=len(methods) > 1,
    )


def _curves(panel: Panel, methods: Sequence[Method]) -> Iterator[Curve]:
    """Every run's line, and after those of a method their mean."""
    for number, method in enumerate(methods):
        for position, (metric, word) in enumerate(panel.metrics):
            found = [
                (entry.seed, entry.run.metrics.series[metric])
                for entry in method.entries
                if entry.run and metric in entry.run.metrics.series
            ]
            name = ", ".join(filter(None, (method.title, word)))
            several = len(found) > 1
            for seed, series in found:
                label = f"{name}, seed {seed}" if several else name
                yield Curve(name, label, "seed" if several else "only", number, position, series)
            if several and len((mean := mean_of([series for _, series in found])).steps):
                yield Curve(name, f"{name}, mean", "mean", number, position, mean)


def _trace(curve: Curve, most: int) -> dict[str, Any]:
    """What is drawn: the values themselves, or of each bucket mean, lowest and highest."""
    thinned = buckets(curve.series, most)
    look = {"name": curve.name, "hover": curve.label, "line": curve.line, "series": curve.method, "dash": curve.metric}
    points = {"x": positions(thinned.steps), "y": numbers(thinned.mean)}
    return look | points | ({"low": numbers(thinned.low), "high": numbers(thinned.high)} if thinned.size > 1 else {})


def _row(curve: Curve) -> tuple[str, ...]:
    values = curve.series.values
    finite = values[np.isfinite(values)]
    shown = [show(float(value)) for value in (finite[0], finite[-1], finite.min(), finite.max())] if len(finite) else ["–"] * 4
    return (curve.label, str(len(values)), *shown, str(len(values) - len(finite)))


def _thinning(size: int) -> str:
    if size == 1:
        return ""
    return (
        f"Too long to draw step by step: each point is the mean of up to {size} consecutive values, and the band goes from the lowest "
        "to the highest of them. The table counts every value."
    )
