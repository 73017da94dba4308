"""What a training run is. Every field has a unit, a range, an "off" value and a reader.

`TrainConfig` is the whole of it: written to `RUN/config.yaml`, it loads back to the same run (`humanline.configfile`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from humanline.errors import ConfigError
from humanline.limit import Clip, Off, Reject
from humanline.objectives import DPO, GRPO, IPO, KTO, SFT, CustomObjective, SimPO
from humanline.sample.settings import Backend, SampleConfig, ServerConfig
from humanline.score.config import ScorerConfig

ObjectiveConfig = DPO | IPO | KTO | GRPO | SimPO | SFT | CustomObjective
LimitConfig = Off | Clip | Reject


def _require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise `ConfigError` naming the setting by its key path, its value and what was expected."""
    if not condition:
        raise ConfigError(f"{key} is {'null' if value is None else value}: expected {expected}.")


def _require_count(key: str, value: int | None, *, least: int = 1) -> None:
    """A whole number from `least` on, or null (whether a field may be null is checked with its type)."""
    _require(value is None or value >= least, key, value, f"a whole number from {least} on")


@dataclass(frozen=True)
class DataConfig:
    """Where rows come from and how they become tokens."""

    columns: dict[str, str] = field(default_factory=dict)
    """renames columns on reading, {expected: column in the file}, e.g. {prompt: question}; {} = the expected names"""
    split: str = "train"
    """split of a `datasets` data set; unused for files"""
    limit_rows: int | None = None
    """use only the first n rows, ≥ 1; null = all"""
    shuffle: bool = True
    """a fresh seeded order every epoch; false = file order"""
    template: Literal["auto", "chat", "none"] = "auto"
    """auto: message lists get the chat template, plain strings do not; chat: strings become user/assistant turns; none: never"""
    eos: bool = True
    """end each finished completion with one labelled end-of-sequence token; false = leave completions as they are"""
    max_length: int = 2048
    """tokens of prompt + completion, ≥ 2"""
    too_long: Literal["drop", "truncate", "error"] = "drop"
    """what happens to longer ones; truncate cuts the start of the prompt first, then the end of the completion"""
    train_on: Literal["last", "all"] = "all"
    """chat rows: train on the last assistant turn only, or on every one"""

    def __post_init__(self) -> None:
        _require_count("rows.limit_rows", self.limit_rows)
        _require_count("rows.max_length", self.max_length, least=2)


@dataclass(frozen=True)
class ModelConfig:
    """How the policy is loaded."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the weights and optimizer states; float32 master weights with `autocast` are the usual choice"""
    autocast: Literal["off", "bfloat16"] = "off"
    """mixed precision of matmuls; log-probs and losses are float32 in any case"""
    attention: str | None = None
    """attention implementation of transformers ("sdpa", "eager", "flash_attention_2"); null = its default"""
    gradient_checkpointing: bool = False
    """recompute activations in backward: less memory, about a third more time"""
    dropout: bool = False
    """keep the model's own dropout during training; false = every dropout is 0, so ratios are not noise"""
    trust_remote_code: bool = False
    """run Python code that ships with a model; only for sources you trust"""
    revision: str | None = None
    """branch, tag or commit on the hub; null = the default branch"""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, its schedule and gradient clipping."""

    lr: float = 5e-6
    """peak learning rate, > 0"""
    betas: tuple[float, float] = (0.9, 0.999)
    """decay of the running averages of gradient and squared gradient, each in [0, 1)"""
    eps: float = 1e-8
    """added to the denominator, > 0"""
    weight_decay: float = 0.0
    """decoupled, on matrices only (no biases, norms); 0 = off"""
    max_grad_norm: float | None = 1.0
    """the global L2 norm that gradients are scaled down to; null = no clipping"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """after the warm-up: stay, or decay towards 0, which would be reached a step after the last"""
    warmup: float = 0.1
    """below 1: share of all steps; from 1 on: number of steps; 0 = off"""

    def __post_init__(self) -> None:
        _require(0 < self.lr < math.inf, "optimizer.lr", self.lr, "a number above 0, e.g. 5e-6")
        _require(
            all(0 <= beta < 1 for beta in self.betas),
            "optimizer.betas",
            list(self.betas),
            "two numbers in [0, 1), e.g. [0.9, 0.999]",
        )
        _require(0 < self.eps < math.inf, "optimizer.eps", self.eps, "a number above 0, e.g. 1e-8")
        _require(0 <= self.weight_decay < math.inf, "optimizer.weight_decay", self.weight_decay, "a number from 0 on")
        norm = self.max_grad_norm
        _require(norm is None or norm > 0, "optimizer.max_grad_norm", norm, "a number above 0, e.g. 1.0, or null for no clipping")
        share_or_steps = 0 <= self.warmup < 1 or (1 <= self.warmup < math.inf and self.warmup == int(self.warmup))
        _require(share_or_steps, "optimizer.warmup", self.warmup, "a share of all steps in [0, 1) or a whole number of steps")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state of a run is saved."""

    every: int | None = 100
    """optimizer steps; null = only when interrupted"""
    keep: int = 2
    """the newest n stay, ≥ 1"""

    def __post_init__(self) -> None:
        _require_count("checkpoint.every", self.every)
        _require_count("checkpoint.keep", self.keep)


