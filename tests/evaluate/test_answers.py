"""`evaluate` of answers that can be checked: from a file of problems, or of completions, to results.json."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

import builders
from humanline.errors import CheckpointError, ConfigError, DataError, ScoringError
from humanline.evaluate.answers import AnswersResult, evaluate_answers
from humanline.evaluate.config import TASKS, AnswersConfig, ProblemRowsConfig, answers_task
from humanline.sample.config import SampleConfig
from humanline.score import GSM8K, Math

PROBLEMS = [{"problem": f"{a} + {a} = ", "answer": f"so {2 * a}\n#### {2 * a}", "level": a} for a in (1, 2, 3)]
SAMPLES = [
    {"problem": "1 + 1", "answer": "2", "completions": ["#### 2", "#### 3", "so 2"], "finish_reason": ["stop", "stop", "length"]},
    {"problem": "2 + 2", "answer": "4", "completions": ["#### 4", "#### 4", "#### 4"], "finish_reason": ["stop", "stop", "stop"]},
]


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def evaluated(config: AnswersConfig) -> tuple[AnswersResult, list[str]]:
    lines: list[str] = []
    return evaluate_answers(config, lines.append), lines


def scored(folder: Path, samples: list[dict[str, Any]] = SAMPLES, **changes: Any) -> AnswersConfig:
    """Completions that are there already, numbers after ####."""
    path = written(folder / "samples.jsonl", samples)
    return AnswersConfig(**{"samples": path, "out": str(folder / "out"), "scorer": GSM8K(), **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return builders.save_model(tmp_path_factory.mktemp("model"))


def drawn(folder: Path, model: str, **changes: Any) -> AnswersConfig:
    """Completions of a tiny random model."""
    settings: dict[str, Any] = {
        "data": written(folder / "problems.jsonl", PROBLEMS),
        "model": model,
        "out": str(folder / "out"),
        "rows": ProblemRowsConfig(template="none"),
        "device": "cpu",
        "scorer": GSM8K(style="flexible"),
        "sample": SampleConfig(n=4, temperature=1.5, max_new_tokens=12),
    }
    return AnswersConfig(**settings | changes)


def test_R36_rates_and_counts_of_completions_that_are_there(tmp_path: Path) -> None:
    """Problem 1: one of three right (one unparsed: no ####, which was also cut); problem 2: all. pass@1 = (1/3 + 1)/2."""
    found, lines = evaluated(scored(tmp_path, k=(2,)))
    assert {name: rate.value.mean for name, rate in found.rates.items()} == pytest.approx(
        {"pass@1": 2 / 3, "pass@2": (2 / 3 + 1) / 2, "pass@3": 1.0}, abs=1e-15
    )
    assert found.rates["pass@1"].value.standard_error == pytest.approx(1 / 3, abs=1e-15)
    assert found.counts == {
        "problems": 2,
        "completions": 6,
        "scored": 6,
        "right": 4,
        "unscored": {},
        "counted_as_wrong": 0,
        "unparsed": 1,
        "truncated": 1,
        "finish_unknown": 0,
    }
    assert lines[0] == "2 problems, 6 completions: 6 with a verdict; 1 without an answer in them, 1 truncated"
    verdicts = [json.loads(line) for line in (tmp_path / "out" / "verdicts.jsonl").read_text().splitlines()]
    assert verdicts[0]["scores"] == [1.0, 0.0, 0.0] and verdicts[0]["found"] == ["2", "3", ""]


def test_math_is_verified_as_mathematics(tmp_path: Path) -> None:
    rows = [{"problem": "p", "answer": "\\frac{1}{2}", "completions": ["\\boxed{0.5}", "It is 2.", "so far"]}]
    found, _ = evaluated(scored(tmp_path, rows, scorer=Math()))
    assert found.rates["pass@1"].value.mean == pytest.approx(1 / 3)
    assert (found.counts["unparsed"], found.counts["finish_unknown"]) == (1, 3)


def test_R36_settings_versions_and_files_are_stored_and_the_same_file_scores_the_same(tmp_path: Path, model: str) -> None:
    config = drawn(tmp_path, model, system="")
    first, _ = evaluated(config)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.suffix in (".json", ".jsonl")}
    assert set(before) == {"settings.json", "problems.jsonl", "samples.jsonl", "verdicts.jsonl", "results.json"}
    result = json.loads(before["results.json"])
    assert result["settings"]["sample"] | {"n": 4, "temperature": 1.5, "max_new_tokens": 12} == result["settings"]["sample"]
    assert result["settings"]["scorer"] | {"name": "gsm8k", "style": "flexible"} == result["settings"]["scorer"]
    assert result["settings"]["prompt"] == "{problem}" and result["first_prompt"] == "1 + 1 = "
    assert list(result["settings"]["files"]) == [config.data]
    assert set(result["versions"]) == {"humanline", "python", "numpy", "scikit-learn"}
    assert [sampler["model"] for sampler in result["samplers"]] == [model]

    again, _ = evaluated(AnswersConfig(out=config.out, rescore=True, scorer=config.scorer))
    assert again == first
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before
    resumed, lines = evaluated(drawn(tmp_path, model, resume=True))
    assert resumed == first and lines[0].endswith("samples.jsonl is complete")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before


def test_rescoring_with_another_verifier_keeps_how_samples_were_drawn(tmp_path: Path, model: str) -> None:
    evaluated(drawn(tmp_path, model))
    evaluated(AnswersConfig(out=str(tmp_path / "out"), rescore=True, scorer=GSM8K(style="strict")))
    settings = json.loads((tmp_path / "out" / "results.json").read_text())["settings"]
    assert (settings["scorer"]["style"], settings["sample"]["temperature"], settings["model"]) == ("strict", 1.5, model)


def test_what_the_model_is_asked(tmp_path: Path, model: str) -> None:
    """The prompt around each problem, the system turn before it, other columns kept, none that a loader would read."""
    rows = [PROBLEMS[0] | {"completion": "2", "chosen": "x"}]
    config = drawn(tmp_path, model, data=written(tmp_path / "p.jsonl", rows), prompt="q: {problem}")
    evaluated(config)
    [asked] = [json.loads(line) for line in (tmp_path / "out" / "problems.jsonl").read_text().splitlines()]
    assert asked == {**PROBLEMS[0], "prompt": "q: 1 + 1 = "}


def test_tasks_ask_for_what_their_verifier_reads() -> None:
    math, gsm8k = answers_task("math500"), answers_task("gsm8k", k=(2,))
    assert (math.problem, math.scorer) == ("problem", Math()) and "\\boxed{}" in math.prompt
    assert (gsm8k.problem, gsm8k.scorer, gsm8k.k) == ("question", GSM8K(style="flexible"), (2,)) and "####" in gsm8k.prompt
    assert set(TASKS) == {"math500", "gsm8k"}
    with pytest.raises(ConfigError, match=r"^task 'gsm' is unknown\. Did you mean 'gsm8k'\? Expected one of math500, gsm8k\.$"):
        answers_task("gsm")


def test_no_verdict_is_left_out_and_bounded(tmp_path: Path) -> None:
    """A gold answer without a number: its completions have no verdict. least_scored 0.5 lets the others be counted."""
    rows = [*SAMPLES, {"problem": "?", "answer": "none", "completions": ["#### 1", "#### 2"]}]
    found, lines = evaluated(scored(tmp_path, rows, least_scored=0.5))
    assert found.counts["unscored"] == {"no gold answer": 2}
    assert (found.rates["pass@1"].value.clusters, found.rates["pass@1"].left_out) == (2, 1)
    assert lines[-2] == (
        "pass@1 leaves the 2 without a verdict out; with all of them wrong, 0.5000 of the completions are right, "
        "with all of them right 0.7500"
    )


def test_on_error_zero_counts_them_as_wrong(tmp_path: Path) -> None:
    rows = [*SAMPLES, {"problem": "?", "answer": "none", "completions": ["#### 1", "#### 2"]}]
    found, _ = evaluated(scored(tmp_path, rows, scorer=GSM8K(on_error="zero")))
    assert found.rates["pass@1"].value.mean == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert found.counts["counted_as_wrong"] == 2


def test_too_few_verdicts_give_no_number(tmp_path: Path) -> None:
    rows = [SAMPLES[0], {"problem": "?", "answer": "none", "completions": ["#### 1"]}]
    with pytest.raises(
        ScoringError, match=r"^3 of 4 completions have a verdict, 75\.0%: below least_scored, 95\.0%, so there is no number"
    ):
        evaluated(scored(tmp_path, rows))
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result["rates"] == {} and result["counts"]["unscored"] == {"no gold answer": 1}


def test_ready_verdicts_and_scores_to_choose_by(tmp_path: Path) -> None:
    rows = [
        {"q": "p", "texts": ["a", "b"], "correct": [True, False], "reward": [[0.1], [0.9]]},
        {"q": "r", "texts": ["a", "b"], "correct": [1, None], "reward": [[0.8], [0.2]]},
    ]
    columns = {"prompt": "q", "completions": "texts"}
    found, _ = evaluated(
        scored(tmp_path, rows, rows=ProblemRowsConfig(columns), right="correct", rank="reward", least_scored=0.7)
    )
    assert {name: rate.value.mean for name, rate in found.rates.items()} == {"pass@1": 0.75, "best-of-2": 0.5}


def test_R45_many_truncated_completions_are_warned_of(tmp_path: Path) -> None:
    rows = [SAMPLES[0] | {"finish_reason": ["length", "length", "stop"]}]
    _, lines = evaluated(scored(tmp_path, rows))
    assert lines[1] == "warning: 67% of the completions were cut before they ended: raise --max-new-tokens."


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "2 + 2", "answer": "4"},
            "problems.jsonl:2: has no 'problem' (keys: question (text), answer (text)).\n  Needed are a problem and its answer, like ",
        ),
        (
            {"problem": "2 + 2"},
            "problems.jsonl:2: column 'answer' does not exist (columns: problem).\n  Needed is the right answer",
        ),
        (
            {"problem": "2 + 2", "answer": ""},
            "problems.jsonl:2: column 'answer' is empty (columns: problem, answer).\n  Needed is",
        ),
        ({"problem": ["2"], "answer": "4"}, "problems.jsonl:2: 'problem' is a list (['2']): expected text."),
    ],
)
def test_every_row_is_checked_before_the_model_is_loaded(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    data = written(tmp_path / "problems.jsonl", [PROBLEMS[0], row])
    config = AnswersConfig(data=data, model=str(tmp_path / "no model here"), out=str(tmp_path / "out"))
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        evaluated(config)


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        (
            {"problem": "p", "completions": ["1"]},
            {},
            "samples.jsonl:1: column 'answer' does not exist (columns: completions, prompt).",
        ),
        (
            {"problem": "p", "answer": "1", "completions": []},
            {},
            "samples.jsonl:1: 'completions' is an empty list: expected at least one",
        ),
        (
            {**SAMPLES[0], "r": [1, 0]},
            {"right": "r"},
            "samples.jsonl:1: 'r' is 2 values for 3 completions: expected a list with a value",
        ),
        ({**SAMPLES[0], "r": [1, 0, 0.5]}, {"right": "r"}, "samples.jsonl:1: 'r' holds 0.5: expected 1, 0 or null."),
        ({**SAMPLES[0], "r": ["1", 0, 0]}, {"right": "r"}, "samples.jsonl:1: 'r[0]' is text ('1'): expected a finite number."),
        (SAMPLES[0], {"rank": "s"}, "samples.jsonl:1: has no column 's', which `--rank` names (keys: answer (text), "),
    ],
)
def test_bad_completions_are_named(tmp_path: Path, row: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        evaluated(scored(tmp_path, [row], **changes))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "out is '': expected a folder for the results, e.g. `--out evaluations/first`."),
        ({"out": "o"}, "data is '': expected it, e.g. `--data math500_test.jsonl`; or completions to score, `--samples FILE`."),
        ({"out": "o", "data": "d"}, "model is '': expected it, e.g. `--model Qwen/"),
        ({"out": "o", "samples": "s", "model": "m"}, "--samples and --model are both given: samples come from one place."),
        ({"out": "o", "rescore": True, "resume": True}, "--rescore and --resume are both given"),
        ({"out": "o", "data": "d", "model": "m", "right": "r"}, "right is 'r': expected nothing without `--samples FILE`"),
        ({"out": "o", "data": "d", "model": "m", "k": (9,)}, "k is 9: expected at most the number of completions, --n 4."),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        evaluate_answers(AnswersConfig(**settings))


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"^prompt is 'Solve it': expected a text with \{problem\} where the problem goes\.$"):
        AnswersConfig(prompt="Solve it")
    with pytest.raises(ConfigError, match=r"^least_scored is 2: expected a share from 0 to 1\.$"):
        AnswersConfig(least_scored=2)
    with pytest.raises(ConfigError, match=r"^k is \(0,\): expected whole numbers from 1 on\.$"):
        AnswersConfig(k=(0,))
    with pytest.raises(ConfigError, match=r"^rows\.limit_rows is 0: expected a whole number from 1 on\.$"):
        ProblemRowsConfig(limit_rows=0)


