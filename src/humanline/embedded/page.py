"""report.html of the demo: one self-contained page with figure, table and settings, light or dark with the viewer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from humanline.embedded.figure import svg
from humanline.embedded.results import Results, Row, content

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --quiet: #656d76; --page: #ffffff; --line: #d0d7de; --mark: #ddf4ff }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --quiet: #8d96a0; --page: #0d1117; --line: #30363d; --mark: #121d2f }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--page) }
main { max-width: 52rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.5rem; line-height: 1.25 }
h2 { font-size: 1.1rem; margin-top: 2rem }
.quiet, figcaption { color: var(--quiet); font-size: .92rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
tr.humanline { background: var(--mark) }
figure { margin: 1.5rem 0 }
svg { max-width: 100%; height: auto }
code, pre { font: .86rem ui-monospace, monospace }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .8rem }
"""
QUICK = "<p><strong>Quick run: it shows that everything works. Its numbers mean nothing.</strong></p>"
BARS = """Bars: mean over {seeds} orders of the data (seeds). Lines: ± one standard deviation. All runs start from one model and
learn from one data set, so the spread does not cover another task or another start."""
WIN_RATE = """Win rate: share of held-out prompts where the completion is worth more than one by the start model. The two controls
show how much comes without any clipping or syncing, and how far imitating the best answers gets."""
SEARCH = """Everywhere: AdamW (0.9, 0.99), 10 steps of warm-up, gradient norm 1. The learning rate and one further setting of each
method were searched with the same number of runs, on other orders of the data and measured on other prompts."""


def html(results: Results) -> str:
    """The whole page."""
    known = content(results)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>humanline demo: task score</title><style>{STYLE}</style></head><body><main>
<h1>One data set, several ways to learn from it offline</h1>
{QUICK if results.settings["quick"] else ""}
<p>{_introduction(results.settings)}</p>
<figure>{svg(results)}
<figcaption>{BARS.format(seeds=results.settings["seeds"])}</figcaption></figure>
<h2>Numbers</h2>
{_table(("method", "utility", "win rate", "CPU s a run"), [_start(results), *map(_numbers, results.rows)])}
<p class="quiet">{WIN_RATE}</p>
<h2>Settings</h2>
{_table(("method", "objective", "clip, nats", "sync every", "learning rate", "rows a step"), map(_settings, results.rows))}
<p class="quiet">{SEARCH}</p>
<h2>Where and with what</h2>
<pre>{escape(json.dumps({"machine": known["machine"], "versions": known["versions"]}, indent=2))}</pre>
<p><a href="details.html">Intervals, p-values, learning curves, clipped shares and wall-clock of every run</a></p>
<p class="quiet">All runs with their settings and last training metrics: <code>results.json</code> beside this page.</p>
</main></body></html>
"""


def _introduction(settings: dict[str, Any]) -> str:
    data = settings["data"]
    return (
        f"A model of {settings['parameters']:,} parameters wrote {data['completions']} completions for each of "
        f"{data['prompts']:,} prompts, and a hidden utility scored them. Every method below starts from that model and trains on "
        f"this fixed data for {settings['steps']} steps of {settings['prompts_per_step']} prompts; none of them samples again. "
        f"Measured on {settings['held_out_prompts']:,} other prompts, one completion each at temperature 1."
    )


def _table(titles: tuple[str, ...], lines: Iterable[str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{"".join(lines)}</tbody></table></div>'


def _line(cells: list[object], *, humanline: bool = False) -> str:
    mark = ' class="humanline"' if humanline else ""
    return f"<tr{mark}>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>\n"


def _start(results: Results) -> str:
    return _line(["start model", f"{results.start_utility:.3f}", "0.500", ""])


def _numbers(row: Row) -> str:
    cells: list[object] = [row.method.title, row.utility.show(3), row.win_rate.show(3), row.seconds.show(1)]
    return _line(cells, humanline=row.method.humanline)


def _settings(row: Row) -> str:
    settings = row.method.settings
    objective = dict(settings["objective"])
    named = ", ".join([objective.pop("name"), *(f"{name} {value}" for name, value in objective.items())])
    bounds = "–" if settings["limit"] is None else "[{:g}, {:g}]".format(*settings["limit"])
    cells = [row.method.title, named, bounds, settings["sync_every"] or "–", f"{settings['lr']:g}", settings["batch_size"]]
    return _line(cells, humanline=row.method.humanline)