@dataclass(frozen=True)
class EvalConfig:
    """Held-out rows, always measured against the starting policy and without a limiter, so that numbers stay comparable."""

    data: str | None = None
    """file or data set of held-out rows; null = none of its own"""
    fraction: float = 0.0
    """share of the prompts to hold out with all their rows, in [0, 1); 0 = none"""
    every: int = 100
    """optimizer steps between evaluations; there is always one at the end"""

    def __post_init__(self) -> None:
        _require(0 <= self.fraction < 1, "eval.fraction", self.fraction, "a share in [0, 1), e.g. 0.05")
        _require_count("eval.every", self.every)


@dataclass(frozen=True)
class LogConfig:
    """What is shown and sent besides `metrics.jsonl`, which is always written."""

    every: int = 1
    """optimizer steps between console lines; 0 = none"""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """experiment trackers; () = none"""
    project: str = "humanline"
    """project name at the trackers"""
    report: bool = True
    """write RUN/report.html at the end; `humanline report RUN` does the same at any time"""

    def __post_init__(self) -> None:
        _require_count("log.every", self.every, least=0)


@dataclass(frozen=True)
class RolloutConfig:
    """How fresh data is made when `sample_every` is set; `data` then holds prompts, and `rows` says how they are read."""

    backend: Backend = "transformers"
    """transformers: the policy itself, in this process; openai: a server that is given the policy's weights by path"""
    sample: SampleConfig = field(default_factory=SampleConfig)
    """how completions are drawn; the run's seed chooses the draws, and kept log-probs are always the policy's own"""
    server: ServerConfig = field(default_factory=ServerConfig)
    handover: Literal["name", "sglang"] = "name"
    """how a server learns of new weights: name = the path is the model's name in each request (`transformers serve`); sglang = its call
    update_weights_from_disk"""
    scorers: tuple[ScorerConfig, ...] = ()
    """what scores; the reward is the sum of weight · score"""
    keep: Literal["all", "finished"] = "all"
    """completions that may form pairs and labels: all, or only those that a length limit has not cut"""

    def __post_init__(self) -> None:
        _require(self.sample.seed == 0, "rollout.sample.seed", self.sample.seed, "0: the draws follow the run's own seed, --seed")
        _require(self.backend != "vllm", "rollout.backend", self.backend, "transformers, or openai with a vLLM server")


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    model: str = ""
    """directory or hub name of a causal LM in Hugging Face format, or `smollm2`"""
    data: str = ""
    """a .jsonl, .json, .parquet or .csv file, or the name of a `datasets` data set"""
    out: str = ""
    """run directory; must not hold a run yet unless `resume`"""
    objective: ObjectiveConfig = field(default_factory=DPO)
    limit: LimitConfig = field(default_factory=Off)
    sync_every: int | None = None
    """k: the reference becomes the policy every k optimizer steps, ≥ 1; null = the reference stays the starting policy"""
    sample_every: int | None = None
    """S: sample and score new completions every S optimizer steps, ≥ 1; 1 = online, 64 = sparse; null = offline: `data` holds them"""
    steps: int | None = None
    """optimizer steps, ≥ 1; null = as many as `epochs` take"""
    epochs: float = 1.0
    """passes over the data, > 0; unused when `steps` is given"""
    batch_size: int = 32
    """groups per optimizer step over all processes, ≥ 1: pairs, labelled rows, or prompts with all their completions"""
    micro_batch_tokens: int = 8192
    """tokens per forward pass, padding included, ≥ 1; changes speed and memory, never the result. A larger group runs alone."""
    seed: int = 0
    """of row order, Reject's draws and dropout, in [0, 2^63)"""
    resume: bool = False
    """go on from the newest checkpoint in `out`"""
    reference_cache: str | None = None
    """directory of reference log-probs shared between runs with a fixed reference; null = inside the run directory"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto = the accelerator if there is one"""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    rows: DataConfig = field(default_factory=DataConfig)
    load: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        for key in ("sync_every", "sample_every", "steps", "batch_size", "micro_batch_tokens"):
            _require_count(key, getattr(self, key))
        _require(0 < self.epochs < math.inf, "epochs", self.epochs, "a number above 0, e.g. 1.0")
        _require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number in [0, 2^63)")

    def replace(self, **changes: object) -> TrainConfig:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def validate(config: TrainConfig) -> None:
    """Check what no single field can tell: settings that contradict each other. Raises `ConfigError`.

    Ranges are checked when a config is built; this is for complete ones, after flags have been applied.
    """
    objective = config.objective.build() if isinstance(config.objective, CustomObjective) else config.objective
    if not objective.reference:
        _refuse_reference_settings(config)
    if config.reference_cache is not None and config.sync_every is not None:
        raise ConfigError(
            f"reference_cache is {config.reference_cache!r} while sync_every is {config.sync_every}: stored reference log-probs "
            "go stale once the reference moves. Leave reference_cache out, or keep the reference fixed with `--sync-every null`."
        )
    if config.sample_every is not None:
        _check_rollouts(config)
    if config.eval.data is not None and config.eval.fraction > 0:
        raise ConfigError(
            f"eval.data is {config.eval.data!r} and eval.fraction is {config.eval.fraction}: expected one source of them. "
            "Drop `eval.data` or set `--eval.fraction 0`."
        )


