"""`evaluate win-rate` before a judge is asked: files, settings, difficulties and the judge itself are checked first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from contests import COUNT, config, evaluated, fair, outputs, results, written
from humanline.errors import ConfigError, DataError, ServerError
from humanline.evaluate.config import LengthConfig, WinRateConfig
from humanline.evaluate.contest import evaluate_win_rate
from humanline.sample.config import SampleConfig
from humanline.score import Judge
from judge_server import refuses, serving


def _difficulties(folder: Path, count: int = COUNT) -> LengthConfig:
    rows = "".join(f"Question {n}?,{n % 3 - 1}\n" for n in range(count))
    (folder / "difficulty.csv").write_text(f"instruction,instruction_difficulty\n{rows}")
    return LengthConfig(difficulty=str(folder / "difficulty.csv"), resamples=2)


@pytest.mark.parametrize(
    ("prepare", "changes", "error", "message"),
    [
        ("rename", {}, DataError, "model.json:1: has no 'output'"),
        ("alter", {}, DataError, "model.json against base.json: outputs do not match one to one."),
        ("", {"length": LengthConfig(difficulty="no.csv")}, DataError, "no.csv: no such file."),
        ("table", {}, DataError, "2 of 20 instructions have no difficulty in "),
        ("longer", {}, DataError, "every output is 3 characters longer than the baseline's: "),
        ("few", {}, DataError, "4 judged instructions: expected at least 5"),
        ("", {"outputs": "gone.json"}, DataError, "gone.json: no such file."),
    ],
)
def test_R38_all_files_are_checked_before_a_judge_is_asked(
    tmp_path: Path, prepare: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    rows = outputs("model", 4 if prepare == "few" else COUNT)
    if prepare == "rename":
        rows[0]["text"] = rows[0].pop("output")
    if prepare == "alter":
        rows[2]["instruction"] += " "
    if prepare == "longer":
        rows = [row | {"output": row["output"] + "..."} for row in outputs("base")]
    written(tmp_path / "model.json", rows)
    if prepare == "few":
        written(tmp_path / "base.json", outputs("base", 4))
    if prepare == "table":
        changes = {"length": _difficulties(tmp_path, COUNT - 2)}
    with serving(fair) as server:
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            evaluated(config(tmp_path, server, **changes))
        assert server.bodies == []
    assert not (tmp_path / "out" / "settings.json").exists(), "nothing was begun, so the mended command needs no --resume"


def test_R40_the_judge_is_tried_before_a_model_is_loaded(tmp_path: Path) -> None:
    drawing = {"model": str(tmp_path / "no model here"), "outputs": "", "data": written(tmp_path / "i.json", outputs("any"))}
    with serving(lambda *_: refuses(401, "no such key")) as server, pytest.raises(ServerError, match="refuses: Error code: 401"):
        evaluated(config(tmp_path, server, **drawing))
    assert len(server.bodies) == 1


def test_R37_instructions_without_difficulty_are_left_out_of_the_fit_only(tmp_path: Path) -> None:
    with serving(fair) as server:
        settings = {"length": _difficulties(tmp_path, COUNT - 2), "allow_missing": True}
        found, lines = evaluated(config(tmp_path, server, **settings))
    assert lines[0] == "2 instructions have no difficulty: left out of the length-controlled win rate, as --allow-missing says"
    assert found.raw is not None and found.raw.judged == COUNT and found.length_controlled is not None
    assert results(tmp_path)["length_controlled"]["label"] == "length-controlled, no regulariser"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "out is '': expected a folder for the results"),
        ({"out": "o"}, "nothing to evaluate: expected `--model "),
        ({"out": "o", "outputs": "f", "model": "m"}, "--outputs and --model are both given: outputs come from one place."),
        ({"out": "o", "annotations": "f", "baseline": "b"}, "baseline is 'b': expected nothing, since the annotations hold"),
        ({"out": "o", "model": "m", "baseline": "b"}, "data is '': expected instructions for the model"),
        ({"out": "o", "outputs": "f"}, "baseline is '': expected the baseline's outputs"),
        (
            {"out": "o", "outputs": "f", "baseline": "b", "scorer": Judge(show=("answer",))},
            "scorer.show plays no part in comparing two outputs. Leave it out.",
        ),
        (
            {"out": "o", "outputs": "f", "baseline": "b", "scorer": Judge(instructions="Be kind.")},
            "scorer.instructions plays no part in comparing two outputs. Leave it out. What the judge compares by is `--criteria`.",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        evaluate_win_rate(WinRateConfig(**settings))


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"^least_judged is -0\.1: expected a share from 0 to 1\.$"):
        WinRateConfig(least_judged=-0.1)
    with pytest.raises(ConfigError, match=r"^sample\.n is 2: expected 1: an instruction has one output\.$"):
        WinRateConfig(sample=SampleConfig(n=2))
    with pytest.raises(ConfigError, match=r"^length\.resamples is 1: expected a whole number from 2 on\.$"):
        LengthConfig(resamples=1)
    with pytest.raises(ConfigError, match=r"^length\.control is false, and a table is given"):
        LengthConfig(control=False, difficulty="d.csv")
