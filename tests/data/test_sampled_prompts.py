"""What `humanline sample` stores beside completions: the prompt's own ids, and what the log-probs are taken under."""

from __future__ import annotations

from typing import Any

import pytest

from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.rows import EncodedGroup
from humanline.data.schema import load_rows
from humanline.errors import DataError
from small_tokenizers import chatml

TOKENIZER = chatml()
ROW = {"prompt": "zz", "completions": ["z", "zz"], "rewards": [1.0, 0.0]}
Z = int(TOKENIZER("z", add_special_tokens=False)["input_ids"][0])


def encode(**changes: Any) -> tuple[EncodedGroup, list[str]]:
    rows, _ = load_rows([ROW | changes], "group")
    groups, report = encode_rows(rows, TOKENIZER, DataConfig(eos=False))
    return groups[0], report.lines()


def test_R15_stored_prompt_ids_are_trained_on_and_counted_where_the_text_says_otherwise() -> None:
    group, lines = encode(completion_ids=[[5], [6, 7]], prompt_ids=[Z])
    assert group.prompt_ids.tolist() == [Z] and group.prompt_ids.dtype == "int32"
    assert lines[-2] == (
        "1 prompts as sampled (<memory>:1): their stored prompt_ids differ from their text: cut, or under another template"
    )
    group, lines = encode(completion_ids=[[5], [6, 7]], prompt_ids=[Z, Z])
    assert group.prompt_ids.tolist() == [Z, Z] and not any("prompts as sampled" in line for line in lines)
    assert lines[-1] == "nothing was dropped, cut or repaired"


def test_stored_prompt_ids_need_completions_that_follow_them() -> None:
    """Completions given as text are tokenized with their prompt, whatever ids it was once sampled from."""
    group, _ = encode(completion_ids=[None, None], prompt_ids=[Z])
    assert group.prompt_ids.tolist() == [Z, Z]


def test_rows_scored_one_by_one_keep_their_prompt_ids_and_transform() -> None:
    single = {"prompt": "zz", "completion": "z", "reward": 1.0, "completion_ids": [5], "logprobs": [-0.5], "prompt_ids": [Z]}
    sampler = {"logprobs": {"temperature": 0.5, "top_p": 1.0}}
    rows, _ = load_rows([single, single | {"reward": 0.0}, single | {"prompt_ids": [Z, Z], "sampler": sampler}], "group")
    assert [(row.prompt_ids, len(row.completions)) for row in rows] == [((Z,), 2), ((Z, Z), 1)]
    assert [row.completions[0].transform for row in rows] == [(1.0, 1.0), (0.5, 1.0)]


@pytest.mark.parametrize("sampler", [None, "vllm", {"logprobs": None}, {"model": "m"}])
def test_rows_without_a_statement_hold_the_policys_own_log_probs(sampler: object) -> None:
    group, _ = encode(completion_ids=[[5], [6, 7]], logprobs=[[-1.0], [-0.5, -0.25]], sampler=sampler)
    assert group.completions[1].logps.tolist() == [-0.5, -0.25]


def test_R10_log_probs_of_text_under_a_temperature_are_left_out_too() -> None:
    group, lines = encode(logprobs=[[-1.0], [-0.5, -0.25]], sampler={"logprobs": {"temperature": 0.7, "top_p": 1.0}})
    assert group.completions[0].logps is None
    assert "2 log-probs left out (first <memory>:1): taken under a temperature or top_p; a scoring pass replaces them" in lines


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": "zz"}, "<memory>:1: 'prompt_ids' is text ('zz'): expected a list of numbers or null."),
        ({"prompt_ids": [1.5]}, "<memory>:1: 'prompt_ids[0]' is a number (1.5): expected a token id."),
        ({"prompt_ids": [-1]}, "<memory>:1: 'prompt_ids[0]' is a number (-1): expected a token id."),
        ({"prompt_ids": [99999]}, f"<memory>:1: prompt_ids hold token id 99999. Expected 0 to {len(TOKENIZER) - 1}."),
        (
            {"sampler": {"logprobs": {"temperature": "warm", "top_p": 1.0}}},
            "<memory>:1: 'sampler.logprobs.temperature' is text ('warm'): expected a finite number.",
        ),
        (
            {"sampler": {"logprobs": {"temperature": 1.0}}},
            "<memory>:1: 'sampler.logprobs.top_p' is null: expected a finite number.",
        ),
    ],
)
def test_what_cannot_be_read_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as raised:
        encode(completion_ids=[[5], [6, 7]], **changes)
    assert str(raised.value).splitlines()[0] == message
