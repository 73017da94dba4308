"""A tiny Llama and a tokenizer of characters, on disk and in memory. Nothing is downloaded or reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from builders import save_model, tiny_llama


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture
def reference() -> PreTrainedModel:
    """float32, random weights."""
    return tiny_llama()


@pytest.fixture
def directory(reference: PreTrainedModel, tmp_path: Path) -> str:
    """The reference with its tokenizer, for trainers that load both themselves."""
    return save_model(tmp_path / "model", reference)


@pytest.fixture
def tokenizer(directory: str) -> PreTrainedTokenizerFast:
    """One token per character, `</s>` and `<pad>`; no BOS."""
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What every TRL trainer gets, and the changes: float32 on the CPU, and nothing that reports or saves."""
    common = {"output_dir": str(tmp_path / "trl"), "report_to": "none", "bf16": False, "use_cpu": True, "disable_tqdm": True}
    return lambda **changes: common | {"gradient_checkpointing": False} | changes
