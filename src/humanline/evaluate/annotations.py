"""Judgements in the form of AlpacaEval: who was preferred, for each instruction. 1 is the baseline's output, 2 the model's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.data.read import read_records
from humanline.data.record import Record
from humanline.data.rows import Place
from humanline.data.turns import text_or_turns
from humanline.errors import DataError
from humanline.evaluate.outputs import Output, Pair, write_json

NEEDED = ("instruction", "output_1", "output_2", "preference")
EXAMPLE = '{"instruction": "2 + 2?", "output_1": "5", "generator_1": "baseline", "output_2": "4", "generator_2": "model", "preference": 2}'


@dataclass(frozen=True, slots=True)
class Annotation:
    """One judgement."""

    pair: Pair
    preference: float | None
    """for the model, in [0, 1]; None = missing"""
    annotator: str = ""
    orders: tuple[str, ...] = ()
    """in which a judge saw the outputs: "model first" or "baseline first", one for each question"""
    modes: tuple[str, ...] = ()
    """how the verdict was read from the judge's reply, one for each question"""
    why: str = ""
    """of a missing one"""


def write_annotations(path: Path, annotations: Iterable[Annotation]) -> None:
    """A JSON list; the preference is 1 + the probability that the model's output is better, null where missing."""
    write_json(path, [_row(each) for each in annotations])


def _row(each: Annotation) -> dict[str, Any]:
    row: dict[str, Any] = {
        "instruction": each.pair.model.key,
        "output_1": each.pair.baseline.output,
        "generator_1": each.pair.baseline.generator,
        "dataset": each.pair.baseline.dataset or each.pair.model.dataset,
        "output_2": each.pair.model.output,
        "generator_2": each.pair.model.generator,
        "annotator": each.annotator,
        "preference": None if each.preference is None else 1 + each.preference,
    }
    extra = {"orders": list(each.orders), "modes": list(each.modes), "why": each.why}
    return row | {name: value for name, value in extra.items() if value}


def read_annotations(path: str) -> list[Annotation]:
    """Judgements of one model against one baseline, as `alpaca_eval` or `humanline evaluate win-rate` wrote them.

    A preference lies in [1, 2]; 0 is a tie, as older versions wrote it; null is a missing judgement.
    """
    annotations = [_annotation(Record.of(place, raw, {})) for place, raw in read_records(path)]
    for side in (0, 1):
        first = annotations[0].pair[side]
        for each in annotations:
            if each.pair[side].generator != first.generator:
                raise DataError(
                    f"{each.pair[side].place}: generator_{2 - side} is {each.pair[side].generator!r}, in line {first.place.line} it is "
                    f"{first.generator!r}: expected one model against one baseline.\n  Split the file by generator."
                )
    _refuse_repeated(annotations)
    return annotations


def _annotation(record: Record) -> Annotation:
    missing = [name for name in NEEDED if name not in record.values or (name != "preference" and record.values[name] is None)]
    if missing:
        raise record.error(f"has no {missing[0]!r} ({record.found()})", f"Needed are {', '.join(NEEDED)}: {EXAMPLE}.")
    instruction = text_or_turns(record, "instruction", record.values["instruction"])
    dataset = record.text("dataset") if record.has("dataset") else None
    model, baseline = (
        Output(instruction, record.text(f"output_{side}"), _generator(record, side), dataset, record.place) for side in (2, 1)
    )
    names = {name: tuple(record.items(name)) if record.has(name) else () for name in ("orders", "modes")}
    return Annotation(
        Pair(model, baseline),
        _preference(record),
        record.text("annotator") if record.has("annotator") else "",
        why=record.text("why") if record.has("why") else "",
        **names,
    )


def _generator(record: Record, side: int) -> str:
    name = f"generator_{side}"
    return record.text(name) if record.has(name) else "model" if side == 2 else "baseline"


def _preference(record: Record) -> float | None:
    value = record.values["preference"]
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        number = record.number("preference", float(value) if isinstance(value, str) else value)
    except ValueError as error:
        raise record.wrong("preference", value, "a number from 1 to 2, 0 for a tie, or null") from error
    if number == 0:
        return 0.5
    if not 1 <= number <= 2:
        raise record.wrong(
            "preference", value, "a number from 1 (the baseline is better) to 2 (the model is), 0 for a tie, or null"
        )
    return number - 1


def _refuse_repeated(annotations: list[Annotation]) -> None:
    places: dict[str, Place] = {}
    for each in annotations:
        output = each.pair.model
        if places.setdefault(output.key, output.place) != output.place:
            raise DataError(
                f"{output.place}: its instruction is that of line {places[output.key].line} again: expected one judgement of each.\n"
                "  Remove one of them."
            )
