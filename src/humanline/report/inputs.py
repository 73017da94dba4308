"""From the paths that a user names to what a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from humanline.errors import CheckpointError, ConfigError, nearest
from humanline.report.methods import Method, group, short_name, unique
from humanline.report.perception import Perception, read_perception
from humanline.report.results_file import Results, read_results
from humanline.report.run_folder import Run, read_run


@dataclass(frozen=True)
class Contents:
    """Everything that a report shows, read."""

    methods: tuple[Method, ...]
    start: dict[str, float]
    """metrics of the model that all runs began with, where a file of results tells"""
    settings: dict[str, str]
    """of a whole comparison"""
    environments: tuple[tuple[str, dict[str, str]], ...]
    """(whose, versions and machine), equal ones once"""
    inspected: tuple[tuple[str, Perception], ...]
    """(name, curves) of folders that hold nothing else to show, as `humanline inspect` leaves them"""
    notes: tuple[tuple[str, str], ...]
    """(whose, what a reader has to know first)"""

    @property
    def runs(self) -> tuple[tuple[str, Run], ...]:
        """(name, run) of all run directories."""
        return named_runs(self.methods)


def named_runs(methods: Sequence[Method]) -> tuple[tuple[str, Run], ...]:
    """Run directories under names that tell them apart."""
    runs = [run for method in methods for run in method.runs]
    return tuple((short_name(run.folder, [other.folder for other in runs]), run) for run in runs)


def default_out(paths: Sequence[Path]) -> Path:
    """Where the report of these paths goes unless told otherwise."""
    if len(paths) != 1:
        raise ConfigError(f"{len(paths)} runs were named: expected a file for their common report. Add `--out report.html`.")
    return (paths[0] if paths[0].is_dir() else paths[0].parent) / "report.html"


def read(paths: Sequence[Path]) -> Contents:
    """Run directories, files of results or directories that hold one, and folders of `humanline inspect`."""
    if not paths:
        raise ConfigError("no run was named: expected `humanline report RUN…`, with run directories or a results.json.")
    runs: list[Run] = []
    results: list[tuple[Path, Results]] = []
    inspected: list[tuple[str, Perception]] = []
    for path in {path.resolve(): path for path in paths}.values():
        try:
            if file := _results_file(path):
                results.append((file, read_results(file)))
            elif (path / "perception.json").is_file() and not (path / "config.yaml").exists():
                inspected.append((path.resolve().name, read_perception(path / "perception.json")))
            else:
                runs.append(read_run(path))
        except OSError as error:
            raise CheckpointError(f"{error.filename or path} cannot be read: {error.strerror}.") from error
    methods = [method for _, found in results for method in found.methods] + group(runs)
    titles = unique([method.title for method in methods])
    all_runs = named_runs(methods)
    remarks = [(file.parent.resolve().name, note) for file, found in results for note in found.notes]
    return Contents(
        tuple(replace(method, title=title) for title, method in zip(titles, methods, strict=True)),
        {name: value for _, found in results for name, value in found.start.items()},
        {name: value for _, found in results for name, value in found.settings.items()},
        _environments([(file.parent.resolve().name, found.environment) for file, found in results], all_runs),
        tuple(inspected),
        (*remarks, *((name, note) for name, run in all_runs for note in run.notes)),
    )


def _results_file(path: Path) -> Path | None:
    """The file of results that a path means; None for a run directory."""
    if not path.exists():
        close = nearest(path.name, [entry.name for entry in path.parent.iterdir()]) if path.parent.is_dir() else ""
        raise CheckpointError(f"{path} does not exist.{close} Expected a run directory or a results.json.")
    if path.is_dir():
        return path / "results.json" if (path / "results.json").is_file() else None
    if path.suffix != ".json":
        raise CheckpointError(f"{path} is a file: expected a run directory or a results.json. Name the directory, {path.parent}.")
    return path


def _environments(
    results: Sequence[tuple[str, dict[str, str]]], runs: Sequence[tuple[str, Run]]
) -> tuple[tuple[str, dict[str, str]], ...]:
    found = [*results, *((name, run.summary.environment) for name, run in runs if run.summary)]
    distinct: list[tuple[list[str], dict[str, str]]] = []
    for name, environment in found:
        same = next((names for names, known in distinct if known == environment), None)
        if same is not None:
            same.append(name)
        elif environment:
            distinct.append(([name], environment))
    return tuple((f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0], known) for names, known in distinct)
