"""`inspect`: from a data set and a model to what is in the one, and whether it is good enough for the other.

OUT/inspect.json      everything that is printed, as numbers
    perception.json   the curves, as `humanline report` draws them
    kept.jsonl        with `keep_above`: the rows that stay, as they are in the input
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from humanline import __version__, models
from humanline.data.describe import describe
from humanline.data.encode import encode_rows
from humanline.data.load import check_against_model
from humanline.data.notes import Notes
from humanline.data.read import read_records
from humanline.data.rows import EncodedGroup, Kind, Row
from humanline.data.schema import parse_rows, rows_for
from humanline.data.vocabulary import Vocabulary
from humanline.errors import CheckpointError, ConfigError, ModelError
from humanline.quality import contents, show
from humanline.quality.config import InspectConfig, settings, validate
from humanline.quality.fresh import choose_prompts, sample_fresh
from humanline.quality.gap import Gap, perception_gap, ratios, relative
from humanline.quality.keep import Kept, check_target, write_kept
from humanline.quality.likelihood import Likelihood, Logp, likelihood, score
from humanline.report.perception import write_perception
from humanline.token_logps import TokenLogps

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FORMAT = "humanline-inspect-1"
UNLIMITED = 2**31 - 1
"""a max_length that nothing exceeds"""


@dataclass(frozen=True)
class Inspection:
    """What was found."""

    kind: Kind
    rows: int
    """that were read"""
    usable_rows: int
    """that can be trained on"""
    lengths: contents.Lengths
    truncation: contents.Truncation
    duplicates: contents.Duplicates
    feedback: contents.Feedback
    likelihood: Likelihood
    gap: Gap | None
    kept: Kept | None


def inspect_data(config: InspectConfig, say: Callable[[str], None] = print) -> Inspection:
    """Inspect as `config` says; `say` gets every line for a person. Raises a `HumanlineError` for anything a user can mend."""
    validate(config)
    folder = check_target(config)
    parsed, rows, notes = _read(config)
    tokenizer = models.load_tokenizer(config.model, config.load)
    model = _load(config.model, config)
    found = _Data(config, rows, tokenizer, model, [*notes.lines()], say)
    for line in found.lines():
        say(line)
    module = TokenLogps(model)
    logps = score(module, found.groups, config.load, config.batch_tokens, say, "scoring the data")
    chosen = choose_prompts(found.groups, config.fresh, config.seed)
    fresh: list[EncodedGroup] = []
    fresh_logps: list[list[Logp]] = []
    if chosen:
        fresh = sample_fresh(model, found.eos_ids, len(tokenizer), found.groups, chosen, config, say)
        fresh_logps = score(module, fresh, config.load, config.batch_tokens, say, "scoring fresh samples")
    likely = likelihood(found.groups, logps, fresh_logps or None)
    for line in show.likelihood_lines(found.kind, likely):
        say(line)
    gap = _gap(config, model, found.groups, chosen, logps, fresh, fresh_logps, say) if chosen else None
    kept = write_kept(config, folder, parsed, found.groups, logps) if folder and config.keep_above is not None else None
    inspection = Inspection(
        found.kind,
        len(rows),
        len(found.groups),
        found.lengths,
        found.truncation,
        found.duplicates,
        found.feedback,
        likely,
        gap,
        kept,
    )
    if folder:
        _write(folder, config, inspection)
        if kept:
            say(show.kept_line(kept, str(folder / "kept.jsonl")))
        say(f"done: {folder / 'inspect.json'}")
    return inspection


class _Data:
    """The rows in tokens, with all that needs no forward pass."""

    def __init__(
        self,
        config: InspectConfig,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
        notes: list[str],
        say: Callable[[str], None],
    ) -> None:
        encoding = config.rows.encoding()
        self.kind, self.rows = rows[0].kind, len(rows)
        self.eos_ids = models.end_of_sequence_ids(model, tokenizer)
        self.groups, report = encode_rows(rows, tokenizer, encoding, eos_ids=self.eos_ids)
        for line in [*notes, *report.lines()]:
            say(f"{config.data}: {line}")
        say(f"{config.data}: first row, the trained part between ⟦ and ⟧:\n{report.first_example}")
        check_against_model(self.groups, model)
        cut = report.dropped_rows or report.dropped_completions
        whole = self.groups
        if cut or report.truncated_prompts.number or report.truncated_completions.number:
            unlimited = dataclasses.replace(encoding, max_length=UNLIMITED)
            whole, _ = encode_rows(rows, tokenizer, unlimited, eos_ids=self.eos_ids)
        self.lengths = contents.lengths(whole)
        self.truncation = contents.truncation(whole, encoding.max_length, Vocabulary(tokenizer, self.eos_ids))
        self.duplicates = contents.duplicates(rows)
        self._remarks = describe(self.groups, self.kind)
        self.feedback = contents.feedback(self.groups)

    def lines(self) -> list[str]:
        """For a person."""
        found = show.contents_lines(self.kind, self.rows, self.lengths, self.truncation, self.duplicates, self.feedback)
        return [*found, *(line for line in self._remarks if line.startswith(("warning:", "suggested")))]


def _read(config: InspectConfig) -> tuple[list[Row], list[Row], Notes]:
    """(rows as parsed, rows rendered alike, what was unusual)."""
    notes = Notes()
    records = read_records(config.data, split=config.rows.split, limit=config.rows.limit_rows)
    parsed = list(parse_rows(records, columns=config.rows.columns, notes=notes))
    rows, _ = rows_for(parsed, parsed[0].kind, notes=notes)
    return parsed, rows, notes


def _load(name: str, config: InspectConfig) -> PreTrainedModel:
    """A model on its device."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    model = models.load_policy(name, config.load)
    try:
        return model.to(device)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device is {config.device}: {str(error).splitlines()[0]} Use --device auto or one that is there."
        ) from error


