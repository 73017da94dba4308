"""What a user gets wrong or a machine breaks: one clear error, nothing silently trained on, nothing lost."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from builders import VOCABULARY, save_model, small_run, tiny_llama
from humanline import cli, configfile
from humanline.config import LogConfig, ModelConfig, TrainConfig
from humanline.data.plan import Plan
from humanline.errors import CheckpointError, ConfigError, DataError, HumanlineError, ModelError, TrainingError
from humanline.loop import Loop
from humanline.metrics import MetricsLog
from humanline.objectives import CustomObjective, Facts, Loss, Objective
from humanline.objectives.base import sequence_sum
from humanline.run import train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(model: str, tmp_path: Path) -> TrainConfig:
    """See `small_run`."""
    return small_run(model, tmp_path)


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


def test_an_attention_that_there_is_not_lists_those_that_there_are(config: TrainConfig):
    """Not the advice on directories, which is for a model that is not found."""
    with pytest.raises(ConfigError, match=r"(?s)load.attention is spda, .*Expected one of eager, .*sdpa, or null") as caught:
        train(config.replace(load=ModelConfig(attention="spda")))
    assert "directory" not in str(caught.value)


def test_a_missing_tokenizer_is_told_in_a_whole_sentence(config: TrainConfig, model: str, tmp_path: Path):
    folder = shutil.copytree(model, tmp_path / "mute")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(
        ModelError, match=r"from one of: \(1\) a `tokenizers` library serialization file, \(2\) .*to a fast one\."
    ):
        train(config.replace(model=str(folder)))


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


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("[" * 5000, "nested more than 50 levels deep"),
        ("[&a [x, x], " + ", ".join(f"&a{n} [*a, *a]" for n in range(20)) + "]", "more than 20 aliases"),
        ("&a [*a]", "found unconstructable recursive node"),
    ],
    ids=["deep", "laughs", "cycle"],
)
def test_yaml_that_would_fill_the_memory_or_the_stack(settings: str, problem: str):
    text = f"steps: 1\nobjective: {{name: custom, settings: {{x: {settings}}}}}\n"
    with pytest.raises(ConfigError, match=rf"^run.yaml:2: not valid YAML: {problem}"):
        configfile.parse_config(text, source="run.yaml")
    with pytest.raises(ConfigError, match=r"was given: expected a mapping"):
        configfile.parse_value(f"{{x: {settings}}}", dict[str, Any])


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "x" * 300], ids=["nul", "surrogate", "long"])
def test_a_path_that_no_file_can_have(config: TrainConfig, tmp_path: Path, name: str):
    with pytest.raises(CheckpointError, match=r"run directory '.*' cannot be written: .* Choose another --out"):
        train(config.replace(out=str(tmp_path / name)))
    with pytest.raises(ConfigError, match=r"cannot be read|is unknown"):
        configfile.load_recipe(str(tmp_path / name))
    with pytest.raises(ConfigError, match="cannot be read"):
        configfile.load_recipe(str(tmp_path / f"{name}.yaml"))


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

    def weight(self, mask_BT: torch.Tensor, group_B: torch.Tensor, feedback_B: torch.Tensor) -> torch.Tensor:
        usual = super().weight(mask_BT, group_B, feedback_B)
        return {"count": 3, "lengths": mask_BT.sum(-1), "minus": -usual, "nan": usual * torch.nan}.get(self.how, usual)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("bare", r"loss\(\) returned a Tensor. Expected Loss"),
        ("vector", r"returned a total of shape \[6\]. Expected one number"),
        ("float", r"returned a total of type float"),
        ("detached", r"a total without gradient"),
        ("metric", r"metric 'm' is not a pair of scalar tensors"),
        ("count", r"weight\(\) returned a int. Expected one finite number from 0 on as a tensor"),
        ("lengths", r"weight\(\) returned a tensor of shape \[6\]"),
        ("minus", r"weight\(\) returned -3"),
        ("nan", r"weight\(\) returned nan"),
        ("unbuildable", r"objective.settings .* do not fit .*: no such loss"),
    ],
)
def test_R31_what_an_objective_returns_is_checked(config: TrainConfig, how: str, message: str):
    objective = CustomObjective(path=f"{__name__}:Odd", settings={"how": how})
    with pytest.raises((TrainingError, ConfigError), match=message):
        train(config.replace(objective=objective))


@pytest.mark.parametrize(
    ("source", "error"),
    [("x = (", "SyntaxError"), ("1 / 0", "ZeroDivisionError"), ("raise SystemExit(2)", "SystemExit")],
)
def test_a_module_that_fails_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: str):
    (tmp_path / f"mine_{error}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"objective.path 'mine_{error}:Mine' raises {error} when it is imported"):
        CustomObjective(path=f"mine_{error}:Mine").build()


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
