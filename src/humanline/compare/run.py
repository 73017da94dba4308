"""`humanline compare`: do the runs that are not done, then say what all of them came to.

OUT/results.json   every number, settings, versions (humanline.compare.results)
    report.html    the same with curves, made by humanline.report
    runs/          run directories and logs (humanline.compare.jobs)
    inputs.json    hashes of the files that the runs read
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from humanline.compare.jobs import Job, plan, work, write_text
from humanline.compare.results import Result, content, record, summarise
from humanline.compare.study import Study, check
from humanline.compare.workers import Task, cores, outcomes
from humanline.errors import CheckpointError, DataError, HumanlineError, Interrupted

if TYPE_CHECKING:
    from rich.console import Console


WIDTH = 140
"""columns of tables that go into a file or a pipe"""


def compare(study: Study, *, console: Console | None = None) -> Result:
    """Do the runs of a study that are not done, test its claims, and write OUT/results.json and OUT/report.html.

    A run that fails does not end the others: it stands in `Result.failed`. Raises a `HumanlineError` where nothing could be begun, and
    `Interrupted` after SIGINT or SIGTERM, when every run has saved where it is; the same call then goes on.
    """
    from rich.console import Console

    check(study)
    if console is None:
        console = Console()
        if not console.is_terminal:
            console.width = max(console.width, WIDTH)
    jobs = plan(study)
    processes, threads = parallel(study)
    with _folder(Path(study.out)):
        _refuse_other_settings(jobs, study.out)
        _refuse_other_inputs(study, jobs)
        missing = [job for job in jobs if not job.complete]
        console.print(
            f"{len(jobs)} runs in {study.out}, {len(jobs) - len(missing)} of them finished before; "
            f"{min(processes, max(len(missing), 1))} at a time, {threads} thread{'s' * (threads > 1)} each",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
        failed = _do(missing, processes=processes, threads=threads, console=console)
        result = _collected(study, jobs, failed, processes=processes, threads=threads)
        _write(result, console)
    return result


def parallel(study: Study) -> tuple[int, int]:
    """(runs at the same time, threads of each). They depend on the machine and the study, not on how many runs are left: sums of floats
    depend on the number of threads."""
    if study.processes is not None:
        return study.processes, max(cores() // study.processes, 1)
    return (1, cores()) if _on_accelerator(study) else (cores(), 1)


def _on_accelerator(study: Study) -> bool:
    import torch

    devices = {config.device for config in study.methods.values()}
    there = torch.cuda.is_available() or torch.backends.mps.is_available()
    return bool(devices & {"cuda", "mps"}) or ("auto" in devices and there)


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make the folder and hold it: two comparisons in one would do the same runs."""
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
        lock = open(out / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CheckpointError(f"folder {out} cannot be written: {error}. Choose another `out`.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"folder {out} is in use by another comparison. Wait for it, or choose another `out`."
            ) from error
        yield


def _refuse_other_settings(jobs: Sequence[Job], out: str) -> None:
    """Runs that are there already were made with the settings that the study has now."""
    for job in jobs:
        if changed := job.changed():
            raise CheckpointError(
                f"{job.folder} was begun with other settings than the study has now:\n  "
                + "\n  ".join(changed)
                + f"\n  Leave these as they were; remove {job.folder.parent} to do this method again; or choose another `out` than {out}."
            )


def _refuse_other_inputs(study: Study, jobs: Sequence[Job]) -> None:
    """Files of data and starting models have not changed since the first run."""
    path = Path(study.out) / "inputs.json"
    known = json.loads(path.read_bytes()) if path.is_file() and any(job.folder.exists() for job in jobs) else {}
    now = {str(file): _hash(file) for file in _inputs(study)}
    if changed := [file for file, digest in now.items() if known.get(file, digest) != digest]:
        raise CheckpointError(
            f"{changed[0]} has changed since the runs in {study.out} were begun, so that new ones would not compare with them. "
            f"Restore it, remove {study.out}/runs, or choose another `out`."
        )
    write_text(path, json.dumps(known | now, indent=1) + "\n")


def _inputs(study: Study) -> list[Path]:
    """Files that runs read: data, held-out data, and what lies in the folder of a starting model."""
    named = {
        Path(name) for config in study.methods.values() for name in (config.data, config.eval.data or "", config.model) if name
    }
    folders = [entry for name in named if (name / "config.json").is_file() for entry in name.iterdir() if entry.is_file()]
    return sorted([*(name for name in named if name.is_file()), *folders])


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _do(missing: Sequence[Job], *, processes: int, threads: int, console: Console) -> dict[str, str]:
    """Do the runs; {run: why it failed}."""
    from humanline.compare.progress import Progress

    if not missing:
        return {}
    jobs = {job.name: job for job in missing}
    tasks = [Task(name, work, (job,), job.log) for name, job in jobs.items()]
    failed = {}
    with Progress(jobs, processes=processes, console=console) as progress:
        try:
            for outcome in outcomes(
                tasks,
                processes=processes,
                threads=threads,
                look=lambda running: progress.look([task.name for task in running]),
                say=progress.say,
            ):
                if outcome.error:
                    failed[outcome.task.name] = outcome.error
                progress.ended(outcome.task.name, outcome.error)
        except Interrupted as error:
            done = sum(job.complete for job in missing)
            raise Interrupted(
                f"stopped: {done} of {len(missing)} runs were finished, the others go on from where they saved. "
                "Run the same command again to go on.",
                error.signal,
            ) from error
    return failed


def _collected(study: Study, jobs: Sequence[Job], failed: dict[str, str], *, processes: int, threads: int) -> Result:
    """All runs that have a result; why the others have none."""
    records, failed = [], dict(failed)
    for job in jobs:
        if job.name in failed:
            continue
        try:
            records.append(record(job, study))
        except (HumanlineError, OSError, ValueError, KeyError) as error:  # of a run whose files were removed or damaged
            failed[job.name] = f"{type(error).__name__}: {error}"
    return summarise(study, records, failed, processes=processes, threads=threads)


def _write(result: Result, console: Console) -> None:
    from humanline.compare.tables import tables
    from humanline.report import write_report

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    out = Path(result.study.out)
    write_text(out / "results.json", json.dumps(content(result), indent=1) + "\n")
    for table in tables(result):
        console.print(table)
    for note in result.notes:
        say(f"note: {note}.")
    for name, error in result.failed.items():
        say(f"failed: {name}: {error}")
    say(f"results {(out / 'results.json').resolve()}")
    try:
        say(f"report  {write_report([out]).resolve()}")
    except DataError as error:  # without a single run there is nothing to show
        if result.runs:
            raise
        say(f"no report: {error}")
