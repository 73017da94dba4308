"""Rows too long or empty: one policy for all kinds, every row counted, exact lines and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.rows import Completion, Kind, Place, Row
from humanline.errors import DataError
from small_tokenizers import chatml, instructions

CHATML, INSTRUCTIONS = chatml(), instructions()
Z = int(CHATML("z", add_special_tokens=False)["input_ids"][0])
ALL_ZERO = "nothing was dropped, cut or repaired"


def sized(prompt: int, *completions: int, kind: Kind = "pair", line: int = 3) -> Row:
    """A row of so many tokens each: "z" is one token and never merges; completions end with EOS, one of size 0 is empty."""
    made = tuple(Completion("z" * (size - 1)) if size else Completion("", token_ids=()) for size in completions)
    return Row(kind, "z" * prompt, made, (1.0,) * len(completions), Place("train.jsonl", line))


def sizes(rows: Sequence[Row], **settings: Any) -> list[tuple[int, ...]]:
    groups, _ = encode_rows(rows, CHATML, DataConfig(**settings))
    return [(len(group.prompt_ids), *(len(completion.ids) for completion in group.completions)) for group in groups]


def lines(rows: Sequence[Row], **settings: Any) -> list[str]:
    return encode_rows(rows, CHATML, DataConfig(**settings))[1].lines()


def test_all_counts_are_printed_when_nothing_happened() -> None:
    assert lines([sized(5, 3, 4), sized(2, 2, 2, line=4)], max_length=16) == [
        "encoded 2 of 2 rows with 4 of 4 completions",
        "tokens: 7 in prompts, 11 in completions (11 trained), longest 9 of max_length 16",
        ALL_ZERO,
    ]


def test_R14_a_prompt_that_fills_max_length_is_dropped_by_name() -> None:
    rows = [sized(4, 3, kind="label", line=2), sized(20, 3, kind="label", line=3)]
    assert lines(rows, max_length=16) == [
        "encoded 1 of 2 rows with 1 of 2 completions",
        "tokens: 4 in prompts, 3 in completions (3 trained), longest 7 of max_length 16",
        "dropped 1 of 2 rows: prompt 20 >= max_length 16 (train.jsonl:3)",
        ALL_ZERO.replace("nothing", "nothing else"),
    ]


@pytest.mark.parametrize(
    ("kind", "drop", "truncate", "line"),
    [
        (
            "pair",
            [(4, 3, 3)] * 8,
            (6, 10, 4),
            "dropped 2 of 10 rows: prompt 9 + completion 10 > max_length 16 (first train.jsonl:9)",
        ),
        (
            "group",
            [(4, 3, 3)] * 8 + [(9, 4)] * 2,
            (6, 10, 4),
            "dropped 2 of 20 completions, their groups stay: prompt 9 + completion 10 > max_length 16 (first train.jsonl:9)",
        ),
    ],
)
def test_R15_ten_rows_two_too_long_under_each_policy(kind: Kind, drop: Any, truncate: Any, line: str) -> None:
    rows = [sized(4, 3, 3, kind=kind, line=number) for number in range(1, 9)] + [
        sized(9, 10, 4, kind=kind, line=number) for number in (9, 10)
    ]
    assert sizes(rows, max_length=16, too_long="drop") == drop
    assert line in lines(rows, max_length=16, too_long="drop")
    assert sizes(rows, max_length=16, too_long="truncate") == [(4, 3, 3)] * 8 + [truncate] * 2
    assert "2 prompts truncated (first train.jsonl:9): their start was cut to fit max_length" in lines(
        rows, max_length=16, too_long="truncate"
    )
    with pytest.raises(DataError) as caught:
        encode_rows(rows, CHATML, DataConfig(max_length=16, too_long="error"))
    assert str(caught.value) == (
        "train.jsonl:9: completion 1 of 2: prompt 9 + completion 10 > max_length 16.\n"
        "  Raise --rows.max-length, or use `--rows.too-long drop` or `--rows.too-long truncate`."
    )


def test_R14_truncation_cuts_the_prompt_s_start_before_it_cuts_completions() -> None:
    """The end of the prompt and the BOS stay, both completions keep one prompt; a completion cut at its end is unfinished."""
    only = Row(
        "pair",
        "How much in dollars does she make?",
        (Completion(" three eggs"), Completion(" 8")),
        (1.0, 0.0),
        Place("t.jsonl", 1),
    )
    (full,), _ = encode_rows([only], INSTRUCTIONS, DataConfig())
    longest = len(full.completions[0].ids)
    (group,), _ = encode_rows([only], INSTRUCTIONS, DataConfig(max_length=longest + 4, too_long="truncate"))
    assert group.prompt_ids.tolist() == [1, *full.prompt_ids[-3:].tolist()]
    assert [completion.finished for completion in group.completions] == [True, True]
    (group,), report = encode_rows([only], INSTRUCTIONS, DataConfig(max_length=longest, too_long="truncate"))
    assert group.prompt_ids.tolist() == [1]
    assert group.completions[0].ids.tolist() == full.completions[0].ids[:-1].tolist()
    assert [completion.finished for completion in group.completions] == [False, True]
    assert report.lines()[2:4] == [
        "1 prompts truncated (t.jsonl:1): their start was cut to fit max_length",
        "1 completions truncated (t.jsonl:1): their end was cut to fit max_length",
    ]
    (group,), _ = encode_rows([sized(9, 5, kind="label")], CHATML, DataConfig(max_length=3, too_long="truncate"))
    assert (group.prompt_ids.tolist(), group.completions[0].ids.tolist()) == ([Z], [Z, Z])


def test_truncation_keeps_a_bos_that_only_the_template_puts() -> None:
    """SmolLM2 declares a BOS that its tokenizer never adds; here the prompt of 8 tokens spells it out."""
    tokenizer = chatml()
    tokenizer.bos_token = "<|im_start|>"
    only = Row("label", "<|im_start|>zzzzzzq", (Completion("z"),), (1.0,), Place("t.jsonl", 1))
    (group,), _ = encode_rows([only], tokenizer, DataConfig(max_length=5, too_long="truncate"))
    assert tokenizer.decode(group.prompt_ids) == "<|im_start|>zq"


def test_truncation_cuts_log_probs_and_masks_with_the_tokens() -> None:
    sampled = Completion("", token_ids=(9, 10, 11, 2), logps=(-1.0, -2.0, -3.0, -4.0))
    only = Row("group", "zzzz", (sampled,), (1.0,), Place("t.jsonl", 1))
    (group,), _ = encode_rows([only], CHATML, DataConfig(max_length=4, too_long="truncate"))
    (completion,) = group.completions
    assert completion.ids.tolist() == [9, 10, 11] and completion.mask.tolist() == [True] * 3 and not completion.finished
    assert completion.logps is not None and completion.logps.tolist() == [-1.0, -2.0, -3.0]


def test_what_is_left_without_a_trained_token_is_dropped_too() -> None:
    """The prompt's last token is no longer shared, as the other completion merges with it; only that one fits."""
    only = Row("pair", "The ", (Completion("ducks"), Completion("zq")), (1.0, 0.0), Place("t.jsonl", 1))
    rows = [only, sized(2, 1, 1)]
    assert (
        lines(rows, max_length=2, too_long="truncate")[2]
        == "dropped 1 of 2 rows: no trained token within max_length 2 (t.jsonl:1)"
    )


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_empty_completions_and_prompts_are_counted(too_long: Literal["drop", "truncate"]) -> None:
    rows = [sized(4, 3, 0, line=1), sized(0, 3, 3, line=2), sized(4, 3, 0, kind="group", line=3), sized(4, 1, 2, line=4)]
    assert sizes(rows, too_long=too_long) == [(4, 3), (4, 1, 2)]
    assert lines(rows, too_long=too_long)[2:5] == [
        "dropped 1 of 4 rows: empty completion (train.jsonl:1)",
        "dropped 1 of 4 rows: empty prompt and no BOS token, so nothing predicts the first token (train.jsonl:2)",
        "dropped 1 of 8 completions, their groups stay: empty completion (train.jsonl:3)",
    ]
    (group,), _ = encode_rows([sized(0, 3)], INSTRUCTIONS, DataConfig())
    assert group.prompt_ids.tolist() == [1], "with a BOS an empty prompt is fine"


