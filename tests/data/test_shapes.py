"""Each shape of feedback becomes the same rows, whatever the dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from humanline.data.notes import Notes
from humanline.data.rows import Completion, Place, Row
from humanline.data.schema import parse_rows


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def spoken(speaker: str, value: str) -> dict[str, str]:
    return {"from": speaker, "value": value}


USER, FOUR, FIVE, MORE = turn("user", "2 + 2?"), turn("assistant", "4"), turn("assistant", "5"), turn("user", "sure?")
BE_BRIEF = turn("system", "Be brief.")


def row(record: dict[str, Any], **settings: Any) -> Row:
    (only,) = parse_rows([(Place("rows.jsonl", 1), record)], **settings)
    return only


def content(row: Row) -> tuple[Any, ...]:
    """Kind, prompt, answers and feedback."""
    return row.kind, row.prompt, tuple(completion.text for completion in row.completions), row.feedback


PLAIN_PAIR = ("pair", "2 + 2?", ("4", "5"), (1.0, 0.0))
PAIR = ("pair", (USER,), ((FOUR,), (FIVE,)), (1.0, 0.0))
PAIRS = {
    "plain": ({"prompt": "2 + 2?", "chosen": "4", "rejected": "5", "score": 3}, PLAIN_PAIR),
    "blank prompt": ({"prompt": "", "chosen": "4", "rejected": ""}, ("pair", "", ("4", ""), (1.0, 0.0))),
    "messages": ({"prompt": [USER], "chosen": [FOUR], "rejected": [FIVE]}, PAIR),
    "plain prompt, messages": ({"prompt": "2 + 2?", "chosen": [FOUR], "rejected": [FIVE]}, PAIR),
    "messages, plain answers": ({"prompt": [USER], "chosen": "4", "rejected": "5"}, PAIR),
    "one of each": ({"prompt": "2 + 2?", "chosen": [FOUR], "rejected": "5"}, PAIR),
    "single messages": ({"prompt": USER, "chosen": FOUR, "rejected": FIVE}, PAIR),
    "implicit turns": ({"chosen": [USER, FOUR], "rejected": [USER, FIVE]}, PAIR),
    "redundant prompt": ({"prompt": "2 + 2?", "chosen": [USER, FOUR], "rejected": [USER, FIVE], "messages": [USER, FOUR]}, PAIR),
    "repeated prompt": ({"prompt": [USER], "chosen": [USER, FOUR], "rejected": [USER, FIVE]}, PAIR),
    "nulls of Arrow": ({"prompt": [{**USER, "name": None}], "chosen": [{**FOUR, "tool_calls": None}], "rejected": [FIVE]}, PAIR),
    "parts": (
        {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": "2 +"}, {"type": "text", "text": " 2?"}]}],
            "chosen": "4",
            "rejected": "5",
        },
        PAIR,
    ),
    "openai": ({"messages": [USER], "chosen": FOUR, "rejected": FIVE}, PAIR),
    "sharegpt": (
        {"conversations": [spoken("human", "2 + 2?")], "chosen": spoken("gpt", "4"), "rejected": spoken("gpt", "5")},
        PAIR,
    ),
    "system column": (
        {"system": "Be brief.", "prompt": "2 + 2?", "chosen": "4", "rejected": "5"},
        ("pair", (BE_BRIEF, USER), ((FOUR,), (FIVE,)), (1.0, 0.0)),
    ),
    "alpaca ranking": (
        {"instruction": "2", "input": "+ 2?", "history": [["hi", "ho"]], "system": "", "chosen": "4", "rejected": "5"},
        ("pair", (turn("user", "hi"), turn("assistant", "ho"), turn("user", "2\n+ 2?")), ((FOUR,), (FIVE,)), (1.0, 0.0)),
    ),
    "answers of several turns": (
        {"chosen": [USER, FIVE, MORE, FOUR], "rejected": [USER, FIVE, turn("user", "so?"), FIVE]},
        ("pair", (USER,), ((FIVE, MORE, FOUR), (FIVE, turn("user", "so?"), FIVE)), (1.0, 0.0)),
    ),
    "HALOs, A better": (
        {
            "type": "pairwise_feedback",
            "prompt_id": 7,
            "prompt": [USER],
            "output_A": [FOUR],
            "output_B": [FIVE],
            "label": 1,
            "reward_A": 2.0,
            "reward_B": 1.0,
            "reward_difference": 1.0,
        },
        PAIR,
    ),
    "HALOs, B better": (
        {
            "type": "pairwise_feedback",
            "prompt_id": 7,
            "prompt": [USER],
            "output_A": [FIVE],
            "output_B": [FOUR],
            "label": 0,
            "reward_A": 1.0,
            "reward_B": 2.0,
            "reward_difference": 1.0,
        },
        PAIR,
    ),
}


@pytest.mark.parametrize(("record", "expected"), PAIRS.values(), ids=PAIRS)
def test_pairs(record: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert content(row(record)) == expected


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("The sky is blue.", "The sky is green.", "The sky is"),
        ("Say great", "Say green", "Say"),
        ("Q: 2?\nA:\nyes", "Q: 2?\nA:\nno", "Q: 2?\nA:\n"),
        ("\n\nHuman: hi\n\nAssistant: I think so", "\n\nHuman: hi\n\nAssistant: I am not", "\n\nHuman: hi\n\nAssistant:"),
        ("a b", "a b c", "a"),
        ("a b", "a b", "a"),
        ("你好 世界", "你好 世间", "你好"),
    ],
)
def test_implicit_prompt_of_texts_ends_at_a_word(chosen: str, rejected: str, prompt: str) -> None:
    """Nothing is lost: prompt + answer is the text in the file; and the row is counted."""
    notes = Notes()
    found = row({"chosen": chosen, "rejected": rejected}, notes=notes)
    assert content(found) == ("pair", prompt, (chosen.removeprefix(prompt), rejected.removeprefix(prompt)), (1.0, 0.0))
    assert notes.lines() == [
        "no prompt column: the common start of chosen and rejected taken as prompt: 1 row (first rows.jsonl:1)"
    ]


CONVERSATION = [USER, FIVE, MORE, FOUR]
LABELLED = {
    "plain": ({"prompt": "2 + 2?", "completion": "4", "label": True}, ("label", "2 + 2?", ("4",), (1.0,))),
    "messages": ({"messages": CONVERSATION, "label": False}, ("label", (USER, FIVE, MORE), ((FOUR,),), (0.0,))),
    "kto_tag": (
        {"conversations": [spoken("system", "Be brief."), spoken("human", "2 + 2?"), spoken("gpt", "4")], "kto_tag": True},
        ("label", (BE_BRIEF, USER), ((FOUR,),), (1.0,)),
    ),
    "alpaca": ({"instruction": "2 + 2?", "output": "4", "kto_tag": False}, ("label", (USER,), ((FOUR,),), (0.0,))),
    "prompt and completion turns": ({"prompt": [USER], "completion": [FOUR], "label": 1}, ("label", (USER,), ((FOUR,),), (1.0,))),
    "HALOs": (
        {"type": "binary_feedback", "prompt_id": 1, "prompt": [USER], "output": [FOUR], "label": 0, "reward": 0.2},
        ("label", (USER,), ((FOUR,),), (0.0,)),
    ),
}


@pytest.mark.parametrize(("record", "expected"), LABELLED.values(), ids=LABELLED)
def test_labelled(record: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert content(row(record)) == expected


@pytest.mark.parametrize("desirable", [True, 1, 1.0, "true", "True", " TRUE ", "1", "1.0"])
@pytest.mark.parametrize("undesirable", [False, 0, 0.0, "false", "False", "FALSE", "0", "0.0"])
def test_R25_label_spellings_and_the_text_false_is_not_true(desirable: Any, undesirable: Any) -> None:
    for label, expected in ((desirable, 1.0), (undesirable, 0.0)):
        assert row({"prompt": "a", "completion": "b", "label": label}).feedback == (expected,)


def test_R31_group_with_everything_a_sampler_knows() -> None:
    record = {
        "prompt": "2 + 2?",
        "completions": ["4", "5", "44", ""],
        "rewards": [1, False, None, 0.5],
        "token_ids": [[4, 2], [5, 2], None, []],
        "logprobs": [[-0.5, -0.1], None, [-1, -2.0, 0], []],
        "finish_reason": ["stop", "tool_calls", "length", None],
    }
    completions = (
        Completion("4", token_ids=(4, 2), logps=(-0.5, -0.1), finished=True),
        Completion("5", token_ids=(5, 2), finished=True),
        Completion("44", logps=(-1.0, -2.0, 0.0), finished=False),
        Completion("", token_ids=(), logps=()),
    )
    expected = Row("group", "2 + 2?", completions, (1.0, 0.0, None, 0.5), Place("rows.jsonl", 1))
    assert row(record) == expected
    renamed = {**record, "finished": [True, True, False, None], "completion_ids": record["token_ids"]}
    assert row({key: renamed[key] for key in renamed if key not in ("finish_reason", "token_ids")}) == expected


GROUPS = {
    "of one": ({"prompt": "2 + 2?", "completions": ["4"], "rewards": [1.0]}, ("group", "2 + 2?", ("4",), (1.0,))),
    "mixed": (
        {"prompt": "2 + 2?", "completions": ["4", [FIVE]], "rewards": [1, None]},
        ("group", (USER,), ((FOUR,), (FIVE,)), (1.0, None)),
    ),
    "whole conversations": (
        {"completions": [[USER, FOUR], [USER, FIVE], [USER, FOUR]], "rewards": [1, 0, 1]},
        ("group", (USER,), ((FOUR,), (FIVE,), (FOUR,)), (1.0, 0.0, 1.0)),
    ),
    "messages as prompt": ({"messages": [USER], "completions": ["4"], "rewards": [0]}, ("group", (USER,), ((FOUR,),), (0.0,))),
}


@pytest.mark.parametrize(("record", "expected"), GROUPS.values(), ids=GROUPS)
def test_R31_groups(record: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert content(row(record)) == expected


CHATS = {
    "messages": ({"messages": [BE_BRIEF, *CONVERSATION]}, ("chat", (BE_BRIEF, USER), ((FIVE, MORE, FOUR),), (1.0,))),
    "unused text prompt": ({"prompt": "2 + 2?", "messages": [USER, FOUR]}, ("chat", (USER,), ((FOUR,),), (1.0,))),
    "sharegpt": (
        {"system": "Be brief.", "conversations": [spoken("human", "2 + 2?"), spoken("gpt", "4")]},
        ("chat", (BE_BRIEF, USER), ((FOUR,),), (1.0,)),
    ),
    "assistant opens": ({"messages": [FIVE, MORE, FOUR]}, ("chat", (), ((FIVE, MORE, FOUR),), (1.0,))),
    "plain": ({"prompt": "2 + 2?", "completion": "4"}, ("chat", "2 + 2?", ("4",), (1.0,))),
    "alpaca": ({"instruction": "2 + 2?", "input": "", "output": "4"}, ("chat", (USER,), ((FOUR,),), (1.0,))),
    "HALOs sample": (
        {"type": "sample", "prompt": [USER], "instruction": "2 + 2?", "output": "4"},
        ("chat", (USER,), ((FOUR,),), (1.0,)),
    ),
    "tools": (
        {
            "conversations": [
                spoken("human", "2 + 2?"),
                spoken("function_call", "{}"),
                spoken("observation", "4"),
                spoken("gpt", "4"),
            ]
        },
        ("chat", (USER,), ((turn("assistant", "{}"), turn("tool", "4"), FOUR),), (1.0,)),
    ),
    "tool calls without text": (
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
        ("chat", (USER,), (({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},),), (1.0,)),
    ),
}


@pytest.mark.parametrize(("record", "expected"), CHATS.values(), ids=CHATS)
def test_chats(record: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert content(row(record)) == expected


def test_columns_are_renamed_and_leave_their_old_names() -> None:
    """`instruction` mapped to `prompt` is a plain prompt, no alpaca record; a mapped name wins over a column that has it."""
    record = {"instruction": "2 + 2?", "good": "4", "bad": "5", "chosen": 3}
    columns = {"prompt": "instruction", "chosen": "good", "rejected": "bad"}
    assert content(row(record, columns=columns)) == PLAIN_PAIR


def test_text_of_jsonl_is_never_decoded() -> None:
    chosen = json.dumps([FOUR])
    assert content(row({"prompt": "2 + 2?", "chosen": chosen, "rejected": "5"})) == ("pair", "2 + 2?", (chosen, "5"), (1.0, 0.0))
