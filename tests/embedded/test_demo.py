"""`humanline demo` from end to end, in a few steps: what it leaves, what it does not do twice, what it says about bad flags."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from humanline.embedded import assets, demo, figure, jobs, page
from humanline.embedded.demo import DemoConfig, main, run_demo
from humanline.embedded.jobs import Job
from humanline.embedded.methods import METHODS
from humanline.embedded.results import Results, Spread, content, summarise
from humanline.errors import CheckpointError, ConfigError, DataError, Interrupted, TrainingError

QUICK = ["--quick", "--seeds", "1", "--processes", "1", "--methods", "dpo-humanline", "positive-only"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a quick demo."""
    out = tmp_path_factory.mktemp("demo") / "out"
    assert main([*QUICK, "--out", str(out)]) == 0
    return out


def test_results_hold_every_run_with_settings_and_versions(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert [(run["method"], run["seed"], run["steps"]) for run in results["runs"]] == [
        ("dpo-humanline", 0, 6),
        ("positive-only", 0, 6),
    ]
    for run in results["runs"]:
        summary = results["methods"][run["method"]]
        assert summary["utility"] == {"mean": run["utility"], "std": None} and summary["runs"] == 1
        assert 0 < run["win_rate"] < 1 and math.isfinite(run["utility"]) and run["last_step"]["step"] == 6
        assert (finished / run["folder"] / "run" / "final" / "model.safetensors").is_file()
    assert results["methods"]["dpo-humanline"]["settings"] == METHODS["dpo-humanline"].settings
    assert results["start"]["utility"] == assets.start_utility(100)
    assert results["settings"]["quick"] is True and results["settings"]["steps"] == 6
    assert {"humanline", "python", "torch", "transformers"} <= set(results["versions"])


def test_report_and_figure_are_complete_and_fetch_nothing(finished: Path) -> None:
    text = (finished / "report.html").read_text()
    assert "Quick run" in text and text.count("DPO offline + humanline") >= 3
    assert "prefers-color-scheme: dark" in text
    assert (
        "src=" not in text and text.count("href=") == text.count('href="details.html"') == 1 and text.count("http") == 1
    )  # the SVG's name space
    details = (finished / "details.html").read_text()
    assert "DPO offline + humanline" in details and "Training rows" in details
    opened: list[str] = []

    class Nesting(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            """Nothing is opened."""

    Nesting().feed(text)
    assert opened == []
    root = ElementTree.fromstring((finished / "figure.svg").read_text())
    assert root.tag.endswith("svg") and len(root.findall("{*}circle")) == 2


def test_final_table_and_paths_are_printed_and_finished_runs_are_not_done_again(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(demo, "ProcessPoolExecutor", refuse)
    before = {path: path.stat().st_mtime_ns for path in finished.glob("runs/*/result.json")}
    assert len(before) == 2
    assert main([*QUICK, "--out", str(finished)]) == 0
    assert {path: path.stat().st_mtime_ns for path in finished.glob("runs/*/result.json")} == before
    printed = capsys.readouterr().out
    assert "2 of them finished before" in printed and str(finished / "report.html") in printed
    assert "start model" in printed and "DPO offline + humanline" in printed and "win rate" in printed


def test_other_settings_are_other_runs(finished: Path) -> None:
    packaged = assets.verify()
    quick = DemoConfig(out=finished, seeds=1, quick=True, methods=("dpo-humanline",))
    job, again, longer = (
        demo.plan(config, packaged)[0] for config in (quick, quick, DemoConfig(out=finished, methods=("dpo-humanline",)))
    )
    assert job.key == again.key and job.result() is not None
    assert job.key != longer.key and longer.result() is None
    other_data = Job(job.method, job.seed, job.steps, job.held_out_rows, job.out, packaged="other files")
    assert other_data.key != job.key


def test_an_unfinished_run_is_done_anew(finished: Path) -> None:
    """Without result.json a folder counts as unfinished, whatever else lies in it; the same seed gives the same numbers again."""
    job = demo.plan(DemoConfig(out=finished, quick=True, methods=("positive-only",)), assets.verify())[0]
    first = job.result()
    assert first is not None
    (job.folder / "result.json").unlink()
    assert job.result() is None and job.steps_done() == 6
    job.discard()
    assert job.steps_done() == 0
    second = jobs.run(job)
    assert (second["utility"], second["win_rate"]) == (first["utility"], first["win_rate"]) and job.result() == second


def test_a_failing_run_is_named() -> None:
    job = demo.plan(DemoConfig(methods=("kto",)), assets.verify())[0]
    future: Future[dict[str, Any]] = Future()
    future.set_exception(DataError("labels.jsonl:3: no label."))
    with pytest.raises(
        TrainingError,
        match=r"^KTO offline, seed 0: labels\.jsonl:3: no label\.\n  Its log is demo-run/runs/kto-seed0-\w+/log\.txt\.$",
    ):
        demo.outcome(job, future)


def test_an_interruption_travels_out_of_a_worker_whole() -> None:
    error = pickle.loads(pickle.dumps(Interrupted("stopped after step 3", 2)))
    assert (str(error), error.signal) == ("stopped after step 3", 2)


def test_bad_settings_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^seeds is 0: expected a number of runs per method from 1 on\.$"):
        DemoConfig(seeds=0)
    with pytest.raises(ConfigError, match=r"^processes is 0: expected a number of worker processes from 1 on\.$"):
        DemoConfig(processes=0)
    with pytest.raises(ConfigError, match=r"^methods is \['ppo'\]: expected at least one of grpo, grpo-humanline, dpo"):
        DemoConfig(methods=("ppo",))  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"^output folder .*file cannot be written: .* Choose another --out\.$"):
        run_demo(DemoConfig(out=tmp_path / "file"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "grop"], "invalid choice 'grop'"),
        (["--seed", "3"], "--seeds INT"),
        (["--seeds", "0"], "seeds is 0"),
        (["--processes", "two"], "two"),
    ],
)
def test_bad_flags_end_with_status_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"is in use by another demo\. Wait for it, or choose another --out\.$"):
            run_demo(DemoConfig(out=tmp_path))


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom humanline.embedded.demo import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}
    )
    assert shown.stdout.splitlines()[-1] == "False False" and "--quick" in shown.stdout


