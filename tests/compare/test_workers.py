"""Worker processes: a task that fails or dies concerns nobody else, and a signal ends all of them. Tasks are of the standard library."""

from __future__ import annotations

import math
import operator
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from humanline.compare.workers import Task, outcomes
from humanline.errors import Interrupted


def test_a_task_that_fails_or_dies_does_not_end_the_others(tmp_path: Path) -> None:
    tasks = [
        Task("divide", operator.truediv, (1, 0), tmp_path / "logs" / "divide.log"),
        Task("die", signal.raise_signal, (signal.SIGKILL,), tmp_path / "die.log"),
        Task("root", math.sqrt, (4.0,), tmp_path / "root.log"),
        Task("leave", os._exit, (3,), tmp_path / "leave.log"),
        Task("print", print, ("printed",), tmp_path / "print.log"),
        Task("threads", os.getenv, ("OMP_NUM_THREADS",), tmp_path / "threads.log"),
    ]
    before = dict(os.environ)
    found = {outcome.task.name: outcome for outcome in outcomes(tasks, processes=1, threads=3)}
    assert list(found) == [task.name for task in tasks]
    assert found["root"].value == 2.0 and found["threads"].value == "3" and dict(os.environ) == before
    assert found["divide"].error == "ZeroDivisionError: division by zero\n  The log has its traceback."
    assert "ZeroDivisionError" in (tmp_path / "logs" / "divide.log").read_text()
    killed = "its process was killed (SIGKILL), usually for lack of memory: fewer processes at the same time need less"
    assert found["die"].error == killed and found["leave"].error == "its process ended by itself (status 3)"
    assert found["print"].error is None and (tmp_path / "print.log").read_text() == "printed\n"


def test_a_signal_ends_all_tasks_and_begins_no_others(tmp_path: Path) -> None:
    """Each of two workers sleeps for minutes; half a second after both have begun the signal comes."""
    tasks = [Task(str(number), time.sleep, (600,), tmp_path / f"{number}.log") for number in range(5)]
    said: list[str] = []
    started: list[float] = []

    def look(running: object) -> None:
        if not started and all((tmp_path / f"{number}.log").exists() for number in range(2)):
            started.append(time.monotonic())
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"^stopped with 3 of 5 tasks not begun$") as error:
        list(outcomes(tasks, processes=2, threads=1, look=look, say=said.append))
    assert error.value.signal == signal.SIGINT and time.monotonic() - started[0] < 60
    assert said == ["stopping: every run saves where it is (once more to stop at once) …"]
    assert not (tmp_path / "2.log").exists() and signal.getsignal(signal.SIGINT) is handler
