"""Outputs of a model in the form of AlpacaEval, [{"instruction", "output", "generator", "dataset"}], and two such files side by side.

`alpaca_eval --model_outputs FILE` takes what is written here as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from humanline.data.read import read_records
from humanline.data.record import Record, shown
from humanline.data.rows import Place, Text
from humanline.data.turns import text_or_turns
from humanline.errors import CheckpointError, DataError

LISTED = 10
"""instructions that a message names"""
EXAMPLE = '{"instruction": "What is 2 + 2?", "output": "4", "generator": "my-model"}'


@dataclass(frozen=True, slots=True)
class Output:
    """What a model said to one instruction."""

    instruction: Text
    """text, or the turns of a conversation"""
    output: str
    generator: str
    """who wrote it"""
    dataset: str | None
    """which part of the instructions it belongs to"""
    place: Place

    @property
    def key(self) -> str:
        """Equal for equal instructions."""
        return instruction_key(self.instruction)


class Pair(NamedTuple):
    """Two answers to one instruction."""

    model: Output
    baseline: Output


def instruction_key(instruction: Text) -> str:
    """An instruction as text; turns as JSON."""
    return instruction if isinstance(instruction, str) else json.dumps([dict(turn) for turn in instruction], ensure_ascii=False)


def read_outputs(path: str) -> list[Output]:
    """The outputs of one model. Rows of `humanline sample --n 1` are read as well.

    `DataError` for a row without instruction or output, and for a file of several generators.
    """
    outputs = [_output(Record.of(place, raw, {}), Path(path).stem) for place, raw in read_records(path)]
    others = [each for each in outputs if each.generator != outputs[0].generator]
    if others:
        raise DataError(
            f"{others[0].place}: generator is {others[0].generator!r}, in line {outputs[0].place.line} it is {outputs[0].generator!r}: "
            "expected the outputs of one model.\n  Split the file by generator."
        )
    return outputs


def _output(record: Record, stem: str) -> Output:
    if record.has("completions") and not record.has("output"):
        completions = record.items("completions")
        if len(completions) != 1:
            raise record.error(
                f"has {len(completions)} completions: expected one output for each instruction", "Sample with `--n 1`."
            )
        output = record.checked_text("completions[0]", completions[0])
    elif record.has("output"):
        output = record.text("output")
    else:
        raise record.error(f"has no 'output' ({record.found()})", f"Needed are 'instruction' and 'output': {EXAMPLE}.")
    name = record.first("instruction", "prompt")
    if name is None:
        raise record.error(f"has no 'instruction' ({record.found()})", f"Needed are 'instruction' and 'output': {EXAMPLE}.")
    return Output(
        text_or_turns(record, name, record.values[name]),
        output,
        record.text("generator") if record.has("generator") else stem,
        record.text("dataset") if record.has("dataset") else None,
        record.place,
    )


def write_outputs(path: Path, outputs: Iterable[Output]) -> None:
    """A JSON list of rows as AlpacaEval reads them."""
    rows: list[dict[str, Any]] = []
    for each in outputs:
        row = {"instruction": each.key, "output": each.output, "generator": each.generator}
        rows.append({"dataset": each.dataset, **row} if each.dataset is not None else row)
    write_json(path, rows)


def write_json(path: Path, value: Any) -> None:
    """A reader sees the old file or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}. Choose another --out.") from error


def match(model: Sequence[Output], baseline: Sequence[Output], *, allow_missing: bool) -> tuple[list[Pair], list[str]]:
    """Outputs to the same instruction, in the baseline's order, and lines that count what was left out.

    Instructions are matched by their exact text. What is only on one side or there twice is listed in a `DataError`; with
    `allow_missing` it is left out, of several outputs to one instruction all but the first.
    """
    of_model, repeated_model = _by_instruction(model)
    of_baseline, repeated_baseline = _by_instruction(baseline)
    sides = _sources(model, baseline)
    problems = [  # (what is wrong, with which outputs, among which one was expected)
        (f"appear again in {sides[0]}", repeated_model, {}),
        (f"appear again in {sides[1]}", repeated_baseline, {}),
        (f"are only in {sides[0]}", [each for key, each in of_model.items() if key not in of_baseline], of_baseline),
        (f"are only in {sides[1]}", [each for key, each in of_baseline.items() if key not in of_model], of_model),
    ]
    problems = [problem for problem in problems if problem[1]]
    pairs = [Pair(of_model[key], each) for key, each in of_baseline.items() if key in of_model]
    if problems and not allow_missing:
        lines = "\n".join(line for problem in problems for line in _listing(*problem))
        raise DataError(
            f"{sides[0]} against {sides[1]}: outputs do not match one to one.\n{lines}\n"
            f"  Mend the files, or go on with the {len(pairs)} that match: `--allow-missing`."
        )
    if not pairs:
        raise DataError(f"{sides[0]} against {sides[1]}: no instruction is in both. Are these outputs to the same instructions?")
    return pairs, [f"{len(found)} instructions {problem}: left out, as --allow-missing says" for problem, found, _ in problems]


def _by_instruction(outputs: Sequence[Output]) -> tuple[dict[str, Output], list[Output]]:
    """({key: the first output}, all further ones)."""
    first: dict[str, Output] = {}
    repeated = [each for each in outputs if first.setdefault(each.key, each) is not each]
    return first, repeated


def _sources(model: Sequence[Output], baseline: Sequence[Output]) -> tuple[str, str]:
    """What to call the two sides."""
    names = (model[0].place.source if model else "the model", baseline[0].place.source if baseline else "the baseline")
    return names if names[0] != names[1] else (f"{names[0]} (model)", f"{names[1]} (baseline)")


def _listing(problem: str, found: Sequence[Output], others: Mapping[str, Output]) -> list[str]:
    """The instructions, each with the one of `others` that it equals but for white space."""
    near = {" ".join(key.split()): each.place for key, each in others.items()}
    lines = [f"  {len(found)} instructions {problem}:"]
    for each in found[:LISTED]:
        alike = near.get(" ".join(each.key.split()))
        lines.append(f"    {each.place} {shown(each.key)}" + (f", which differs in white space from {alike}" if alike else ""))
    return lines + ([f"    and {len(found) - LISTED} more"] if len(found) > LISTED else [])
