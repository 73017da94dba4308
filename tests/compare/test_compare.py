"""A comparison from end to end on a tiny model: two methods × two seeds, whole, broken off and gone on with."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from builders import save_model
from humanline.cli import main
from humanline.compare import Claim, Study, compare, load_study
from humanline.compare.run import parallel
from humanline.errors import CheckpointError
from humanline.report.statistics import Spread
from runs import write_rows

MEASURE = '''
import json, random

def written(run_dir):
    """Training steps that were written down, and a draw that depends on the seed only."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {"lines": len(lines), "draw": random.random()}
'''
STUDY = """\
out: {folder}/out
seeds: [1, 2]
processes: 2
base:
  recipe: dpo
  model: {folder}/model
  data: {folder}/pair.jsonl
  device: cpu
  steps: 40
  batch_size: 3
  eval: {{fraction: 0.25, every: 10}}
  optimizer: {{lr: 1e-2}}
  checkpoint: {{every: 10}}
  log: {{every: 0}}
methods:
  plain: {{}}
  humanline: {{limit: {{name: clip}}, sync_every: 4}}
measure: [eval_reward_margin, loss, "{folder}/measures.py:written"]
claims:
- {{a: humanline, b: plain, metric: eval_reward_margin, kind: different}}
- {{a: plain, b: humanline, metric: loss, kind: better, lower: true}}
- {{a: plain, b: humanline, metric: draw, kind: equal, margin: 0.5}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, a measuring function and a study of them."""
    folder = tmp_path_factory.mktemp("comparison")
    save_model(folder / "model")
    write_rows(folder / "pair.jsonl", "pair", 16)
    (folder / "measures.py").write_text(MEASURE)
    (folder / "study.yaml").write_text(STUDY.format(folder=folder))
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path):
    """(study, result, what was printed) of a comparison that nothing disturbed."""
    study = load_study(folder / "study.yaml")
    console = Console(file=io.StringIO(), width=150)
    return study, compare(study, console=console), console.file.getvalue()


def numbers(out: Path) -> dict:
    """results.json without what depends on the clock or the folder."""
    found = json.loads((out / "results.json").read_text())
    for method in found["methods"].values():
        del method["seconds"], method["timed_runs"]
    for run in found["runs"]:
        run.pop("seconds", None)
        run.pop("resumed", None)
    return {key: found[key] for key in ("methods", "claims", "runs", "failed", "versions")}


def run_states(out: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in out.glob("runs/*/seed-*/final/model.safetensors")}


def test_every_method_runs_with_every_seed_and_all_numbers_are_kept(whole) -> None:
    study, result, printed = whole
    out = Path(study.out)
    assert [(run.method, run.seed, run.steps) for run in result.runs] == [
        ("plain", 1, 40), ("humanline", 1, 40), ("plain", 2, 40), ("humanline", 2, 40),
    ]  # fmt: skip
    assert result.failed == {} and result.notes == ()
    found = json.loads((out / "results.json").read_text())
    for run in found["runs"]:
        last = json.loads((out / run["folder"] / "metrics.jsonl").read_text().splitlines()[-1])
        assert (run["eval_reward_margin"], run["loss"], run["lines"]) == (last["eval_reward_margin"], last["loss"], 40)
        assert run["seconds"]["train"] > 0 and run["measured_at"] == {"eval_reward_margin": 40, "loss": 40}
    draws = {(run["method"], run["seed"]): run["draw"] for run in found["runs"]}
    assert draws["plain", 1] == draws["humanline", 1] != draws["plain", 2]
    margins = tuple(run["eval_reward_margin"] for run in found["runs"] if run["method"] == "plain")
    assert found["methods"]["plain"]["metrics"]["eval_reward_margin"] == Spread.of(margins)._asdict()
    assert found["methods"]["humanline"]["settings"]["sync_every"] == 4 and "torch" in found["versions"]
    assert "mean ± standard deviation over n seeds" in printed and (out / "report.html").is_file()


def test_claims_are_tested_on_the_runs(whole) -> None:
    _, result, printed = whole
    different, better, equal = result.claims
    assert different.p is not None and different.holm_p is not None and different.p <= different.holm_p <= 1
    assert better.effect == pytest.approx(
        result.methods[0].spread("loss").mean - result.methods[1].spread("loss").mean, rel=1e-12
    )
    assert equal.effect == 0 and equal.interval[0] == -equal.interval[1]
    assert "│ humanline ≠ plain " in printed and "│ plain < humanline " in printed
    assert "│ plain = humanline within ±0.5 │" in printed and f"{different.p:.2f}" in printed


def test_finished_runs_are_not_done_again_and_give_the_same_results(whole) -> None:
    study, _, _ = whole
    before, states = numbers(Path(study.out)), run_states(Path(study.out))
    console = Console(file=io.StringIO(), width=150)
    compare(study, console=console)
    assert "4 runs in " in console.file.getvalue() and "4 of them finished before" in console.file.getvalue()
    assert run_states(Path(study.out)) == states and len(states) == 4 and numbers(Path(study.out)) == before


def test_other_settings_than_a_run_was_begun_with_are_refused(whole) -> None:
    study, _, _ = whole
    config = study.methods["plain"]
    other = replace(study, methods=study.methods | {"plain": config.replace(sync_every=2)})
    with pytest.raises(CheckpointError, match=r"plain/seed-1 was begun with other settings.*\n  sync_every: None then, 2 now"):
        compare(other)


def test_changed_data_is_refused(whole, folder: Path) -> None:
    study, _, _ = whole
    data = (folder / "pair.jsonl").read_text()
    try:
        (folder / "pair.jsonl").write_text(data.replace("why", "who"))
        with pytest.raises(CheckpointError, match=r"pair.jsonl has changed since the runs in .* were begun"):
            compare(study)
    finally:
        (folder / "pair.jsonl").write_text(data)


def start(folder: Path, out: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "humanline", "compare", str(folder / "study.yaml"), "--out", str(out)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_step(out: Path, least: int, process: subprocess.Popen[str]) -> None:
    """Until some run that is not finished has done so many steps."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for path in out.glob("runs/*/seed-*/metrics.jsonl"):
            if path.read_bytes().count(b"\n") >= least and not (path.parent / "final").exists():
                return
        time.sleep(0.005)
    raise AssertionError("no run got that far")


def wait_for_locks(out: Path) -> None:
    """Until no worker of a killed comparison holds a run any more."""
    import fcntl

    for path in out.glob("runs/*/seed-*/.lock"):
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.slow
def test_broken_off_twice_and_gone_on_with_it_gives_the_same_numbers(whole, folder: Path, tmp_path: Path) -> None:
    """Once by Ctrl-C, which a terminal sends to every process, once by killing the parent."""
    study, _, _ = whole
    out = tmp_path / "out"
    first = start(folder, out)
    wait_for_step(out, 5, first)
    os.killpg(first.pid, signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 128 + signal.SIGINT and "Traceback" not in errors
    assert "Run the same command again to go on." in errors
    assert not (out / "results.json").exists() and len(run_states(out)) < 4
    assert list(out.glob("runs/*/seed-*/checkpoints/*")), "the runs that were going have saved where they were"

    second = start(folder, out)
    wait_for_step(out, 12, second)
    second.kill()
    second.communicate(timeout=120)
    wait_for_locks(out)
    assert len(run_states(out)) < 4

    console = Console(file=io.StringIO(), width=150)
    result = compare(replace(study, out=str(out)), console=console)
    assert any(run.resumed for run in result.runs) and "runs were resumed: their seconds are not known" in result.notes[0]
    assert numbers(out) == numbers(Path(study.out))


def test_a_failed_run_does_not_end_the_others(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of two methods names data that is not there; with one seed nothing can be tested, which the results say."""
    text = STUDY.format(folder=folder).replace(f"{folder}/out", str(tmp_path / "out")).replace("seeds: [1, 2]", "seeds: [3]")
    text = text.replace("  plain: {}", f"  plain: {{data: {folder}/none.jsonl}}").replace("steps: 40", "steps: 3")
    (tmp_path / "study.yaml").write_text(text)
    assert main(["compare", str(tmp_path / "study.yaml")]) == 1
    printed = capsys.readouterr().out
    assert "failed: plain, seed 3: DataError: " in printed and "none.jsonl" in printed
    assert "one seed a method: no spread, no test" in printed
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(found["failed"]) == ["plain, seed 3"] and [run["method"] for run in found["runs"]] == ["humanline"]
    assert found["methods"]["humanline"]["metrics"]["loss"]["std"] is None
    assert {claim["verdict"] for claim in found["claims"]} == {
        "not tested: no run of plain has eval_reward_margin", "not tested: no run of plain has loss",
        "not tested: no run of plain has draw",
    }  # fmt: skip
    assert "none.jsonl" in (tmp_path / "out" / "runs" / "plain" / "seed-3.log").read_text()


def test_an_edited_function_measures_again_without_training(whole, folder: Path) -> None:
    study, _, _ = whole
    states = run_states(Path(study.out))
    (folder / "measures.py").write_text(MEASURE.replace('"lines": len(lines)', '"lines": len(lines) + 0.5'))
    try:
        result = compare(replace(study, seeds=(1,), claims=()), console=Console(file=io.StringIO()))
    finally:
        (folder / "measures.py").write_text(MEASURE)
    assert [run.values["lines"] for run in result.runs] == [40.5, 40.5] and run_states(Path(study.out)) == states


def test_threads_follow_from_the_study_and_the_machine_only(whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floats depend on the number of threads, so that it must not depend on how many runs are left."""
    study, _, _ = whole
    monkeypatch.setattr("humanline.compare.run.cores", lambda: 8)
    assert parallel(replace(study, processes=None)) == (8, 1)
    assert parallel(replace(study, processes=3)) == (3, 2)
    assert parallel(replace(study, processes=20)) == (20, 1)
    gpu = {"a": study.methods["plain"].replace(device="cuda")}
    assert parallel(Study(gpu, "o", ("loss",), claims=())) == (1, 8)


def test_metrics_of_different_moments_are_pointed_out(whole) -> None:
    from humanline.compare.results import summarise

    study, result, _ = whole
    early = [
        replace(run, measured_at={"eval_reward_margin": 10, "loss": 40}) if run.method == "plain" else run for run in result.runs
    ]
    (note,) = summarise(study, early, {}, processes=1, threads=1).notes
    assert note.startswith(
        "eval_reward_margin is the newest value, which is not of the same step in all methods (plain 10, humanline 40)"
    )
    claims = summarise(
        replace(study, claims=(Claim("plain", "humanline", "loss"),)), early[:2], {}, processes=1, threads=1
    ).claims
    assert claims[0].verdict.startswith("not tested: 1 of the 2 runs of plain are missing")
