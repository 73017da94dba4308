"""Where the time went: seconds by part, per method."""

from __future__ import annotations

import math
from collections.abc import Sequence

from humanline.report.elements import Axis, Chart, Section, Table, numbers, show
from humanline.report.methods import Method

ORDER = ("data", "sampling", "scoring", "reference", "train", "other", "not split")
"""parts as they are stacked; further ones follow"""


def section(methods: Sequence[Method]) -> Section:
    """A stacked bar per method, the mean of its runs; empty where no run has its time recorded."""
    timed = [
        (method.title, mean)
        for method in methods
        if (mean := mean_parts([entry.parts for entry in method.entries if entry.parts]))
    ]
    if not timed:
        return Section("Wall-clock")
    found = {part for _, mean in timed for part in mean}
    parts = [*(part for part in ORDER if part in found), *sorted(found - set(ORDER))]
    names = tuple(name for name, _ in timed)
    traces = tuple(
        {
            "name": part,
            "line": "only",
            "series": number,
            "x": numbers(mean.get(part, 0.0) for _, mean in timed),
            "y": list(range(len(timed))),
        }
        for number, part in enumerate(parts)
    )
    rows = tuple((name, *(show(mean.get(part)) for part in parts), show(math.fsum(mean.values()))) for name, mean in timed)
    note = "Seconds of a run, mean over its seeds." if any(len(method.entries) > 1 for method in methods) else "Seconds of a run."
    if "not split" in found:
        note += " Not split: steps of a run that has not finished, or from before it was resumed."
    table = Table("Seconds by part", ("method", *parts, "total"), rows)
    return Section(
        "Wall-clock", charts=(Chart("Wall-clock", "bars", Axis("seconds"), Axis("method"), traces, table, note, names),)
    )


def mean_parts(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean over runs; a part that a run does not have took it no time."""
    return {
        part: math.fsum(run.get(part, 0.0) for run in runs) / len(runs)
        for part in dict.fromkeys(part for run in runs for part in run)
    }