def _check_rollouts(config: TrainConfig) -> None:
    """Fresh data needs a scorer, and cannot be known before the run."""
    if not config.rollout.scorers:
        raise ConfigError(
            "rollout.scorers is empty while sample_every is set: fresh completions need a score. Name one, e.g. in YAML "
            "`rollout: {scorers: [{name: math, gold: answer}]}`, or `--rollout.scorers '[{name: function, path: rewards.py:score}]'`."
        )
    for key, value in {"reference_cache": config.reference_cache, "eval.fraction": config.eval.fraction or None}.items():
        if value is not None:
            raise ConfigError(f"{key} is {value} while sample_every is set: expected offline data. Leave it out.")
    longest = config.rollout.sample.max_new_tokens
    expected = f"more than rollout.sample.max_new_tokens, which is {longest}"
    _require(config.rows.max_length > longest, "rows.max_length", config.rows.max_length, expected)


def _refuse_reference_settings(config: TrainConfig) -> None:
    """An objective without a reference has nothing to perceive, to move or to store."""
    asked = {
        "limit.name": (config.limit.name, "off"),
        "sync_every": (config.sync_every, None),
        "reference_cache": (config.reference_cache, None),
    }
    for key, (value, off) in asked.items():
        if value != off:
            raise ConfigError(
                f"{key} is {value} with objective {config.objective.name}: it has no reference, and hence no humanline variant. "
                f"Use `--{key.replace('_', '-')} {off or 'null'}`, or an objective with a reference (dpo, ipo, kto, grpo)."
            )


def validate_for_training(config: TrainConfig) -> None:
    """`validate`, and a model, data and a run directory are named."""
    validate(config)
    for key, example in {"model": "smollm2", "data": "pairs.jsonl", "out": "runs/first"}.items():
        if not getattr(config, key):
            raise ConfigError(
                f"{key} is empty: a training run needs one. Set it with `--{key} {example}` or `{key}:` in the YAML file."
            )
