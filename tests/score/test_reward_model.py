"""Reward models: tiny random ones, read at the last real token, whatever stands beside or in the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerBase,
)

import small_tokenizers
from humanline.errors import ConfigError, ModelError
from humanline.score import Item, RewardModel, Verdict
from humanline.score.reward_model import RewardModelScorer

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
QUESTION = ({"role": "user", "content": "How much does she make?"},)


def llama(vocabulary: int, **changes: Any) -> LlamaForSequenceClassification:
    settings = {"max_position_embeddings": 256, "initializer_range": 0.2, "num_labels": 1, "pad_token_id": 0, **SIZES, **changes}
    return LlamaForSequenceClassification(LlamaConfig(vocab_size=vocabulary, **settings))


def gpt2(vocabulary: int) -> GPT2ForSequenceClassification:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.2, "num_labels": 1}
    return GPT2ForSequenceClassification(GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, **sizes))


def bert(vocabulary: int) -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(vocab_size=vocabulary, max_position_embeddings=256, initializer_range=0.2, num_labels=1, **SIZES)
    )


def saved(folder: Path, make: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """A model directory, reproducible."""
    torch.manual_seed(1)
    tokenizer = tokenizer or small_tokenizers.chatml()
    make(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def scorer(folder: str, **settings: Any) -> RewardModelScorer:
    return RewardModelScorer(RewardModel(model=folder, device="cpu", **settings))


def conversations(count: int = 7) -> list[Item]:
    """Of 20 to some 80 tokens, unsorted."""
    return [
        Item(({"role": "user", "content": "Hello there. " * (number * 5 % 7 + 1)},), "Yes, sir. " * (number % 3 + 1))
        for number in range(count)
    ]


@pytest.mark.parametrize("make", [llama, gpt2, bert])
@pytest.mark.parametrize("batch_tokens", [1, 150, 10**6])
def test_R6_padding_and_batch_mates_do_not_change_a_score(make: Any, batch_tokens: int, tmp_path: Path) -> None:
    made = scorer(saved(tmp_path, make), batch_tokens=batch_tokens)
    together = made.score(conversations())
    alone = [made.score([item])[0] for item in conversations()]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len({round(score or 0, 3) for score in together}) == 7


@pytest.mark.parametrize("make", [llama, gpt2])
def test_R29_the_score_is_read_at_the_last_token_though_pad_stands_in_the_prompt(make: Any, tmp_path: Path) -> None:
    """Pad = EOS, which the template puts behind each turn and a user typed twice. Expected: head · hidden state of the last id."""
    made = scorer(saved(tmp_path, make, small_tokenizers.pad_is_eos()))
    items = [
        Item(({"role": "user", "content": "a <|im_end|> b <|im_end|> c"},), "Yes."),
        Item(({"role": "user", "content": "Two plus two?"}, {"role": "assistant", "content": "4"}, *QUESTION), "Nothing at all."),
    ]
    expected = []
    for item in items:
        (ids,) = made.encode([made.text(item)]).values()
        assert (ids == made.tokenizer.pad_token_id).sum() >= 3
        backbone = getattr(made.model, made.model.base_model_prefix)
        with torch.inference_mode():
            hidden = backbone(torch.from_numpy(ids.astype("int64"))[None]).last_hidden_state[0, -1]
            expected.append(float(made.model.score(hidden)))
    assert made.score(items) == pytest.approx(expected, abs=1e-5)


def test_the_template_is_applied_once_to_the_whole_conversation(tmp_path: Path) -> None:
    made = scorer(saved(tmp_path, llama))
    assert made.text(Item(QUESTION, "Nothing.")) == (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHow much does she make?<|im_end|>\n"
        "<|im_start|>assistant\nNothing.<|im_end|>\n"
    )


@pytest.mark.parametrize("tail", ["", "<think>\n"])
def test_an_answer_that_the_template_would_shorten_is_read_whole(tail: str, tmp_path: Path) -> None:
    made = scorer(saved(tmp_path, llama, small_tokenizers.chatml(small_tokenizers.THINKING)))
    completion = "".join(["<think>\n"] * (not tail)) + "Let me see.\n</think>\n18 dollars"
    text = made.text(Item(QUESTION, completion, prompt_tail=tail))
    assert text.endswith("<|im_start|>assistant\n<think>\nLet me see.\n</think>\n18 dollars<|im_end|>\n")


def test_an_answer_that_continues_a_prefilled_turn_is_one_turn_with_it(tmp_path: Path) -> None:
    made = scorer(saved(tmp_path, llama))
    text = made.text(Item((*QUESTION, {"role": "assistant", "content": "She makes "}), "18."))
    assert text.endswith("<|im_start|>assistant\nShe makes 18.<|im_end|>\n")
    assert text.count("<|im_start|>assistant") == 1


def test_plain_text_is_joined_unless_the_template_is_asked_for(tmp_path: Path) -> None:
    folder = saved(tmp_path, llama)
    item = Item("How much does she make? ", "Nothing.")
    assert scorer(folder).text(item) == "How much does she make? Nothing."
    assert "<|im_start|>user\nHow much" in scorer(folder, template="chat").text(item)
    joined = scorer(folder, template="none")
    assert joined.text(item) == "How much does she make? Nothing."
    (verdict,) = joined.verdicts([Item(QUESTION, "x")])
    assert (verdict.score, verdict.why) == (None, "not rendered")
    assert "scorer.template is none, but the row holds messages" in verdict.note


def test_exactly_one_beginning_of_sequence(tmp_path: Path) -> None:
    """Tokenizer and template both put one."""
    made = scorer(saved(tmp_path, llama, small_tokenizers.instructions()))
    (ids,) = made.encode([made.text(Item(QUESTION, "Nothing."))]).values()
    assert (ids == made.tokenizer.bos_token_id).sum() == 1


def test_a_conversation_that_is_too_long_is_left_unscored_and_never_cut(tmp_path: Path) -> None:
    made = scorer(saved(tmp_path, llama), max_length=100)
    short, long = made.verdicts([Item(QUESTION, "Nothing."), Item(QUESTION, "Yes. " * 200)])
    assert short.score is not None
    assert (long.score, long.why) == (None, "too long")
    assert long.note.endswith("tokens, more than 100")
    assert scorer(saved(tmp_path / "positions", lambda count: llama(count, max_position_embeddings=64))).longest == 64


def test_a_model_without_trained_head_is_refused(tmp_path: Path) -> None:
    """A causal LM's checkpoint would load with a random head, and score at random."""
    folder = saved(tmp_path, lambda count: LlamaForCausalLM(LlamaConfig(vocab_size=count, **SIZES)))
    with pytest.raises(ModelError, match=r"holds no weights for score\.weight: it is no trained reward model"):
        scorer(folder)


