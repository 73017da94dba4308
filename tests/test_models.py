"""What is known of a model without its weights is what the loaded model says."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import GenerationConfig

from builders import save_model, tiny_gpt2, tiny_llama
from humanline import models
from humanline.errors import ModelError


def test_R19_ends_and_positions_are_those_of_the_loaded_model(tmp_path: Path) -> None:
    """With a generation config of its own, and with none, where the configuration counts."""
    llama = tiny_llama(eos_token_id=[2, 9], bos_token_id=1, pad_token_id=0)
    llama.generation_config = GenerationConfig(eos_token_id=[2, 11])
    with_file = save_model(tmp_path / "llama", llama)
    without_file = save_model(tmp_path / "gpt2", tiny_gpt2(eos_token_id=7, bos_token_id=1))
    (tmp_path / "gpt2" / "generation_config.json").unlink()
    for name, ends in ((with_file, (2, 11)), (without_file, (7, 2))):
        tokenizer, model, outline = models.load_tokenizer(name), models.load_policy(name), models.load_outline(name)
        assert models.end_of_sequence_ids(outline, tokenizer) == models.end_of_sequence_ids(model, tokenizer) == ends
        assert models.positions(outline) == models.positions(model) == 128


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"configuration of model .*nowhere' cannot be loaded"):
        models.load_outline(str(tmp_path / "nowhere"))
