"""Prompt and completion are together the tokens of the whole text; masks, ends and the sampler's own ids. No templates here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.rows import Completion, EncodedGroup, Kind, Place, Row
from humanline.errors import DataError, ModelError
from small_tokenizers import TOKENIZERS, bare, chatml, end_of_text, instructions, pad_is_eos, wordpiece

READY = {name: make() for name, make in TOKENIZERS.items()}
WORDS = ["The", " ducks", " ", "\n", "\n\n", "2 + 2", "Hello", "ello", ".", "zq", "é", "🦆"]
PIECES = [*WORDS, "<|im_end|>", "<s>", "</s>", "[SEP]"]
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def row(prompt: str, *answers: str | Completion, kind: Kind = "group", line: int = 3) -> Row:
    completions = tuple(Completion(answer) if isinstance(answer, str) else answer for answer in answers)
    return Row(kind, prompt, completions, tuple(float(number) for number in range(len(answers))), Place("train.jsonl", line))


def encode_one(
    tokenizer: PreTrainedTokenizerBase, only: Row, *, eos_ids: tuple[int, ...] = (), **settings: object
) -> EncodedGroup:
    (group,), _ = encode_rows([only], tokenizer, DataConfig(**settings), eos_ids=eos_ids)  # type: ignore[arg-type]
    return group


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def whole(group: EncodedGroup, number: int = 0) -> list[int]:
    return [*group.prompt_ids.tolist(), *group.completions[number].ids.tolist()]


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


LEADS = {"instructions": [1], "wordpiece": [2]}
ENDS = {"chatml": 2, "pad_is_eos": 2, "end_of_text": 0, "bare": None, "instructions": 2, "wordpiece": 3}


@settings(max_examples=400)
@given(name=st.sampled_from(list(READY)), prompt=texts, answers=st.lists(texts, min_size=1, max_size=3), eos=st.booleans())
def test_R16_tokens_of_prompt_and_completion_are_those_of_the_whole_text(
    name: str, prompt: str, answers: list[str], eos: bool
) -> None:
    """For every tokenizer and seam, by an own construction: [BOS] + tokens(prompt + answer) up to the first EOS, plus EOS;
    the prompt is the shortest common prefix with the prompt's own tokens; the mask starts at each own one."""
    tokenizer, lead, end = READY[name], LEADS.get(name, []), ENDS[name]

    def led(text: str) -> list[int]:
        ids = ids_of(tokenizer, text)
        return ids if ids[: len(lead)] == lead and lead else lead + ids

    alone = led(prompt)
    expected, seams = [], []
    for answer in answers:
        ids = led(prompt + answer)
        seam = shared(alone, ids)
        stop = next((at + 1 for at in range(seam, len(ids)) if ids[at] == end), None)
        expected.append(ids[:stop] if stop or not eos or end is None else [*ids, end])
        seams.append(seam)
    start = min(seams)
    empty = [len(ids) == seam for ids, seam in zip(expected, seams, strict=True)]
    if start == 0 or all(empty):
        with pytest.raises(DataError, match=r"^no row is left to train on: dropped 1 of 1 rows: empty"):
            encode_rows([row(prompt, *answers)], tokenizer, DataConfig(eos=eos))
        return
    (group,), report = encode_rows([row(prompt, *answers)], tokenizer, DataConfig(eos=eos))
    kept = [number for number, none in enumerate(empty) if not none]
    assert [whole(group, number) for number in range(len(kept))] == [expected[number] for number in kept]
    assert group.prompt_ids.tolist() == alone[:start]
    for completion, number in zip(group.completions, kept, strict=True):
        assert completion.mask.tolist() == [at >= seams[number] for at in range(start, len(expected[number]))]
        assert completion.feedback == number
        assert completion.ids.dtype == np.int32 and completion.mask.dtype == bool
    assert report.merged_seams.number == (start < len(alone))
    assert sum(each.number for each in report.dropped_completions.values()) == sum(empty)


@given(prompt=texts, answer=texts.filter(lambda text: "<|im_end|>" not in text))
def test_R16_bytes_decode_to_the_very_text(prompt: str, answer: str) -> None:
    group = encode_one(READY["chatml"], row(f"A{prompt}", answer))
    assert READY["chatml"].decode(whole(group)) == f"A{prompt}{answer}<|im_end|>"


