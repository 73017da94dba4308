"""What a run came to: metrics that training wrote down, and functions of the run directory."""

from __future__ import annotations

import inspect
import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from humanline.compare.study import FACTS
from humanline.errors import ConfigError, DataError, nearest
from humanline.score.function import load_function, source_hash


def newest(path: Path, metrics: tuple[str, ...]) -> tuple[dict[str, float], dict[str, int]]:
    """({metric: its newest value}, {metric: the step of it}) of a finished metrics.jsonl.

    Raises `DataError` for a metric that no line has, or whose newest value was not finite.
    """
    values: dict[str, float | None] = {}
    steps: dict[str, int] = {}
    known: dict[str, None] = {}
    with open(path, encoding="utf-8") as lines:
        for text in lines:
            line = json.loads(text)
            known |= dict.fromkeys(line)
            for name in metrics:
                if name in line:
                    values[name], steps[name] = line[name], line["step"]
    for name in metrics:
        if name not in values:
            raise DataError(f"{path} has no {name}.{nearest(name, known)} Expected one of {', '.join(known)}.")
        if values[name] is None:
            raise DataError(f"{path} has no finite {name}: in step {steps[name]} it was infinite or NaN. The run has diverged.")
    return {name: value for name, value in values.items() if value is not None}, steps


class MeasuringFunction(NamedTuple):
    """A function of the run directory, as it is when the comparison starts."""

    path: str
    """`module:function` or `file.py:function`"""
    source: str
    """hash of the file that it is in; of what that imports it knows nothing"""

    @classmethod
    def of(cls, path: str) -> MeasuringFunction:
        """Import it, and see whether it takes a run directory. Raises `ConfigError`."""
        function = load_function(path, key="measure")
        try:
            inspect.signature(function).bind(Path())
        except TypeError as error:
            raise ConfigError(
                f"measure {path!r} cannot be called with a run directory ({error}): expected def f(run_dir)."
            ) from error
        return cls(path, source_hash(function) or "")

    def call(self, folder: Path) -> dict[str, float]:
        """The metrics that it returns for a run directory. Raises `DataError` for anything but finite numbers by name."""
        function = load_function(self.path, key="measure")
        if (source_hash(function) or "") != self.source:
            raise DataError(f"{self.path} was edited while the comparison ran. Run it again: all runs are measured anew.")
        returned = function(folder)
        if not isinstance(returned, Mapping) or not returned:
            raise DataError(
                f"{self.path} returned {reprlib.repr(returned)}: expected {{metric: number}} with at least one metric."
            )
        return {_checked_name(name, self.path): _number(value, f"{self.path}: {name}") for name, value in returned.items()}


def _checked_name(name: Any, path: str) -> str:
    if not isinstance(name, str) or not name or name in FACTS:
        raise DataError(f"{path} returned a metric named {name!r}: expected text, and none of {', '.join(FACTS)}.")
    return name


def _number(value: Any, what: str) -> float:
    if hasattr(value, "tolist"):  # a scalar of numpy or torch
        value = value.tolist()
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise DataError(f"{what} is {reprlib.repr(value)}: expected a finite number.")
    return float(value)
