"""The picture of the demo as a hand-written SVG: mean utility of each method, its seeds as dots, light or dark with the viewer."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from humanline.embedded.results import Results, Row

Scale = Callable[[float], float]
"""utility → horizontal pixels"""
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 250, 130, 30, 52
"""pixels: whole picture, space for titles, space for win rates, height of a row, space for the heading"""
STYLE = """
  .page { fill: #ffffff } text { font: 13px system-ui, sans-serif; fill: #1f2328 } .quiet { fill: #656d76 } .title { font-weight: 600; font-size: 15px }
  .grid { stroke: #d0d7de; stroke-width: 1 } .start { stroke: #656d76; stroke-width: 1.5; stroke-dasharray: 4 4 }
  .plain { fill: #8c959f } .humanline { fill: #0969da } .dot { stroke: #ffffff; stroke-width: 1 } .spread { stroke: #1f2328; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } text { fill: #e6edf3 } .quiet { fill: #8d96a0 } .grid { stroke: #30363d } .start { stroke: #8d96a0 }
    .plain { fill: #6e7681 } .humanline { fill: #4493f8 } .dot { stroke: #0d1117 } .spread { stroke: #e6edf3 }
  }
"""


def svg(results: Results) -> str:
    """A complete SVG document."""
    low, high = _limits(results)

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    tops, place = [], TOP
    for row, before in zip(results.rows, [None, *results.rows[:-1]], strict=True):
        place += 10 if before and before.method.family != row.method.family else 0
        tops.append(place)
        place += ROW
    parts = [*_axis(low, high, x, place), *(part for row, top in zip(results.rows, tops, strict=True) for part in _bar(row, top, x))]
    start = x(results.start_utility)
    parts.append(f'<line class="start" x1="{start:.1f}" x2="{start:.1f}" y1="{TOP - 6}" y2="{place}"/>')
    parts.append(f'<text class="quiet" x="{start + 4:.1f}" y="{TOP - 10}">start model {results.start_utility:.2f}</text>')
    height = place + 46
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(_spoken(results))}">\n<style>{STYLE}</style>\n<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>\n'
        f'<text class="title" x="16" y="24">Offline training on one data set</text>\n'
        f'<text class="quiet" x="{WIDTH - RIGHT + 14}" y="{TOP - 10}">win rate</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _limits(results: Results) -> tuple[float, float]:
    """Ends of the axis: zero is on it, and every run with its spread fits."""
    values = [0.0, results.start_utility, *(value for row in results.rows for value in row.utilities)]
    values += [row.utility.mean + (row.utility.std or 0.0) for row in results.rows]
    return math.floor(min(values) * 5) / 5, max(math.ceil(max(values) * 5) / 5, 0.2)


def _axis(low: float, high: float, x: Scale, bottom: float) -> list[str]:
    ticks = [low + 0.2 * i for i in range(round((high - low) / 0.2) + 1)]
    lines = [f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{TOP - 6}" y2="{bottom}"/>' for t in ticks]
    numbers = [f'<text class="quiet" text-anchor="middle" x="{x(t):.1f}" y="{bottom + 16}">{abs(t) if abs(t) < 1e-9 else t:.1f}</text>' for t in ticks]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*lines, *numbers, f'<text class="quiet" text-anchor="middle" x="{middle}" y="{bottom + 35}">mean utility on held-out prompts; dots are seeds</text>']


def _bar(row: Row, top: float, x: Scale) -> list[str]:
    kind = "humanline" if row.method.humanline else "plain"
    middle, ends = top + ROW / 2, sorted((x(0.0), x(row.utility.mean)))
    parts = [
        f'<text text-anchor="end" x="{LEFT - 10}" y="{middle + 4.5}">{escape(row.method.title)}</text>',
        f'<rect class="{kind}" x="{ends[0]:.1f}" y="{top + 5}" width="{ends[1] - ends[0]:.1f}" height="{ROW - 10}" rx="2"/>',
        f'<text x="{WIDTH - RIGHT + 14}" y="{middle + 4.5}">{row.win_rate.show(3)}</text>',
    ]
    if row.utility.std is not None:
        left, right = x(row.utility.mean - row.utility.std), x(row.utility.mean + row.utility.std)
        parts.append(f'<line class="spread" x1="{left:.1f}" x2="{right:.1f}" y1="{middle}" y2="{middle}"/>')
    return parts + [f'<circle class="{kind} dot" cx="{x(value):.1f}" cy="{middle}" r="3.5"/>' for value in row.utilities]


def _spoken(results: Results) -> str:
    """The picture in words."""
    return "Mean utility by method. " + "; ".join(f"{row.method.title} {row.utility.show(2)}" for row in results.rows)
