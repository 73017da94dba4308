"""Grade-school answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from humanline.data.read import read_records
from humanline.score import GSM8K, Item, Verdict
from humanline.score.gsm8k import last_number, marked_number


def score(completion: str, gold: object = "42", style: str = "strict", tail: str = "") -> Verdict:
    return GSM8K(style=style).build().verdicts([Item("Q?", completion, tail, {"answer": gold})])[0]


@pytest.mark.parametrize(
    ("completion", "strict", "flexible"),
    [
        ("#### 42", 1.0, 1.0),
        ("The answer is 42.", 0.0, 1.0),
        ("####42.", 1.0, 1.0),
        ("#### $42", 1.0, 1.0),
        ("#### 42.00", 1.0, 1.0),
        ("####\n42", 1.0, 1.0),
        ("**#### 42**", 1.0, 1.0),
        ("#### -42", 0.0, 0.0),
        ("#### 41", 0.0, 0.0),
        ("#### the answer is 42", 0.0, 1.0),
        ("#### 42" + " and so on" * 400, 1.0, 1.0),
        ("#### 42\n\nQuestion: 1 + 1?\n#### 2", 1.0, 0.0),
        ("It is 40 + 2 = 42", 0.0, 1.0),
        ("", 0.0, 0.0),
        ("<think>\n#### 42", 0.0, 0.0),
    ],
)
def test_R35_strict_and_flexible(completion: str, strict: float, flexible: float) -> None:
    assert score(completion, style="strict").score == strict
    assert score(completion, style="flexible").score == flexible


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("costs $ 12,000.", "12000"),
        ("1,234,567.50 in all", "1234567.50"),
        ("-7", "-7"),
        ("minus −3", "-3"),
        ("$-5", "-5"),
        ("-$5", "-5"),
        ("16-3", "3"),
        ("(3)-4", "4"),
        (".5", ".5"),
        ("chosen by gpt4", None),
        ("none", None),
    ],
)
def test_R35_a_number_is_read_without_commas_currency_and_full_stop(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("#### $12,000.", "12000"), ("####-7", "-7"), ("#### 3 and 4", "3"), ("#### x 3", None), ("3 ###", None)]
)
def test_R35_the_marked_number_follows_its_mark_directly(text: str, number: str | None) -> None:
    assert marked_number(text) == number


@pytest.mark.parametrize(
    ("gold", "right"),
    [("so 6 * 7 = <<6*7=42>>42\n#### 42", 1.0), (42, 1.0), (42.0, 1.0), ("A: 42", 1.0), (["41", "42"], 1.0), ("43", 0.0)],
)
def test_the_gold_answer_is_a_number_or_a_solution_that_ends_in_one(gold: object, right: float) -> None:
    assert score("#### 42", gold).score == right


@pytest.mark.parametrize(
    ("row", "note"),
    [
        ({"gold": "42"}, "column 'answer' does not exist (columns: gold)"),
        ({"answer": None}, "column 'answer' is empty (columns: answer)"),
        ({"answer": "none"}, "column 'answer' has no number: 'none'"),
        ({"answer": {"value": 42}}, "column 'answer' holds an object ({'value': 42}), not an answer"),
    ],
)
def test_a_row_without_gold_answer_is_unscored(row: dict[str, object], note: str) -> None:
    assert GSM8K().build().verdicts([Item("Q?", "#### 42", row=row)]) == [Verdict(None, "no gold answer", note)]


def test_R28_the_prefilled_thought_ends_where_the_completion_ends_it() -> None:
    assert score("6 * 7\n#### 41</think>\n#### 42", tail="<think>\n").score == 1.0
    assert score("6 * 7\n#### 42", tail="<think>\n").score == 0.0


def test_R35_real_solutions_are_judged_as_their_authors_judged_them(real_data: Path) -> None:
    """All 4 × 1319 of them; the data's accuracies are 0.217, 0.390, 0.347 and 0.563."""
    scorer = GSM8K(gold="ground_truth", style="flexible").build()
    rows = [row for _, row in read_records(real_data / "gsm8k" / "gsm8k_example_model_solutions.jsonl")]
    for model in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
        items = [Item(row["question"], row[model]["solution"], row=row) for row in rows]
        differing = [
            row[model]["solution"][-30:]
            for row, found in zip(rows, scorer.score(items), strict=True)
            if found != float(row[model]["is_correct"])
        ]
        assert differing == [], model
