"""report.html of the demo: one self-contained page with figure, table and settings, light or dark with the viewer."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from humanline.embedded.figure import svg
from humanline.embedded.results import Results, content

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --quiet: #656d76; --page: #ffffff; --line: #d0d7de; --mark: #ddf4ff }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --quiet: #8d96a0; --page: #0d1117; --line: #30363d; --mark: #121d2f } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 52rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.1rem; margin-top: 2rem } p.quiet, figcaption { color: var(--quiet); font-size: .92rem }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap } th:first-child, td:first-child { text-align: left }
tr.humanline { background: var(--mark) } figure { margin: 1.5rem 0 } svg { max-width: 100%; height: auto } code, pre { font: .86rem ui-monospace, monospace }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .8rem }
"""


def html(results: Results) -> str:
    """The whole page."""
    known = content(results)
    settings = results.settings
    quick = "<p><strong>Quick run: it shows that everything works; its numbers mean nothing.</strong></p>" if settings["quick"] else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>humanline demo: task score</title><style>{STYLE}</style></head><body>
<h1>One data set, several ways to learn from it offline</h1>
{quick}<p>A model of {settings["parameters"]:,} parameters sampled {settings["data"]["completions"]} completions for each of {settings["data"]["prompts"]:,} prompts, and a
hidden utility scored them. Every method below trains from the same start on that fixed data, {settings["steps"]} steps of
{settings["prompts_per_step"]} prompts; none of them samples again. Measured on {settings["held_out_prompts"]:,} other prompts.</p>
<figure>{svg(results)}<figcaption>Bars: mean over {settings["seeds"]} orders of the data (seeds), lines: ± one standard deviation between them. All start
from one model and one data set, so the spread does not cover a new task or a new start.</figcaption></figure>
<h2>Numbers</h2><div class="wide"><table><thead><tr><th>method</th><th>utility</th><th>win rate</th><th>CPU s a run</th></tr></thead><tbody>
<tr><td>start model</td><td>{results.start_utility:.3f}</td><td>0.500</td><td></td></tr>
{_rows(results)}</tbody></table></div>
<p class="quiet">Win rate: share of held-out prompts where the completion is worth more than one by the start model. The two controls show how much
comes without any clipping or reference sync, and how far imitation of the best answers gets.</p>
<h2>Settings</h2><div class="wide"><table><thead><tr><th>method</th><th>objective</th><th>clip, nats</th><th>sync every</th><th>learning rate</th>
<th>rows a step</th></tr></thead><tbody>{_settings(results)}</tbody></table></div>
<p class="quiet">AdamW (0.9, 0.99), 10 steps of warm-up, gradient norm 1. Learning rates and the one other setting of each method were searched with
the same budget on another order of the data and other prompts.</p>
<h2>Where and with what</h2><pre>{escape(json.dumps({"machine": known["machine"], "versions": known["versions"]}, indent=2))}</pre>
<p class="quiet">All runs, settings and last training metrics: <code>results.json</code> beside this page.</p>
</body></html>
"""


def _rows(results: Results) -> str:
    return "".join(
        f'<tr{_mark(row.method.humanline)}><td>{escape(row.method.title)}</td><td>{row.utility.show(3)}</td>'
        f"<td>{row.win_rate.show(3)}</td><td>{row.seconds.show(1)}</td></tr>\n"
        for row in results.rows
    )


def _settings(results: Results) -> str:
    lines = []
    for row in results.rows:
        settings = row.method.settings
        cells = [_objective(settings["objective"]), _bounds(settings["limit"]), settings["sync_every"] or "–", settings["lr"], settings["batch_size"]]
        lines.append(
            f"<tr{_mark(row.method.humanline)}><td>{escape(row.method.title)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"
        )
    return "".join(lines)


def _objective(objective: dict[str, Any]) -> str:
    return escape(", ".join([objective["name"], *(f"{name} {value}" for name, value in objective.items() if name != "name")]))


def _bounds(limit: list[float] | None) -> str:
    return f"[{limit[0]:g}, {limit[1]:g}]" if limit else "–"


def _mark(humanline: bool) -> str:
    return ' class="humanline"' if humanline else ""
