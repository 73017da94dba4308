"""What a run says while it runs: `metrics.jsonl` (always), a console table, and trackers."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from humanline.errors import CheckpointError

COLUMNS: tuple[tuple[str, str, str], ...] = (
    # metric, heading, format
    ("loss", "loss", "{:.4f}"),
    ("rollout_reward", "fresh", "{:.3f}"),
    ("reward", "reward", "{:.3f}"),
    ("frac_zero_std_groups", "equal", "{:.0%}"),
    ("reward_accuracy", "acc", "{:.3f}"),
    ("reward_margin", "margin", "{:+.3f}"),
    ("reward_desirable", "r+", "{:+.3f}"),
    ("reward_undesirable", "r-", "{:+.3f}"),
    ("grad_norm", "grad", "{:.3g}"),
    ("lr", "lr", "{:.2g}"),
    ("clipped_low", "low %", "{:.2%}"),
    ("clipped_high", "high %", "{:.2%}"),
    ("log_ratio_std", "spread", "{:.3f}"),
    ("reference_age", "age", "{:.0f}"),
    ("tokens_per_second", "tok/s", "{:.0f}"),
)


def duration(seconds: float) -> str:
    """`0:42`, `12:05` or `3:20:11`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def watch(steps: Sequence[int], what: str, *, seconds: float = 10.0) -> Iterator[int]:
    """Iterate over `steps`, printing how far it is, the rate and the time left every so many seconds."""
    started = shown = time.perf_counter()
    for done, step in enumerate(steps):
        now = time.perf_counter()
        if now - shown >= seconds and done:
            rate = done / (now - started)
            print(f"{what}: {done}/{len(steps)} steps, {rate:.2f}/s, ETA {duration((len(steps) - done) / rate)}", flush=True)
            shown = now
        yield step


class MetricsLog:
    """Appends one JSON line per optimizer step and prints every n-th of them as a table row."""

    def __init__(self, path: Path, *, every: int, total: int, done: int = 0) -> None:
        self.path, self.every, self.total = path, every, total
        self._started, self._first = time.perf_counter(), done
        self._printed = 0
        if missing := cut_back(path, done):
            print(
                f"warning: {path} lacks the lines of {_steps(missing)}: they were done, but their metrics are lost.", flush=True
            )
        self._file: IO[str] = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open for the length of the run)

    def write(self, line: dict[str, Any]) -> None:
        """One step. Non-finite values are written as null, since JSON has no other way."""
        clean = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
        self._file.write(json.dumps(clean) + "\n")
        self._file.flush()
        step = line["step"]
        if self.every and (step % self.every == 0 or step == self.total):
            self._print(line)

    def _print(self, line: dict[str, Any]) -> None:
        values = [(heading, form, line[name]) for name, heading, form in COLUMNS if line.get(name) is not None]
        shown = [(heading, form.format(value) if math.isfinite(value) else "–") for heading, form, value in values]
        per_step = (time.perf_counter() - self._started) / max(line["step"] - self._first, 1)
        shown.append(("ETA", duration(per_step * (self.total - line["step"]))))
        width = len(f"{self.total}/{self.total}")
        if self._printed % 20 == 0:
            print(f"{'step':>{width}}  " + "  ".join(f"{heading:>{_width(heading)}}" for heading, _ in shown))
        self._printed += 1
        counter = f"{line['step']}/{self.total}"
        print(f"{counter:>{width}}  " + "  ".join(f"{value:>{_width(heading)}}" for heading, value in shown), flush=True)

    def sync(self) -> None:
        """Put every line so far on the disk. A checkpoint calls it first, so that no line before it is lost with the machine."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _width(heading: str) -> int:
    return max(len(heading), 7)


def cut_back(path: Path, done: int) -> list[int]:
    """Drop lines after step `done`: those steps are about to be done again. A torn last line goes with them.

    Returns the steps up to `done` that have no line.
    """
    missing = dict.fromkeys(range(1, done + 1))
    if not path.exists():
        return list(missing)
    kept = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, text in enumerate(lines, 1):
        try:
            step = int(json.loads(text)["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number > done or not text.endswith("\n"):
                break
            raise CheckpointError(
                f"{path}:{number}: not a line of metrics ({error}). Expected JSON with a step. Remove the line to resume without it."
            ) from error
        if step <= done:
            kept.append(text.rstrip("\r\n") + "\n")
            missing.pop(step, None)
    temporary = path.with_name(f".{path.name}.partial")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return list(missing)


def _steps(numbers: Sequence[int]) -> str:
    """`step 3` or `steps 1–4, 7`: ascending numbers, of which at most five ranges are shown."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [str(first) if first == last else f"{first}–{last}" for first, last in ranges[:5]]
    return f"step{'s' if len(numbers) > 1 else ''} {', '.join(shown)}{' …' if len(ranges) > 5 else ''}"
