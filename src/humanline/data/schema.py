"""From records to rows of the kind that the objective trains on.

`load_rows` is what the trainer calls: read, recognise the shape of each record (`shapes` has the table), insist on one kind per
file, convert where that is unambiguous, and count what was unusual. Anything else is a `DataError` that starts with `file:line`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from humanline.data.notes import Notes
from humanline.data.read import Source, read_records
from humanline.data.record import EXAMPLES, Record, check_columns
from humanline.data.rows import Kind, Place, Row
from humanline.data.shapes import SCORED, note_unused, shape_of
from humanline.data.turns import as_turns
from humanline.errors import DataError

NAMES: dict[Kind, str] = {
    "pair": "a preference pair",
    "label": "a labelled completion",
    "group": "a group of rewarded completions",
    "chat": "a conversation without feedback",
}
OBJECTIVES: dict[Kind, tuple[str, ...]] = {
    "pair": ("dpo", "ipo", "simpo"),
    "label": ("kto",),
    "group": ("grpo",),
    "chat": ("sft",),
}


def load_rows(
    source: Source, kind: Kind, *, columns: Mapping[str, str] | None = None, split: str = "train", limit: int | None = None
) -> tuple[list[Row], Notes]:
    """The rows of `source` for an objective that trains on `kind`, and what was unusual about them.

    columns: {expected name: name in the file} · split: of a `datasets` data set · limit: the first n records.
    """
    notes = Notes()
    keys: list[str] = []
    rows = list(
        parse_rows(
            _remember_keys(read_records(source, split=split, limit=limit), keys), columns=columns, prefer=kind, notes=notes
        )
    )
    return rows_for(rows, kind, notes=notes, keys=keys)


def _remember_keys(records: Iterable[tuple[Place, dict[str, Any]]], keys: list[str]) -> Iterator[tuple[Place, dict[str, Any]]]:
    for place, record in records:
        if not keys:
            keys.extend(map(str, record))
        yield place, record


def parse_rows(
    records: Iterable[tuple[Place, Any]],
    *,
    columns: Mapping[str, str] | None = None,
    prefer: Kind | None = None,
    notes: Notes | None = None,
) -> Iterator[Row]:
    """A row for each record, in order; completions that are scored one a record come last, gathered by prompt.

    prefer: the kind wanted, where a record carries feedback of two kinds (a label and a reward).
    """
    check_columns(columns or {})
    notes = Notes() if notes is None else notes
    first: Row | None = None
    scored: dict[str, list[Row]] = {}
    for place, raw in records:
        record = Record.of(place, raw, columns or {})
        shape = shape_of(record, prefer)
        row = shape.parse(record, notes)
        note_unused(record, notes)
        first = first or row
        if row.kind != first.kind:
            raise record.error(
                f"row is {NAMES[row.kind]} ({record.found()}), but {first.place} is {NAMES[first.kind]}",
                "A file holds rows of one kind: complete this row, or move it to another file.",
            )
        if shape is SCORED:
            scored.setdefault(repr((row.prompt, row.prompt_ids)), []).append(row)
        else:
            yield row
    for rows in scored.values():
        yield dataclasses.replace(
            rows[0],
            completions=tuple(completion for row in rows for completion in row.completions),
            feedback=tuple(reward for row in rows for reward in row.feedback),
        )


def rows_for(rows: Sequence[Row], kind: Kind, *, notes: Notes | None = None, keys: Sequence[str] = ()) -> tuple[list[Row], Notes]:
    """Rows of another kind, where there is only one way to see them so; `DataError` otherwise. All `rows` are of one kind.

    pair → label: chosen is desirable, rejected undesirable, two rows · pair → chat: chosen · label → chat: the desirable ones.
    Plain strings become turns if any row holds turns, so that all rows of a run are rendered alike.
    keys: of the first record, for the message.
    """
    notes = Notes() if notes is None else notes
    rows = _rendered_alike(rows, notes)
    for row in rows:
        if row.kind == "pair" and row.completions[0].text == row.completions[1].text:
            notes.add("identical chosen and rejected", row.place)
    if not rows or rows[0].kind == kind:
        return rows, notes
    given = rows[0].kind
    if (given, kind) == ("pair", "label"):
        return _halves(rows, notes), notes
    if (given, kind) == ("pair", "chat"):
        return _chosen(rows, notes), notes
    if (given, kind) == ("label", "chat"):
        return _desirable(rows, notes), notes
    found = f" (keys: {', '.join(keys)})" if keys else ""
    raise DataError(
        f"{rows[0].place}: row is {NAMES[given]}{found}, but the objective needs {NAMES[kind]}.\n"
        f"  Accepted: {EXAMPLES[kind]}. Other names are mapped by rows.columns: {{expected: name in the file}}.\n"
        f"  Rows like this one train with {_options(given)}."
    )


def _options(kind: Kind) -> str:
    return " or ".join(f"`--objective.name {name}`" for name in OBJECTIVES[kind])


def _halves(rows: Sequence[Row], notes: Notes) -> list[Row]:
    halves = []
    for row in rows:
        notes.add("pair split into a desirable and an undesirable row", row.place)
        for completion, label in zip(row.completions, (1.0, 0.0), strict=True):
            halves.append(dataclasses.replace(row, kind="label", completions=(completion,), feedback=(label,)))
    return halves


def _chosen(rows: Sequence[Row], notes: Notes) -> list[Row]:
    for row in rows:
        notes.add("chosen taken as the conversation, rejected left out", row.place)
    return [dataclasses.replace(row, kind="chat", completions=row.completions[:1], feedback=(1.0,)) for row in rows]


def _desirable(rows: Sequence[Row], notes: Notes) -> list[Row]:
    kept = []
    for row in rows:
        if row.feedback[0] == 1.0:
            kept.append(dataclasses.replace(row, kind="chat"))
        else:
            notes.add("undesirable completion left out", row.place)
    if not kept:
        raise DataError(
            f"{rows[0].place}: none of the {len(rows)} rows is desirable, so nothing is left for sft.\n"
            "  Train with `--objective.name kto`."
        )
    return kept


def _rendered_alike(rows: Sequence[Row], notes: Notes) -> list[Row]:
    """All plain texts or all turns: with both, the chat template would apply to some rows only."""
    if len({isinstance(row.prompt, str) for row in rows}) < 2:
        return list(rows)
    return [_as_conversation(row, notes) if isinstance(row.prompt, str) else row for row in rows]


def _as_conversation(row: Row, notes: Notes) -> Row:
    notes.add("plain texts taken as user and assistant turns, as other rows are", row.place)
    completions = tuple(dataclasses.replace(each, text=as_turns(each.text, "assistant")) for each in row.completions)
    return dataclasses.replace(row, prompt=as_turns(row.prompt, "user"), completions=completions)
