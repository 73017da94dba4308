"""The picture of the demo as hand-written SVG: mean utility of each method, its seeds as dots, light or dark with the viewer."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from itertools import pairwise

from humanline.embedded.results import Results, Row

Scale = Callable[[float], float]
"""utility → horizontal pixels"""
WIDTH, LEFT, RIGHT, ROW, TOP, GAP = 760, 260, 130, 30, 52, 10
"""pixels: whole picture; space for titles; for win rates; height of a row; of the heading; between families"""
TICK = 0.2
STYLE = """
  .page { fill: #ffffff }
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .quiet { fill: #656d76 }
  .title { font-weight: 600; font-size: 15px }
  .grid { stroke: #d0d7de }
  .start { stroke: #656d76; stroke-width: 1.5; stroke-dasharray: 4 4 }
  .plain { fill: #8c959f }
  .humanline { fill: #0969da }
  .dot { stroke: #ffffff }
  .spread { stroke: #1f2328; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 }
    text { fill: #e6edf3 }
    .quiet { fill: #8d96a0 }
    .grid { stroke: #30363d }
    .start { stroke: #8d96a0 }
    .plain { fill: #6e7681 }
    .humanline { fill: #4493f8 }
    .dot { stroke: #0d1117 }
    .spread { stroke: #e6edf3 }
  }
"""


def svg(results: Results) -> str:
    """A complete SVG document."""
    low, high = _limits(results)

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    tops = _tops(results.rows)
    bottom = tops[-1] + ROW
    bars = [part for row, top in zip(results.rows, tops, strict=True) for part in _bar(row, top, x)]
    start, height = x(results.start_utility), bottom + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(_spoken(results))}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        _text(16, 24, "Offline training on one data set", kind="title"),
        _text(WIDTH - RIGHT + 14, TOP - 10, "win rate", kind="quiet"),
        *_axis(low, high, x, bottom),
        *bars,
        f'<line class="start" x1="{start:.1f}" x2="{start:.1f}" y1="{TOP - 6}" y2="{bottom}"/>',
        _text(start + 4, TOP - 10, f"start model {results.start_utility:.2f}", kind="quiet"),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _limits(results: Results) -> tuple[float, float]:
    """Ends of the axis: zero is on it, and every run and spread fits."""
    values = [0.0, TICK, results.start_utility]
    for row in results.rows:
        spread = row.utility.std or 0.0
        values += [*row.utilities, row.utility.mean - spread, row.utility.mean + spread]
    return math.floor(min(values) / TICK) * TICK, math.ceil(max(values) / TICK) * TICK


def _tops(rows: tuple[Row, ...]) -> list[float]:
    """Upper edge of each row, with a gap where a new family begins."""
    gaps = [GAP * (row.method.family != before.method.family) for before, row in pairwise(rows)]
    tops = [float(TOP)]
    for gap in gaps:
        tops.append(tops[-1] + ROW + gap)
    return tops


def _axis(low: float, high: float, x: Scale, bottom: float) -> list[str]:
    ticks = [low + TICK * i for i in range(round((high - low) / TICK) + 1)]
    lines = [f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 6}" y2="{bottom}"/>' for tick in ticks]
    numbers = [_text(x(tick), bottom + 16, f"{tick:.1f}".replace("-0.0", "0.0"), kind="quiet", anchor="middle") for tick in ticks]
    what = "mean utility on held-out prompts; dots are seeds"
    return [*lines, *numbers, _text((LEFT + WIDTH - RIGHT) / 2, bottom + 35, what, kind="quiet", anchor="middle")]


def _bar(row: Row, top: float, x: Scale) -> list[str]:
    kind = "humanline" if row.method.humanline else "plain"
    middle = top + ROW / 2
    left, right = sorted((x(0.0), x(row.utility.mean)))
    parts = [
        _text(LEFT - 10, middle + 4.5, row.method.title, anchor="end"),
        f'<rect class="{kind}" x="{left:.1f}" y="{top + 5}" width="{right - left:.1f}" height="{ROW - 10}" rx="2"/>',
        _text(WIDTH - RIGHT + 14, middle + 4.5, row.win_rate.show(3)),
    ]
    if row.utility.std is not None:
        low, high = x(row.utility.mean - row.utility.std), x(row.utility.mean + row.utility.std)
        parts.append(f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
    return parts + [f'<circle class="{kind} dot" cx="{x(value):.1f}" cy="{middle}" r="3.5"/>' for value in row.utilities]


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _spoken(results: Results) -> str:
    """The picture in words."""
    return "Mean utility by method. " + "; ".join(f"{row.method.title} {row.utility.show(2)}" for row in results.rows)
