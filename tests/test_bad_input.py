"""What a user gets wrong or a machine breaks: one clear error, nothing silently trained on, nothing lost."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForSequenceClassification

from builders import VOCABULARY, save_model, tiny_llama
from humanline import cli, configfile
from humanline.config import CheckpointConfig, EvalConfig, LogConfig, OptimizerConfig, TrainConfig
from humanline.data.plan import Plan
from humanline.errors import CheckpointError, ConfigError, DataError, HumanlineError, ModelError, TrainingError
from humanline.limit import Clip
from humanline.loop import Loop
from humanline.metrics import MetricsLog
from humanline.objectives import DPO, GRPO, CustomObjective, Facts, Loss, Objective
from humanline.objectives.base import sequence_sum
from humanline.run import train


def pairs(path: Path, count: int = 10) -> str:
    path.write_text(
        "".join(
            json.dumps({"prompt": f"{row}: why ", "chosen": "x" * row + "a", "rejected": "no."}) + "\n" for row in range(count)
        )
    )
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(model: str, tmp_path: Path) -> TrainConfig:
    """Six steps of humanline DPO with a checkpoint every second one."""
    return TrainConfig(
        model=model, data=pairs(tmp_path / "pairs.jsonl"), out=str(tmp_path / "run"), objective=DPO(), limit=Clip(), sync_every=2,
        steps=6, batch_size=3, device="cpu", optimizer=OptimizerConfig(lr=1e-3), checkpoint=CheckpointConfig(every=2),
        log=LogConfig(every=0),
    )  # fmt: skip


def groups(path: Path, extra: str) -> str:
    path.write_text('{"prompt": "a", "completions": ["b", "c"], ' + extra + "}\n")
    return str(path)


class Stop(Exception):
    """The test pulls the plug."""


@pytest.fixture
def broken(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainConfig, Path]:
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


# rows


@pytest.mark.parametrize("reward", ["1e300", "-1e39"])
def test_R31_a_reward_beyond_float32_is_an_error_of_the_row(config: TrainConfig, tmp_path: Path, reward: str):
    """In float32 it would be infinite, its group's advantages NaN, and the first step would blame the learning rate."""
    data = groups(tmp_path / "groups.jsonl", f'"rewards": [{reward}, 0]')
    with pytest.raises(DataError, match=r"groups.jsonl:1: 'rewards\[0\]' is -?1e\+\d+: expected a number that float32 can hold"):
        train(config.replace(objective=GRPO(), data=data))


def test_R31_log_probs_above_zero_are_refused(config: TrainConfig, tmp_path: Path):
    """Probabilities or negative log-likelihoods in 'logprobs' would train on wrong ratios; a sampler's rounding passes."""
    data = groups(tmp_path / "groups.jsonl", '"rewards": [1, 0], "logprobs": [[-1, 0.00001], [-1, 0.7]]')
    with pytest.raises(
        DataError, match=r"groups.jsonl:1: completion 2 has log-prob 0.69\d+ at token 2. Expected one of at most 0"
    ):
        train(config.replace(objective=GRPO(), data=data, limit=Clip(), sync_every=None))


def test_R31_broken_json_names_its_own_line(config: TrainConfig, tmp_path: Path):
    """An object left open at the end of a line is an error of that line, not of the next."""
    data = tmp_path / "torn.jsonl"
    data.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a",\n{"prompt": "b"}\n')
    with pytest.raises(DataError, match=r"torn.jsonl:2: not valid JSON"):
        train(config.replace(data=str(data)))


# models


def test_R31_a_model_that_lacks_weights_is_refused(config: TrainConfig, tmp_path: Path):
    """A reward model has no language head, a torn copy not all layers: both would go on with random ones."""
    settings = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, pad_token_id=0
    )
    reward_model = save_model(tmp_path / "reward", LlamaForSequenceClassification(settings))
    with pytest.raises(ModelError, match=r"lacks 1 of its weights \(first lm_head.weight\), which would start at random"):
        train(config.replace(model=reward_model))
    torn = Path(save_model(tmp_path / "torn"))
    weights = load_file(torn / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, torn / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"first model.layers.1.mlp.down_proj.weight"):
        train(config.replace(model=str(torn)))


