"""RUN/metrics.jsonl, read into one series per metric. 200 000 lines take a few seconds."""

from __future__ import annotations

import json
import math
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from humanline.errors import DataError
from humanline.report.thin import Series


@dataclass(frozen=True)
class Metrics:
    """Everything that a run has written down so far."""

    series: dict[str, Series]
    lines: int
    last_step: int
    """0 = no step yet"""
    notes: tuple[str, ...] = ()

    def last(self, name: str) -> float | None:
        """The newest value of a metric; None where there is none that is finite."""
        value = float(self.series[name].values[-1]) if name in self.series else math.nan
        return value if math.isfinite(value) else None


class _Columns:
    """Grows by a line at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: dict[str, tuple[array[float], array[float]]] = {}
        self.lines, self.step = 0, 0
        self.others: dict[str, int] = {}

    def add(self, line: bytes) -> None:
        """Raises `ValueError` for what is no JSON, `DataError` for what is no line of ours."""
        row = json.loads(line)
        step = row.get("step") if isinstance(row, dict) else None
        if not isinstance(step, int) or isinstance(step, bool):
            raise DataError(
                f"{self.path}:{self.lines + 1}: not a line of metrics as `humanline train` writes them: expected an object with a whole "
                f'number "step", found {line[:60].decode(errors="replace")!r}. Is this another program\'s file?'
            )
        if step <= self.step:
            raise DataError(
                f"{self.path}:{self.lines + 1}: step {step} comes after step {self.step}: expected ascending steps of one run."
            )
        self.step = step
        self.lines += 1
        for name, value in row.items():
            if name != "step":
                self._put(name, value)

    def _put(self, name: str, value: Any) -> None:
        if value is None:
            value = math.nan
        elif isinstance(value, bool) or not isinstance(value, float | int):
            self.others[name] = self.others.get(name, 0) + 1
            return
        elif isinstance(value, int) and abs(value) > sys.float_info.max:
            value = math.inf
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = (array("d"), array("d"))
        steps, values = column
        steps.append(self.step)
        values.append(value)


def read_metrics(path: Path) -> Metrics:
    """All whole lines. A last line that was cut off while it was being written is left out and noted.

    Raises `DataError`, with the line's number, for anything that is not a line of metrics.
    """
    columns, notes = _Columns(path), []
    with open(path, "rb") as file:
        for line in file:
            try:
                columns.add(line)
            except ValueError as error:
                if isinstance(error, DataError):
                    raise
                if not line.endswith(b"\n"):
                    notes.append(f"the last line of {path.name}, after step {columns.step}, is cut off and left out")
                    break
                raise DataError(
                    f"{path}:{columns.lines + 1}: not a line of JSON ({error}). Expected metrics of a step."
                ) from error
    for name, count in columns.others.items():
        notes.append(f"{name} is not a number in {count} line{'s' * (count > 1)} of {path.name}, which are left out")
    series = {name: _finite_or_nan(steps, values) for name, (steps, values) in columns.columns.items()}
    return Metrics(series, columns.lines, columns.step, tuple(notes))


def _finite_or_nan(steps: array[float], values: array[float]) -> Series:
    column = np.frombuffer(values, float)
    return Series(np.frombuffer(steps, float), np.where(np.isfinite(column), column, np.nan))