@pytest.mark.parametrize(
    ("only", "detail"),
    [
        (sized(4, 3, 0), "completion 2 of 2: empty completion"),
        (sized(0, 3, kind="label"), "empty prompt and no BOS token, so nothing predicts the first token"),
    ],
)
def test_empty_ones_are_errors_under_error(only: Row, detail: str) -> None:
    with pytest.raises(DataError) as caught:
        encode_rows([only], CHATML, DataConfig(too_long="error"))
    assert str(caught.value) == (
        f"train.jsonl:3: {detail}.\n  Take it out of the data, or use `--rows.too-long drop`, which leaves it out and counts it."
    )


def test_nothing_left_says_why_and_what_would_help() -> None:
    with pytest.raises(DataError) as caught:
        encode_rows([sized(20, 3, 4, line=1), sized(4, 0, 4, line=2), sized(9, 9, 9, line=3)], CHATML, DataConfig(max_length=16))
    assert str(caught.value) == (
        "no row is left to train on: dropped 1 of 3 rows: prompt 20 >= max_length 16 (train.jsonl:1); dropped 1 of 3 rows: empty "
        "completion (train.jsonl:2); dropped 1 of 3 rows: prompt 9 + completion 9 > max_length 16 (train.jsonl:3).\n"
        "  Raise --rows.max-length (the longest row has 24 tokens), or cut rows with `--rows.too-long truncate`."
    )
    with pytest.raises(DataError) as caught:
        encode_rows([sized(4, 0, line=1)], CHATML, DataConfig())
    assert str(caught.value) == (
        "no row is left to train on: dropped 1 of 1 rows: empty completion (train.jsonl:1).\n"
        "  Look at the rows named: every row needs a prompt and an answer."
    )
    with pytest.raises(DataError, match=r"^no rows to encode"):
        encode_rows([], CHATML, DataConfig())


