"""Prompts of a file as the trainer will see them: read, rendered and tokenized by the trainer's own parts, then fitted in length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.config import DataConfig
from humanline.data.fit import cut_prompt
from humanline.data.notes import Notes
from humanline.data.read import Source, read_records
from humanline.data.record import Record, check_columns
from humanline.data.render import Renderer
from humanline.data.rows import Completion, Place, Row, Text
from humanline.data.texts import prompt_alone
from humanline.data.turns import as_turns
from humanline.data.vocabulary import Vocabulary
from humanline.errors import ConfigError, DataError
from humanline.sample.config import PromptConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompt:
    """One prompt. `text` is in the form that `rows.template: auto` renders to `ids`: turns where the chat template was applied."""

    number: int
    """of its record in the file, from 0; chooses the random streams, so that dropped rows move no other row's draws"""
    place: Place
    text: Text
    ids: np.ndarray
    """int32 [P], what is sent to the sampler and trained on"""
    others: dict[str, Any]
    """the record's columns under their expected names, the prompt's own included"""
    truncated: bool = False
    """`ids` lack the start of `text`"""


def load_prompts(
    source: Source,
    tokenizer: PreTrainedTokenizerBase,
    config: PromptConfig,
    *,
    eos_ids: tuple[int, ...] = (),
    room: int | None = None,
) -> tuple[list[Prompt], list[str]]:
    """The prompts of a file of any row shape that fit, and lines for a person that count what was unusual, cut or left out.

    room: tokens that the model's positions leave for a prompt; None = no limit. Raises `DataError` for rows that cannot be read or
    rendered, with `too_long: error` for one that does not fit, and when none is left.
    """
    notes = Notes()
    records, texts = _read(source, config, notes)
    if config.template == "chat" or (config.template == "auto" and not all(isinstance(text, str) for text in texts)):
        texts = [as_turns(text, "user") for text in texts]
    prompts = _encode(records, texts, tokenizer, config, eos_ids)
    limits = [limit for limit in (config.max_prompt_tokens, room) if limit is not None]
    vocabulary = Vocabulary(tokenizer, eos_ids)
    fitted, lines = fit_prompts(prompts, vocabulary, limit=min(limits, default=None), too_long=config.too_long)
    if not fitted:
        raise DataError(f"{records[0].place}: no prompt is left to sample from: {'; '.join(lines)}.\n  {_moves(config)}")
    return fitted, [*notes.lines(), *lines]


def _read(source: Source, config: PromptConfig, notes: Notes) -> tuple[list[Record], list[Text]]:
    check_columns(config.columns)
    records, texts = [], []
    for place, raw in read_records(source, split=config.split, limit=config.limit_rows):
        record = Record.of(place, raw, config.columns)
        records.append(record)
        texts.append(prompt_alone(record, notes))
    return records, texts


def _encode(
    records: Sequence[Record],
    texts: Sequence[Text],
    tokenizer: PreTrainedTokenizerBase,
    config: PromptConfig,
    eos_ids: tuple[int, ...],
) -> list[Prompt]:
    """Rendered and tokenized exactly as a group whose completions are the sampler's own ids."""
    vocabulary = Vocabulary(tokenizer, eos_ids)
    render = Renderer(tokenizer, DataConfig(template=config.template), end_texts=vocabulary.end_texts)
    sampled = (Completion("", token_ids=()),)
    rendered = [
        render(Row("group", text, sampled, (None,), record.place)).prompt for record, text in zip(records, texts, strict=True)
    ]
    ids = vocabulary.ids(rendered)
    return [
        Prompt(number, record.place, text, ids[whole], dict(record.values))
        for number, (record, text, whole) in enumerate(zip(records, texts, rendered, strict=True))
    ]


def fit_prompts(
    prompts: Sequence[Prompt], vocabulary: Vocabulary, *, limit: int | None, too_long: str
) -> tuple[list[Prompt], list[str]]:
    """What `too_long` makes of prompts above `limit` tokens, and a line for each kind of change with its count and first place.

    An empty prompt, which nothing precedes (no BOS), is left out too: there is nothing to predict its first token from.
    """
    empty = [prompt for prompt in prompts if not len(prompt.ids)]
    long = [prompt for prompt in prompts if limit is not None and len(prompt.ids) > limit]
    if too_long == "error" and (long or empty):
        prompt = (long or empty)[0]
        what = f"prompt {len(prompt.ids)} > {limit} tokens" if long else "empty prompt and no BOS token"
        raise DataError(
            f"{prompt.place}: {what}.\n  Use `--rows.too-long drop`, which leaves it out and counts it, or raise the limit."
        )
    lines = []
    if empty:
        lines.append(f"dropped {len(empty)} of {len(prompts)} prompts: empty, and no BOS token precedes it{_where(empty)}")
    if long:
        done = "truncated" if too_long == "truncate" else "dropped"
        lines.append(f"{done} {len(long)} of {len(prompts)} prompts: {len(long[0].ids)} > {limit} tokens{_where(long)}")
    kept = [
        prompt for prompt in prompts if len(prompt.ids) and (too_long == "truncate" or limit is None or len(prompt.ids) <= limit)
    ]
    if limit is not None and too_long == "truncate":
        kept = [_cut(prompt, limit, vocabulary) if len(prompt.ids) > limit else prompt for prompt in kept]
    return kept, lines


def _cut(prompt: Prompt, limit: int, vocabulary: Vocabulary) -> Prompt:
    ids = cut_prompt(prompt.ids, limit, head=vocabulary.head(prompt.ids))
    return dataclasses.replace(prompt, ids=ids, truncated=True)


def _where(prompts: Sequence[Prompt]) -> str:
    return f" ({'first ' if len(prompts) > 1 else ''}{prompts[0].place})"


def _moves(config: PromptConfig) -> str:
    raised = "Raise --rows.max-prompt-tokens" if config.max_prompt_tokens else "Lower --max-new-tokens"
    return f"{raised}, or cut prompts with `--rows.too-long truncate`."


def prompt_room(positions: int | None, max_new_tokens: int) -> int | None:
    """Tokens left for a prompt beside the completion; None = no limit. `ConfigError` if there is not one."""
    if positions is None:
        return None
    if positions <= max_new_tokens:
        raise ConfigError(
            f"sample.max_new_tokens is {max_new_tokens}: expected less than the model's {positions} positions, so that a prompt fits too."
        )
    return positions - max_new_tokens