def test_nothing_is_overwritten_and_nothing_mixed(tmp_path: Path, model: str) -> None:
    with pytest.raises(CheckpointError, match=r"samples\.jsonl does not exist: expected the samples to score again\."):
        evaluated(AnswersConfig(out=str(tmp_path / "out"), rescore=True))
    evaluated(drawn(tmp_path, model))
    with pytest.raises(CheckpointError, match=r"holds an evaluation\. Add --resume to go on with it, or choose another --out\.$"):
        evaluated(drawn(tmp_path, model))
    with pytest.raises(
        CheckpointError, match=r"going on would mix two evaluations:\n  prompt: \{problem\} then, q \{problem\} now\n"
    ):
        evaluated(drawn(tmp_path, model, prompt="q {problem}", resume=True))
    config = drawn(tmp_path, model, resume=True)
    written(tmp_path / "problems.jsonl", PROBLEMS[:2])
    with pytest.raises(CheckpointError, match=r"going on would mix two evaluations:\n  files: "):
        evaluated(config)


def test_a_mended_file_of_samples_can_be_scored_into_the_same_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="answer"):
        evaluated(scored(tmp_path, [SAMPLES[0], {**SAMPLES[1], "answer": None}]))
    assert evaluated(scored(tmp_path))[0].counts["problems"] == 2


