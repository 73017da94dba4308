"""`humanline report RUN…`: what runs came to, on one self-contained page.

    from humanline.report import write_report

    write_report(["runs/dpo", "runs/dpo-humanline"], "report.html")

Layout: inputs (run_folder, metrics_file, results_file, samples, perception) → methods → sections (headline, curves, wall_clock, …) → page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportConfig:
    """`humanline report`."""

    runs: tuple[str, ...] = ()
    """run directories, or what a comparison left: its directory or its results.json"""
    out: str | None = None
    """the page to write; null = report.html in the run directory, when there is one"""


def report(config: ReportConfig) -> None:
    """Write the page and say where it is."""
    print(f"report  {write_report(config.runs, config.out).resolve()}")


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page about run directories and files of results, and return its path.

    out: default RUN/report.html for a single run. Raises a `HumanlineError` for what cannot be read or written.
    """
    from humanline.report import inputs, page

    paths = [Path(run) for run in runs]
    contents = inputs.read(paths)
    target = Path(out) if out is not None else inputs.default_out(paths)
    page.write(contents, page.titled(paths), target)
    return target
