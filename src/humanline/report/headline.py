"""The table at the top: what each method came to, over its seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from humanline.report.elements import Axis, Chart, Section, Table, numbers, show
from humanline.report.inputs import Contents
from humanline.report.methods import TAIL, Method
from humanline.report.quantities import HELD_OUT, title
from humanline.report.statistics import Spread, welch

PICTURED = 2
"""metrics that get a figure"""
SECONDS = ("seconds", "cpu_seconds")


def section(contents: Contents) -> Section:
    """Table, a figure of the first metrics, and every run by itself."""
    methods = contents.methods
    metrics = list(dict.fromkeys(metric for method in methods for entry in method.entries for metric in entry.values))
    pictured = [metric for metric in metrics if metric not in SECONDS][:PICTURED] if len(methods) > 1 else []
    several = any(len(method.entries) > 1 for method in methods)
    tables = [_table(methods, metrics, contents.start)] if metrics else []
    return Section(
        "Results",
        charts=tuple(_chart(methods, metric, contents.start.get(metric)) for metric in pictured),
        tables=(*tables, *([_runs(methods, metrics)] if several or contents.notes else [])),
        note=_remark(methods, metrics),
    )


def _remark(methods: Sequence[Method], metrics: Sequence[str]) -> str:
    if any(method.evaluated for method in methods):
        return ""
    if any(metric.startswith((HELD_OUT, "rollout_")) for metric in metrics):
        return "Newest values. Held-out rows are measured against the starting policy and without a limiter."
    return (
        f"No held-out rows: training metrics, averaged over the last {TAIL:.0%} of the steps. They do not compare methods fairly."
    )


def _table(methods: Sequence[Method], metrics: Sequence[str], start: dict[str, float]) -> Table:
    """One column per metric; with several seeds also interval and p-value."""
    several = any(len(method.entries) > 1 for method in methods)
    tested = several and len(methods) > 1
    columns = ["method", *(["seeds"] if several else [])]
    for metric in metrics:
        columns += [title(metric), *(["95 % interval"] if several else []), *(["p"] if tested else [])]
    rows = [_start_row(start, metrics, several=several, tested=tested)] if start else []
    for method in methods:
        row = [method.title, *([str(len(method.entries))] if several else [])]
        for metric in metrics:
            row += _cells(method, methods[0], metric, several=several, tested=tested)
        rows.append(tuple(row))
    note = "Mean ± sample standard deviation over seeds; Student's interval of the mean. " if several else ""
    if tested:
        note += f"p: Welch's t-test against {methods[0].title}, two-sided, not corrected for the number of rows."
    return Table("Results by method", tuple(columns), tuple(rows), note)


def _start_row(start: dict[str, float], metrics: Sequence[str], *, several: bool, tested: bool) -> tuple[str, ...]:
    row = ["start model", *(["–"] if several else [])]
    for metric in metrics:
        row += [show(start.get(metric)), *(["–"] if several else []), *(["–"] if tested else [])]
    return tuple(row)


def _cells(method: Method, first: Method, metric: str, *, several: bool, tested: bool) -> list[str]:
    values = method.values(metric)
    if not values:
        return ["–"] * (1 + several + tested)
    spread = Spread.of(values)
    cells = [spread_text(spread)]
    if several:
        half = spread.half_interval
        digits = decimals(spread)
        cells.append("–" if half is None else f"{_fixed(spread.mean - half, digits)} … {_fixed(spread.mean + half, digits)}")
    if tested:
        p = None if method is first else welch(values, first.values(metric))
        cells.append("–" if p is None else f"{p:.2g}")
    return cells


def decimals(spread: Spread) -> int:
    """So many that the standard deviation shows two significant digits, between 0 and 6."""
    if not spread.std:
        return 3
    return min(max(1 - int(np.floor(np.log10(spread.std))), 0), 6)


def spread_text(spread: Spread) -> str:
    """`1.062 ± 0.015`"""
    if spread.std is None:
        return show(spread.mean)
    digits = decimals(spread)
    return f"{_fixed(spread.mean, digits)} ± {_fixed(spread.std, digits)}"


def _fixed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _runs(methods: Sequence[Method], metrics: Sequence[str]) -> Table:
    """Every seed by itself."""
    rows = []
    for method in methods:
        for entry in method.entries:
            state = f"{entry.run.state}, {entry.run.progress}" if entry.run else "–"
            seed = "–" if entry.seed is None else str(entry.seed)
            rows.append((method.title, seed, *(show(entry.values.get(metric)) for metric in metrics), state))
    return Table("Every run", ("method", "seed", *map(title, metrics), "state"), tuple(rows), folded=True)


def _chart(methods: Sequence[Method], metric: str, start: float | None) -> Chart:
    """Seeds as dots, their mean with its interval."""
    traces = []
    rows = []
    for number, method in enumerate(methods):
        values = method.values(metric)
        if not values:
            continue
        spread = Spread.of(values)
        half = spread.half_interval
        if len(values) > 1:
            traces.append(
                {"name": method.title, "line": "seed", "series": number, "x": numbers(values), "y": [number] * len(values)}
            )
        mean = {"name": method.title, "line": "mean", "series": number, "x": numbers([spread.mean]), "y": [number]}
        traces.append(mean if half is None else mean | {"error": numbers([half])})
        rows.append((method.title, show(spread.mean), show(half), *[", ".join(show(value) for value in values)]))
    if start is not None:
        traces.append(
            {"name": "start model", "line": "guide", "series": -1, "x": numbers([start, start]), "y": [-0.5, len(methods) - 0.5]}
        )
    name = title(metric)
    return Chart(
        name.capitalize(),
        "dots",
        Axis(name),
        Axis("method"),
        tuple(traces),
        Table(name.capitalize(), ("method", "mean", "± 95 % interval", "seeds"), tuple(rows)),
        "Large: mean and 95 % interval. Small: seeds." if any(trace["line"] == "seed" for trace in traces) else "",
        tuple(method.title for method in methods),
    )
