"""Prompts: found in rows of any shape, tokenized as the trainer tokenizes them, fitted in length, never silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.notes import Notes
from humanline.data.record import Record
from humanline.data.rows import Completion, Place, Row
from humanline.data.texts import prompt_alone
from humanline.errors import ConfigError, DataError, ModelError
from humanline.sample.config import PromptConfig
from humanline.sample.prompts import Prompt, load_prompts, prompt_room
from small_tokenizers import TOKENIZERS, bare, chatml, instructions

USER = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be brief."}


def load(
    records: list[dict[str, Any]], *, tokenizer: Any = None, room: int | None = None, **config: Any
) -> tuple[list[Prompt], list[str]]:
    return load_prompts(records, tokenizer or chatml(), PromptConfig(**config), room=room)


# Where the prompt is


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "2 + 2?", "answer": "4"}, "2 + 2?"),
        ({"prompt": [USER]}, (USER,)),
        ({"messages": [SYSTEM, USER]}, (SYSTEM, USER)),
        ({"messages": [SYSTEM, USER, ANSWER]}, (SYSTEM, USER)),
        ({"messages": [USER, ANSWER, USER]}, (USER, ANSWER, USER)),
        ({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}, (USER,)),
        ({"instruction": "Add.", "input": "2, 2"}, ({"role": "user", "content": "Add.\n2, 2"},)),
        ({"prompt": "2 + 2?", "system": "Be brief."}, (SYSTEM, USER)),
        ({"prompt": "2 + 2?", "history": [["Hi", "4"]]}, ({"role": "user", "content": "Hi"}, ANSWER, USER)),
        ({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}, "2 + 2?"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "5"}]}, (USER,)),
        ({"prompt": "2 + 2?", "chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "5"}]}, (USER,)),
        ({"prompt": "2 + 2?", "completion": "4", "label": True}, "2 + 2?"),
        ({"prompt": "2 + 2?", "completions": ["4", "5"], "rewards": [1, 0]}, "2 + 2?"),
        ({"prompt": [USER, {"role": "assistant", "content": "It is"}]}, (USER, {"role": "assistant", "content": "It is"})),
    ],
)  # fmt: skip
def test_the_prompt_of_every_row_shape(record: dict[str, Any], expected: object) -> None:
    assert prompt_alone(Record(Place("rows.jsonl", 1), record), Notes()) == expected


def test_columns_name_the_prompt() -> None:
    (prompt,), _ = load([{"question": "2 + 2?", "answer": "4"}], columns={"prompt": "question"})
    assert prompt.text == "2 + 2?" and prompt.others == {"prompt": "2 + 2?", "answer": "4"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "2 + 2?"}, "<memory>:1: row has no prompt (keys: question (text))."),
        ({"messages": [ANSWER]}, "<memory>:1: nothing comes before the answer: expected a user or system turn first."),
        ({"prompt": 3}, "<memory>:1: 'prompt' is a number (3): expected text or a list of messages."),
    ],
)
def test_a_row_without_a_prompt_is_named(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as raised:
        load([record])
    assert str(raised.value).splitlines()[0] == message


def test_an_answer_left_out_of_the_prompt_is_counted() -> None:
    _, lines = load([{"messages": [USER]}, {"messages": [USER, ANSWER]}, {"messages": [USER, ANSWER]}])
    assert lines == ["answer at the end of 'messages' left out of the prompt: 2 rows (first <memory>:2)"]


# The prompt's tokens are the trainer's


@pytest.mark.parametrize("name", ["chatml", "pad_is_eos", "end_of_text", "instructions", "bare", "wordpiece"])
@pytest.mark.parametrize("template", ["auto", "chat", "none"])
def test_R16_prompt_ids_are_those_that_training_on_the_samples_uses(name: str, template: str) -> None:
    """The written row, trained on under the default template setting: the same prompt ids, with nothing to repair."""
    tokenizer = TOKENIZERS[name]()
    records = [{"prompt": "Hello, hello there."}, {"prompt": "What is 2 + 2?\nAnswer: "}]
    if template == "chat" and not tokenizer.chat_template:
        with pytest.raises(ModelError, match="chat template"):
            load(records, tokenizer=tokenizer, template=template)
        return
    prompts, _ = load(records, tokenizer=tokenizer, template=template)
    rows = [Row("group", prompt.text, (Completion("x", token_ids=(5,)),), (1.0,), prompt.place) for prompt in prompts]
    groups, report = encode_rows(rows, tokenizer, DataConfig())
    for prompt, group in zip(prompts, groups, strict=True):
        np.testing.assert_array_equal(prompt.ids, group.prompt_ids)
        assert prompt.ids.dtype == np.int32
    assert (report.merged_seams.number, report.reopened_seams.number) == (0, 0)


def test_the_generation_prompt_is_part_of_a_conversations_prompt() -> None:
    tokenizer = chatml()
    (prompt,), _ = load([{"messages": [SYSTEM, USER]}], tokenizer=tokenizer)
    assert tokenizer.decode(prompt.ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_R17_one_beginning_of_sequence_from_template_and_tokenizer() -> None:
    tokenizer = instructions()
    (turns,), _ = load([{"messages": [USER]}], tokenizer=tokenizer)
    (text,), _ = load([{"prompt": "2 + 2?"}], tokenizer=tokenizer)
    for prompt in (turns, text):
        assert prompt.ids.tolist().count(1) == 1 and prompt.ids[0] == 1


def test_strings_become_turns_where_other_rows_hold_turns() -> None:
    """As in training, where all rows of a file are rendered alike."""
    prompts, _ = load([{"prompt": "2 + 2?"}, {"prompt": [USER]}])
    assert prompts[0].text == prompts[1].text == (USER,)
    np.testing.assert_array_equal(prompts[0].ids, prompts[1].ids)


def test_template_none_refuses_messages() -> None:
    with pytest.raises(DataError, match=r"rows.template is none, but the row holds messages"):
        load([{"messages": [USER]}], template="none")


# Length


def sized(*lengths: int) -> list[dict[str, Any]]:
    """Prompts of so many tokens: "z" never merges."""
    return [{"prompt": "z" * length} for length in lengths]


def test_R15_too_long_prompts_are_dropped_and_counted_and_keep_their_numbers() -> None:
    prompts, lines = load(sized(3, 20, 4, 17), max_prompt_tokens=16)
    assert [(prompt.number, len(prompt.ids)) for prompt in prompts] == [(0, 3), (2, 4)]
    assert lines == ["dropped 2 of 4 prompts: 20 > 16 tokens (first <memory>:2)"]


def test_R15_too_long_prompts_are_cut_at_their_start_and_keep_their_beginning_of_sequence() -> None:
    tokenizer = instructions()
    long = [{"prompt": "She makes 18 dollars every day at the market, and eats three eggs for breakfast."}]
    (whole,), _ = load(long, tokenizer=tokenizer)
    (cut,), lines = load(long, tokenizer=tokenizer, max_prompt_tokens=8, too_long="truncate")
    assert cut.ids.tolist() == [1, *whole.ids[-7:].tolist()] and cut.truncated and cut.text == whole.text
    assert lines == [f"truncated 1 of 1 prompts: {len(whole.ids)} > 8 tokens (<memory>:1)"]


def test_R15_too_long_prompts_can_be_an_error() -> None:
    with pytest.raises(DataError) as raised:
        load(sized(3, 20), max_prompt_tokens=16, too_long="error")
    assert str(raised.value) == (
        "<memory>:2: prompt 20 > 16 tokens.\n  Use `--rows.too-long drop`, which leaves it out and counts it, or raise the limit."
    )


def test_the_models_positions_limit_a_prompt_too() -> None:
    prompts, lines = load(sized(3, 20), room=prompt_room(128, 112))
    assert len(prompts) == 1 and lines == ["dropped 1 of 2 prompts: 20 > 16 tokens (<memory>:2)"]
    prompts, _ = load(sized(3, 20), room=16, max_prompt_tokens=2, too_long="truncate")
    assert [len(prompt.ids) for prompt in prompts] == [2, 2]


def test_no_room_for_a_prompt_is_an_error() -> None:
    assert prompt_room(None, 512) is None
    with pytest.raises(ConfigError) as raised:
        prompt_room(128, 128)
    assert str(raised.value) == (
        "sample.max_new_tokens is 128: expected less than the model's 128 positions, so that a prompt fits too."
    )


def test_nothing_left_names_the_way_out() -> None:
    with pytest.raises(DataError) as raised:
        load(sized(20, 30), max_prompt_tokens=16)
    assert str(raised.value) == (
        "<memory>:1: no prompt is left to sample from: dropped 2 of 2 prompts: 20 > 16 tokens (first <memory>:1).\n"
        "  Raise --rows.max-prompt-tokens, or cut prompts with `--rows.too-long truncate`."
    )


def test_an_empty_prompt_without_a_beginning_of_sequence_is_left_out() -> None:
    prompts, lines = load([{"prompt": ""}, {"prompt": "z"}], tokenizer=bare())
    assert [prompt.number for prompt in prompts] == [1]
    assert lines == ["dropped 1 of 2 prompts: empty, and no BOS token precedes it (<memory>:1)"]
    prompts, lines = load([{"prompt": ""}], tokenizer=instructions())
    assert prompts[0].ids.tolist() == [1] and lines == []


def test_rows_are_limited_before_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [*sized(3, 4), {"prompt": 3}]))
    prompts, _ = load_prompts(path, chatml(), PromptConfig(limit_rows=2))
    assert [str(prompt.place) for prompt in prompts] == ["prompts.jsonl:1", "prompts.jsonl:2"]
