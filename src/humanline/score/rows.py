"""Rows to be scored: the items of each, and the row as it is written with its scores. No column is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from humanline.data.notes import Notes
from humanline.data.read import Source, read_records
from humanline.data.record import EXAMPLES, Record, check_columns
from humanline.data.rows import Text
from humanline.data.sampled import DETAILS, sampled_details
from humanline.data.texts import COMPLETION, CONVERSATION, answered, separate
from humanline.data.turns import text_or_turns
from humanline.errors import DataError
from humanline.score.conversation import split_prefill
from humanline.score.item import Item, Verdict
from humanline.score.jobs import content_key
from humanline.score.weighted import Sheet

WRITTEN = ("rewards", "reward", "scores", "score_notes", "scorer")
"""columns that scoring adds; what a row has of them already is replaced"""


@dataclass(frozen=True)
class ScorableRow:
    """A record with completions."""

    number: int
    """of the record in its file, from 0"""
    record: Record
    items: tuple[Item, ...]
    single: bool
    """one `completion` instead of a list: it gets a `reward`"""

    @property
    def key(self) -> str:
        """Content address of the record as it came."""
        return content_key(_as_json({name: value for name, value in self.record.values.items() if name not in WRITTEN}))


def load_scorable(
    source: Source, *, columns: Mapping[str, str], split: str = "train", limit: int | None = None, stop: Sequence[str] = ()
) -> tuple[list[ScorableRow], Notes]:
    """Every row with `completions`, or with one `completion` or a conversation that ends in one.

    stop: texts that end a completion; what follows the first of them is not scored.
    """
    check_columns(columns)
    notes = Notes()
    rows = []
    for number, (place, raw) in enumerate(read_records(source, split=split, limit=limit)):
        record = Record.of(place, raw, columns)
        row = _row(number, record, notes, stop)
        if any(record.has(name) and any(_values(record.values[name])) for name in ("rewards", "reward")):
            notes.add("rewards that were there replaced", place)
        rows.append(row)
    return rows, notes


def _values(value: Any) -> list[bool]:
    return [each is not None for each in (value if isinstance(value, (list, tuple)) else [value])]


def _row(number: int, record: Record, notes: Notes, stop: Sequence[str]) -> ScorableRow:
    single = not record.has("completions")
    if single:
        if not record.has(*COMPLETION, *CONVERSATION):
            advice = f"Accepted, e.g.: {EXAMPLES['group']} without the rewards. Other names are mapped by rows.columns."
            raise record.error(f"row has no completions ({record.found()})", advice)
        texts = answered(record, notes)
        details: list[dict[str, Any]] = sampled_details(Record(record.place, {}), 1)
    else:
        named = record.items("completions")
        if not named:
            raise record.error("'completions' is an empty list: expected at least one completion")
        texts = separate(
            record,
            {f"completions[{index}]": text_or_turns(record, f"completions[{index}]", each) for index, each in enumerate(named)},
            notes,
        )
        details = sampled_details(record, len(named))
    prompt, tail = split_prefill(texts.prompt)
    if record.has("prompt_tail"):
        tail = record.text("prompt_tail")
    own = (*DETAILS, *WRITTEN, "completions", "prompt_ids")
    columns = {name: value for name, value in record.values.items() if name not in own}
    items = tuple(
        Item(prompt, _until(_text(record, answer), stop), tail, columns, detail["finished"], record.place)
        for answer, detail in zip(texts.answers, details, strict=True)
    )
    return ScorableRow(number, record, items, single)


def _text(record: Record, answer: Text) -> str:
    if isinstance(answer, str):
        return answer
    if len(answer) > 1:
        raise record.error(
            f"a completion has {len(answer)} turns: expected text or one assistant turn, which is what can be scored"
        )
    return str(answer[0]["content"])


def _until(text: str, stop: Sequence[str]) -> str:
    ends = [position for position in (text.find(end) for end in stop) if position >= 0]
    return text[: min(ends)] if ends else text


def scored_record(row: ScorableRow, sheet: Sheet, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The row with `rewards` (number or null), and by scorer `scores` and `score_notes`; `scorer` says what gave them."""
    rewards = [verdict.score for verdict in sheet.rewards]
    failed = sum(any(part[index].why for part in sheet.parts.values()) for index in range(len(rewards)))
    notes = {label: [_note(verdict) for verdict in part] for label, part in sheet.parts.items()}
    return {
        **{name: value for name, value in row.record.values.items() if name not in WRITTEN},
        **({"reward": rewards[0]} if row.single else {"rewards": rewards}),
        "scores": {label: [verdict.score for verdict in part] for label, part in sheet.parts.items()},
        "score_notes": {label: texts for label, texts in notes.items() if any(texts)},
        "scorer": {"number": row.number, "record": row.key, "failed": failed, **provenance},
    }


def _note(verdict: Verdict) -> str | None:
    return ": ".join(part for part in (verdict.why, verdict.note) if part) or None


def line_of(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON. Dates and other values that JSON lacks become text; `DataError` for what has no text."""
    return json.dumps(record, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        raise DataError("a column holds bytes, which JSON cannot: leave it out, or store it as text")
    return str(value)


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=_as_text))