kinds: st.SearchStrategy[Kind] = st.sampled_from(["pair", "label", "group", "chat"])
shapes = st.lists(
    st.tuples(kinds, st.integers(0, 12), st.lists(st.integers(0, 12), min_size=1, max_size=4)), min_size=1, max_size=8
)


@settings(max_examples=300)
@given(shapes=shapes, max_length=st.integers(2, 20), too_long=st.sampled_from(["drop", "truncate"]), bos=st.booleans())
def test_R15_no_row_and_no_completion_is_lost_without_a_count(
    shapes: list[tuple[Kind, int, list[int]]], max_length: int, too_long: Literal["drop", "truncate"], bos: bool
) -> None:
    """Any mixture of sizes, kinds and policies, held against the rule written out per row."""
    tokenizer, lead, z = (INSTRUCTIONS, 1, "<unk>") if bos else (CHATML, 0, "z")
    rows = []
    for number, (kind, prompt, completions) in enumerate(shapes):
        row = sized(prompt, *completions[: 1 if kind in ("label", "chat") else 4], kind=kind, line=number)
        ids = tuple(Completion("", token_ids=(*[5] * (size - 1), 2) if size else ()) for size in map(_size, row.completions))
        rows.append(Row(kind, z * prompt, ids, row.feedback, row.place))
    expected = []
    for row, (_, prompt, _) in zip(rows, shapes, strict=True):
        before, after = prompt + lead, [len(completion.token_ids or ()) for completion in row.completions]
        fits = [bool(before) and 0 < size <= (max_length - before if too_long == "drop" else size) for size in after]
        if any(fits) and (row.kind == "group" or all(fits)):
            kept = [size for size, fit in zip(after, fits, strict=True) if fit]
            before = min(before, max(1, max_length - max(kept)))
            expected.append((before, *(min(size, max_length - before) for size in kept), row.place.line))
    config = DataConfig(max_length=max_length, too_long=too_long)
    if not expected:
        with pytest.raises(DataError, match=r"^no row is left"):
            encode_rows(rows, tokenizer, config)
        return
    groups, report = encode_rows(rows, tokenizer, config)
    found = [(len(each.prompt_ids), *(len(part.ids) for part in each.completions), each.place.line) for each in groups]
    assert found == expected
    assert report.rows_in == len(rows) and report.rows_out == len(groups)
    assert report.rows_in - report.rows_out == sum(count.number for count in report.dropped_rows.values())
    assert report.completions_in - report.completions_out == report.completions_of_dropped_rows + sum(
        count.number for count in report.dropped_completions.values()
    )
    assert report.longest == max(before + max(after) for before, *after, _ in found) <= max_length
    assert report.prompt_tokens == sum(len(each.prompt_ids) for each in groups)
    assert report.completion_tokens == report.trained_tokens == sum(len(part.ids) for each in groups for part in each.completions)
    for group in groups:
        assert not bos or group.prompt_ids[0] == 1
        for completion in group.completions:
            assert completion.mask.all() and completion.finished == (completion.ids[-1] == 2)


def _size(completion: Completion) -> int:
    return 0 if completion.token_ids == () else len(completion.text) + 1


def test_many_rows_in_several_blocks_keep_their_order() -> None:
    rows = [sized(1 + number % 7, 2, kind="label", line=number + 1) for number in range(2500)]
    groups, report = encode_rows(iter(rows), CHATML, DataConfig())
    assert [group.place.line for group in groups] == list(range(1, 2501)) and report.rows_in == 2500
    assert all(np.array_equal(group.prompt_ids, [Z] * (1 + number % 7)) for number, group in enumerate(groups))
