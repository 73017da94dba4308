"""`humanline demo`: offline GRPO, DPO and KTO with and without humanline, and two controls, on task "score".

OUT/report.html    figure, table and settings on one page
    details.html   intervals, p-values and learning curves of every run (humanline.report)
    results.json   every run, mean ± standard deviation, settings, versions
    figure.svg     the picture alone
    data/ runs/    derived data files; one folder per run. A run that is finished is not done again.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.embedded import assets
from humanline.embedded.jobs import Job, prepare_worker, run
from humanline.embedded.methods import METHOD_NAMES, METHODS, PROMPTS_PER_STEP, STEPS, MethodName
from humanline.errors import CheckpointError, ConfigError, HumanlineError, TrainingError

if TYPE_CHECKING:
    from rich.console import Console

    from humanline.embedded.results import Results


MOST_PROCESSES = 8


@dataclass(frozen=True)
class DemoConfig:
    """Offline GRPO, DPO and KTO with and without humanline, and two controls, on one data set and a tiny model."""

    out: Path = Path("demo-run")
    """output folder; finished runs in it are kept and not done again"""
    seeds: int = 3
    """orders of the data per method, ≥ 1"""
    processes: int | None = None
    """runs at the same time, ≥ 1, one core and half a gigabyte each; None = one per core, at most 8"""
    methods: tuple[MethodName, ...] = METHOD_NAMES
    """what to compare"""
    quick: bool = False
    """six steps per run and 100 held-out prompts: shows that everything works, its numbers mean nothing"""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}: expected a number of runs per method from 1 on.")
        if self.processes is not None and self.processes < 1:
            raise ConfigError(f"processes is {self.processes}: expected a number of worker processes from 1 on.")
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown or not self.methods:
            raise ConfigError(f"methods is {list(self.methods)}: expected at least one of {', '.join(METHODS)}.")


def main(words: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    import tyro

    run_demo(tyro.cli(DemoConfig, args=words, prog="humanline demo", config=(tyro.conf.FlagCreatePairsOff,)))
    return 0


def run_demo(config: DemoConfig) -> Path:
    """Do all runs that are not finished, then write table, results.json, figure and report. Returns the report's path."""
    from rich.console import Console

    console, packaged = Console(), assets.verify()
    jobs = plan(config, packaged)
    with output_folder(config.out):
        write_data(config.out, jobs)
        finished = {job: result for job in jobs if (result := job.result()) is not None}
        before = f", {len(finished)} of them finished before" if finished else ""
        console.print(f"{len(jobs)} runs in {config.out.resolve()}{before}", highlight=False, soft_wrap=True)
        run_missing(jobs, finished, console, processes=config.processes or min(_cores(), MOST_PROCESSES))
        return _write(_results(config, jobs, finished, packaged), config.out, console)


def plan(config: DemoConfig, packaged: dict[str, Any]) -> list[Job]:
    """Seed by seed, so that a demo that was stopped has as many seeds of one method as of another."""
    steps, rows = (6, 100) if config.quick else (STEPS, packaged["held_out"]["prompts"])
    fingerprint = assets.fingerprint(packaged)
    chosen = [method for name, method in METHODS.items() if name in config.methods]
    return [Job(method, seed, steps, rows, config.out, fingerprint) for seed in range(config.seeds) for method in chosen]


@contextmanager
def output_folder(out: Path) -> Iterator[None]:
    """Make the folder and hold it: two demos in one folder would throw away each other's unfinished runs."""
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
        lock = open(out / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CheckpointError(f"output folder {out} cannot be written: {error}. Choose another --out.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"output folder {out} is in use by another demo. Wait for it, or choose another --out."
            ) from error
        yield


def write_data(out: Path, jobs: Sequence[Job]) -> None:
    """The files that the jobs read besides the packaged groups."""
    from humanline.embedded.groups import read_groups, write_derived

    write_derived(read_groups(assets.GROUPS), out / "data", {job.method.data for job in jobs} - {"groups"})


def run_missing(jobs: Sequence[Job], finished: dict[Job, dict[str, Any]], console: Console, *, processes: int) -> None:
    """Run what is not in `finished` and add it there. The first error or Ctrl-C ends it at once; finished runs stay on disk."""
    from humanline.embedded.progress import REFRESH, Progress

    missing = [job for job in jobs if job not in finished]
    if not missing:
        return
    for job in missing:
        job.discard()
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(min(processes, len(missing)), mp_context=context, initializer=prepare_worker)
    try:
        waiting: dict[Future[dict[str, Any]], Job] = {executor.submit(run, job): job for job in missing}
        with Progress(jobs, finished, console) as progress:
            while waiting:
                done, _ = wait(waiting, timeout=REFRESH, return_when=FIRST_COMPLETED)
                for future in done:
                    job = waiting.pop(future)
                    finished[job] = outcome(job, future)
                    progress.report(job)
                progress.refresh()
    except BrokenProcessPool as error:
        raise TrainingError(
            "a worker process of the demo died, usually for lack of memory. Finished runs are kept: run the command again, "
            "with --processes 1."
        ) from error
    finally:
        if len(finished) < len(jobs):
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # or it would finish what it has begun and what is queued for it: minutes
        executor.shutdown(cancel_futures=True)


def outcome(job: Job, future: Future[dict[str, Any]]) -> dict[str, Any]:
    """The result of a run; its error says which run it was."""
    try:
        return future.result()
    except HumanlineError as error:
        raise TrainingError(f"{job.method.title}, seed {job.seed}: {error}\n  Its log is {job.folder / 'log.txt'}.") from error


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _results(config: DemoConfig, jobs: Sequence[Job], finished: dict[Job, dict[str, Any]], packaged: dict[str, Any]) -> Results:
    from humanline.embedded.results import summarise

    settings = {
        "quick": config.quick,
        "seeds": config.seeds,
        "steps": jobs[0].steps,
        "prompts_per_step": PROMPTS_PER_STEP,
        "held_out_prompts": jobs[0].held_out_rows,
        "parameters": packaged["parameters"],
        "data": packaged["groups"],
        "packaged": jobs[0].packaged,
    }
    methods = list(dict.fromkeys(job.method for job in jobs))
    return summarise(methods, [finished[job] for job in jobs], assets.start_utility(jobs[0].held_out_rows), settings)


def _write(results: Results, out: Path, console: Console) -> Path:
    from humanline.embedded import figure, page
    from humanline.embedded.files import write_text
    from humanline.embedded.progress import final_table
    from humanline.embedded.results import as_json
    from humanline.report import write_report

    report = out / "report.html"
    write_text(out / "results.json", as_json(results))
    write_text(out / "figure.svg", figure.svg(results))
    write_text(report, page.html(results))
    write_report([out], out / "details.html")
    console.print(final_table(results))
    console.print(f"\nresults {out.resolve() / 'results.json'}\nreport  {report.resolve()}", highlight=False, soft_wrap=True)
    return report
