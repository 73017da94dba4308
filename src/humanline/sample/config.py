"""What a run of `humanline sample` is. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from humanline.config import ModelConfig
from humanline.errors import ConfigError
from humanline.sample.settings import Backend, EngineConfig, SampleConfig, ServerConfig, require_count

__all__ = ["Backend", "EngineConfig", "PromptConfig", "SampleConfig", "SampleRunConfig", "ServerConfig", "validate"]


@dataclass(frozen=True)
class PromptConfig:
    """Where prompts come from and how they become tokens: the same fields, with the same meaning, as a training run's `rows`."""

    columns: dict[str, str] = field(default_factory=dict)
    """renames columns on reading, {expected: column in the file}, e.g. {prompt: question}; {} = the expected names"""
    split: str = "train"
    """split of a `datasets` data set; unused for files"""
    limit_rows: int | None = None
    """use only the first n rows, ≥ 1; null = all"""
    template: Literal["auto", "chat", "none"] = "auto"
    """auto: message lists get the chat template, plain strings do not; chat: strings become user turns; none: never"""
    max_prompt_tokens: int | None = None
    """longest prompt, ≥ 1; null = what the model's positions leave beside max_new_tokens"""
    too_long: Literal["drop", "truncate", "error"] = "drop"
    """what happens to longer ones; truncate cuts their start, a beginning-of-sequence token stays"""

    def __post_init__(self) -> None:
        require_count("rows.limit_rows", self.limit_rows)
        require_count("rows.max_prompt_tokens", self.max_prompt_tokens)


@dataclass(frozen=True)
class SampleRunConfig:
    """One run of `humanline sample`."""

    data: str = ""
    """prompts: a .jsonl, .json, .parquet or .csv file, or the name of a `datasets` data set"""
    model: str = ""
    """directory or hub name of a causal LM, or `smollm2`; with a server: whose tokenizer and template are used"""
    out: str = ""
    """.jsonl file of groups, a row per prompt; while it is being written it is called NAME.partial.jsonl"""
    backend: Backend = "transformers"
    """transformers: in this process; openai: a server; vllm: in this process by vLLM"""
    resume: bool = False
    """go on with an unfinished `out`; its rows stay"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """of backend transformers; auto = the accelerator if there is one"""
    sample: SampleConfig = field(default_factory=SampleConfig)
    rows: PromptConfig = field(default_factory=PromptConfig)
    load: ModelConfig = field(default_factory=ModelConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


def validate(config: SampleRunConfig) -> None:
    """Prompts, a model and an output file are named; raises `ConfigError`."""
    for key, example in {"data": "", "model": " --model smollm2", "out": " --out samples.jsonl"}.items():
        if not getattr(config, key):
            raise ConfigError(f"{key} is empty: expected it, e.g. `humanline sample prompts.jsonl{example}`.")
    if not config.out.endswith(".jsonl"):
        raise ConfigError(f"out is {config.out}: expected a name that ends in .jsonl.")
