"""A run in every state: finished, going on, stopped, empty, resumed, of another version, of another tool."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from humanline.config import TrainConfig
from humanline.errors import CheckpointError, DataError, TrainingError
from humanline.loop import Loop
from humanline.report.run_folder import read_run
from humanline.run import train


@pytest.fixture
def copy(runs, tmp_path: Path) -> Path:
    """A finished run to damage."""
    return Path(shutil.copytree(runs.humanline[0], tmp_path / "run"))


@pytest.fixture
def crashed(runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainConfig, Path]:
    """A real run that died in step 8 of 12, with a checkpoint after step 5."""
    from humanline.configfile import load_config

    real = Loop.step

    def fragile(self: Loop, t: int) -> dict:
        if t == 8:
            raise MemoryError
        return real(self, t)

    config = load_config(runs.humanline[0] / "config.yaml").replace(out=str(tmp_path / "crashed"))
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", fragile)
        with pytest.raises(MemoryError):
            train(config)
    return config, Path(config.out)


def test_a_finished_run(runs) -> None:
    run = read_run(runs.humanline[0])
    assert (run.state, run.progress, run.seed, run.notes) == ("finished", "step 12 of 12", 0, ())
    assert run.settings["limit.low"] == -0.2 and run.settings["objective.name"] == "dpo"
    assert run.summary is not None and run.summary.first_step == 1
    assert set(run.summary.seconds) == {"data", "reference", "train", "other"} and run.parts == run.summary.seconds
    assert {"torch", "python", "cores", "device"} <= run.summary.environment.keys()
    assert run.summary.environment["device"] == "cpu"


def test_parts_add_up_to_the_run(runs) -> None:
    """The split is of the whole wall-clock: it holds all steps, and what is scored before step 1 is in `reference`."""
    for folder in runs.all:
        run = read_run(folder)
        steps = run.metrics.series["seconds"].values.sum()
        assert run.seconds == pytest.approx(sum(run.parts.values())) and run.seconds > steps > 0 and min(run.parts.values()) >= 0
        assert run.parts["reference"] > 0 and run.parts["data"] + run.parts["train"] <= steps + 0.002


def test_without_a_limiter_there_are_no_shares_that_it_stopped(runs) -> None:
    assert (
        "clipped_low" in read_run(runs.humanline[0]).metrics.series
        and "clipped_low" not in read_run(runs.plain[0]).metrics.series
    )


def test_a_run_that_is_going_on_says_so(copy: Path) -> None:
    """Another open file holds the run's lock, as the process that trains does."""
    content = json.loads((copy / "summary.json").read_text()) | {"finished": False, "seconds": {}}
    (copy / "summary.json").write_text(json.dumps(content))
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:7]))
    with open(copy / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = read_run(copy)
        assert (run.state, run.notes) == ("running", ("still going: step 7 of 12 when this page was made",))
    assert read_run(copy).state == "stopped", "the lock went with the process"


def test_looking_does_not_keep_a_run_from_starting(copy: Path) -> None:
    (copy / "summary.json").write_text(json.dumps(json.loads((copy / "summary.json").read_text()) | {"finished": False}))
    assert read_run(copy).state == "stopped"
    with open(copy / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_crashed_run_shows_what_is_there_and_where_it_ended(crashed: tuple[TrainConfig, Path]) -> None:
    config, folder = crashed
    run = read_run(folder)
    assert (run.state, run.metrics.last_step) == ("stopped", 7)
    assert run.notes == (
        "ended before it was done, after step 7 of 12; step-000005 is its newest checkpoint: "
        f"`humanline train --resume --out {folder}` goes on from there",
    )
    assert run.summary is not None and run.summary.environment["cores"], "known from the start on"
    assert run.parts == {"not split": run.metrics.series["seconds"].values.sum()}

    train(config.replace(resume=True))
    run = read_run(folder)
    assert (run.state, run.progress, run.notes) == ("finished", "step 12 of 12", ())
    assert run.summary is not None and run.summary.first_step == 6
    before = run.metrics.series["seconds"].values[:5].sum()
    assert run.parts == run.summary.seconds | {"not split": pytest.approx(before)}


def test_a_run_that_stopped_itself_is_no_finished_one(runs, tmp_path: Path) -> None:
    from humanline.config import OptimizerConfig
    from humanline.configfile import load_config

    config = load_config(runs.plain[0] / "config.yaml")
    with pytest.raises(TrainingError):
        train(config.replace(out=str(tmp_path / "wild"), optimizer=OptimizerConfig(lr=1e30, warmup=0, max_grad_norm=None)))
    run = read_run(tmp_path / "wild")
    assert run.state == "stopped" and run.notes[0].startswith(
        "ended before it was done, after step 1 of 12; step-000001 is its newest"
    )


def test_before_its_first_step_a_run_has_settings_only(copy: Path) -> None:
    for name in ("metrics.jsonl", "summary.json"):
        (copy / name).unlink()
    shutil.rmtree(copy / "final")
    shutil.rmtree(copy / "checkpoints")
    run = read_run(copy)
    assert run.metrics.series == {} and run.parts == {} and run.seconds == 0
    assert run.notes == ("ended before it was done, after step 0 of 12; it left no checkpoint",)


def test_a_run_from_before_there_were_summaries(copy: Path) -> None:
    (copy / "summary.json").unlink()
    run = read_run(copy)
    assert run.state == "finished" and run.parts == {"not split": run.metrics.series["seconds"].values.sum()}


def test_steps_that_only_a_checkpoint_knows(copy: Path) -> None:
    """`steps: null` means as many as the epochs take."""
    (copy / "summary.json").unlink()
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("steps: 12", "steps: null"))
    assert read_run(copy).progress == "step 12 of 12"


def test_the_newest_window_of_fresh_data_is_a_file_of_samples(copy: Path) -> None:
    (copy / "rollouts").mkdir()
    for step, text in ((1, "early"), (65, "late")):
        row = {"step": step, "number": 0, "prompt": "1+1=", "completions": [text], "rewards": [0.5], "finish_reason": ["stop"]}
        (copy / "rollouts" / f"step-{step:06d}.jsonl").write_text(json.dumps(row) + "\n")
    names = [(file.name, [answer.text for answer in file.answers.get("1+1=", [])]) for file in read_run(copy).samples]
    assert names == [("samples", []), ("fresh samples for step-000065", ["late"])]


def test_a_config_of_another_version_is_shown_with_a_note(copy: Path) -> None:
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text + "freshness: 0.5\n")
    run = read_run(copy)
    assert run.yaml.endswith("freshness: 0.5\n") and run.seed == 0 and run.settings["freshness"] == "0.5"
    (note,) = run.notes
    assert note.startswith("config.yaml is of another version of humanline: ") and "freshness is not a setting" in note


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "is empty: a run has config.yaml before its first step. If one was started there, it ended while it was loading."),
        ([".lock"], "is empty: a run has config.yaml before its first step."),
        (
            ["trainer_state.json", "model.safetensors"],
            "looks like a directory of the Trainer of transformers or TRL (trainer_state.json). Expected one that `humanline train` wrote",
        ),
        (["events.out.tfevents.17"], "looks like a directory of TensorBoard (events.out.tfevents.17)."),
        (["metrics.jsonl", "notes.txt"], "has no config.yaml (but metrics.jsonl, notes.txt), so it holds no run of `humanline train`."),
        (["a/config.yaml", "b/config.yaml"], "holds 2 runs but is none itself. Name them: `humanline report"),
    ],
)  # fmt: skip
def test_a_directory_without_a_run_is_told_what_it_is(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError) as error:
        read_run(tmp_path)
    assert f"{tmp_path} {message}" in str(error.value)


@pytest.mark.parametrize(
    "text", ["defaults: [train]\nseed: 1\n", "- a\n- b\n", "{", "seed: 0\nsteps: 3\nlimit: off\nobjective: dpo\n"]
)
def test_a_config_of_another_tool_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.yaml is no config of `humanline train`: "):
        read_run(tmp_path)


def test_a_damaged_summary_is_named(copy: Path) -> None:
    (copy / "summary.json").write_text('{"finished": true}')
    with pytest.raises(
        DataError, match=r"summary\.json cannot be read \(KeyError\('steps'\)\)\. Remove it: the report does without\."
    ):
        read_run(copy)


def test_a_damaged_checkpoint_is_named(copy: Path) -> None:
    (copy / "summary.json").unlink()
    (copy / "config.yaml").write_text((copy / "config.yaml").read_text().replace("steps: 12", "steps: null"))
    (copy / "checkpoints" / "step-000010" / "state.json").write_text("{}")
    with pytest.raises(
        DataError, match=r"step-000010/state\.json cannot be read \(KeyError\('of'\)\)\. Remove .*step-000010, which could"
    ):
        read_run(copy)
