"""A tiny Llama and a word tokenizer in memory, and what both sides of a comparison need. Nothing is downloaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 40


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub, no trackers, and no notice about TRL's experimental parts."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Words w0 … w39, one token each, then end and padding."""
    vocabulary = {f"w{index}": index for index in range(WORDS)} | {"</s>": WORDS, "<pad>": WORDS + 1, "<unk>": WORDS + 2}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


@pytest.fixture
def reference() -> LlamaForCausalLM:
    """float32, random weights wide enough that predictions differ from token to token."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS + 3,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        pad_token_id=WORDS + 1,
        eos_token_id=WORDS,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def perturbed(model: LlamaForCausalLM, seed: int, size: float) -> LlamaForCausalLM:
    """A copy with N(0, size²) added to every weight: a policy that has moved."""
    generator = torch.Generator().manual_seed(seed)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return moved


@pytest.fixture
def move() -> Callable[..., LlamaForCausalLM]:
    return perturbed


def token_logps(model: LlamaForCausalLM, ids_BL: Tensor, attention_BL: Tensor) -> Tensor:
    """log p(token | those before it) at every position but the first, straight from the plain model's logits."""
    logits = model(input_ids=ids_BL, attention_mask=attention_BL, use_cache=False).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, ids_BL[:, 1:, None]).squeeze(-1)


@pytest.fixture
def logps() -> Callable[[LlamaForCausalLM, Tensor, Tensor], Tensor]:
    return token_logps


@pytest.fixture
def save(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Callable[[LlamaForCausalLM], str]:
    """Model and tokenizer as a directory, for trainers that load their own reference."""

    def write(model: LlamaForCausalLM) -> str:
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return write
