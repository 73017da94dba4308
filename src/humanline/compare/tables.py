"""What a comparison ends with, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table

from humanline.compare.claims import ClaimResult
from humanline.compare.results import MethodResult, Result
from humanline.metrics import duration
from humanline.report.elements import show
from humanline.report.headline import decimals, spread_text
from humanline.report.statistics import Spread


def tables(result: Result) -> Iterator[Table]:
    """Values, wall-clock, claims: those that there are."""
    if result.runs:
        yield _values(result)
        if any(method.timed for method in result.methods):
            yield _wall_clock(result)
    if result.claims:
        yield _claims(result)


def _table(title: str, *columns: str, caption: str = "") -> Table:
    table = Table(title=title, title_justify="left", caption=caption or None, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _values(result: Result) -> Table:
    """Mean ± sample standard deviation over seeds."""
    caption = (
        "one seed a method: no spread, no test" if len(result.study.seeds) == 1 else "mean ± standard deviation over n seeds"
    )
    table = _table("Results", "method", "n", *result.metrics, caption=caption)
    for method in result.methods:
        spreads = [method.spread(metric) for metric in result.metrics]
        table.add_row(method.name, str(method.runs), *(spread_text(spread) if spread else "–" for spread in spreads))
    return table


def _wall_clock(result: Result) -> Table:
    parts = next(tuple(method.seconds) for method in result.methods if method.timed)
    caption = f"mean of a run, {result.processes} at a time on this machine"
    table = _table("Wall-clock", "method", "n", *parts, "total", caption=caption)
    for method in result.methods:
        table.add_row(method.name, str(method.timed), *_seconds(method, parts))
    return table


def _seconds(method: MethodResult, parts: tuple[str, ...]) -> list[str]:
    if not method.timed:
        return ["–"] * (len(parts) + 1)
    values = [*(method.seconds[part] for part in parts), math.fsum(method.seconds.values())]
    return [f"{value:.1f} s" if value < 60 else duration(value) for value in values]


def _claims(result: Result) -> Table:
    alpha, count = result.study.alpha, len(result.claims)
    caption = (
        f"effect: mean(a) − mean(b), with the interval of this claim alone; Holm p: corrected for {count} "
        f"claim{'s' * (count > 1)}, shown below {alpha:g}. "
        "≠: Welch's t-test, two-sided; > and <: one-sided; =: two one-sided tests"
    )
    table = _table("Claims", "claim", "effect", "interval", "p", "Holm p", "verdict", caption=caption)
    table.columns[-1].justify, table.show_lines = "left", True
    for claim in result.claims:
        table.add_row(_sentence(claim), *_numbers(claim, result), claim.verdict)
    return table


def _sentence(result: ClaimResult) -> str:
    claim = result.claim
    if claim.kind == "equal":
        return f"{claim.a} = {claim.b} within ±{claim.margin:g}\n{claim.metric}"
    sign = "≠" if claim.kind == "different" else "<" if claim.lower else ">"
    return f"{claim.a} {sign} {claim.b}\n{claim.metric}"


def _numbers(claim: ClaimResult, result: Result) -> list[str]:
    if claim.effect is None or claim.interval is None or claim.p is None or claim.holm_p is None:
        return ["–"] * 4
    values = {method.name: method.values for method in result.methods}
    own = [Spread.of(values[method][claim.claim.metric]) for method in (claim.claim.a, claim.claim.b)]
    digits = max(map(decimals, own))
    effect, low, high = (f"{value:+.{digits}f}".replace("-", "−") for value in (claim.effect, *claim.interval))
    return [effect, f"{low} … {high} ({claim.level:.0%})", show(claim.p, 2), show(claim.holm_p, 2)]
