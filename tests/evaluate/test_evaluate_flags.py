"""`humanline evaluate` from the words a user types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from humanline import cli
from humanline.errors import ConfigError
from humanline.evaluate.config import AnswersConfig, WinRateConfig, answers_task
from humanline.flags import parse_evaluate
from humanline.score import GSM8K, Function, Judge, Math


def parse(line: str) -> AnswersConfig | WinRateConfig:
    return parse_evaluate(line.split())


def test_a_task_has_its_settings_and_flags_override_them() -> None:
    assert parse("math500 --data d --model m --out o") == answers_task("math500", data="d", model="m", out="o")
    config = parse("gsm8k --data d --n 8 --temperature 0.6 --scorer.style strict --k 2 4 --rows.limit-rows 50")
    assert isinstance(config, AnswersConfig)
    assert (config.problem, config.scorer, config.k) == ("question", GSM8K(style="strict"), (2, 4))
    assert (config.sample.n, config.sample.temperature, config.rows.limit_rows) == (8, 0.6, 50)


def test_a_file_of_ones_own_and_a_choice_of_verifier() -> None:
    config = parse("problems.jsonl --model m --out o --scorer.name gsm8k --scorer.gold solution")
    assert isinstance(config, AnswersConfig)
    assert (config.data, config.scorer) == ("problems.jsonl", GSM8K(gold="solution"))
    assert parse("problems.jsonl") == AnswersConfig(data="problems.jsonl", scorer=Math())


def test_a_win_rate_by_whichever_scorer() -> None:
    config = parse("win-rate --outputs a --baseline b --out o --scorer.model gpt --scorer.mode weighted --order both")
    assert isinstance(config, WinRateConfig)
    assert (config.scorer, config.order) == (Judge(high=9.0, model="gpt", mode="weighted"), "both")
    assert parse("win-rate --scorer.name function --scorer.path f.py:f") == WinRateConfig(scorer=Function(path="f.py:f"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "math50 --out o",
            "'math50' is neither a task nor a file. Did you mean 'math500'? Expected win-rate, math500, gsm8k or a file",
        ),
        ("math500 --scorer.name judge", "--scorer.name is 'judge': expected math or gsm8k for evaluate math500."),
        (
            "win-rate --scorer.name math",
            "--scorer.name is 'math': expected judge or reward_model or function for evaluate win-rate.",
        ),
        ("math500 --scorer.style strict", "--scorer.style does not apply to scorer math: it is a setting of gsm8k."),
    ],
)
def test_wrong_words(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(line)
    assert str(error.value).startswith(message)


def test_an_unknown_flag_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["evaluate", "math500", "--temprature", "1"])
    assert end.value.code == 2 and "--temperature" in capsys.readouterr().err


def test_help_names_the_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["evaluate"]) == 2
    assert "math500|gsm8k" in shown and "win-rate" in shown


def test_both_kinds_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = {"problem": "1 + 1", "answer": "2", "completions": ["#### 2", "#### 3"]}
    (tmp_path / "samples.jsonl").write_text(json.dumps(samples) + "\n")
    words = f"evaluate gsm8k --samples {tmp_path}/samples.jsonl --out {tmp_path}/a --scorer.style strict"
    assert cli.main(words.split()) == 0
    assert json.loads((tmp_path / "a" / "results.json").read_text())["rates"]["pass@1"]["mean"] == 0.5
    assert cli.main(words.split()) == 1
    assert "holds an evaluation. Add --resume" in capsys.readouterr().err
    rows = [{"instruction": f"{n}?", "output_1": "b", "output_2": "m", "preference": 1 + n % 2} for n in range(4)]
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    words = f"evaluate win-rate --annotations {tmp_path}/annotations.json --out {tmp_path}/w --length.no-control"
    assert cli.main(words.split()) == 0
    assert json.loads((tmp_path / "w" / "results.json").read_text())["raw"]["win_rate"] == 50.0
