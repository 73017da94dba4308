"""The page: one HTML file with everything in it, which fetches nothing. Every text is escaped by the template engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from humanline import __version__
from humanline.errors import CheckpointError
from humanline.report import curves, headline, wall_clock
from humanline.report.elements import Section, Table
from humanline.report.inputs import Contents
from humanline.report.methods import Method, differences
from humanline.report.perception import capacity_chart
from humanline.report.samples import side_by_side

SERIES = 8
"""colours in page.css; further series get the same ones dashed"""


def sections(contents: Contents) -> tuple[Section, ...]:
    """In reading order; those without data are left out."""
    perceived = [(name, run.perception) for name, run in contents.runs if run.perception] + list(contents.inspected)
    capacity = tuple(capacity_chart(perception, name) for name, perception in perceived)
    every = (
        headline.section(contents),
        *curves.sections(contents.methods),
        wall_clock.section(contents.methods),
        Section("Capacity", charts=capacity),
        _samples(contents),
        _settings(contents),
        _environment(contents),
    )
    return tuple(section for section in every if section)


def html(contents: Contents, title: str) -> str:
    """The whole page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("humanline.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = sections(contents)
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        made=datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        notes=contents.notes,
        sections=shown,
        drawings=[chart.drawing for section in shown for chart in section.charts],
        series=SERIES,
        plotly=Markup(get_plotlyjs()),
        style=Markup(_text("page.css")),
        script=Markup(_text("page.js")),
    )


def write(contents: Contents, title: str, out: Path) -> None:
    """A reader sees the old page or the new one. Raises `CheckpointError` where it cannot be written."""
    partial = out.with_name(f".{out.name}.partial")
    text = html(contents, title)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8", errors="replace")
        os.replace(partial, out)
    except OSError as error:
        raise CheckpointError(f"report {out} cannot be written: {error.strerror}. Choose another file with --out.") from error


def _text(name: str) -> str:
    return files("humanline.report").joinpath(name).read_text(encoding="utf-8")


def _samples(contents: Contents) -> Section:
    named = [
        file._replace(name=f"{name}: {file.name}" if len(contents.runs) > 1 else file.name)
        for name, run in contents.runs
        for file in run.samples
    ]
    comparisons, note = side_by_side(named)
    return Section("Samples", samples=comparisons, note=note)


def _settings(contents: Contents) -> Section:
    tables = []
    if len(contents.methods) > 1 and (differing := differences(contents.methods)):
        columns = ("setting", *(method.title for method in contents.methods))
        rows = tuple((key, *values) for key, values in differing.items())
        tables.append(Table("Settings that differ", columns, rows))
    if contents.settings:
        tables.append(Table("Settings of the comparison", ("setting", "value"), tuple(contents.settings.items())))
    texts = tuple((_config_title(method), method.runs[0].yaml) for method in contents.methods if method.runs)
    return Section("Settings", tables=tuple(tables), texts=texts)


def _config_title(method: Method) -> str:
    others = len(method.runs) - 1
    more = f" (seed {method.runs[0].seed}; {others} more with other seeds)" if others else ""
    return f"config.yaml of {method.title}{more}"


def _environment(contents: Contents) -> Section:
    if not contents.environments:
        return Section("Environment")
    keys = dict.fromkeys(key for _, environment in contents.environments for key in environment)
    rows = tuple((key, *(environment.get(key, "–") for _, environment in contents.environments)) for key in keys)
    return Section("Environment", tables=(Table("Environment", ("", *(name for name, _ in contents.environments)), rows),))


def titled(paths: Sequence[Path]) -> str:
    """What the page is called."""
    names = [path.resolve().name if path.is_dir() else path.resolve().parent.name for path in paths]
    return names[0] if len(names) == 1 else f"{len(names)} runs"
