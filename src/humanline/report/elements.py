"""What a report is made of: tables, charts and remarks, as plain data. `page` turns them into HTML, which escapes every text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Line = Literal["only", "seed", "mean", "guide"]
"""a method's single run · one seed of several · their mean · not a measurement"""


@dataclass(frozen=True)
class Table:
    """Texts in rows; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Axis:
    """`share`: numbers in [0, 1], shown in per cent."""

    title: str
    share: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure: what `page.js` draws, and the same in numbers beside it."""

    title: str
    kind: Literal["lines", "bars", "dots", "unit-square"]
    x: Axis
    y: Axis
    traces: tuple[dict[str, Any], ...]
    table: Table
    note: str = ""
    categories: tuple[str, ...] = ()
    """names of the rows of bars and dots, from the top"""
    legend: bool = False
    """even for a single line"""

    @property
    def spoken(self) -> str:
        """What a screen reader says instead of the picture."""
        names = list(dict.fromkeys(trace["name"] for trace in self.traces if trace["line"] != "seed"))
        return f"{self.title}: {self.y.title} against {self.x.title}, for {', '.join(names)}. The numbers are in the table below."

    @property
    def drawing(self) -> dict[str, Any]:
        """JSON for `page.js`."""
        axes = {name: {"title": axis.title, "share": axis.share} for name, axis in (("x", self.x), ("y", self.y))}
        return {
            "title": self.title,
            "kind": self.kind,
            **axes,
            "traces": self.traces,
            "categories": self.categories,
            "legend": self.legend,
        }


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""
    samples: tuple[Any, ...] = ()
    texts: tuple[tuple[str, str], ...] = field(default=())
    """(heading, preformatted text), folded away"""

    @property
    def key(self) -> str:
        """Its anchor on the page."""
        return "-".join(self.title.lower().split())

    def __bool__(self) -> bool:
        return bool(self.charts or self.tables or self.samples or self.texts)


def numbers(values: Iterable[float]) -> list[float | None]:
    """For JSON: six significant digits, more than any screen shows; null where there is no finite number."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def positions(values: Numbers) -> dict[str, float] | list[float | None]:
    """Evenly spaced positions as {start, by, count}, others one by one."""
    steps = np.diff(values)
    if len(values) > 2 and (steps == steps[0]).all():
        return {"start": float(values[0]), "by": float(steps[0]), "count": len(values)}
    return [float(value) for value in values]


def show(value: float | None, digits: int = 4) -> str:
    """A number in so many significant digits; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
        return f"{value:.{min(max(decimals, 0), 6)}f}".replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")