def damage(folder: Path, change: Callable[[bytes], bytes], name: str) -> str:
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    return str(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", lambda old: old[: len(old) // 2]),
        ("model.safetensors", lambda old: b""),
        ("config.json", lambda old: b"[]"),
        ("config.json", lambda old: old.replace(b'"intermediate_size": 64', b'"intermediate_size": 48')),
    ],
    ids=["cut", "empty", "list", "other-shape"],
)
def test_R31_damaged_model_files_are_model_errors(
    config: TrainConfig, tmp_path: Path, name: str, change: Callable[[bytes], bytes]
):
    folder = damage(Path(save_model(tmp_path / "damaged")), change, name)
    with pytest.raises(ModelError, match=r"model '.*damaged' cannot be loaded"):
        train(config.replace(model=folder))


def test_R31_an_encoder_is_refused(config: TrainConfig, tmp_path: Path):
    """BERT loads as a "causal" LM but looks ahead: every token would be predicted from itself."""
    settings = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    folder = save_model(tmp_path / "bert", BertLMHeadModel(settings))
    with pytest.raises(ModelError, match=r"BertLMHeadModel: another last token changes the logits before it"):
        train(config.replace(model=folder))


def test_R31_nan_weights_are_called_so(config: TrainConfig, tmp_path: Path):
    """Not taken for a forward pass that is not deterministic."""
    policy = tiny_llama()
    with torch.no_grad():
        policy.model.layers[0].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(ModelError, match=r"its logits are NaN for ordinary tokens"):
        train(config.replace(model=save_model(tmp_path / "nan", policy)))


# settings


def test_R31_a_run_has_at_least_one_step_and_a_finite_number_of_them():
    assert Plan(10, 4, 0, shuffle=True).total_steps(None, 1e-12) == 1
    with pytest.raises(ConfigError, match=r"epochs is 1e\+308: expected a number of passes whose steps can be counted"):
        Plan(100, 4, 0, shuffle=True).total_steps(None, 1e308)


def test_R31_a_tracker_that_is_not_installed_is_an_error(config: TrainConfig, monkeypatch: pytest.MonkeyPatch):
    """Instead of a run without it."""
    monkeypatch.setattr("humanline.distributed.get_available_trackers", list)
    with pytest.raises(ConfigError, match=r"log.trackers has wandb, which is not installed"):
        train(config.replace(log=LogConfig(trackers=("wandb",))))


@pytest.mark.parametrize("value", ["!!int abc", "!!bool maybe", "!!timestamp abc", "9" * 5000])
def test_R31_yaml_that_its_own_tag_does_not_fit(value: str):
    with pytest.raises(ConfigError, match=r"^run.yaml:2: not valid YAML: value is no"):
        configfile.parse_config(f"steps: 1\nseed: {value}\n", source="run.yaml")


def test_the_starting_policy_scores_each_row_once_whatever_the_number_of_epochs(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
):
    """A long run over few rows must not walk all its steps before the first."""
    asked: list[range] = []
    real = Loop.extend
    monkeypatch.setattr(Loop, "extend", lambda self, steps, *rest: (asked.append(steps), real(self, steps, *rest))[1])
    train(config.replace(sync_every=None, steps=9))
    assert asked == [range(1, 2), range(1, 5)]


# objectives of one's own


