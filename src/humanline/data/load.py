"""The training and held-out groups of a run: read, encoded, checked against the model, and counted aloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from humanline import randomness
from humanline.config import TrainConfig
from humanline.data.describe import describe
from humanline.data.encode import encode_rows
from humanline.data.rows import EncodedGroup
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
    held_out = _groups(config.eval.data, config, objective, tokenizer, model, say) if config.eval.data else []
    if config.eval.fraction:
        count = round(config.eval.fraction * len(training))
        if not 0 < count < len(training):
            raise DataError(
                f"eval.fraction {config.eval.fraction} of {len(training)} rows holds out {count}: expected at least 1 and not all. "
                "Change --eval.fraction, or give held-out rows with --eval.data."
            )
        chosen = set(randomness.generator(config.seed, "held out").permutation(len(training))[:count].tolist())
        held_out += [group for row, group in enumerate(training) if row in chosen]
        training = [group for row, group in enumerate(training) if row not in chosen]
        say(f"held out {count} rows for evaluation, {len(training)} left to train on")
    for line in describe(training, objective.kind):
        say(line)
    return Data(training, held_out)


def load_held_out(
    config: TrainConfig, objective: Objective, tokenizer: PreTrainedTokenizerBase, model: nn.Module, say: Callable[[str], None]
) -> list[EncodedGroup]:
    """The rows of `config.eval.data`; [] when it names none."""
    return _groups(config.eval.data, config, objective, tokenizer, model, say) if config.eval.data else []


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
