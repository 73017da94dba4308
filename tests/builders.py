"""Tiny models and encoded groups for tests, all seeded."""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from humanline.config import CheckpointConfig, LogConfig, OptimizerConfig, TrainConfig
from humanline.data.feed import Feed, Rows
from humanline.data.plan import Plan
from humanline.data.rows import EncodedCompletion, EncodedGroup, Kind, Place
from humanline.distributed import Workers
from humanline.limit import Clip
from humanline.loop import Loop, adamw, needs_reference
from humanline.objectives import DPO, Objective
from humanline.reference import Reference
from humanline.token_logps import TokenLogps

VOCABULARY = 50


def tiny_llama(seed: int = 0, **changes: object) -> PreTrainedModel:
    """Two layers, hidden 32, rotary positions, float32. Weights are wide enough for uneven predictions."""
    torch.manual_seed(seed)
    settings = dict(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, initializer_range=0.2, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


def tiny_gpt2(seed: int = 0, **changes: object) -> PreTrainedModel:
    """Two layers, hidden 32, learned positions, dropout 0.1 in its config as GPT-2 has."""
    torch.manual_seed(seed)
    settings = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.2)
    return GPT2LMHeadModel(GPT2Config(**(settings | changes))).eval()


def save_model(folder: Path, model: PreTrainedModel | None = None) -> str:
    """A model directory with a tokenizer of single characters: ids 0 `<pad>`, 1 `<s>`, 2 `</s>`, then letters, digits and signs."""
    characters = ["<pad>", "<s>", "</s>", *string.ascii_lowercase, *string.digits, *" .,:=+-*/\n"]
    vocabulary = {character: number for number, character in enumerate(characters)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(folder)
    (model or tiny_llama()).save_pretrained(folder)
    return str(folder)


def pairs_file(path: Path, count: int = 10) -> str:
    """Preference pairs that `save_model`'s tokenizer knows, one a line."""
    records = [{"prompt": f"{row}: why ", "chosen": "x" * row + "a", "rejected": "no."} for row in range(count)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def small_run(model: str, folder: Path) -> TrainConfig:
    """Six steps of humanline DPO from files, with a checkpoint every second one."""
    return TrainConfig(
        model=model, data=pairs_file(folder / "pairs.jsonl"), out=str(folder / "run"), objective=DPO(), limit=Clip(), sync_every=2,
        steps=6, batch_size=3, device="cpu", optimizer=OptimizerConfig(lr=1e-3), checkpoint=CheckpointConfig(every=2),
        log=LogConfig(every=0, report=False),
    )  # fmt: skip


def completion(ids: list[int], feedback: float = 1.0, logps: list[float] | None = None) -> EncodedCompletion:
    """A finished completion whose tokens all count."""
    stored = None if logps is None else np.array(logps, np.float32)
    return EncodedCompletion(np.array(ids, np.int32), np.ones(len(ids), bool), feedback, stored, finished=True)


def groups(kind: Kind, count: int, *, seed: int = 0, size: int = 4, longest: int = 12) -> list[EncodedGroup]:
    """Random groups of uneven lengths: pairs of (1, 0), labels 1/0 alternating, groups of `size` normal rewards."""
    rng = np.random.default_rng(seed)

    def tokens(least: int) -> list[int]:
        return rng.integers(3, VOCABULARY, rng.integers(least, longest + 1)).tolist()

    made = []
    for row in range(count):
        if kind == "pair":
            feedback = [1.0, 0.0]
        elif kind == "group":
            feedback = rng.normal(size=size).tolist()
        else:
            feedback = [1.0 if kind == "chat" else float(row % 2)]
        completions = tuple(completion(tokens(2), value) for value in feedback)
        made.append(EncodedGroup(kind, np.array(tokens(1), np.int32), completions, Place("rows.jsonl", row + 1)))
    return made


def config(objective: Objective, **changes: object) -> TrainConfig:
    """A quiet CPU run with a learning rate that moves a tiny model."""
    settings = dict(objective=objective, out="unused", device="cpu", batch_size=4, optimizer=OptimizerConfig(lr=1e-2, warmup=0))
    return TrainConfig(**(settings | changes))


def loop(model: torch.nn.Module, data: list[EncodedGroup], settings: TrainConfig, last: int = 12) -> Loop:
    """The real loop over a model in memory, before `sync(0)`."""
    workers = Workers(settings)
    module = TokenLogps(model)
    module, optimizer = workers.prepare(module, adamw(module, settings.optimizer))
    plan = Plan(len(data), settings.batch_size, settings.seed, settings.rows.shuffle)
    feed = Feed(Rows(data, plan, last), settings.micro_batch_tokens, settings.objective.mismatched)
    reference = Reference(settings.sync_every) if needs_reference(settings, settings.objective, data) else None
    return Loop(settings, settings.objective, module, optimizer, workers, feed, reference, last)


def train(
    model: torch.nn.Module, data: list[EncodedGroup], settings: TrainConfig, steps: int, last: int | None = None
) -> list[dict]:
    """Metrics of the first `steps` of a run of `last`."""
    made = loop(model, data, settings, last or steps)
    if made.reference:
        made.sync(1, before=1)
    return [made.step(t) for t in range(1, steps + 1)]
