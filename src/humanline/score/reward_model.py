"""A reward model: a sequence classifier that reads the whole conversation and gives one number.

B conversations · T tokens.  The score is read at the last real token of each row by the attention mask, never by looking for the
padding token, which may occur in the text (pad = EOS). So decoders are padded on the left, where the last position is the last
token, with position ids from the mask; encoders, whose first token is read, on the right.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jinja2 import TemplateError

from humanline.config import ModelConfig
from humanline.data.turns import Turns
from humanline.data.vocabulary import Vocabulary
from humanline.errors import ConfigError, DataError, ModelError
from humanline.models import load_tokenizer
from humanline.score.config import RewardModel
from humanline.score.conversation import turns_of_item
from humanline.score.function import as_verdict
from humanline.score.item import Item, Scorer, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NO_TOKEN = -1
"""as the model's padding token: one that no text has, so that its own search for padding finds none"""
HOLE = "\ue000"
"""stands for the answer while the template is applied, where the template would change the answer"""
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.3}
"""how far apart two scores of one conversation may be, alone and padded beside a longer one"""


class RewardModelScorer(Scorer):
    """Scores with `AutoModelForSequenceClassification`; a model with several outputs by its own `score`, or by the head chosen."""

    def __init__(self, settings: RewardModel) -> None:
        if not settings.model:
            raise ConfigError("scorer.model is empty: a reward model is a directory or hub name. Set `--scorer.model NAME`.")
        self.settings = settings
        self.label = settings.label or Path(settings.model).name or settings.name
        load = ModelConfig(dtype=settings.dtype, trust_remote_code=settings.trust_remote_code, revision=settings.revision)
        self.tokenizer = load_tokenizer(settings.model, load)
        self.vocabulary = Vocabulary(self.tokenizer)
        self.model = _load(settings)
        self.encoder = hasattr(self.model, "classifier")
        if not self.encoder:
            for config in {id(each): each for each in (self.model.config, self.model.config.get_text_config())}.values():
                config.pad_token_id = NO_TOKEN
        accepted = inspect.signature(self.model.forward).parameters
        self.positioned = not self.encoder and "position_ids" in accepted
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        limits = [settings.max_length, positions, self.tokenizer.model_max_length if self.encoder else None]
        self.longest = min((limit for limit in limits if limit is not None), default=None)
        self._check_padding()

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        """Longest first, so that a batch has little padding and running out of memory happens at once."""
        verdicts: dict[int, Verdict] = {}
        texts: dict[int, str] = {}
        for index, item in enumerate(items):
            try:
                texts[index] = self.text(item)
            except DataError as error:
                verdicts[index] = Verdict(None, "not rendered", str(error), error)
        encoded = self.encode(list(texts.values()))
        rows = {index: encoded[text] for index, text in texts.items()}
        for index, row in rows.items():
            if self.longest is not None and len(row) > self.longest:
                verdicts[index] = Verdict(None, "too long", f"{len(row)} tokens, more than {self.longest}")
        order = sorted((index for index in rows if index not in verdicts), key=lambda index: -len(rows[index]))
        for batch in self._batches([(index, len(rows[index])) for index in order]):
            for index, score in zip(batch, self.scores([rows[index] for index in batch]), strict=True):
                verdicts[index] = as_verdict(score)
        return [verdicts[index] for index in range(len(items))]

    def facts(self) -> dict[str, Any]:
        """The weights by size and time of their files: another checkpoint of the same name is another model."""
        folder = Path(self.settings.model)
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        return {
            "files": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            "commit": getattr(self.model.config, "_commit_hash", None),
        }

    def text(self, item: Item) -> str:
        """The conversation as the model reads it: the template applied once to the whole of it, the answer unaltered in it."""
        plain = isinstance(item.prompt, str) and self.settings.template != "chat"
        if plain or self.settings.template == "none":
            if isinstance(item.prompt, str):
                return item.prompt + item.answer
            raise DataError(
                f"{item.place}: scorer.template is none, but the row holds messages. Expected plain strings.\n"
                "  Use `--scorer.template auto` to apply the chat template of the reward model."
            )
        turns = turns_of_item(item)
        rendered = self._render(item, turns)
        if turns[-1]["content"].strip() in rendered:
            return rendered
        return self._render(item, (*turns[:-1], {**turns[-1], "content": HOLE})).replace(HOLE, turns[-1]["content"])

    def _render(self, item: Item, turns: Turns) -> str:
        if not self.tokenizer.chat_template:
            raise ModelError(
                f"{self.settings.model}: the row {item.place} holds messages, and this reward model's tokenizer has no chat template.\n"
                "  Save a chat_template.jinja with the model, or give plain strings with `--scorer.template none`."
            )
        try:
            rendered = self.tokenizer.apply_chat_template([dict(turn) for turn in turns], tokenize=False)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise DataError(f"{item.place}: the reward model's chat template cannot render the turns {roles}: {error}") from error
        assert isinstance(rendered, str)
        return rendered

    def encode(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Text → ids, the beginning-of-sequence token exactly once; an encoder's with all of its special tokens."""
        if not self.encoder:
            return self.vocabulary.ids(texts)
        return {text: np.array(self.tokenizer(text)["input_ids"], np.int32) for text in texts}

    def _batches(self, longest_first: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """(index, tokens) in runs of at most `batch_tokens` tokens, padding included, or of a single row."""
        batch: list[int] = []
        width = 0
        for index, length in longest_first:
            if batch and width * (len(batch) + 1) > self.settings.batch_tokens:
                yield batch
                batch = []
            width = length if not batch else width
            batch.append(index)
        if batch:
            yield batch

    @torch.inference_mode()
    def scores(self, rows: Sequence[np.ndarray]) -> list[float]:
        """One forward pass over rows of ids."""
        longest = max(map(len, rows))
        ids_BT = torch.zeros(len(rows), longest, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for index, row in enumerate(rows):
            where = slice(0, len(row)) if self.encoder else slice(longest - len(row), longest)
            ids_BT[index, where] = torch.from_numpy(row.astype(np.int64))
            mask_BT[index, where] = 1
        inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
        if self.positioned:
            inputs["position_ids"] = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        try:
            output = self.model(**{name: value.to(self.model.device) for name, value in inputs.items()})
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{self.settings.model}: {ids_BT.shape[0]} conversations of up to {longest} tokens do not fit into the memory of "
                f"{self.model.device}. Lower --scorer.batch-tokens (now {self.settings.batch_tokens})."
            ) from error
        scores: list[float] = self._head(output).float().cpu().tolist()
        return scores

    def _head(self, output: Any) -> torch.Tensor:
        own = getattr(output, "score", None)
        if own is not None and self.settings.head is None:
            assert isinstance(own, torch.Tensor)
            return own.flatten()
        logits: torch.Tensor = output.logits
        heads = logits.shape[-1]
        if self.settings.head is None and heads > 1:
            raise ModelError(
                f"{self.settings.model} has {heads} outputs and no `score` of its own. Choose one with `--scorer.head 0` … {heads - 1}."
            )
        head = self.settings.head or 0
        if head >= heads:
            raise ModelError(f"scorer.head is {head}, but {self.settings.model} has {heads} outputs, counted from 0.")
        return logits[:, head]

    def _check_padding(self) -> None:
        """A model that ships its own code may look for padding in its own way; then only rows of one length go together."""
        if self.settings.batch_tokens == 1:
            return
        short, long = (self.encode([text])[text] for text in ("Hello.", "Hello. How are you today?"))
        alone, padded = self.scores([short])[0], self.scores([short, long])[0]
        if abs(alone - padded) > TOLERANCE[self.settings.dtype] * max(1.0, abs(alone)):
            raise ModelError(
                f"{self.settings.model}: a conversation scores {alone:.6g} alone and {padded:.6g} padded beside a longer one, "
                "so its code reads the padding. Score one row at a time with `--scorer.batch-tokens 1`."
            )


def _load(settings: RewardModel) -> PreTrainedModel:
    """The model on its device, in eval mode; `ModelError` also for a model without trained head, which would score at random."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            settings.model,
            dtype=getattr(torch, settings.dtype),
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"reward model {settings.model!r} cannot be loaded: {reason}") from error
    if loaded["missing_keys"]:
        raise ModelError(
            f"{settings.model} holds no weights for {', '.join(sorted(loaded['missing_keys'])[:3])}: it is no trained reward model, "
            "and its scores would be random.\n  Expected a sequence classification model."
        )
    model.config.use_cache = False
    try:
        return model.to(_device(settings.device)).eval()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"scorer.device is {settings.device}: {reason} Use auto, or a device that is there.") from error


def _device(name: str) -> str:
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
