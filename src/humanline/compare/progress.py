"""What a comparison shows while it runs: the runs at work with their pace, and the time left."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from humanline.compare.jobs import Job
from humanline.metrics import duration

PLAIN = 60.0
"""seconds between two lines where there is no terminal"""


class Pace(NamedTuple):
    """How far a run is."""

    done: int
    total: int | None
    rate: float | None
    """steps per second of this process; None = not known yet"""

    @property
    def left(self) -> float | None:
        """Seconds."""
        return (self.total - self.done) / self.rate if self.rate and self.total else None


class Progress:
    """A live table of the running runs on a terminal; elsewhere a line a minute. Each run that ends leaves a line."""

    def __init__(self, jobs: Mapping[str, Job], *, processes: int, console: Console) -> None:
        """jobs: those to do, by name."""
        self.jobs, self.processes, self.console = jobs, processes, console
        self._waiting = dict(jobs)
        self._began: dict[str, tuple[float, int]] = {}
        self._seconds_per_step: list[float] = []
        self._steps: list[int] = []
        self._running: dict[str, Pace] = {}
        self._shown = time.monotonic()
        self._live = Live(get_renderable=self._table, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def look(self, running: Sequence[str]) -> None:
        """Show where the runs of these names are."""
        self._waiting = {name: job for name, job in self._waiting.items() if name not in running}
        self._running = {name: self._pace(name) for name in running}
        if self.console.is_terminal:
            self._live.refresh()
        elif time.monotonic() - self._shown >= PLAIN:
            self._shown = time.monotonic()
            parts = [f"{name}: {' · '.join(filter(None, _cells(pace)))}" for name, pace in self._running.items()]
            self._print("; ".join([*parts, f"{_clock(self.left())} left in all"]))

    def ended(self, name: str, error: str | None) -> None:
        """A run has just ended."""
        pace = self._pace(name)
        self._running.pop(name, None)
        self._waiting.pop(name, None)
        if pace.rate:
            self._seconds_per_step.append(1 / pace.rate)
            self._steps.append(pace.done)
        count = len(self.jobs) - len(self._waiting) - len(self._running)
        said = f"failed: {error}\n  {self.jobs[name].log}" if error else f"done, {pace.done} steps"
        self._print(f"{count}/{len(self.jobs)}  {name}: {said}")

    def say(self, text: str) -> None:
        self._print(text)

    def left(self) -> float | None:
        """Seconds to the end of all runs, at the pace of those so far; None before there is one."""
        pace = self._seconds_per_step + [1 / running.rate for running in self._running.values() if running.rate]
        totals = self._steps + [running.total for running in self._running.values() if running.total]
        if not pace or not totals:
            return None
        mean_total = math.fsum(totals) / len(totals)
        steps = [max((running.total or mean_total) - running.done, 0) for running in self._running.values()]
        steps += [job.config.steps or mean_total for job in self._waiting.values()]
        one_after_another = math.fsum(steps) * math.fsum(pace) / len(pace)
        return one_after_another / min(self.processes, len(steps)) if steps else 0.0

    def _pace(self, name: str) -> Pace:
        done, total = self.jobs[name].steps()
        now = time.monotonic()
        # The first step that is seen starts the clock: loading is no part of the pace.
        since, first = self._began.setdefault(name, (now, done)) if done else (now, 0)
        return Pace(done, total, (done - first) / (now - since) if done > first and now > since else None)

    def _table(self) -> Table:
        over = len(self.jobs) - len(self._waiting) - len(self._running)
        table = Table(caption=f"{over} of {len(self.jobs)} runs ended · {_clock(self.left())} left")
        for title in ("run", "step", "pace", "left"):
            table.add_column(title, justify="left" if title == "run" else "right")
        for name, pace in self._running.items():
            table.add_row(name, *_cells(pace))
        return table

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _cells(pace: Pace) -> tuple[str, str, str]:
    if not pace.done:
        return "loading", "", ""
    rate = f"{pace.rate:.3g} steps/s" if pace.rate else ""
    return f"{pace.done}/{pace.total or '?'}", rate, _clock(pace.left) if rate else ""


def _clock(seconds: float | None) -> str:
    """`1:05`, or a dash when unknown."""
    return "–" if seconds is None else duration(seconds)
