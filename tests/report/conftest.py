"""Real runs of a tiny model, made once for all tests of the report."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from builders import save_model
from humanline.config import CheckpointConfig, EvalConfig, LogConfig, OptimizerConfig, TrainConfig
from humanline.limit import Clip, Off
from humanline.objectives import DPO
from humanline.prospect import human_curve, implied_capacity
from humanline.report.perception import write_perception
from humanline.run import train

HOSTILE = "<script>document.title = 'taken over'</script><img src=x onerror=alert(1)> & \"quoted\""
STEPS = 12


class Runs(NamedTuple):
    """Directories of finished runs."""

    plain: tuple[Path, Path]
    """DPO, seeds 0 and 1"""
    humanline: tuple[Path, Path]
    """the same with clipping and syncing"""

    @property
    def all(self) -> list[Path]:
        return [*self.plain, *self.humanline]


def pairs(path: Path, count: int = 24) -> str:
    """Preference pairs of short words."""
    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(["so", "be it", "3+4=7", "no.", "a b c", "1/2"], k=rng.randint(1, 4)))

    rows = [{"prompt": f"{number}: {text()} ", "chosen": text(), "rejected": text()} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def settings(folder: Path, name: str, seed: int, *, humanline: bool) -> TrainConfig:
    """A 12-step run whose model and rows lie in `folder`."""
    return TrainConfig(
        model=str(folder / "model"),
        data=str(folder / "pairs.jsonl"),
        out=str(folder / name),
        objective=DPO(),
        limit=Clip(-0.2, 0.2) if humanline else Off(),
        sync_every=3 if humanline else None,
        steps=STEPS,
        batch_size=4,
        seed=seed,
        device="cpu",
        optimizer=OptimizerConfig(lr=1e-2, warmup=0),
        checkpoint=CheckpointConfig(every=5),
        eval=EvalConfig(fraction=0.25, every=4),
        log=LogConfig(every=0, report=False),
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two methods × two seeds; the first run also has capacity curves and samples."""
    folder = tmp_path_factory.mktemp("runs")
    save_model(folder / "model")
    pairs(folder / "pairs.jsonl")
    for humanline in (False, True):
        for seed in (0, 1):
            train(settings(folder, f"{'humanline' if humanline else 'plain'}-{seed}", seed, humanline=humanline))
    made = Runs((folder / "plain-0", folder / "plain-1"), (folder / "humanline-0", folder / "humanline-1"))
    rng = np.random.default_rng(0)
    own, worse = rng.normal(size=900), rng.normal(-1, 1, size=900)
    curves = {"human": human_curve(own), "offline": implied_capacity(own, worse), "online": implied_capacity(own, own)}
    write_perception(made.plain[0], curves, {"offline": (0.41, 1.7)})
    for run, reward in ((made.plain[0], 0.25), (made.humanline[0], None)):
        rows = [
            {"prompt": [{"role": "user", "content": f"Question {number} {HOSTILE}"}], "completions": [HOSTILE, "\n=4"],
             "rewards": [reward, 1], "finish_reason": ["length", "stop"]}
            for number in range(15)
        ]  # fmt: skip
        (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


class Seen(NamedTuple):
    """What a browser made of a page."""

    dom: str
    console: list[str]
    """everything that was written to its console"""
    probe: Any
    """what the test's own script found"""


PROBE = """
<script>
addEventListener("load", async () => {{
  while (!document.documentElement.dataset.drawn) await new Promise((resume) => setTimeout(resume, 50));
  const found = await (async () => {{ {script} }})();
  const text = document.createElement("pre");
  text.id = "probe";
  text.textContent = JSON.stringify(found);
  document.body.append(text);
}});
</script>
"""
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --enable-logging=stderr --virtual-time-budget=60000 --dump-dom"
).split()


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., Seen]:
    """Open a copy of a page in headless Chromium, run a script in it after its figures are drawn, and look at the result."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("needs Chromium: no chromium, chromium-browser or google-chrome on PATH")

    def look(page: Path, script: str = "return null;", *, width: int = 1280, flags: Sequence[str] = ()) -> Seen:
        copy = tmp_path / "copy.html"
        copy.write_text(page.read_text(encoding="utf-8") + PROBE.format(script=script), encoding="utf-8")
        done = subprocess.run(
            [browser, *FLAGS, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1000", copy.as_uri()],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        probe = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
        assert probe, f"the figures were never drawn; console: {console}"
        return Seen(done.stdout, console, json.loads(unescape(probe[1])))

    return look