def three_seeds() -> Results:
    """Utilities 0.5, 0.6, 1.0: mean 0.7, sample standard deviation √(0.14/2) = 0.264575."""
    runs = [
        {"method": "grpo", "seed": seed, "utility": utility, "win_rate": 0.5 + 0.1 * seed, "cpu_seconds": 2.0}
        for seed, utility in ((2, 1.0), (0, 0.5), (1, 0.6))
    ]
    settings = {"seeds": 3, "quick": False, "steps": 192, "prompts_per_step": 16, "held_out_prompts": 1500, "parameters": 109120}
    data = {"data": {"prompts": 3072, "completions": 8}}
    return summarise(METHODS.values(), runs, 0.15, settings | data)


def test_mean_and_standard_deviation_by_hand() -> None:
    (row,) = three_seeds().rows
    assert row.utilities == (0.5, 0.6, 1.0)
    assert row.utility == Spread(pytest.approx(0.7), pytest.approx(math.sqrt(0.07)))  # type: ignore[arg-type]
    assert (row.utility.show(3), row.win_rate.show(3), Spread.of([1.25]).show(1)) == ("0.700 ± 0.265", "0.600 ± 0.100", "1.2")
    assert content(three_seeds())["methods"]["grpo"]["utility"]["std"] == pytest.approx(math.sqrt(0.07))


def test_figure_draws_to_scale() -> None:
    """Axis from 0 to 1: bar, spread and dots at 0.7, 0.7 ± 0.2646 and the seeds' values."""
    root = ElementTree.fromstring(figure.svg(three_seeds()))
    width = figure.WIDTH - figure.LEFT - figure.RIGHT
    bar = next(rect for rect in root.findall("{*}rect") if rect.get("class") == "plain")
    assert float(bar.attrib["width"]) == pytest.approx(0.7 * width, abs=0.1)
    dots = [float(circle.attrib["cx"]) for circle in root.findall("{*}circle")]
    assert dots == pytest.approx([figure.LEFT + value * width for value in (0.5, 0.6, 1.0)], abs=0.1)
    spread = next(line for line in root.findall("{*}line") if line.get("class") == "spread")
    assert float(spread.attrib["x2"]) == pytest.approx(figure.LEFT + (0.7 + math.sqrt(0.07)) * width, abs=0.1)


def test_page_of_a_full_run_does_not_call_it_quick() -> None:
    text = page.html(three_seeds())
    assert "Quick run" not in text and "0.700 ± 0.265" in text and "3,072 prompts" in text


@pytest.mark.slow
def test_no_worker_outlives_a_killed_demo(tmp_path: Path) -> None:
    """SIGKILL leaves the parent no time to clean up. The trainer holds its lock as long as the worker's process lives."""
    words = ["--seeds", "1", "--processes", "1", "--methods", "kto", "--out", str(tmp_path)]
    code = "from humanline.embedded.demo import main; main()"
    running = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("runs/*/run/metrics.jsonl")))
        (lock,) = tmp_path.glob("runs/*/run/.lock")
        assert not is_free(lock)
    finally:
        running.kill()
        running.wait()
    wait_until(lambda: is_free(lock))
    assert not list(tmp_path.glob("runs/*/run/final"))


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


def is_free(path: Path) -> bool:
    with open(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
