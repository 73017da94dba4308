"""What the demo shows while it runs: a table that fills, one row a method, and the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from humanline.embedded.jobs import Job
from humanline.embedded.results import Results, Spread

REFRESH = 0.5
"""seconds between two looks at the runs"""


class Progress:
    """A live table on a terminal; elsewhere one plain line per finished run."""

    def __init__(self, jobs: Sequence[Job], finished: dict[Job, dict[str, Any]], console: Console) -> None:
        self.jobs, self.finished, self.console = jobs, finished, console
        self._started = time.monotonic()
        self._steps_before = self._steps_done()
        self._live = Live(get_renderable=self._table, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def refresh(self) -> None:
        """Show where the runs are."""
        if self.console.is_terminal:
            self._live.refresh()

    def report(self, job: Job) -> None:
        """A run has just finished."""
        if not self.console.is_terminal:
            result = self.finished[job]
            self.console.print(
                f"{len(self.finished)}/{len(self.jobs)}  {job.method.title}, seed {job.seed}: utility {result['utility']:.3f}, "
                f"win rate {result['win_rate']:.3f}, {result['seconds']:.1f} s, {clock(self._left())} left",
                highlight=False,
                soft_wrap=True,
            )

    def _steps_done(self) -> int:
        return sum(job.steps if job in self.finished else min(job.steps_done(), job.steps) for job in self.jobs)

    def _left(self) -> float | None:
        """Seconds to go at the pace so far; None before there is one."""
        done, total = self._steps_done(), sum(job.steps for job in self.jobs)
        fresh = done - self._steps_before
        return (time.monotonic() - self._started) * (total - done) / fresh if fresh else None

    def _table(self) -> Table:
        elapsed, left = time.monotonic() - self._started, self._left()
        table = Table(caption=f"{len(self.finished)} of {len(self.jobs)} runs · {clock(elapsed)} so far · {clock(left)} left")
        for title in ("method", "runs", "", "utility", "win rate", "CPU s"):
            table.add_column(title, justify="left" if title == "method" else "right")
        for method in dict.fromkeys(job.method for job in self.jobs):
            table.add_row(method.title, *self._cells([job for job in self.jobs if job.method == method]))
        return table

    def _cells(self, jobs: Sequence[Job]) -> list[Any]:
        results = [self.finished[job] for job in jobs if job in self.finished]
        share = sum(1.0 if job in self.finished else min(job.steps_done() / job.steps, 1.0) for job in jobs) / len(jobs)
        means = [
            Spread.of([result[name] for result in results]).show(digits) if results else ""
            for name, digits in (("utility", 3), ("win_rate", 3), ("cpu_seconds", 1))
        ]
        return [f"{len(results)}/{len(jobs)}", ProgressBar(completed=100 * share, width=16), *means]


def clock(seconds: float | None) -> str:
    """`1:05`, or `–` when unknown."""
    return "–" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def final_table(results: Results) -> Table:
    """What the demo ends with."""
    seeds = results.settings["seeds"]
    table = Table(title=f"Task score, all offline: mean ± std of {seeds} run{'s' * (seeds != 1)}")
    for title in ("method", "utility", "win rate", "CPU s a run"):
        table.add_column(title, justify="left" if title == "method" else "right")
    table.add_row("start model", f"{results.start_utility:.3f}", "0.500", "", style="dim", end_section=True)
    for row, following in zip(results.rows, [*results.rows[1:], None], strict=True):
        cells = [row.method.title, row.utility.show(3), row.win_rate.show(3), row.seconds.show(1)]
        last_of_family = following is None or following.method.family != row.method.family
        table.add_row(*cells, style="bold" if row.method.humanline else "", end_section=last_of_family)
    return table
