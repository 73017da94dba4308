"""What is shown while runs are at work: steps, pace and the time left, from the files of the runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from humanline.compare.jobs import Job
from humanline.compare.progress import Progress
from humanline.config import TrainConfig


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds; the test moves them."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def make(tmp_path: Path, name: str, steps: int | None = 50) -> Job:
    job = Job(name, TrainConfig(out=str(tmp_path / name / "seed-1"), seed=1, steps=steps), ())
    job.folder.mkdir(parents=True)
    return job


def write(job: Job, done: int, *, torn: str = "") -> None:
    lines = "".join(json.dumps({"step": step, "padding": "x" * 3000}) + "\n" for step in range(1, done + 1))
    (job.folder / "metrics.jsonl").write_text(lines + torn)


def test_steps_are_those_of_the_last_whole_line(tmp_path: Path) -> None:
    """Of a file of 90 kB only the end is read. How many steps there are, the run says where its config does not."""
    job = make(tmp_path, "a", steps=None)
    assert job.steps() == (0, None)
    write(job, 0, torn='{"step": 1')
    assert job.steps() == (0, None)
    write(job, 30, torn='{"step": 31, "pad')
    (job.folder / "summary.json").write_text('{"steps": {"first": 1, "last": 77}}')
    assert job.steps() == (30, 77)


def test_pace_and_time_left(tmp_path: Path, clock: list[float]) -> None:
    """10 steps in 5 s are 2 steps/s. Left: 50 − 20 of this run and 50 of each of two others, 130 steps at 2/s one after another,
    half of that by two at a time. A run that has ended counts with its pace, whatever it has loaded before its first step."""
    jobs = {name: make(tmp_path, name) for name in "abc"}
    out = io.StringIO()
    progress = Progress(jobs, processes=2, console=Console(file=out, width=100))
    with progress:
        progress.look(["a", "b"])
        assert progress.left() is None
        clock[0] += 20
        write(jobs["a"], 10)
        progress.look(["a", "b"])
        clock[0] += 5
        write(jobs["a"], 20)
        progress.look(["a", "b"])
        assert progress.left() == pytest.approx((30 + 50 + 50) / 2 / 2)
        clock[0] += 60
        progress.look(["a", "b"])
        write(jobs["a"], 50)
        progress.ended("a", None)
        progress.ended("b", "DataError: no rows")
        progress.look(["c"])
        pace = 40 / 65
        assert progress.left() == pytest.approx(50 / pace)
    shown = out.getvalue().splitlines()
    assert shown[0].startswith("a: 20/50 · 0.154 steps/s · 3:15; b: loading; ")
    assert shown[1] == "1/3  a: done, 50 steps" and shown[2] == "2/3  b: failed: DataError: no rows"


def test_on_a_terminal_the_runs_are_a_table(tmp_path: Path, clock: list[float]) -> None:
    job = make(tmp_path, "method")
    out = io.StringIO()
    with Progress({"method, seed 1": job}, processes=1, console=Console(file=out, width=100, force_terminal=True)) as progress:
        write(job, 1)
        progress.look(["method, seed 1"])
        clock[0] += 2
        write(job, 5)
        progress.look(["method, seed 1"])
    assert "5/50" in out.getvalue() and "2 steps/s" in out.getvalue() and "0:22" in out.getvalue()
    assert "0 of 1 runs ended · 0:22 left" in out.getvalue()
