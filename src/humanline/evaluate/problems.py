"""Problems with a right answer, before and after a model has worked on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from humanline.data.read import read_records
from humanline.data.record import COLUMNS, Record, type_name
from humanline.errors import DataError
from humanline.evaluate.config import AnswersConfig
from humanline.score.gold import gold_answers
from humanline.score.item import Item, Verdict
from humanline.score.rows import ScorableRow, load_scorable

EXAMPLE = '{"problem": "What is 2 + 2?", "answer": "4"}'
PROBLEM = ("problem", "question")
"""columns that stand in for a missing prompt of a file of completions, since scoring does not read it"""
RIGHT = (0.0, 1.0, None)


@dataclass(frozen=True)
class Solved:
    """A problem with n completions."""

    row: ScorableRow
    right: tuple[float | None, ...] | None
    """ready verdicts, n; None = a scorer gives them"""
    rank: tuple[float | None, ...] | None
    """scores among which the highest is looked for, n"""

    @property
    def items(self) -> tuple[Item, ...]:
        """As a scorer reads them, n."""
        return self.row.items

    @property
    def record(self) -> Mapping[str, Any]:
        """The columns of its row."""
        return self.row.record.values


def prompt_rows(config: AnswersConfig) -> list[dict[str, Any]]:
    """The rows of a file of prompts for the sampler, with their answers. Every row is checked: `DataError` names the first bad one."""
    rows = []
    for place, raw in read_records(config.data, split=config.rows.split, limit=config.rows.limit_rows):
        record = Record.of(place, raw, {})
        if not record.has(config.problem):
            advice = f"Needed are a problem and its answer, like {EXAMPLE}. Another name is given by `--problem NAME`."
            raise record.error(f"has no {config.problem!r} ({record.found()})", advice)
        _check_gold(record, config.scorer.gold)
        others = {name: value for name, value in record.values.items() if name not in COLUMNS and name != "sampler"}
        asked = config.prompt.replace("{problem}", record.text(config.problem))
        rows.append(others | {"prompt": asked} | ({"system": config.system} if config.system else {}))
    return rows


def read_solved(path: str, config: AnswersConfig) -> tuple[list[Solved], list[str]]:
    """Problems with completions, every row checked, and lines that count what was unusual."""
    columns = dict(config.rows.columns)
    first = next(Record.of(*entry, columns) for entry in read_records(path, limit=1))
    if not first.has("prompt", "messages", "conversations", "instruction") and (name := first.first(config.problem, *PROBLEM)):
        columns["prompt"] = name
    rows, notes = load_scorable(path, columns=columns, limit=config.rows.limit_rows)
    solved = []
    for row in rows:
        right = _numbers(row, "right", config.right)
        if right is None:
            _check_gold(row.record, config.scorer.gold)
        elif not set(right) <= set(RIGHT):
            raise row.record.error(
                f"{config.right!r} holds {next(value for value in right if value not in RIGHT)}: expected 1, 0 or null"
            )
        solved.append(Solved(row, right, _numbers(row, "rank", config.rank)))
    return solved, [] if config.right else notes.lines()


def _check_gold(record: Record, column: str) -> None:
    golds = gold_answers(record.values, column)
    if isinstance(golds, Verdict):
        raise record.error(
            golds.note, f"Needed is the right answer, like in {EXAMPLE}. Another name is given by `--scorer.gold NAME`."
        )


def _numbers(row: ScorableRow, setting: str, column: str) -> tuple[float | None, ...] | None:
    """A finite number, true, false or null for each completion; a list of one number counts as the number.

    None: no column is asked for.
    """
    if not column:
        return None
    record, count = row.record, len(row.items)
    if column not in record.values:
        raise DataError(f"{record.place}: has no column {column!r}, which `--{setting}` names ({record.found()}).")
    values = record.values[column]
    if row.single:
        values = [values]
    if not isinstance(values, (list, tuple)) or len(values) != count:
        found = f"{len(values)} values" if isinstance(values, (list, tuple)) else type_name(values)
        raise record.error(f"{column!r} is {found} for {count} completions: expected a list with a value for each")
    flat = [value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value for value in values]
    return tuple(None if value is None else record.number(f"{column}[{index}]", value) for index, value in enumerate(flat))
