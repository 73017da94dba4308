"""Counts that need no model, by hand and against what training would really drop and cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builders import completion, save_model
from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.rows import Completion, EncodedGroup, Kind, Place, Row
from humanline.data.vocabulary import Vocabulary
from humanline.models import load_tokenizer
from humanline.quality import contents


def row(kind: Kind, number: int, prompt: str, *texts: str, feedback: tuple[float | None, ...] | None = None) -> Row:
    return Row(kind, prompt, tuple(map(Completion, texts)), feedback or (1.0,) * len(texts), Place("rows.jsonl", number))


def group(*rewards: float, number: int = 1, kind: Kind = "group") -> EncodedGroup:
    return EncodedGroup(
        kind, np.array([5], np.int32), tuple(completion([6, 7], reward) for reward in rewards), Place("rows.jsonl", number)
    )


@pytest.mark.parametrize("kind", ["group", "pair"])
@pytest.mark.parametrize("max_length", [4, 7, 12, 40])
def test_truncation_counts_are_what_encoding_really_does(tmp_path: Path, kind: Kind, max_length: int) -> None:
    tokenizer = load_tokenizer(save_model(tmp_path))
    rows = [row(kind, 1, "abc", "de", "fgh"), row(kind, 2, "abcdefgh", "i", "jklmnop"), row(kind, 3, "a", "b" * 30, "c" * 4)]
    whole, _ = encode_rows(rows, tokenizer, DataConfig(max_length=100))
    found = contents.truncation(whole, max_length, Vocabulary(tokenizer))
    short = row(kind, 4, "a", "b", "b")  # so that something is left
    _, dropped = encode_rows([*rows, short], tokenizer, DataConfig(max_length=max_length, too_long="drop"))
    cut, truncated = encode_rows(rows, tokenizer, DataConfig(max_length=max_length, too_long="truncate"))
    assert found.drop_rows == dropped.rows_in - dropped.rows_out
    assert found.drop_completions == dropped.completions_in - dropped.completions_out
    assert (found.cut_prompts, found.cut_completions) == (
        truncated.truncated_prompts.number,
        truncated.truncated_completions.number,
    )

    def tokens(groups: list[EncodedGroup]) -> int:
        return sum(len(each.prompt_ids) + sum(len(one.ids) for one in each.completions) for each in groups)

    assert found.cut_tokens == tokens(whole) - tokens(cut)
    assert found.too_long == sum(len(each.prompt_ids) + len(one.ids) > max_length for each in whole for one in each.completions)


def test_lengths_are_those_before_anything_is_cut(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_model(tmp_path))
    whole, _ = encode_rows([row("group", 1, "abc", "de", "fgh"), row("group", 2, "a", "b")], tokenizer, DataConfig())
    found = contents.lengths(whole)
    assert found.prompt.quantiles[0] == 1 and found.prompt.quantiles[-1] == 3 and found.prompt.count == 2
    # With an end of sequence each: completions of 3, 4 and 2 tokens, totals of 6, 7 and 3.
    assert found.completion.mean == 3 and found.completion.quantiles[2] == 3
    assert found.total.quantiles[0] == 3 and found.total.quantiles[-1] == 7


def test_duplicates_are_counted_after_the_first_with_the_place_of_the_second() -> None:
    rows = [
        row("group", 1, "ab", "c", "c"),
        row("group", 2, "ab", "d", "e"),
        row("group", 3, "ab", "d", "e"),
        row("group", 4, "ab", "d", "e", feedback=(1.0, 0.5)),
        row("group", 5, "a", "bd", "e"),
    ]
    found = contents.duplicates(rows)
    assert found.rows == contents.Repeats(1, "rows.jsonl:3")
    assert found.prompts == contents.Repeats(3, "rows.jsonl:2")
    assert found.completions == contents.Repeats(1, "rows.jsonl:1")


def test_texts_that_only_look_alike_when_joined_are_not_duplicates() -> None:
    assert contents.duplicates([row("pair", 1, "a", "bc", "d"), row("pair", 2, "ab", "c", "d")]).rows.number == 0


def test_R23_groups_that_teach_nothing_are_counted_apart() -> None:
    nan = float("nan")
    groups = [group(1.0, 1.0), group(1.0, 3.0), group(2.0), group(nan, nan), group(nan, 4.0), group(0.0, 0.0, nan)]
    found = contents.feedback(groups)
    assert (found.zero_variance, found.single, found.unscored) == (2, 3, 4)
    assert found.group_sizes == {1: 1, 2: 4, 3: 1}
    assert found.reward is not None and found.reward.count == 8 and found.reward.mean == pytest.approx(12 / 8)
    assert found.within_std == pytest.approx((0 + np.sqrt(2) + 0) / 3)


def test_classes_are_balanced_by_completion() -> None:
    labels = [group(1.0, kind="label"), group(1.0, kind="label"), group(0.0, kind="label")]
    assert contents.feedback(labels).classes == {"desirable": 2, "undesirable": 1}
    assert contents.feedback([group(1.0, 0.0, kind="pair")]).classes == {"chosen": 1, "rejected": 1}
