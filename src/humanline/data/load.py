"""The training and held-out groups of a run: read, encoded, checked against the model, and counted aloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from humanline import randomness
from humanline.config import TrainConfig
from humanline.data.describe import describe, describe_held_out, describe_mismatched
from humanline.data.encode import encode_rows
from humanline.data.rows import EncodedGroup, Place
from humanline.data.schema import load_rows
from humanline.errors import DataError, ModelError
from humanline.models import end_of_sequence_ids
from humanline.objectives import Objective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Data(NamedTuple):
    """What a run trains on and what it is measured on."""

    training: list[EncodedGroup]
    held_out: list[EncodedGroup]


def load_data(
    config: TrainConfig, objective: Objective, tokenizer: PreTrainedTokenizerBase, model: nn.Module, say: Callable[[str], None]
) -> Data:
    """Read and encode `config.data` and the held-out rows; every count of what was dropped or cut goes to `say`."""
    training = _groups(config.data, config, objective, tokenizer, model, say)
    held_out = load_held_out(config, objective, tokenizer, model, say)
    if config.eval.fraction:
        training, held_out = hold_out(training, config.eval.fraction, config.seed)
        say(f"held out {_count(held_out)} for evaluation, {_count(training)} left to train on")
        for line in describe_held_out(held_out, objective.kind):
            say(line)
    for line in describe(training, objective.kind):
        say(line)
    if objective.mismatched:
        for line in describe_mismatched(training, config.batch_size):
            say(line)
    return Data(training, held_out)


def hold_out(groups: Sequence[EncodedGroup], fraction: float, seed: int) -> tuple[list[EncodedGroup], list[EncodedGroup]]:
    """(what stays, what is held out): a share of the prompts, chosen by the seed, each with all its rows."""
    prompts = _prompts(groups)
    distinct = sorted(set(prompts))
    count = round(fraction * len(distinct))
    if not 0 < count < len(distinct):
        raise DataError(
            f"eval.fraction {fraction} of {_count(groups)} holds out {count} prompts: expected at least 1 and not all. "
            "Change --eval.fraction, or give held-out rows with --eval.data."
        )
    chosen = {distinct[number] for number in randomness.generator(seed, "held out").permutation(len(distinct))[:count]}
    stays = [group for group, prompt in zip(groups, prompts, strict=True) if prompt not in chosen]
    return stays, [group for group, prompt in zip(groups, prompts, strict=True) if prompt in chosen]


def _prompts(groups: Sequence[EncodedGroup]) -> list[int]:
    """For each group the first of its prompt. The halves of a pair share theirs, even where its last token merges with one answer."""
    first: dict[str | Place, int] = {}
    leader = list(range(len(groups)))

    def top(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    for number, group in enumerate(groups):
        for key in (group.prompt_key, group.place):
            one, other = sorted((top(number), top(first.setdefault(key, number))))
            leader[other] = one
    return [top(number) for number in range(len(groups))]


def _count(groups: Sequence[EncodedGroup]) -> str:
    prompts = len(set(_prompts(groups)))
    return f"{len(groups)} row{'s' if len(groups) != 1 else ''} of {prompts} prompt{'s' if prompts != 1 else ''}"


def load_held_out(
    config: TrainConfig, objective: Objective, tokenizer: PreTrainedTokenizerBase, model: nn.Module, say: Callable[[str], None]
) -> list[EncodedGroup]:
    """The rows of `config.eval.data`, counted aloud; [] when it names none."""
    if not config.eval.data:
        return []
    held_out = _groups(config.eval.data, config, objective, tokenizer, model, say)
    for line in describe_held_out(held_out, objective.kind):
        say(line)
    return held_out


def _groups(
    source: str,
    config: TrainConfig,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
    model: nn.Module,
    say: Callable[[str], None],
) -> list[EncodedGroup]:
    settings = config.rows
    rows, notes = load_rows(source, objective.kind, columns=settings.columns, split=settings.split, limit=settings.limit_rows)
    groups, report = encode_rows(rows, tokenizer, settings, eos_ids=end_of_sequence_ids(model, tokenizer))
    plain = all(isinstance(row.prompt, str) for row in rows[:100])
    if plain and settings.template == "auto" and getattr(tokenizer, "chat_template", None):
        say(
            f"{source}: prompts are plain text, so the model's chat template is not applied; --rows.template chat makes them turns"
        )
    for line in [*notes.lines(), *report.lines()]:
        say(f"{source}: {line}")
    say(f"{source}: first row, the trained part between ⟦ and ⟧:\n{report.first_example}")
    check_against_model(groups, model)
    return groups


def check_against_model(groups: list[EncodedGroup], model: nn.Module) -> None:
    """Ids within the vocabulary, lengths within the model's positions."""
    vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)  # type: ignore[operator,union-attr]
    for group in groups:
        for completion in group.completions:
            largest = max(group.prompt_ids.max(), completion.ids.max())
            if largest >= vocabulary:
                raise ModelError(
                    f"{group.place}: token id {largest}, but the model's vocabulary ends at {vocabulary - 1}. "
                    "The tokenizer does not belong to this model."
                )
            length = len(group.prompt_ids) + len(completion.ids)
            if positions is not None and length > positions:
                raise ModelError(
                    f"{group.place}: {length} tokens, but the model has {positions} positions. Set --rows.max-length {positions}."
                )