def test_of_several_outputs_one_has_to_be_chosen(tmp_path: Path) -> None:
    folder = saved(tmp_path, lambda count: llama(count, num_labels=3))
    with pytest.raises(ModelError, match=r"has 3 outputs and no `score` of its own\. Choose one with `--scorer\.head 0` … 2"):
        scorer(folder).score(conversations(1))
    heads = [scorer(folder, head=head).score(conversations(2)) for head in range(3)]
    assert len({scores[0] for scores in heads}) == 3
    with pytest.raises(ModelError, match=r"scorer\.head is 3, but .* has 3 outputs"):
        scorer(folder, head=3).score(conversations(1))


MANY_HEADS = """
from dataclasses import dataclass
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel
from transformers.utils import ModelOutput


@dataclass
class HeadsOutput(ModelOutput):
    logits: torch.Tensor = None
    score: torch.Tensor = None


class ManyHeads(LlamaPreTrainedModel):
    config_class = LlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = LlamaModel(config)
        self.heads = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, position_ids=None):
        hidden = self.model(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        ends = torch.eq(input_ids, self.config.pad_token_id).int().argmax(-1) - 1
        logits = self.heads(hidden[torch.arange(len(hidden)), ends % input_ids.shape[-1]])
        return HeadsOutput(logits=logits, score=logits.mean(-1) * SCALE)
"""
"""In the way of ArmoRM: several heads, a `score` of its own, and an own search for the first padding token."""


def many_heads(folder: Path, monkeypatch: pytest.MonkeyPatch, scale: str) -> str:
    for module in ("transformers.dynamic_module_utils", "transformers.utils.hub"):
        monkeypatch.setattr(f"{module}.HF_MODULES_CACHE", str(folder / "modules"), raising=False)
    monkeypatch.syspath_prepend(str(folder / "modules"))
    model = folder / f"model_{scale.isalpha()}"
    saved(model, lambda count: llama(count, num_labels=4))
    (model / "many_heads.py").write_text(MANY_HEADS.replace("SCALE", scale))
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["ManyHeads"], "auto_map": {"AutoModelForSequenceClassification": "many_heads.ManyHeads"}}
    (model / "config.json").write_text(json.dumps(config))
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["heads.weight"], weights["heads.bias"] = weights.pop("score.weight"), torch.arange(4.0)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return str(model)


def test_a_model_with_many_heads_is_read_by_its_own_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = many_heads(tmp_path, monkeypatch, "1.0")
    made = scorer(folder, trust_remote_code=True)
    together = made.score(conversations())
    assert together == pytest.approx([made.score([item])[0] for item in conversations()], abs=1e-5)
    heads = [scorer(folder, trust_remote_code=True, head=head).score(conversations()) for head in range(4)]
    means = [sum(scores) / 4 for scores in zip(*heads, strict=True)]
    assert together == pytest.approx(means, abs=1e-5)


def test_a_model_whose_code_reads_the_padding_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = many_heads(tmp_path, monkeypatch, "input_ids.shape[-1]")
    with pytest.raises(
        ModelError, match=r"so its code reads the padding\. Score one row at a time with `--scorer\.batch-tokens 1`"
    ):
        scorer(folder, trust_remote_code=True)
    assert None not in scorer(folder, trust_remote_code=True, batch_tokens=1).score(conversations(2))


def test_messages_without_a_template_and_a_model_without_name_are_errors(tmp_path: Path) -> None:
    made = scorer(saved(tmp_path, llama, small_tokenizers.bare()))
    assert made.score([Item("Hello. ", "Yes.")]) != [None]
    with pytest.raises(ModelError, match="this reward model's tokenizer has no chat template"):
        made.score([Item(QUESTION, "Yes.")])
    with pytest.raises(ConfigError, match=r"scorer\.model is empty"):
        RewardModel().build()


def test_too_little_memory_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scorer(saved(tmp_path, llama))

    def full(**_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(made.model, "forward", full)
    with pytest.raises(
        ModelError, match=r"7 conversations of up to \d+ tokens do not fit .*Lower --scorer\.batch-tokens \(now 16384\)"
    ):
        made.score(conversations())


def test_a_score_that_is_no_number_is_no_score(tmp_path: Path) -> None:
    made = scorer(saved(tmp_path, llama))
    with torch.no_grad():
        made.model.score.weight.fill_(float("nan"))
    assert made.verdicts(conversations(2)) == [Verdict(None, "NaN")] * 2
