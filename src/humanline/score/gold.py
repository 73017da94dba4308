"""The gold answer of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from humanline.data.record import listed, shown, type_name
from humanline.score.item import Verdict


def gold_answers(row: Mapping[str, Any], column: str) -> list[str] | Verdict:
    """The accepted answers in `column` (text, a number, or a list of these), or the verdict on a row that has none."""
    value = row.get(column)
    if value is None or value == "" or value == []:
        problem = "is empty" if column in row else "does not exist"
        return Verdict(None, "no gold answer", f"column {column!r} {problem} (columns: {listed(row)})")
    answers = list(value) if isinstance(value, (list, tuple)) else [value]
    for answer in answers:
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
            return Verdict(
                None, "no gold answer", f"column {column!r} holds {type_name(answer)} ({shown(answer)}), not an answer"
            )
    return [str(answer) for answer in answers]
