"""Outputs in AlpacaEval's form, and two files of them side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from humanline.errors import DataError
from humanline.evaluate.outputs import Output, match, read_outputs, write_outputs


def written(path: Path, rows: Any) -> str:
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(count: int = 4, generator: str = "model") -> list[dict[str, Any]]:
    return [
        {"dataset": "own", "instruction": f"Question {number}?", "output": f"{generator} {number}", "generator": generator}
        for number in range(count)
    ]


def both(folder: Path, model: Any, baseline: Any) -> tuple[list[Output], list[Output]]:
    return read_outputs(written(folder / "model.json", model)), read_outputs(written(folder / "baseline.json", baseline))


def test_what_is_written_is_read_back_and_has_the_form_of_alpaca_eval(tmp_path: Path) -> None:
    outputs = read_outputs(written(tmp_path / "a.json", rows()))
    write_outputs(tmp_path / "b.json", outputs)
    assert json.loads((tmp_path / "b.json").read_text()) == rows()
    assert [each.output for each in read_outputs(str(tmp_path / "b.json"))] == ["model 0", "model 1", "model 2", "model 3"]


def test_rows_of_sampled_completions_are_outputs_too(tmp_path: Path) -> None:
    sampled = [
        {"prompt": [{"role": "user", "content": "Question 0?"}], "completions": ["so"]},
        {"prompt": "Question 1?", "completions": ["and so"]},
    ]
    outputs = read_outputs(written(tmp_path / "samples.jsonl", sampled))
    assert [each.output for each in outputs] == ["so", "and so"]
    assert outputs[0].instruction == ({"role": "user", "content": "Question 0?"},)
    assert {each.generator for each in outputs} == {"samples"}, "named after the file where the rows do not say"


def test_an_empty_output_is_an_output(tmp_path: Path) -> None:
    assert read_outputs(written(tmp_path / "a.json", [{"instruction": "Why?", "output": ""}]))[0].output == ""


def test_pairs_are_in_the_order_of_the_baseline(tmp_path: Path) -> None:
    pairs, lines = match(*both(tmp_path, rows()[::-1], rows(generator="base")), allow_missing=False)
    assert [(pair.model.output, pair.baseline.output) for pair in pairs] == [(f"model {n}", f"base {n}") for n in range(4)]
    assert lines == []


def test_R37_altered_instructions_are_listed_and_stop(tmp_path: Path) -> None:
    model = rows()
    model[1]["instruction"] += " "
    with pytest.raises(DataError) as error:
        match(*both(tmp_path, model, rows(generator="base")), allow_missing=False)
    assert str(error.value) == (
        "model.json against baseline.json: outputs do not match one to one.\n"
        "  1 instructions are only in model.json:\n"
        "    model.json:2 'Question 1? ', which differs in white space from baseline.json:2\n"
        "  1 instructions are only in baseline.json:\n"
        "    baseline.json:2 'Question 1?', which differs in white space from model.json:2\n"
        "  Mend the files, or go on with the 3 that match: `--allow-missing`."
    )


def test_R37_repeated_instructions_are_listed_and_stop(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"  1 instructions appear again in model\.json:\n    model\.json:5 'Question 2\?'\n"):
        match(*both(tmp_path, [*rows(), rows()[2]], rows(generator="base")), allow_missing=False)


def test_R37_allow_missing_leaves_them_out_and_counts_them(tmp_path: Path) -> None:
    model = [*rows(), rows()[2] | {"output": "second thought"}]
    model[0]["instruction"] = "Another?"
    pairs, lines = match(*both(tmp_path, model, rows(generator="base")), allow_missing=True)
    assert [pair.model.output for pair in pairs] == ["model 1", "model 2", "model 3"]
    assert lines == [
        "1 instructions appear again in model.json: left out, as --allow-missing says",
        "1 instructions are only in model.json: left out, as --allow-missing says",
        "1 instructions are only in baseline.json: left out, as --allow-missing says",
    ]


def test_long_lists_are_shortened(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"  25 instructions are only in baseline\.json:\n(    baseline.*\n){10}    and 15 more\n"
    ):
        match(*both(tmp_path, rows(5), rows(30, "base")), allow_missing=False)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    model = read_outputs(written(tmp_path / "outputs.json", rows()))
    baseline = read_outputs(written(tmp_path / "other" / "outputs.json", rows(5, "base")))
    with pytest.raises(DataError, match=r"^outputs\.json \(model\) against outputs\.json \(baseline\): "):
        match(model, baseline, allow_missing=False)


def test_nothing_in_common(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no instruction is in both\. Are these outputs to the same instructions\?$"):
        match(*both(tmp_path, [{"instruction": "Why?", "output": "So."}], rows()), allow_missing=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"instruction": "Why?", "text": "So."},
            "a.jsonl:2: has no 'output' (keys: instruction (text), text (text)).\n  Needed are 'instruction' and 'output': ",
        ),
        ({"output": "So."}, "a.jsonl:2: has no 'instruction' (keys: output (text)).\n  Needed are 'instruction' and 'output': "),
        ({"instruction": "Why?", "output": 4}, "a.jsonl:2: 'output' is a number (4): expected text."),
        (
            {"prompt": "Why?", "completions": ["a", "b"]},
            "a.jsonl:2: has 2 completions: expected one output for each instruction.\n  Sample with `--n 1`.",
        ),
        (
            {"instruction": "Why?", "output": "So.", "generator": "other"},
            "a.jsonl:2: generator is 'other', in line 1 it is 'model': expected the outputs of one model.\n  Split the file by generator.",
        ),
    ],
)
def test_R37_needed_columns_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        read_outputs(written(tmp_path / "a.jsonl", [rows()[0], row]))