@dataclass(frozen=True)
class Odd(Objective):
    """Returns what `how` says instead of a Loss with a sum."""

    how: str = ""
    kind: ClassVar[str] = "pair"

    def __post_init__(self) -> None:
        if self.how == "unbuildable":
            raise ValueError("no such loss")

    def loss(self, ratio_BT: torch.Tensor, facts: Facts) -> Loss:
        sum_B = sequence_sum(ratio_BT, facts.mask_BT)
        metric = {"m": 1.0} if self.how == "metric" else {}
        total = {"vector": sum_B, "float": 0.5, "detached": sum_B.sum().detach()}.get(self.how, sum_B.sum())
        return sum_B.sum() if self.how == "bare" else Loss(total, metric)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("bare", r"loss\(\) returned a Tensor. Expected Loss"),
        ("vector", r"returned a total of shape \[6\]. Expected one number"),
        ("float", r"returned a total of type float"),
        ("detached", r"a total without gradient"),
        ("metric", r"metric 'm' is not a pair of scalar tensors"),
        ("unbuildable", r"objective.settings .* do not fit .*: no such loss"),
    ],
)
def test_R31_what_an_objective_returns_is_checked(config: TrainConfig, how: str, message: str):
    objective = CustomObjective(path=f"{__name__}:Odd", settings={"how": how})
    with pytest.raises((TrainingError, ConfigError), match=message):
        train(config.replace(objective=objective))


# resuming


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
    config = config.replace(eval=EvalConfig(data=pairs(tmp_path / "held.jsonl", 3)))
    train(config)
    pairs(tmp_path / "held.jsonl", 4)
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
        (lambda folder: (folder / "model.safetensors").write_bytes(b"torn"), r"(?s)step-000004 is damaged: .*Remove it to resume"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), r"(?s)step-000004 is damaged: .*Remove it to resume"),
        (lambda folder: (folder / "reference.safetensors").unlink(), r"cannot be read.*Remove .*step-000004 to resume from an earlier"),
        (
            foreign_reference,
            r"data row \d+ has no reference log-probs",
        ),
    ],
    ids="optimizer-empty optimizer-shape optimizer-parts state-list state-step state-data weights tokenizer reference foreign".split(),
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


def test_a_start_before_the_first_checkpoint_records_the_settings_it_uses(config: TrainConfig, monkeypatch, tmp_path: Path):
    """Killed at step 1 and resumed with another model: there is nothing to go on from, so config.yaml names the new one."""
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", lambda self, t: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            train(config)
    other = save_model(tmp_path / "other", tiny_llama(1))
    train(config.replace(model=other, resume=True))
    assert configfile.load_config(Path(config.out) / "config.yaml").model == other


# the machine


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_R31_a_disk_that_is_full_for_metrics_is_reported_and_the_run_goes_on_later(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "write", full)
        with pytest.raises(CheckpointError, match=r"file could not be written: .*No space left.*--resume"):
            train(config)
    train(config.replace(resume=True))


def test_R31_a_disk_that_is_full_from_the_start_leaves_nothing_in_the_way(config: TrainConfig, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr("humanline.rundir.os.replace", full)
        with pytest.raises(CheckpointError, match="No space left"):
            train(config)
    assert [entry.name for entry in Path(config.out).iterdir()] == [".lock"]
    train(config)


def test_R31_a_reference_cache_that_cannot_be_written(config: TrainConfig):
    """Its parent is a file."""
    with pytest.raises(CheckpointError, match=r"file could not be written: .*pairs.jsonl"):
        train(config.replace(sync_every=None, reference_cache=config.data))


def test_a_terminal_that_cannot_show_a_text_or_goes_away_does_not_cause_a_traceback(monkeypatch: pytest.MonkeyPatch, capfd):
    def verb(action: Callable[[], None]) -> None:
        monkeypatch.setitem(cli.VERBS, "demo", cli._Verb(lambda words: action() or 0, ""))

    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    verb(lambda: print("⟦x⟧", flush=True))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", narrow)
        assert cli.main(["demo"]) == 0
    assert narrow.buffer.getvalue() == rb"\u27e6x\u27e7" + b"\n"

    def closed() -> None:
        raise BrokenPipeError

    verb(closed)
    monkeypatch.setattr(cli, "_drop_stdout", lambda: None)
    assert cli.main(["demo"]) == 141
    assert "Stopped: what read the output" in capfd.readouterr().err


def test_errors_are_ours():
    """Those above are what a caller of the library is told to catch."""
    assert all(
        issubclass(error, HumanlineError) for error in (CheckpointError, ConfigError, DataError, ModelError, TrainingError)
    )
