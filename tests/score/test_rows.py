"""From records to items: prompts, tails and completions as the model had them."""

from __future__ import annotations

from typing import Any

import pytest

import small_tokenizers
from humanline.errors import DataError
from humanline.score import Item
from humanline.score.conversation import generation_tail, split_prefill, turns_of_item
from humanline.score.rows import load_scorable
from humanline.score.thoughts import after_thoughts

USER = {"role": "user", "content": "2 + 2?"}


def loaded(*records: dict[str, Any], **options: Any) -> list[Item]:
    rows, _ = load_scorable(records, columns={}, **options)
    return [item for row in rows for item in row.items]


def test_a_group_gives_an_item_per_completion_with_the_other_columns() -> None:
    record = {
        "prompt": "2 + 2?",
        "completions": ["4", "5"],
        "answer": "4",
        "finish_reason": ["stop", "length"],
        "logprobs": [[-0.1], [-2.0]],
        "rewards": [None, None],
    }
    first, second = loaded(record)
    assert (first.prompt, first.completion, first.finished) == ("2 + 2?", "4", True)
    assert (second.completion, second.finished) == ("5", False)
    assert first.row == {"prompt": "2 + 2?", "answer": "4"}
    assert str(first.place) == "<memory>:1"


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [USER], "completion": "4"},
        {"prompt": [USER], "completions": [[{"role": "assistant", "content": "4"}]]},
        {"messages": [USER, {"role": "assistant", "content": "4"}]},
        {"instruction": "2 + 2?", "output": "4"},
    ],
)
def test_every_shape_of_an_answered_prompt_gives_the_same_item(record: dict[str, Any]) -> None:
    (item,) = loaded(record)
    assert (item.prompt, item.completion, item.prompt_tail) == ((USER,), "4", "")


@pytest.mark.parametrize(
    ("prompt", "column", "expected", "tail"),
    [
        ("2 + 2?\n<think>\n", None, "2 + 2?\n", "<think>\n"),
        ("2 + <think> 2?", None, "2 + <think> 2?", ""),
        ([USER, {"role": "assistant", "content": "The answer: "}], None, (USER,), "The answer: "),
        ([USER], "<think>\n", (USER,), "<think>\n"),
    ],
)
def test_R28_what_the_prompt_puts_into_the_models_mouth_is_the_tail(
    prompt: Any, column: str | None, expected: Any, tail: str
) -> None:
    (item,) = loaded({"prompt": prompt, "completions": ["2+2\n</think>\n4"], **({"prompt_tail": column} if column else {})})
    assert (item.prompt, item.prompt_tail) == (expected, tail)
    assert item.answer == f"{tail}2+2\n</think>\n4"


def test_R28_text_stops_at_the_first_end_of_sequence() -> None:
    texts = [
        item.completion
        for item in loaded({"prompt": "Q", "completions": ["4<eos>5<end>", "4<end>5<eos>", "45"]}, stop=("<eos>", "<end>"))
    ]
    assert texts == ["4", "4", "45"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "2 + 2?"}, r"<memory>:1: row has no completions \(keys: prompt \(text\)\)"),
        ({"prompt": "2 + 2?", "completions": []}, r"<memory>:1: 'completions' is an empty list"),
        ({"prompt": "2 + 2?", "completions": "4"}, r"<memory>:1: 'completions' is text \('4'\): expected a list"),
        ({"prompt": "2 + 2?", "completions": [4]}, r"<memory>:1: 'completions\[0\]' is a number \(4\)"),
        ({"prompt": "Q", "completions": ["4"], "finished": [True, False]}, r"'finished' has 2 entries for 1 completions"),
        (
            {
                "prompt": [USER],
                "completions": [[{"role": "assistant", "content": "4"}, USER, {"role": "assistant", "content": "5"}]],
            },
            r"a completion has 3 turns: expected text or one assistant turn",
        ),
    ],
)
def test_a_row_that_cannot_be_scored_is_named(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        loaded(record)


def test_an_item_as_a_conversation() -> None:
    prefilled = ({**USER}, {"role": "assistant", "content": "The answer"})
    assert turns_of_item(Item("2 + 2?", "4")) == (USER, {"role": "assistant", "content": "4"})
    assert turns_of_item(Item(prefilled, " is 4.")) == (USER, {"role": "assistant", "content": "The answer is 4."})
    assert split_prefill(prefilled) == ((USER,), "The answer")


@pytest.mark.parametrize(
    ("template", "tail"),
    [
        (small_tokenizers.CHATML, ""),
        (small_tokenizers.THINKING, "<think>\n"),
        (small_tokenizers.LAST_THOUGHT, ""),
        (small_tokenizers.PLAIN_ROLES, ""),
    ],
)
def test_R28_the_tail_of_a_templates_generation_prompt(template: str, tail: str) -> None:
    assert generation_tail(small_tokenizers.chatml(template), (USER,)) == tail


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("4", "4"),
        ("<think>5?</think>4", "4"),
        ("5?</think>\n4", "\n4"),
        ("<thinking>a</thinking>b<think>c</think>d", "d"),
        ("<think>4", None),
        ("<think>a</think>4<think>5", None),
        ("", ""),
    ],
)
def test_R28_an_answer_begins_where_the_thoughts_end(text: str, rest: str | None) -> None:
    assert after_thoughts(text) == rest
