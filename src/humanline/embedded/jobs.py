"""One run of the demo: train a method on one order of the data, then measure it. Runs in a worker process.

OUT/runs/METHOD-seedN-KEY/run/         the trainer's run directory, final model included
                         log.txt       what the trainer printed
                         result.json   written last: its presence means that the run is finished
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline import __version__
from humanline.embedded import assets
from humanline.embedded.files import write_text
from humanline.embedded.methods import Method


@dataclass(frozen=True)
class Job:
    """A method and a seed, with all that its numbers depend on."""

    method: Method
    seed: int
    steps: int
    held_out_rows: int
    out: Path
    """output folder of the whole demo"""
    packaged: str
    """fingerprint of the packaged files"""

    @property
    def key(self) -> str:
        """Content address of the settings: a result counts only for the settings it was made with."""
        facts = [self.method.settings, self.seed, self.steps, self.held_out_rows, self.packaged, __version__]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]

    @property
    def folder(self) -> Path:
        return self.out / "runs" / f"{self.method.name}-seed{self.seed}-{self.key}"

    @property
    def data(self) -> Path:
        """The file that the method learns from."""
        return assets.GROUPS if self.method.data == "groups" else self.out / "data" / f"{self.method.data}.jsonl"

    def result(self) -> dict[str, Any] | None:
        """What a finished run measured; None = not finished."""
        path = self.folder / "result.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def discard(self) -> None:
        """Throw away what an interrupted attempt left: the seconds of a result are those of one whole run."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def steps_done(self) -> int:
        """Optimizer steps that the trainer has written down so far."""
        try:
            return (self.folder / "run" / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def prepare_worker() -> None:
    """One thread per worker; Ctrl-C is the parent's business; no worker outlives its parent, however that ended."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only for worker processes"
    parent.join()
    os._exit(1)


def run(job: Job) -> dict[str, Any]:
    """Train, evaluate, write result.json. The job's folder must not exist yet."""
    from humanline.embedded.evaluate import evaluate
    from humanline.models import load_policy
    from humanline.run import train

    job.folder.mkdir(parents=True)
    run_folder = job.folder / "run"
    config = job.method.config(model=assets.MODEL, data=job.data, out=run_folder, seed=job.seed, steps=job.steps)
    wall, cpu = time.perf_counter(), time.process_time()
    with (
        open(job.folder / "log.txt", "w", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        trained = train(config)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        policy = load_policy(str(run_folder / "final"))
    quality = evaluate(policy, assets.task(), assets.held_out(job.held_out_rows), seed=job.seed)
    result = {
        "method": job.method.name,
        "seed": job.seed,
        "utility": quality.utility,
        "win_rate": quality.win_rate,
        "steps": trained.steps,
        "seconds": wall,
        "cpu_seconds": cpu,
        "last_step": trained.metrics,
        "folder": str(job.folder.relative_to(job.out)),
    }
    write_text(job.folder / "result.json", json.dumps(result, indent=2) + "\n")
    return result
