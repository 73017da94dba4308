"""Independent tasks in worker processes: what one of them does, even dying, does not touch the others.

    for outcome in outcomes(tasks, processes=4, threads=1):
        ...

Knows nothing of runs or training. A task prints into a file of its own; a signal stops all of them; no worker outlives its parent.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from humanline.errors import HumanlineError, Interrupted

REFRESH = 0.5
"""seconds between two looks at the workers"""


@dataclass(frozen=True)
class Task:
    """A call for a worker process; function, arguments and result have to pickle."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    log: Path
    """what the task prints is appended here; its folder is made"""


@dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    task: Task
    value: Any = None
    """what the function returned"""
    error: str | None = None
    """one line on why it failed; None = it did not"""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcomes(
    tasks: Sequence[Task],
    *,
    processes: int,
    threads: int,
    look: Callable[[Sequence[Task]], None] = lambda running: None,
    say: Callable[[str], None] = print,
) -> Iterator[Outcome]:
    """Outcomes as tasks end, failures included. `look` is called a few times a second with the tasks that are running.

    The first SIGINT or SIGTERM is passed on as SIGTERM, and once every running task has ended, `Interrupted` is raised; a second
    one kills them. Leaving the iteration early kills them too.
    """
    waiting = deque(tasks)
    crew: list[_Worker] = []
    with _signals() as seen:
        asked = 0
        try:
            while True:
                while waiting and not seen and sum(worker.busy for worker in crew) < processes:
                    _free(crew, threads).give(waiting.popleft())
                if len(seen) > asked:
                    asked = len(seen)
                    say(
                        "stopping: every run saves where it is (once more to stop at once) …"
                        if asked == 1
                        else "stopping at once …"
                    )
                    for worker in crew:
                        worker.stop(at_once=asked > 1)
                running = [worker for worker in crew if worker.busy]
                if not running:
                    break
                look([worker.task for worker in running if worker.task])
                multiprocessing.connection.wait([end for worker in running for end in worker.ends], REFRESH)
                for worker in running:
                    if worker.ended and (outcome := worker.collect()):
                        yield outcome
        finally:
            for worker in crew:
                worker.close()
    if seen:
        raise Interrupted(f"stopped with {len(waiting)} of {len(tasks)} tasks not begun", seen[0])


def _free(crew: list[_Worker], threads: int) -> _Worker:
    """A worker without a task, a new one if there is none."""
    for worker in crew:
        if not worker.busy and worker.process.is_alive():
            return worker
    crew.append(_Worker(threads))
    return crew[-1]


class _Worker:
    """The parent's side of a worker process."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads))  # not a daemon: tasks may start processes
        with _thread_count(threads), _without_ctrl_c():
            self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self.task: Task | None = None
        self._stopped = False

    @property
    def busy(self) -> bool:
        return self.task is not None

    @property
    def ends(self) -> tuple[Connection, int]:
        """What becomes ready when the task ends, by a result or with its process."""
        return self.connection, self.process.sentinel

    @property
    def ended(self) -> bool:
        return self.connection.poll() or not self.process.is_alive()

    def give(self, task: Task) -> None:
        """Begin a task. A worker that has died meanwhile is noticed by `collect`."""
        self.task = task
        try:
            self.connection.send(task)
        except BrokenPipeError:
            return

    def collect(self) -> Outcome | None:
        """The outcome of the task that has ended; None where it was stopped."""
        assert self.task is not None, "only for busy workers"
        task, self.task = self.task, None
        try:
            if not self.connection.poll():
                raise EOFError
            done, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return None if self._stopped else Outcome(task, error=_death(self.process.exitcode))
        if done == "stopped":
            return None if self._stopped else Outcome(task, error=f"was stopped by a signal from elsewhere: {content}")
        return Outcome(task, value=content) if done == "done" else Outcome(task, error=content)

    def stop(self, *, at_once: bool) -> None:
        """Ask the running task to end."""
        if self.busy:
            self._stopped = True
            (self.process.kill if at_once else self.process.terminate)()

    def close(self) -> None:
        """End the process: at once where it has a task."""
        if self.busy:
            self.process.kill()
        self.connection.close()
        self.process.join()
        self.process.close()


def _death(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "its process was killed (SIGKILL), usually for lack of memory: fewer processes at the same time need less"
    name = signal.Signals(-status).name if status and status < 0 else f"status {status}"
    return f"its process ended by itself ({name})"


@contextmanager
def _thread_count(threads: int) -> Iterator[None]:
    """For libraries that read it when they are loaded, and so before a worker could set it."""
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")}
    os.environ |= {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A process started in here never gets SIGINT, which a terminal sends to all: the parent passes it on as SIGTERM."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of ending from them. Outside the main thread, where none arrive, nothing."""
    seen: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda caught, _: seen.append(caught))
    try:
        yield seen
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


# In the worker process


def _serve(connection: Connection, threads: int) -> None:
    """Do tasks until there are no more."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    try:
        while True:
            task: Task = connection.recv()
            _print_to(task.log)
            connection.send(_result(task))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has no more tasks, or is gone


def _result(task: Task) -> tuple[str, Any]:
    """(done | failed | stopped, the value or a line on why). Errors travel as text: an exception need not pickle."""
    try:
        return "done", task.function(*task.arguments)
    except Interrupted as error:
        return "stopped", str(error)
    except HumanlineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return "failed", f"{type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # whatever it is, it concerns this task only
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error}\n  The log has its traceback."
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _print_to(path: Path) -> None:
    """Let everything that this process prints, C libraries included, go to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    # Under a test runner or an embedding program these may not be the process's own.
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False))  # noqa: SIM115


def _stop_with_parent() -> None:
    """A parent that was killed cannot stop its workers: they stop as if it had."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only for worker processes"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
