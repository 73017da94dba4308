"""Going on after a stop: what is damaged, changed or lost is named, and a run that cannot be the same one is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from builders import pairs_file, save_model, small_run, tiny_llama
from humanline import configfile
from humanline.config import EvalConfig, TrainConfig
from humanline.errors import CheckpointError
from humanline.loop import Loop
from humanline.run import train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(model: str, tmp_path: Path) -> TrainConfig:
    """See `small_run`."""
    return small_run(model, tmp_path)


class Stop(Exception):
    """The test pulls the plug."""


def stopped(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainConfig, Path]:
    """A run that died before step 6, to be resumed, and its newest checkpoint."""
    real = Loop.step

    def fragile(self: Loop, t: int) -> dict:
        if t == 6:
            raise Stop
        return real(self, t)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", fragile)
        with pytest.raises(Stop):
            train(config)
    return config.replace(resume=True), Path(config.out) / "checkpoints" / "step-000004"


@pytest.fixture
def broken(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainConfig, Path]:
    return stopped(config, monkeypatch)


def test_R4_a_config_edited_by_hand_does_not_change_a_run_in_the_middle(broken: tuple[TrainConfig, Path]):
    """`--resume --out RUN` reads RUN/config.yaml, so comparing the two proves nothing: the checkpoint has its own record."""
    config, _ = broken
    path = Path(config.out) / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.001", "lr: 0.5").replace("sync_every: 2", "sync_every: 3"))
    edited = configfile.load_config(path).replace(resume=True)
    with pytest.raises(
        CheckpointError, match=r"(?s)step-000004 was trained with other settings.*sync_every: 2 then, 3 now.*lr: 0.001 then, 0.5"
    ):
        train(edited)


def test_R4_held_out_rows_that_changed_are_noticed(config: TrainConfig, tmp_path: Path):
    """Their reference log-probs come from the checkpoint; rows it does not know must not end the run in the middle."""
    config = config.replace(eval=EvalConfig(data=pairs_file(tmp_path / "held.jsonl", 3)))
    train(config)
    shutil.rmtree(Path(config.out) / "final")  # as if it had died before the end
    pairs_file(tmp_path / "held.jsonl", 4)
    with pytest.raises(CheckpointError, match=r"was evaluated on other rows than .*held.jsonl holds now"):
        train(config.replace(resume=True))


def reshape(folder: Path) -> None:
    tensors = load_file(folder / "optimizer.safetensors")
    name = next(name for name, value in tensors.items() if name.startswith("exp_avg.") and value.ndim == 2)
    save_file(tensors | {name: tensors[name][:1].clone()}, folder / "optimizer.safetensors")


def without_averages(folder: Path) -> None:
    tensors = load_file(folder / "optimizer.safetensors")
    save_file({name: value for name, value in tensors.items() if name.startswith("step.")}, folder / "optimizer.safetensors")


def foreign_reference(folder: Path) -> None:
    shutil.copy(folder.with_name("step-000002") / "reference.safetensors", folder)


def state(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def damaged(folder: Path) -> None:
        path = folder / "state.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damaged


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda folder: save_file({}, folder / "optimizer.safetensors"), "lacks '.*': it belongs to another model or is incomplete"),
        (reshape, r"has \[1, \d+\] for 'exp_avg.*', where the model has"),
        (without_averages, "lacks '.*': it belongs to another model or is incomplete"),
        (state(lambda _: []), "state.json has format None"),
        (state(lambda old: old | {"step": 3}), "state.json is damaged at 'step'"),
        (state(lambda old: {name: old[name] for name in old if name != "data"}), "state.json is damaged at 'data'"),
        (state(lambda old: old | {"synced_before": None}), "state.json is damaged at 'synced_before': null, expected a step from 1 to 5"),
        (state(lambda old: old | {"synced_before": 6}), "state.json is damaged at 'synced_before': 6"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"torn"), r"(?s)step-000004 is damaged: .*Remove it to resume"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), r"(?s)step-000004 is damaged: .*Remove it to resume"),
        (lambda folder: (folder / "reference.safetensors").unlink(), r"cannot be read.*Remove .*step-000004 to resume from an earlier"),
        (
            foreign_reference,
            r"data row \d+ has no reference log-probs",
        ),
    ],
    ids=(
        "optimizer-empty optimizer-shape optimizer-parts state-list state-step state-data sync-null sync-late weights tokenizer "
        "reference foreign"
    ).split(),
)  # fmt: skip
def test_R4_a_damaged_checkpoint_is_an_error_with_a_way_on(broken, damaged: Callable[[Path], object], message: str):
    """Never a traceback, and never an optimizer that starts afresh or reads beyond its averages."""
    config, newest = broken
    damaged(newest)
    with pytest.raises(CheckpointError, match=message):
        train(config)


def test_R4_garbage_in_the_metrics_is_dropped_behind_the_checkpoint_and_named_before_it(broken: tuple[TrainConfig, Path]):
    config, _ = broken
    path = Path(config.out) / "metrics.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"step": 3', b'"step": null'))
    with pytest.raises(CheckpointError, match=r"metrics.jsonl:3: not a line of metrics.*Remove the line"):
        train(config)
    path.write_bytes(good + b"\xff\x00\xfe")
    train(config)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5, 6]


def test_R4_lost_lines_of_metrics_are_named(broken: tuple[TrainConfig, Path], capsys: pytest.CaptureFixture[str]):
    """A power cut keeps the synced checkpoint and loses lines before it: the run goes on, and says which."""
    config, _ = broken
    path, copy = Path(config.out) / "metrics.jsonl", Path(shutil.copytree(config.out, f"{config.out}-copy"))
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first + '{"step": 2, "lo')
    train(config)
    assert f"warning: {path} lacks the lines of steps 2–4: " in capsys.readouterr().out
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 5, 6]
    (copy / "metrics.jsonl").unlink()
    train(config.replace(out=str(copy)))
    assert "metrics.jsonl lacks the lines of steps 1–4: " in capsys.readouterr().out


class SpareConfig(LlamaConfig):
    model_type = "llama_with_a_spare"


class Spare(LlamaForCausalLM):
    """Has a parameter that nothing uses, as some published models do."""

    config_class = SpareConfig

    def __init__(self, config: SpareConfig) -> None:
        super().__init__(config)
        self.spare = torch.nn.Parameter(torch.ones(3))


def test_R4_a_parameter_without_gradient_has_no_state_and_gets_none(config: TrainConfig, tmp_path: Path, monkeypatch):
    """It may start without AdamW's averages exactly where it had none: a checkpoint that has lost others is still refused."""
    AutoConfig.register(SpareConfig.model_type, SpareConfig, exist_ok=True)
    AutoModelForCausalLM.register(SpareConfig, Spare, exist_ok=True)
    settings = SpareConfig(**{**tiny_llama().config.to_dict(), "model_type": SpareConfig.model_type})
    config = config.replace(model=save_model(tmp_path / "spare", Spare(settings)))
    train(config.replace(out=str(tmp_path / "whole")))
    resumed, newest = stopped(config, monkeypatch)
    saved = newest / "optimizer.safetensors"
    tensors = load_file(saved)
    assert [name for name in tensors if name.startswith("untouched.")] == ["untouched.model.spare"]
    save_file({name: value for name, value in tensors.items() if name != "untouched.model.spare"}, saved)
    with pytest.raises(CheckpointError, match=r"lacks 'model.spare': it belongs to another model or is incomplete"):
        train(resumed)
    save_file(tensors, saved)
    train(resumed)
    whole, final = (load_file(Path(out) / "final" / "model.safetensors") for out in (tmp_path / "whole", config.out))
    assert whole.keys() == final.keys() and all(torch.equal(whole[name], final[name]) for name in whole)


def test_a_start_before_the_first_checkpoint_records_the_settings_it_uses(config: TrainConfig, monkeypatch, tmp_path: Path):
    """Killed at step 1 and started again with other micro-batches: there is nothing to go on from, so config.yaml has the new size."""
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", lambda self, t: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            train(config)
    other = save_model(tmp_path / "other", tiny_llama(1))
    with pytest.raises(CheckpointError, match=r"(?s)started with other settings.*model: .*model\d+ then, .*other now"):
        train(config.replace(model=other, resume=True))
    train(config.replace(micro_batch_tokens=100, resume=True))
    assert configfile.load_config(Path(config.out) / "config.yaml").micro_batch_tokens == 100