def _gap(
    config: InspectConfig,
    model: PreTrainedModel,
    groups: Sequence[EncodedGroup],
    chosen: Sequence[Sequence[int]],
    logps: Sequence[Sequence[Logp]],
    fresh: Sequence[EncodedGroup],
    fresh_logps: Sequence[Sequence[Logp]],
    say: Callable[[str], None],
) -> Gap:
    """Of the data's completions of the chosen prompts."""
    policy = [[logp for row in rows for logp in logps[row]] for rows in chosen]
    unit = "nats a token, relative to the prompt's fresh samples"
    if config.reference is None:
        outcomes = relative(policy, fresh_logps)
    else:
        unit = f"nats, log-ratios to {config.reference}"
        module = _reference(config.reference, config, model)
        own = [groups[row] for rows in chosen for row in rows]
        check_against_model([*own, *fresh], module.model)
        scored = iter(score(module, own, config.load, config.batch_tokens, say, "scoring the data under the reference"))
        reference = [[logp for _ in rows for logp in next(scored)] for rows in chosen]
        fresh_reference = score(module, fresh, config.load, config.batch_tokens, say, "scoring fresh samples under the reference")
        outcomes = ratios(policy, reference, fresh_logps, fresh_reference)
    gap = perception_gap(outcomes, config.seed)
    for line in show.gap_lines(gap, unit):
        say(line)
    return gap


def _reference(name: str, config: InspectConfig, model: PreTrainedModel) -> TokenLogps:
    """The reference model, which must differ from the policy and speak its tokens."""
    reference = _load(name, config)
    sizes = [each.config.get_text_config().vocab_size for each in (model, reference)]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"reference {name!r} has a vocabulary of {sizes[1]} tokens, the model {sizes[0]}: expected models of one tokenizer."
        )
    if models.fingerprint(reference) == models.fingerprint(model):
        raise ConfigError(
            f"reference is {name!r}, whose weights are the model's own: every outcome would be 0. Leave --reference out, and outcomes "
            "are measured against the model's own fresh samples."
        )
    return TokenLogps(reference)


def _write(folder: Path, config: InspectConfig, inspection: Inspection) -> None:
    found = asdict(dataclasses.replace(inspection, gap=None))
    if gap := inspection.gap:
        found["gap"] = {"prompts": gap.prompts} | {name: asdict(getattr(gap, name)) for name in ("data", "fresh", "axis")}
    facts = {
        "format": FORMAT,
        "settings": settings(config),
        **found,
        "versions": {"humanline": __version__, "torch": version("torch"), "transformers": version("transformers")},
    }
    path, partial = folder / "inspect.json", folder / f".inspect.json.{os.getpid()}"
    try:
        partial.write_text(json.dumps(_finite(facts), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, path)
        if gap:
            measures = {"data": (gap.data.kl, gap.data.bound), "fresh samples": (gap.fresh.kl, gap.fresh.bound)}
            write_perception(folder, gap.curves, measures)
        else:
            (folder / "perception.json").unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}. Choose another --out.") from error


def _finite(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
