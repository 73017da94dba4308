"""Judgements in AlpacaEval's form, and the tables of the length-controlled fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humanline.data.rows import Place
from humanline.errors import ConfigError, DataError
from humanline.evaluate.annotations import Annotation, read_annotations, write_annotations
from humanline.evaluate.config import LengthConfig
from humanline.evaluate.outputs import Output, Pair
from humanline.evaluate.tables import read_difficulty, read_regulariser, read_tables

ROW = {
    "instruction": "Why?",
    "output_1": "because",
    "generator_1": "base",
    "output_2": "so",
    "generator_2": "model",
    "preference": 1.25,
    "annotator": "judge",
}


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


@pytest.mark.parametrize(
    ("stored", "preference"), [(1.25, 0.25), (1, 0.0), (2.0, 1.0), (1.5, 0.5), (0, 0.5), (None, None), (float("nan"), None)]
)
def test_preferences_are_read_as_alpaca_eval_stores_them(tmp_path: Path, stored: Any, preference: float | None) -> None:
    """1 the baseline, 2 the model, 1.5 or (formerly) 0 a tie, null or NaN missing."""
    [found] = read_annotations(written(tmp_path / "a.json", [ROW | {"preference": stored}]))
    assert found.preference == preference
    assert (found.pair.model.output, found.pair.baseline.output) == ("so", "because")
    assert (found.pair.model.generator, found.pair.baseline.generator, found.annotator) == ("model", "base", "judge")


def test_R41_what_is_written_is_read_back_with_order_and_mode(tmp_path: Path) -> None:
    place = Place("annotations.json", 1)
    pair = Pair(Output("Why?", "so", "model", "own", place), Output("Why?", "because", "base", "own", place))
    judged = Annotation(pair, 0.75, "judge", ("baseline first", "model first"), ("weighted", "number"))
    missing = Annotation(pair, None, "judge", ("model first",), (), "timeout: no answer")
    for each in (judged, missing):
        write_annotations(tmp_path / "annotations.json", [each])
        assert read_annotations(str(tmp_path / "annotations.json")) == [each]
    row = json.loads((tmp_path / "annotations.json").read_text())[0]
    assert (row["preference"], row["orders"], row["why"]) == (None, ["model first"], "timeout: no answer")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preference": 2.5}, "a.json:1: 'preference' is a number (2.5): expected a number from 1 (the baseline is better) to 2"),
        ({"preference": "yes"}, "a.json:1: 'preference' is text ('yes'): expected a number from 1 to 2, 0 for a tie, or null."),
        ({"output_2": None}, "a.json:1: has no 'output_2' (keys: instruction (text), "),
    ],
)
def test_R37_bad_judgements_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        read_annotations(written(tmp_path / "a.json", [ROW | changes]))


def test_R37_one_judgement_of_each_instruction_by_one_pair_of_models(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^a\.json:2: its instruction is that of line 1 again: expected one judgement of each\."):
        read_annotations(written(tmp_path / "a.json", [ROW, ROW]))
    other = ROW | {"instruction": "How?", "generator_2": "another"}
    with pytest.raises(
        DataError, match=r"^a\.json:2: generator_2 is 'another', in line 1 it is 'model': expected one model against one"
    ):
        read_annotations(written(tmp_path / "a.json", [ROW, other]))


def test_R38_tables_are_read_by_instruction_or_by_number(tmp_path: Path) -> None:
    (tmp_path / "instructions.json").write_text(json.dumps([{"instruction": "Why?"}, {"instruction": "How?"}]))
    (tmp_path / "numbered.csv").write_text("index,instruction_difficulty\n1,-0.5\n0,2\n")
    (tmp_path / "pandas.csv").write_text(",instruction_difficulty\n0,2\n1,-0.5\n")
    (tmp_path / "named.csv").write_text("instruction,instruction_difficulty\nHow?,-0.5\nWhy?,2\n")
    names = {0: "Why?", 1: "How?"}
    expected = {"Why?": 2.0, "How?": -0.5}
    assert read_difficulty(str(tmp_path / "numbered.csv"), names) == expected
    assert read_difficulty(str(tmp_path / "pandas.csv"), names) == expected
    assert read_difficulty(str(tmp_path / "named.csv"), None) == expected
    tables = read_tables(
        LengthConfig(difficulty=str(tmp_path / "numbered.csv"), instructions=str(tmp_path / "instructions.json"))
    )
    assert tables == (expected, None)


def test_R38_the_regulariser_brings_difficulties_along(tmp_path: Path) -> None:
    """AlpacaEval's df_gamed.csv has two rows of each instruction, with its difficulty."""
    path = tmp_path / "gamed.csv"
    path.write_text(
        "model,instruction,std_delta_len,instruction_difficulty,preference,not_gamed_baseline\n"
        "short,Why?,2.5,0.75,0.1,False\nlong,Why?,-1.5,0.75,0.8,False\nshort,How?,1.0,-1,0.25,False\n"
    )
    difficulty, regulariser = read_tables(LengthConfig(regulariser=str(path)))
    assert difficulty == {"Why?": 0.75, "How?": -1.0}
    assert regulariser is not None and regulariser.instructions == ("Why?", "Why?", "How?")
    np.testing.assert_array_equal(regulariser.length_R, [2.5, -1.5, 1.0])
    np.testing.assert_array_equal(regulariser.difficulty_R, [0.75, 0.75, -1.0])
    np.testing.assert_array_equal(regulariser.preference_R, [0.1, 0.8, 0.25])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "number,instruction_difficulty\n0,1\n",
            "t.csv:2: has neither 'instruction' nor 'index' (columns: number, instruction_difficulty).",
        ),
        ("index,difficulty\n0,1\n", "t.csv:2: has no 'instruction_difficulty' (columns: index, difficulty)."),
        ("index,instruction_difficulty\n0,high\n", "t.csv:2: 'instruction_difficulty' is text ('high'): expected a number."),
        ("index,instruction_difficulty\n0,nan\n", "t.csv:2: 'instruction_difficulty' is text ('nan'): expected a finite number."),
        (
            "index,instruction_difficulty\n7,1\n",
            "t.csv:2: number 7 is none of the 1 instructions that length.instructions lists.",
        ),
        (
            "index,instruction_difficulty\n0,1\n0,2\n",
            "t.csv:3: instruction_difficulty is 2, and 1 in an earlier row of that instruction.",
        ),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        read_difficulty(str(tmp_path / "t.csv"), {0: "Why?"})


def test_numbers_without_the_list_they_mean_and_preferences_off_the_scale(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("index,std_delta_len,instruction_difficulty,preference\n0,1,1,1.5\n")
    with pytest.raises(DataError, match=r"^t\.csv:2: preference is 1\.5: expected a probability from 0 to 1\.$"):
        read_regulariser(str(tmp_path / "t.csv"), {0: "Why?"})
    with pytest.raises(ConfigError, match=r"^t\.csv:2: the table numbers its instructions, and length\.instructions is null"):
        read_difficulty(str(tmp_path / "t.csv"), None)
