"""The two tables of the length-controlled fit: how difficult each instruction is, and the regulariser rows.

AlpacaEval's own tables number the instructions. A row is always looked up by instruction: either the table has a column `instruction`,
or a numbered list of instructions says which one a number means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from humanline.data.read import read_records
from humanline.data.record import Record, listed
from humanline.errors import ConfigError, DataError
from humanline.evaluate.config import LengthConfig
from humanline.evaluate.length import Regulariser

NUMBERS = ("index", "", "Unnamed: 0")
"""names of the column that numbers instructions; the last two are what pandas makes of an index without name"""
PREFERENCES = ("preference", "soft_preference")


class Tables(NamedTuple):
    """By the instruction's text."""

    difficulty: dict[str, float] | None
    regulariser: Regulariser | None


def read_tables(config: LengthConfig) -> Tables:
    """What the settings name. Difficulties come from the regulariser's own column where they have no file of their own."""
    named = read_numbers(config.instructions) if config.instructions else None
    regulariser = read_regulariser(config.regulariser, named) if config.regulariser else None
    difficulty = (
        read_difficulty(config.difficulty or config.regulariser or "", named) if config.difficulty or config.regulariser else None
    )
    return Tables(difficulty, regulariser)


def read_numbers(path: str) -> dict[int, str]:
    """{number: instruction} of a file of instructions: its column `index`, else the row's position counted from 0."""
    names: dict[int, str] = {}
    for position, (place, raw) in enumerate(read_records(path)):
        record = Record.of(place, raw, {})
        if not record.has("instruction"):
            raise record.error(
                f"has no 'instruction' ({record.found()})", "Expected the list of instructions that the tables number."
            )
        number = int(_number(record, "index")) if record.has("index") else position
        if number in names:
            raise record.error(f"number {number} appears twice")
        names[number] = record.text("instruction")
    return names


def read_difficulty(path: str, named: Mapping[int, str] | None) -> dict[str, float]:
    """{instruction: difficulty}; the column is called `instruction_difficulty`. Rows of one instruction must agree."""
    difficulty: dict[str, float] = {}
    for place, raw in read_records(path):
        record = Record.of(place, raw, {})
        name, value = _instruction(record, named), _number(record, "instruction_difficulty")
        if difficulty.setdefault(name, value) != value:
            raise record.error(
                f"instruction_difficulty is {value:g}, and {difficulty[name]:g} in an earlier row of that instruction"
            )
    return difficulty


def read_regulariser(path: str, named: Mapping[int, str] | None) -> Regulariser:
    """Columns: `std_delta_len`, `instruction_difficulty`, and `preference` or `soft_preference` in [0, 1]."""
    names, numbers = [], []
    for place, raw in read_records(path):
        record = Record.of(place, raw, {})
        column = next((each for each in PREFERENCES if record.has(each)), PREFERENCES[0])
        preference = _number(record, column)
        if not 0 <= preference <= 1:
            raise record.error(f"{column} is {preference:g}: expected a probability from 0 to 1")
        names.append(_instruction(record, named))
        numbers.append((_number(record, "std_delta_len"), _number(record, "instruction_difficulty"), preference))
    length_R, difficulty_R, preference_R = np.array(numbers).T
    return Regulariser(tuple(names), length_R, difficulty_R, preference_R)


def _instruction(record: Record, named: Mapping[int, str] | None) -> str:
    if record.has("instruction"):
        return record.text("instruction")
    column = next((name for name in NUMBERS if record.has(name)), None)
    if column is None:
        raise record.error(f"has neither 'instruction' nor 'index' (columns: {listed(record.values)})")
    if named is None:
        raise ConfigError(
            f"{record.place}: the table numbers its instructions, and length.instructions is null: expected the list that the numbers "
            "mean.\n  Name it with `--length.instructions FILE`, e.g. the instructions of AlpacaEval in their own order."
        )
    number = int(_number(record, column))
    if number not in named:
        raise record.error(f"number {number} is none of the {len(named)} instructions that length.instructions lists")
    return named[number]


def _number(record: Record, name: str) -> float:
    """A column of numbers, which in CSV are text."""
    value = record.values.get(name)
    if value is None or value == "":
        raise DataError(f"{record.place}: has no {name!r} (columns: {listed(record.values)}).")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise record.wrong(name, value, "a number") from error
    if not math.isfinite(number):
        raise record.wrong(name, value, "a finite number")
    return number