def test_a_sampler_of_another_tool_is_kept_as_it_is(tmp_path: Path) -> None:
    result, _ = evaluated(scored(tmp_path, [{**row, "sampler": "vllm 0.9"} for row in SAMPLES]))
    assert json.loads((result.out / "results.json").read_text())["samplers"] == ["vllm 0.9"]


def test_k_above_the_completions_is_found_before_anything_is_verified(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="k is 4: expected at most the number of completions of a problem, 3"):
        evaluated(scored(tmp_path, k=(4,)))
    assert not (tmp_path / "out" / "verdicts.jsonl").exists()


def test_rescoring_takes_all_samples_and_no_others(tmp_path: Path, model: str) -> None:
    config = drawn(tmp_path, model)
    evaluated(config)
    results, samples = tmp_path / "out" / "results.json", tmp_path / "out" / "samples.jsonl"
    before = results.read_bytes()
    again = AnswersConfig(out=config.out, rescore=True, scorer=config.scorer)
    with pytest.raises(ConfigError, match=r"rows\.limit_rows is 1, and the samples were drawn with null"):
        evaluated(dataclasses.replace(again, rows=ProblemRowsConfig(limit_rows=1)))
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(CheckpointError, match=r"samples\.jsonl: 2 rows, which are not the 3 problems"):
        evaluated(again)
    assert results.read_bytes() == before


def test_completions_from_a_file_are_scored_again_by_resuming(tmp_path: Path) -> None:
    config = scored(tmp_path, [{**SAMPLES[0], "v": [1, None, None]}, SAMPLES[1] | {"v": [0, 1, 1]}], right="v")
    with pytest.raises(ScoringError, match="Mend it and use --resume"):
        evaluated(config)
    with pytest.raises(CheckpointError, match="by the same command with --resume"):
        evaluated(AnswersConfig(out=config.out, rescore=True))
    assert evaluated(dataclasses.replace(config, right="", resume=True))[0].counts["scored"] == 6
