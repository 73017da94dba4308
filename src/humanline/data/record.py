"""One record under its expected names, with typed access: every miss is a `DataError` that names place, column and types."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from humanline.data.read import Cell
from humanline.data.rows import Kind, Place
from humanline.errors import ConfigError, DataError

EXAMPLES: dict[Kind, str] = {
    "pair": '{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}',
    "label": '{"prompt": "2 + 2?", "completion": "4", "label": true}',
    "group": '{"prompt": "2 + 2?", "completions": ["4", "5"], "rewards": [1.0, 0.0]}',
    "chat": '{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}',
}
"""one accepted record of each kind, shown in error messages"""

LIST_COLUMNS = (
    "messages",
    "conversations",
    "history",
    "prompt_ids",
    "completions",
    "rewards",
    "token_ids",
    "completion_ids",
    "logprobs",
    "finished",
    "finish_reason",
)
TEXT_COLUMNS = ("prompt", "instruction", "input", "system", "chosen", "rejected", "completion", "output", "output_A", "output_B")
NUMBER_COLUMNS = ("label", "kto_tag", "reward")
COLUMNS = TEXT_COLUMNS + LIST_COLUMNS + NUMBER_COLUMNS
"""every column that is read; others are ignored"""

_MESSAGES_IN_CELL = re.compile(r"""\s*\[?\s*\{\s*['"](role|from|content|value)['"]""")


def type_name(value: Any) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for types, name in (((int, float), "a number"), (str, "text"), ((list, tuple), "a list"), (Mapping, "an object")):
        if isinstance(value, types):
            return name
    return f"a {type(value).__name__}"


def shown(value: Any) -> str:
    """A value for an error message, at most about 60 characters."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= 60 else text[:60] + "…"
    return repr(text) if isinstance(value, str) else text


@dataclass(frozen=True, slots=True)
class Record:
    """Columns of one row by their expected names."""

    place: Place
    values: Mapping[str, Any]

    @classmethod
    def of(cls, place: Place, raw: Any, columns: Mapping[str, str]) -> Record:
        """Rename columns ({expected: in the file}) and decode the JSON in CSV cells of columns that need it."""
        if not isinstance(raw, Mapping):
            raise DataError(f"{place}: record is {type_name(raw)}: expected an object, e.g. {EXAMPLES['pair']}.")
        renamed = {str(key): value for key, value in raw.items() if key not in columns and key not in columns.values()}
        for expected, in_file in columns.items():
            if in_file not in raw:
                near = difflib.get_close_matches(in_file, map(str, raw), n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise DataError(
                    f"{place}: has no column {in_file!r} (keys: {listed(raw)}).\n  rows.columns maps {expected} to it.{hint}"
                )
            renamed[expected] = raw[in_file]
        return cls(place, {key: _decoded(value, key, place) for key, value in renamed.items()})

    def has(self, *names: str) -> bool:
        """Whether any of these columns is there and not null."""
        return any(self.values.get(name) is not None for name in names)

    def first(self, *names: str) -> str | None:
        """The first of these columns that is there and not null."""
        return next((name for name in names if self.has(name)), None)

    def error(self, problem: str, advice: str = "") -> DataError:
        """`file:line: problem`, and what to do on the next line."""
        return DataError(f"{self.place}: {problem}." + (f"\n  {advice}" if advice else ""))

    def missing(self, name: str, kind: Kind, what: str) -> DataError:
        """A column that the row's shape needs is absent or null."""
        advice = f"Accepted: {EXAMPLES[kind]}."
        if name in self.values:
            return self.error(f"{what} has a '{name}' that is null ({self.found()})", advice)
        near = difflib.get_close_matches(name, [key for key in self.values if key not in COLUMNS], n=1)
        rename = f"rows.columns: {{{name}: {near[0] if near else 'its name in the file'}}}"
        return self.error(f"{what} has no '{name}' ({self.found()})", f"{advice} Another name is mapped by {rename}.")

    def wrong(self, name: str, value: Any, expected: str) -> DataError:
        """A column, or a part of it named like `rewards[1]`, holds a value that does not fit."""
        return self.error(
            f"'{name}' is {type_name(value)} ({shown(value)}): expected {expected}"
            if value is not None
            else f"'{name}' is null: expected {expected}"
        )

    def found(self) -> str:
        """The keys and the types of their values."""
        return f"keys: {listed(self.values, with_types=True)}"

    def text(self, name: str) -> str:
        """A column of text."""
        return self.checked_text(name, self.values.get(name))

    def checked_text(self, name: str, value: Any) -> str:
        """A text that can be written as UTF-8: half of a surrogate pair, which JSON can carry, would stop the tokenizer."""
        if not isinstance(value, str):
            raise self.wrong(name, value, "text")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise self.error(
                    f"'{name}' has a lone surrogate {value[error.start]!a} at character {error.start + 1}: expected Unicode text"
                ) from None
        return str(value)

    def items(self, name: str) -> list[Any]:
        """A column that is a list."""
        value = self.values.get(name)
        if not isinstance(value, (list, tuple)):
            raise self.wrong(name, value, "a list")
        return list(value)

    def number(self, name: str, value: Any, expected: str = "a finite number") -> float:
        """A finite number; booleans count as 1 and 0."""
        if not isinstance(value, (int, float)):
            raise self.wrong(name, value, expected)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.error(f"'{name}' is {'NaN' if math.isnan(number) else 'infinite'}: expected {expected}")
        return number


def listed(values: Mapping[Any, Any], *, with_types: bool = False) -> str:
    """Keys for an error message, at most 12."""
    names = [f"{key} ({type_name(value).split()[-1]})" if with_types else str(key) for key, value in values.items()]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"


def check_columns(columns: Mapping[str, str]) -> None:
    """`ConfigError` for a mapping to a name that nothing reads."""
    for expected in columns:
        if expected not in COLUMNS:
            near = difflib.get_close_matches(expected, COLUMNS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Expected one of: {', '.join(COLUMNS)}."
            raise ConfigError(
                f"rows.columns has {expected!r}, a name that is not read.\n  {hint} The form is {{expected: name in the file}}."
            )


def _decoded(value: Any, column: str, place: Place) -> Any:
    """A CSV cell as the value it stands for: a JSON list in a list column, messages or else text, a number for a reward."""
    if not isinstance(value, Cell):
        return value
    text = str(value)
    if column == "reward":
        try:
            return float(text) if text.strip() else None
        except ValueError:
            return text
    if column in LIST_COLUMNS and not text.strip():
        return None
    if (column in LIST_COLUMNS and text.lstrip()[0] in "[{") or (column in TEXT_COLUMNS and _MESSAGES_IN_CELL.match(text)):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{place}: '{column}' holds {shown(text)}, which is not valid JSON: {error}.\n"
                "  Lists in CSV cells are JSON (json.dumps), not Python's repr. JSONL or Parquet needs no such care."
            ) from None
    return text