def test_R16_a_merge_across_the_seam_moves_the_boundary_for_all_completions() -> None:
    """The + ducks is "The", " ducks": the space is no prompt token then. With zq it is one, so it stands before that completion,
    untrained."""
    tokenizer = chatml()
    group, report = encode_rows([row("The ", "ducks", "zq")], tokenizer, DataConfig())
    assert tokenizer.convert_ids_to_tokens(group[0].prompt_ids) == ["The"]
    ducks, rare = group[0].completions
    assert tokenizer.convert_ids_to_tokens(ducks.ids) == ["Ġducks", "<|im_end|>"] and ducks.mask.all()
    assert tokenizer.convert_ids_to_tokens(rare.ids) == ["Ġ", "z", "q", "<|im_end|>"]
    assert rare.mask.tolist() == [False, True, True, True]
    line = "1 seams repaired (train.jsonl:3): a token spans prompt and completion, so the prompt ends before it"
    assert line in report.lines()


def test_R17_exactly_one_bos_at_the_start_or_none() -> None:
    for prompt in ("Hello", "<s>Hello"):
        group = encode_one(instructions(), row(prompt, "there", "how"))
        assert [whole(group, number).count(1) for number in (0, 1)] == [1, 1] and group.prompt_ids[0] == 1
    group = encode_one(chatml(), row("Hello", "there"))
    assert whole(group) == [*ids_of(chatml(), "Hellothere"), 2]
    assert whole(encode_one(wordpiece(), row("Hello", " there"))) == [2, *ids_of(wordpiece(), "Hello there"), 3]


def test_R17_a_tokenizer_that_contradicts_itself_is_refused() -> None:
    class Contradicting:
        eos_token_id = None

        def __len__(self) -> int:
            return 9

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [7, 8] if add_special_tokens else [5]}

    with pytest.raises(ModelError, match=r"encodes 'a' as \[5\], but as \[7, 8\] with its special tokens"):
        encode_rows([row("a", "b")], Contradicting(), DataConfig())  # type: ignore[arg-type]


def test_R18_the_end_is_trained_whatever_the_pad_token_is() -> None:
    groups = [encode_one(tokenizer, row("Say ok:", " ok")) for tokenizer in (chatml(), pad_is_eos())]
    assert whole(groups[0]) == whole(groups[1])
    assert groups[1].completions[0].ids[-1] == pad_is_eos().pad_token_id == 2
    assert groups[1].completions[0].mask.all() and groups[1].completions[0].finished


def test_end_is_put_once_and_only_where_it_belongs() -> None:
    tokenizer = chatml()
    cases: list[tuple[str | Completion, dict[str, object], list[str], bool]] = [
        ("Hello", {}, ["Hello", "<|im_end|>"], True),
        ("Hello<|im_end|>", {}, ["Hello", "<|im_end|>"], True),
        ("Hello<|im_end|>\n", {}, ["Hello", "<|im_end|>"], True),
        ("", {}, ["<|im_end|>"], True),
        ("Hello", {"eos": False}, ["Hello"], True),
        ("Hello<|im_end|>", {"eos": False}, ["Hello", "<|im_end|>"], True),
        (Completion("Hello", finished=False), {}, ["Hello"], False),
        (Completion("Hello<|im_end|>", finished=False), {}, ["Hello", "<|im_end|>"], True),
        (Completion("Hello", finished=True), {}, ["Hello", "<|im_end|>"], True),
    ]
    for answer, config, tokens, finished in cases:
        completion = encode_one(tokenizer, row("Say:", answer), **config).completions[0]
        assert tokenizer.convert_ids_to_tokens(completion.ids) == tokens, (answer, config)
        assert completion.finished is finished and completion.mask.all()


def test_no_end_is_invented_where_the_tokenizer_has_none() -> None:
    tokenizer = bare()
    (group,), report = encode_rows([row("Say:", "Hello")], tokenizer, DataConfig())
    assert tokenizer.decode(whole(group)) == "Say:Hello" and group.completions[0].finished
    assert report.without_end.number == 1
    assert whole(encode_one(tokenizer, row("Say:", "Hello"), eos_ids=(9,)))[-1] == 9


def test_R19_any_declared_end_stops_a_sampled_completion() -> None:
    """[eos 2, also 7]: ids after the first end are neither trained nor kept, log-probs likewise; it counts as finished."""
    sampled = Completion("", token_ids=(30, 7, 31, 2), logps=(-1.0, -2.0, -3.0, -4.0), finished=False)
    cut = Completion("", token_ids=(30, 31), logps=(-1.0, -2.0), finished=False)
    (group,), report = encode_rows([row("Say:", sampled, cut)], chatml(), DataConfig(), eos_ids=(7,))
    first, second = group.completions
    assert first.ids.tolist() == [30, 7] and first.mask.tolist() == [True, True] and first.finished
    assert first.logps is not None and first.logps.tolist() == [-1.0, -2.0] and first.logps.dtype == np.float32
    assert second.ids.tolist() == [30, 31] and not second.finished
    assert "1 completions cut (train.jsonl:3): something followed their end-of-sequence token" in report.lines()
    assert whole(encode_one(chatml(), row("Say:", dataclasses.replace(sampled, logps=None))))[-3:] == [7, 31, 2]


