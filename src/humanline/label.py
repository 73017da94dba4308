"""`label`: from rewards to preference pairs, binary labels or clean groups, with a count of everything made and left out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from humanline import randomness
from humanline.data.read import read_records
from humanline.data.record import COLUMNS, EXAMPLES, Record
from humanline.data.rows import Place, Row
from humanline.data.schema import NAMES, parse_rows
from humanline.errors import CheckpointError, ConfigError, DataError
from humanline.score.config import RowsConfig
from humanline.score.rows import WRITTEN, line_of

Rewarded = list[tuple[int, float]]
"""(number of the completion in its row, its reward)"""


@dataclass(frozen=True)
class LabelConfig:
    """One run of `humanline label`."""

    data: str = ""
    """rewarded completions: a .jsonl, .json, .parquet or .csv file, or the name of a `datasets` data set"""
    out: str = ""
    """.jsonl file of what is made"""
    to: Literal["pairs", "labels", "groups"] = "pairs"
    """pairs for DPO and its kin, labels for KTO, groups for GRPO"""
    pairs: Literal["best-worst", "random", "all"] = "best-worst"
    """pairs of a prompt: its best and worst completion (of equals the first), one drawn from all that fit, or all that fit"""
    gap: float = 0.0
    """pairs: least difference of the two rewards, ≥ 0; equal rewards make no pair whatever it is"""
    threshold: float | None = None
    """labels: the reward that divides desirable from undesirable; null = the mean of the prompt's scored completions"""
    equal: Literal["desirable", "undesirable"] = "desirable"
    """labels: what a completion is whose reward equals the threshold (>= or >)"""
    cut: Literal["drop", "keep"] = "drop"
    """pairs and labels: completions that a length limit cut, which would be trained on as if they had come to an end"""
    seed: int = 0
    """of random pairs, in [0, 2^63)"""
    overwrite: bool = False
    """replace `out` if it exists"""
    rows: RowsConfig = field(default_factory=RowsConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.gap < math.inf:
            raise ConfigError(f"gap is {self.gap}: expected a number from 0 on.")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ConfigError(f"threshold is {self.threshold}: expected a finite number, or null for the mean of each prompt.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}: expected a whole number in [0, 2^63).")


@dataclass
class Tally:
    """What was made, and what was left out why and where first."""

    made: int = 0
    prompts: int = 0
    """that something was made of"""
    left_out: dict[str, tuple[int, Place]] = field(default_factory=dict)

    def leave(self, what: str, place: Place, number: int = 1) -> None:
        """Count so many more left out."""
        if number:
            count, first = self.left_out.get(what, (0, place))
            self.left_out[what] = (count + number, first)

    def lines(self) -> list[str]:
        """E.g. `left out: completions without a score: 3 (first scored.jsonl:7)`."""
        return [
            f"left out: {what}: {count} ({'first ' if count > 1 else ''}{place})"
            for what, (count, place) in self.left_out.items()
        ]


@dataclass(frozen=True)
class LabelResult:
    """What a finished run left behind."""

    out: Path
    made: int
    left_out: Mapping[str, int]


def label(config: LabelConfig, say: Callable[[str], None] = print) -> LabelResult:
    """Label as `config` says; `say` gets every line for a person. Raises a `HumanlineError` for anything a user can mend."""
    _validate(config)
    rows, extras = _load(config)
    tally = Tally()
    records = list(MAKERS[config.to](rows, extras, config, tally))
    lines = tally.lines()
    if not records:
        raise DataError(
            f"{rows[0].place}: none of {len(rows)} prompts gives {config.to}, so nothing is written:\n  " + "\n  ".join(lines)
        )
    tally.made = len(records)
    _write(Path(config.out), records)
    say(f"{config.out}: {tally.made} {config.to} from {tally.prompts} of {len(rows)} prompts{_summary(records, config)}")
    for line in lines:
        say(line)
    return LabelResult(Path(config.out), tally.made, {what: count for what, (count, _) in tally.left_out.items()})


def _validate(config: LabelConfig) -> None:
    for key in ("data", "out"):
        if not getattr(config, key):
            raise ConfigError(f"{key} is empty: expected it, e.g. `humanline label scored.jsonl --out pairs.jsonl --to pairs`.")
    if not config.out.endswith(".jsonl"):
        raise ConfigError(f"out is {config.out}: expected a name that ends in .jsonl.")
    if Path(config.out).exists():
        if Path(config.data).exists() and Path(config.out).samefile(config.data):
            raise ConfigError(f"out is {config.out}, which is the data: expected another file.")
        if not config.overwrite:
            raise CheckpointError(f"{config.out} exists. Add --overwrite to replace it, or choose another --out.")


def _load(config: LabelConfig) -> tuple[list[Row], dict[Place, dict[str, Any]]]:
    """Groups, and the columns of their records that no reader of rows knows, which are kept."""
    extras: dict[Place, dict[str, Any]] = {}

    def remembered(records: Iterable[tuple[Place, dict[str, Any]]]) -> Iterator[tuple[Place, dict[str, Any]]]:
        for place, raw in records:
            values = Record.of(place, raw, config.rows.columns).values
            extras[place] = {name: value for name, value in values.items() if name not in (*COLUMNS, *WRITTEN)}
            yield place, raw

    records = read_records(config.data, split=config.rows.split, limit=config.rows.limit_rows)
    rows = list(parse_rows(remembered(records), columns=config.rows.columns, prefer="group"))
    if rows[0].kind != "group":
        raise DataError(
            f"{rows[0].place}: row is {NAMES[rows[0].kind]}: expected {NAMES['group']}, e.g. {EXAMPLES['group']}.\n"
            "  Completions get rewards by `humanline score`."
        )
    if all(reward is None for row in rows for reward in row.feedback):
        count = sum(len(row.feedback) for row in rows)
        raise DataError(f"{rows[0].place}: none of the {count} completions has a reward.\n  They get them by `humanline score`.")
    return rows, extras


def _usable(row: Row, config: LabelConfig, tally: Tally) -> Rewarded:
    """The completions that can be used; the others are counted."""
    scored = [(number, reward) for number, reward in enumerate(row.feedback) if reward is not None]
    tally.leave("completions without a score", row.place, len(row.feedback) - len(scored))
    if config.cut == "keep" or config.to == "groups":
        return scored
    whole = [(number, reward) for number, reward in scored if row.completions[number].finished is not False]
    tally.leave("completions cut by a length limit", row.place, len(scored) - len(whole))
    return whole


def _pairs(
    rows: Sequence[Row], extras: Mapping[Place, dict[str, Any]], config: LabelConfig, tally: Tally
) -> Iterator[dict[str, Any]]:
    for index, row in enumerate(rows):
        usable = _usable(row, config, tally)
        if len(usable) < 2:
            tally.leave("prompts with fewer than two usable completions", row.place)
            continue
        chosen = _chosen_pairs(row, usable, index, config, tally)
        tally.prompts += bool(chosen)
        for (better, high), (worse, low) in chosen:
            texts = {"chosen": row.completions[better].text, "rejected": row.completions[worse].text}
            rewards = {"chosen_reward": high, "rejected_reward": low}
            yield {**extras[row.place], "prompt": row.prompt, **texts, **rewards}


def _chosen_pairs(
    row: Row, usable: Rewarded, index: int, config: LabelConfig, tally: Tally
) -> list[tuple[tuple[int, float], tuple[int, float]]]:
    """((better, reward), (worse, reward)) of one prompt."""
    if len({reward for _, reward in usable}) == 1:
        tally.leave("prompts with equal rewards", row.place)
        return []
    if config.pairs == "best-worst":
        candidates = [(max(usable, key=lambda entry: entry[1]), min(usable, key=lambda entry: entry[1]))]
    else:
        ordered = [(one, other) if one[1] > other[1] else (other, one) for one, other in combinations(usable, 2)]
        candidates = [(better, worse) for better, worse in ordered if better[1] > worse[1]]
    fitting = [(better, worse) for better, worse in candidates if _apart(better[1] - worse[1], config.gap)]
    tally.leave(f"pairs closer than {config.gap:g}", row.place, len(candidates) - len(fitting))
    different = [pair for pair in fitting if row.completions[pair[0][0]].text != row.completions[pair[1][0]].text]
    tally.leave("pairs of identical completions", row.place, len(fitting) - len(different))
    if config.pairs == "random" and different:
        return [different[int(randomness.generator(config.seed, "random pair", index).integers(len(different)))]]
    return different


def _apart(difference: float, gap: float) -> bool:
    """difference ≥ gap, to nine digits: 0.3 and 0.2 are 0.1 apart."""
    return difference >= gap or math.isclose(difference, gap, rel_tol=1e-9)


def _labels(
    rows: Sequence[Row], extras: Mapping[Place, dict[str, Any]], config: LabelConfig, tally: Tally
) -> Iterator[dict[str, Any]]:
    for row in rows:
        usable = _usable(row, config, tally)
        if config.threshold is None and len({reward for _, reward in usable}) == 1:
            tally.leave("prompts whose completions all have the mean reward", row.place)
            continue
        tally.prompts += bool(usable)
        for number, reward in usable:
            threshold = config.threshold
            if threshold is None:
                threshold = math.fsum(each for _, each in usable) / len(usable)
            desirable = reward > threshold or (reward == threshold and config.equal == "desirable")
            text = row.completions[number].text
            yield {**extras[row.place], "prompt": row.prompt, "completion": text, "label": desirable, "reward": reward}


def _groups(
    rows: Sequence[Row], extras: Mapping[Place, dict[str, Any]], config: LabelConfig, tally: Tally
) -> Iterator[dict[str, Any]]:
    for row in rows:
        usable = _usable(row, config, tally)
        if not usable:
            tally.leave("prompts without a scored completion", row.place)
            continue
        tally.prompts += 1
        completions = [row.completions[number] for number, _ in usable]
        sampled: dict[str, list[Any]] = {
            "completion_ids": [each.token_ids for each in completions],
            "logprobs": [each.logps for each in completions],
            "finished": [each.finished for each in completions],
        }
        known = {name: values for name, values in sampled.items() if any(value is not None for value in values)}
        if row.prompt_ids is not None:
            known["prompt_ids"] = list(row.prompt_ids)
        texts = [each.text for each in completions]
        yield {
            **extras[row.place],
            "prompt": row.prompt,
            "completions": texts,
            "rewards": [reward for _, reward in usable],
            **known,
        }


MAKERS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {"pairs": _pairs, "labels": _labels, "groups": _groups}


def _summary(records: Sequence[Mapping[str, Any]], config: LabelConfig) -> str:
    """What the objective will want to know about them."""
    if config.to == "pairs":
        gaps = sorted(record["chosen_reward"] - record["rejected_reward"] for record in records)
        return f", rewards {gaps[0]:.4g} to {gaps[-1]:.4g} apart (median {gaps[len(gaps) // 2]:.4g})"
    if config.to == "groups":
        equal = sum(len(set(record["rewards"])) == 1 for record in records)
        return f", {equal} of them with equal rewards (advantage 0)"
    desirable = sum(record["label"] for record in records)
    sign = ">=" if config.equal == "desirable" else ">"
    rule = f"reward {sign} {'the mean of its prompt' if config.threshold is None else f'{config.threshold:g}'}"
    one_class = desirable in (0, len(records))
    warning = "\nwarning: all labels are the same, and KTO needs both: choose another --threshold." if one_class else ""
    return f": {desirable} desirable ({rule}), {len(records) - desirable} undesirable{warning}"


def _write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """All of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(line_of(record) + "\n" for record in records)
        os.replace(temporary, path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}. Choose another --out.") from error
