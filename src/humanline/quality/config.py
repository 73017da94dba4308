"""What `humanline inspect` is asked. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Literal

from humanline.config import DataConfig, ModelConfig
from humanline.errors import ConfigError


@dataclass(frozen=True)
class RowsConfig:
    """Which rows are read and how they become tokens: the same fields, with the same meaning, as a training run's `rows`."""

    columns: dict[str, str] = field(default_factory=dict)
    """renames columns on reading, {expected: column in the file}, e.g. {prompt: question}; {} = the expected names"""
    split: str = "train"
    """split of a `datasets` data set; unused for files"""
    limit_rows: int | None = None
    """use only the first n rows, ≥ 1; null = all"""
    template: Literal["auto", "chat", "none"] = "auto"
    """auto: message lists get the chat template, plain strings do not; chat: strings become user/assistant turns; none: never"""
    eos: bool = True
    """end each finished completion with one labelled end-of-sequence token; false = leave completions as they are"""
    max_length: int = 2048
    """tokens of prompt + completion, ≥ 2"""
    too_long: Literal["drop", "truncate", "error"] = "drop"
    """what happens to longer ones before their likelihood is taken; what drop and truncate would do is reported in any case"""
    train_on: Literal["last", "all"] = "all"
    """chat rows: the last assistant turn only, or every one"""

    def __post_init__(self) -> None:
        self.encoding()

    def encoding(self) -> DataConfig:
        """The same as settings of a training run."""
        return DataConfig(**vars(self))


@dataclass(frozen=True)
class InspectConfig:
    """One run of `humanline inspect`."""

    data: str = ""
    """pairs, labels, groups or conversations: a .jsonl, .json, .parquet or .csv file, or the name of a `datasets` data set"""
    model: str = ""
    """directory or hub name of the causal LM that is to be trained, or `smollm2`"""
    reference: str | None = None
    """a second model, π_ref in z = log π(y|x) − log π_ref(y|x); null: z is measured against the model's own fresh samples"""
    out: str | None = None
    """folder for inspect.json, perception.json and kept.jsonl; null = print only"""
    fresh: int = 64
    """prompts for which the model is sampled, the yardstick of what is usual for it, ≥ 0; 0 = none, and no perception gap"""
    fresh_completions: int = 8
    """fresh samples of each such prompt, even, ≥ 4"""
    max_new_tokens: int | None = None
    """a fresh sample that has not ended by then is cut, ≥ 1; null = the longest completion of the data, up to 512"""
    keep_above: float | None = None
    """writes kept.jsonl: below 0 the least mean token log-prob of a row, nats; in (0, 1) that quantile of the rows; null = off"""
    seed: int = 0
    """of the choice of prompts and of fresh samples, in [0, 2^63)"""
    batch_tokens: int = 8192
    """tokens of a forward pass, and of all sequences sampled together, ≥ 1; changes speed and memory, never the result"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto = the accelerator if there is one"""
    rows: RowsConfig = field(default_factory=RowsConfig)
    load: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        _require(self.fresh >= 0, "fresh", self.fresh, "a number of prompts from 0 on")
        fits = self.fresh_completions >= 4 and self.fresh_completions % 2 == 0
        _require(fits, "fresh_completions", self.fresh_completions, "an even number from 4 on")
        _require(
            self.max_new_tokens is None or self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "a number from 1 on"
        )
        keep = self.keep_above
        _require(
            keep is None or -math.inf < keep < 0 or 0 < keep < 1,
            "keep_above",
            keep,
            "a log-prob below 0, e.g. -1.03, or a quantile in (0, 1), e.g. 0.25",
        )
        _require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number in [0, 2^63)")
        _require(self.batch_tokens >= 1, "batch_tokens", self.batch_tokens, "a whole number from 1 on")


def validate(config: InspectConfig) -> None:
    """Data and a model are named, and no setting is without effect; raises `ConfigError`."""
    for key, example in {"data": "", "model": " --model smollm2"}.items():
        if not getattr(config, key):
            raise ConfigError(f"{key} is empty: expected it, e.g. `humanline inspect pairs.jsonl{example}`.")
    if config.keep_above is not None and config.out is None:
        raise ConfigError(f"keep_above is {config.keep_above:g} without a folder to write kept.jsonl to. Add `--out FOLDER`.")
    if config.reference is not None and not config.fresh:
        raise ConfigError(
            f"reference is {config.reference!r} while fresh is 0: it serves the perception gap only, which needs fresh samples. "
            "Leave it out, or set --fresh 64."
        )
    if config.reference is not None and config.reference == config.model:
        raise ConfigError(
            f"reference is {config.reference!r}, the model itself: every outcome would be 0. Leave it out, and outcomes are measured "
            "against the model's own fresh samples."
        )


def settings(config: InspectConfig) -> dict[str, object]:
    """For inspect.json."""
    return asdict(config)


def _require(condition: bool, key: str, value: object, expected: str) -> None:
    if not condition:
        raise ConfigError(f"{key} is {value}: expected {expected}.")