def test_R19_text_after_an_end_is_cut() -> None:
    (group,), report = encode_rows([row("Say:", "yes<|endoftext|>no")], chatml(), DataConfig(), eos_ids=(0,))
    assert chatml().decode(group.completions[0].ids) == "yes<|endoftext|>"
    assert report.cut_after_end.number == 1


def test_R29_ends_in_the_prompt_are_never_trained_and_stop_nothing() -> None:
    group = encode_one(end_of_text(), row("a<|endoftext|>b<|endoftext|>", " c"))
    assert end_of_text().decode(group.prompt_ids) == "a<|endoftext|>b<|endoftext|>"
    assert end_of_text().decode(group.completions[0].ids) == " c<|endoftext|>"


def test_sampled_ids_are_taken_as_they_are() -> None:
    """Not what tokenizing the text would give, not ended, with the whole prompt although text would merge with it."""
    sampled = Completion("ducks", token_ids=tuple(ids_of(chatml(), "d") + ids_of(chatml(), "ucks")))
    (group,), report = encode_rows([row("The ", sampled)], chatml(), DataConfig())
    assert chatml().decode(group.prompt_ids) == "The " and tuple(group.completions[0].ids) == sampled.token_ids
    assert group.completions[0].finished and report.without_end.number == 1


def test_a_missing_reward_is_nan() -> None:
    only = dataclasses.replace(row("Say:", "a", "b"), feedback=(None, 1.0))
    feedback = [completion.feedback for completion in encode_one(chatml(), only).completions]
    assert np.isnan(feedback[0]) and feedback[1] == 1.0


def test_log_probs_stored_with_text() -> None:
    """The text is 2 tokens and its end: 3 log-probs fill all, 2 leave the end out, as it was not sampled; after a merged seam the
    untrained prompt token has log-prob 0."""
    assert len(ids_of(chatml(), "ok")) == 2
    (group,), report = encode_rows(
        [row("Say:", Completion("ok", logps=(-1.0, -2.0, -3.0)), Completion("ok", logps=(-1.0, -2.0)))], chatml(), DataConfig()
    )
    assert [completion.logps.tolist() for completion in group.completions if completion.logps is not None] == [
        [-1.0, -2.0, -3.0],
        [-1.0, -2.0],
    ]
    assert len(group.completions[1].ids) == 2 and group.completions[1].finished
    assert "1 ends left out (train.jsonl:3): the end-of-sequence token has no stored log-prob" in report.lines()
    merged = encode_one(chatml(), row("The ", "ducks", Completion("zq", logps=(-1.0, -2.0))))
    assert merged.completions[1].logps is not None and merged.completions[1].logps.tolist() == [0.0, -1.0, -2.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            Completion("Hello", logps=(-1.0, -2.0, -3.0)),
            "train.jsonl:3: completion 2 has 3 log-probs, but its text encodes to 2 tokens with its end-of-sequence token. "
            "Expected one for each.\n  Store the sampler's token_ids beside them. "
            "Without log-probs, one scoring pass before training replaces them.",
        ),
        (
            Completion("", token_ids=(3, 4), logps=(-1.0,)),
            "train.jsonl:3: completion 2 has 1 log-probs for 2 token_ids. Expected one each.\n"
            "  Store both from the same sampler. Without log-probs, one scoring pass before training replaces them.",
        ),
        (
            Completion("", token_ids=(3, 4), logps=(-1.0, float("nan"))),
            "train.jsonl:3: completion 2 has log-prob nan at token 2. Expected finite.\n"
            "  Correct it, or leave the log-probs out. Without log-probs, one scoring pass before training replaces them.",
        ),
        (
            Completion("", token_ids=(3, len(READY["chatml"]))),
            f"train.jsonl:3: completion 2 has token id {len(READY['chatml'])}. Expected 0 to {len(READY['chatml']) - 1}.\n"
            "  It was sampled with another tokenizer: leave token_ids and log-probs out, so that its text is tokenized.",
        ),
    ],
)
def test_impossible_sampler_output_is_refused(answer: Completion, message: str) -> None:
    with pytest.raises(DataError) as caught:
        encode_rows([row("Say:", "fine", answer)], chatml(), DataConfig())
    assert str(caught.value) == message


def test_text_that_merges_with_the_prompt_of_sampled_ids_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        encode_rows([row("The ", Completion("", token_ids=(3,)), "ducks")], chatml(), DataConfig())
    assert str(caught.value) == (
        "train.jsonl:3: the text of completion 2 merges with the last prompt token, but other completions have token_ids that "
        "follow it.\n  Give token_ids for all completions of the row, or for none."
    )
